//! What was found, in words for conditions and events. Pure.

use api::aiinference::analysis::MetricName;
use verdict::{
    interval::Tracks,
    judge::{Judged, Judgement, MetricResult, Missing, Reason},
    metric::Kind,
    share::Share,
};

use super::Analysed;
use crate::looks::Faults;

impl Analysed {
    /// What was found, for conditions and events. `faults`: what the last look says is wrong.
    pub(in crate::plan::traffic) fn message(&self, faults: Faults<'_>) -> String {
        let Judgement { verdict, reason, missing, metrics } = &self.judgement;
        let both = self.record.inputs.metrics.iter().zip(metrics);
        let worst =
            both.clone().find(|(_, result)| result.reason == *reason && result.verdict == Some(*verdict));
        let of = |says: &str| match worst {
            Some((judged, result)) => format!("{}: {}{says}", result.name, counted(judged, result)),
            None => says.trim_start_matches([';', ' ']).to_owned(),
        };
        let what = worst.map_or("the analysis", |(_, result)| &*result.name);
        let fault = match what == MetricName::Custom.as_str() {
            true => faults.of_queries,
            false => faults.of_engines,
        };
        let fault = fault.map(|fault| format!(": {fault}")).unwrap_or_default();
        let is_custom = what == MetricName::Custom.as_str();
        let cause =
            faults.of_queries.filter(|_| is_custom).map(|fault| format!("; {fault}")).unwrap_or_default();
        let step = &self.record.inputs.step;
        match reason {
            Reason::Alarm => {
                let (has, needs) =
                    worst.map_or((0, 0), |(_, result)| (result.e_value, result.e_value_needed));
                of(&format!(
                    "; the evidence that it is worse is {}, and {} is enough",
                    has / 1_000,
                    needs.div_ceil(1_000)
                ))
            }
            Reason::MetricsMissing => {
                format!("{what}: 3 looks in a row did not get all numbers{fault}")
            }
            Reason::BucketMismatch => {
                format!(
                    "{what} cannot be compared{fault}; set thresholdMillis to the end of a bucket of both versions"
                )
            }
            Reason::InFlight => of("; many requests of the candidate have not ended yet"),
            Reason::LoadMismatch => format!(
                "{what} cannot be compared: a pod of one version gets more than twice the requests of one of the other; \
                 set replicas of the step so that the share per pod is similar"
            ),
            Reason::ShareTooHigh => of(", too many to pass"),
            Reason::NoControl => {
                format!("{what}: stable has had no requests to compare with; set limitPercent{cause}")
            }
            Reason::WarmingUp => format!("{what} is counted from 120 s after the share rose from 0"),
            Reason::TooFewRequests => of(&format!("; {}{cause}", needed(missing.unwrap_or_default()))),
            Reason::TooEarly => {
                format!("it has passed so far; the step lasts at least {} s", step.min_seconds)
            }
            Reason::NothingJudged if metrics.iter().any(|metric| metric.reason == Reason::NoControl) => {
                "no metric can be judged at this share".to_owned()
            }
            Reason::NothingJudged => "nothing is counted yet".to_owned(),
            Reason::Passing => {
                // A pass of all metrics waits for what the queries have read.
                let waits = faults.of_queries.map(|fault| format!("; {fault}")).unwrap_or_default();
                format!("the candidate passes{waits}")
            }
        }
    }
}

fn needed(missing: Missing) -> String {
    let needed = [(missing.requests, "the candidate"), (missing.stable_requests, "stable")];
    let needed: Vec<String> = needed
        .iter()
        .filter(|(requests, _)| *requests > 0)
        .map(|(requests, of)| format!("{requests} more of {of}"))
        .collect();
    let needed = if needed.is_empty() { "more".to_owned() } else { needed.join(" and ") };
    let time = missing.seconds.map(|seconds| match seconds.div_ceil(60) {
        minutes @ 0..120 => format!(", about {minutes} min at this rate"),
        minutes => format!(", about {} h at this rate", minutes.div_ceil(60)),
    });
    format!("needs {needed}{}", time.unwrap_or_default())
}

/// `96 of 480 requests of the candidate (20 %) took longer than 500 ms, 60 of 1200 of stable (5.0 %)`.
fn counted(judged: &Judged, result: &MetricResult) -> String {
    let Tracks { stable, candidate } = judged.evidence.totals;
    let what = match (judged.metric.kind, judged.bound) {
        (Kind::Failure, _) if judged.metric.name == MetricName::Custom.as_str() => "were bad".to_owned(),
        (Kind::Failure, _) => "failed".to_owned(),
        (Kind::Abort, _) => "were aborted".to_owned(),
        (Kind::Latency, Some(bound)) => format!("took longer than {} ms", bound.millis()),
        (Kind::Latency, None) => "were slow".to_owned(),
    };
    let Some(share) = result.shares.candidate else { return "the candidate had no requests".to_owned() };
    let of_candidate = format!(
        "{} of {} requests of the candidate ({} %) {what}",
        candidate.bad(),
        candidate.requests(),
        rounded(share)
    );
    let of_stable = match result.shares.stable {
        Some(share) => format!("{} of {} of stable ({} %)", stable.bad(), stable.requests(), rounded(share)),
        None => "stable had none".to_owned(),
    };
    let bound = match (result.upper_bound, result.allowed) {
        (Some(bound), Some(allowed)) => {
            format!("; with 95 % confidence below {} %, allowed {} %", rounded(bound), rounded(allowed))
        }
        (Some(_) | None, _) => String::new(),
    };
    format!("{of_candidate}, {of_stable}{bound}")
}

/// In percent, with two digits that say something: `0.22`, `3.1`, `20`.
pub(super) fn rounded(share: Share) -> String {
    let percent = share.value() * 100.0;
    let digits = if percent >= 10.0 || percent == 0.0 {
        0
    } else if percent >= 1.0 {
        1
    } else {
        2
    };
    format!("{percent:.digits$}")
}
