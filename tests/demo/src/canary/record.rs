//! What the demo of a canary observed, as a file and as lines of text. It does not depend on how it was observed.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use serde::{Deserialize, Serialize};

/// One run: its settings, its events, and what its load came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    /// Version of Kubernetes.
    pub(crate) kubernetes: String,
    pub(crate) settings: Settings,
    /// In the order in which they were observed.
    pub(crate) events: Vec<Event>,
    pub(crate) load: Load,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) requests_per_second: u32,
    pub(crate) load_seconds: u32,
    /// Between two looks at the engines.
    pub(crate) interval_seconds: u32,
    /// Of the requests of the bad version.
    pub(crate) bad_percent: u32,
    /// Bad requests that pass.
    pub(crate) limit_percent: u32,
    /// Of both versions.
    pub(crate) step_percents: [u32; 2],
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Seconds since the load began.
    pub(crate) second: f64,
    #[serde(flatten)]
    pub(crate) what: EventKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum EventKind {
    /// `spec.canary` names this version from now on.
    Applied {
        version: Version,
    },
    /// The weight of the candidate in the HTTPRoute.
    Share {
        percent: u32,
    },
    /// `status.canary.analysis` has further requests.
    Counted {
        step: u32,
        stable: Counts,
        candidate: Counts,
        upper_bound_percent: f64,
    },
    /// A step ended with a pass.
    Passed {
        step: u32,
    },
    RolledBack {
        reason: String,
        message: String,
    },
    /// All pods of stable have the version.
    Promoted,
    /// The candidate has no pods any more.
    Gone,
}

/// Requests of a step that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) ended: u32,
    pub(crate) bad: u32,
}

impl Counts {
    pub(crate) fn percent(self) -> f64 {
        if self.ended == 0 { 0.0 } else { f64::from(self.bad) / f64::from(self.ended) * 100.0 }
    }
}

/// What the load generator reports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Load {
    pub(crate) sent: u32,
    pub(crate) failed: u32,
    /// By kind.
    pub(crate) failures: BTreeMap<String, u32>,
    pub(crate) failed_by_second: BTreeMap<u32, u32>,
    /// Answers by version.
    pub(crate) answers: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Version {
    Bad,
    Good,
}

impl Version {
    pub(crate) const BOTH: [Self; 2] = [Self::Bad, Self::Good];

    /// As its engines answer.
    pub(crate) fn revision(self) -> &'static str {
        match self {
            Self::Bad => "2",
            Self::Good => "3",
        }
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bad => "bad version",
            Self::Good => "good version",
        })
    }
}

/// Of stable, as its engines answer.
pub(crate) const STABLE: &str = "1";

/// A line of the timeline.
pub(crate) fn line(event: &Event) -> String {
    let text = match &event.what {
        EventKind::Applied { version } => format!("spec.canary: the {version}"),
        EventKind::Share { percent } => format!("the candidate has {percent} % of the requests"),
        EventKind::Counted { stable, candidate, upper_bound_percent, .. } => format!(
            "errors: {} of {} of the candidate, with 95 % confidence below {upper_bound_percent} %; {} of {} of stable",
            candidate.bad, candidate.ended, stable.bad, stable.ended
        ),
        EventKind::Passed { step } => format!("step {step} has passed"),
        EventKind::RolledBack { reason, message } => format!("rolled back ({reason}): {message}"),
        EventKind::Promoted => "stable has the version".to_owned(),
        EventKind::Gone => "the candidate has no pods any more".to_owned(),
    };
    format!("{:7.1} s  {text}", event.second)
}

/// The figures of a version, in seconds since its first share.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Figures {
    /// Since the load began.
    pub(crate) first_share: Option<f64>,
    /// Until it was rolled back, or until its last step had passed.
    pub(crate) verdict: Option<f64>,
    /// Until its share was 0 for good.
    pub(crate) share_of_none: Option<f64>,
    /// Failed requests while it was the candidate.
    pub(crate) failed: u32,
    pub(crate) answers: u32,
}

pub(crate) fn figures(record: &Record, version: Version) -> Figures {
    let begins = |wanted: Version| {
        let is_wanted = |event: &&Event| event.what == EventKind::Applied { version: wanted };
        record.events.iter().find(is_wanted).map(|event| event.second)
    };
    let Some(from) = begins(version) else { return Figures::default() };
    let until = begins(Version::Good).filter(|good| *good > from).unwrap_or(f64::INFINITY);
    let own: Vec<&Event> =
        record.events.iter().filter(|event| event.second >= from && event.second < until).collect();
    let first =
        |claim: fn(&EventKind) -> bool| own.iter().find(|event| claim(&event.what)).map(|event| event.second);
    let last = |claim: fn(&EventKind) -> bool| {
        own.iter().rev().find(|event| claim(&event.what)).map(|event| event.second)
    };
    let first_share = first(|what| matches!(what, EventKind::Share { percent } if *percent > 0));
    let since = |second: Option<f64>| Some(rounded(second? - first_share?));
    let verdict = match version {
        Version::Bad => first(|what| matches!(what, EventKind::RolledBack { .. })),
        Version::Good => last(|what| matches!(what, EventKind::Passed { .. })),
    };
    let is_own = |second: u32| f64::from(second) >= from && f64::from(second) < until;
    let failed = record.load.failed_by_second.iter().filter(|(second, _)| is_own(**second));
    Figures {
        first_share,
        verdict: since(verdict),
        share_of_none: since(last(|what| *what == EventKind::Share { percent: 0 })),
        failed: failed.map(|(_, count)| count).sum(),
        answers: record.load.answers.get(version.revision()).copied().unwrap_or(0),
    }
}

/// In tenths.
pub(crate) fn rounded(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

/// Title and values of each row, of both versions.
pub(crate) fn table(record: &Record) -> Vec<(&'static str, [String; 2])> {
    let of = Version::BOTH.map(|version| figures(record, version));
    let seconds = |of: Option<f64>| of.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.1} s"));
    vec![
        ("its share is 0 again after", of.map(|of| seconds(of.share_of_none))),
        ("the status has the verdict after", of.map(|of| seconds(of.verdict))),
        ("requests that it answered with success", of.map(|of| of.answers.to_string())),
        ("failed requests of the load meanwhile", of.map(|of| of.failed.to_string())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: f64, what: EventKind) -> Event {
        Event { second, what }
    }

    #[test]
    fn figures_count_from_the_first_share_of_each_version() {
        let share = |percent| EventKind::Share { percent };
        let rolled_back =
            EventKind::RolledBack { reason: "AnalysisFailed".to_owned(), message: String::new() };
        let events = vec![
            at(10.0, EventKind::Applied { version: Version::Bad }),
            at(20.0, share(10)),
            at(30.0, rolled_back),
            at(30.4, share(0)),
            at(60.0, EventKind::Applied { version: Version::Good }),
            at(70.0, share(10)),
            at(90.0, EventKind::Passed { step: 1 }),
            at(90.2, share(50)),
            at(110.0, EventKind::Passed { step: 2 }),
            at(140.0, share(0)),
        ];
        let load = Load {
            failed_by_second: [(25, 3), (31, 1)].into(),
            answers: [("2".to_owned(), 30), ("3".to_owned(), 900)].into(),
            ..Load::default()
        };
        let settings = Settings {
            requests_per_second: 40,
            load_seconds: 200,
            interval_seconds: 5,
            bad_percent: 30,
            limit_percent: 5,
            step_percents: [10, 50],
        };
        let record = Record { kubernetes: String::new(), settings, events, load };
        let of = |first_share, verdict, share_of_none, failed, answers| Figures {
            first_share: Some(first_share),
            verdict: Some(verdict),
            share_of_none: Some(share_of_none),
            failed,
            answers,
        };
        assert_eq!(figures(&record, Version::Bad), of(20.0, 10.0, 10.4, 4, 30));
        assert_eq!(figures(&record, Version::Good), of(70.0, 40.0, 70.0, 0, 900));
    }
}
