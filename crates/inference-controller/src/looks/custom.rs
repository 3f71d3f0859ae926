//! Counts the requests of the metric custom by queries to a Prometheus-compatible server.
//!
//! A query gives series of counters. What each has gained since the look before is counted, of both versions at once.
//!
//! | what is seen of a series | what it adds |
//! |---|---|
//! | it rose | the difference |
//! | it fell by half or more: the counter began anew | its value |
//! | it fell by less: another replica of the server is behind | nothing, until it is above its largest value |
//! | it is new, beside series that are known | its value: a new pod, or the first error |
//! | it is new, and no series is known any more: all have new labels | nothing |
//! | it is gone, as after a scrape that failed | nothing; it is known for when it comes back |
//!
//! The first look also asks for the values of the time up to which the status has counted. So a restart of the controller
//! loses little: what was read and is not in the status.
//!
//! Servers scrape both versions at their own times, which may be further apart than two looks. So what is gained is kept until
//! both versions have gained, or two minutes are over. Bad requests that come before their request wait for it.

use std::time::Duration;

use api::aiinference::analysis::AnalysisPrometheus;
use engine_metrics::bodies::Bodies;
use futures::future::join_all;
use jiff::Timestamp;
use prometheus_api::{
    Counters, Fault, MOST_SERIES,
    args::{Prometheus, Source},
    promql::{Query, Target},
};
use tokio::time::timeout;
use verdict::{
    counters::MISSING_AFTER,
    interval::{Counts, Flow, MOST_REQUESTS, Tracks},
};

use super::Found;

/// Seconds of a step in which the candidate may have no series: a server scrapes new pods after a while.
const APPEARS_WITHIN: i64 = 150;
/// Seconds for which one version waits for requests of the other.
const POOLED_FOR: i64 = 120;
/// All queries of a look. It is less than the time of a whole look.
const DEADLINE: Duration = Duration::from_secs(8);
const FIELD: &str = "spec.canary.analysis.prometheus";

/// What is asked for the metric custom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Queries {
    pub(crate) prometheus: Box<AnalysisPrometheus>,
    /// Names of the Services.
    pub(crate) services: Tracks<String>,
}

/// What a look has read.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    queries: Queries,
    read: Result<Tracks<Answers>, String>,
}

/// Of one version.
#[derive(Clone, Debug, Default)]
struct Answers {
    requests: Answer,
    bad: Answer,
}

#[derive(Clone, Debug, Default)]
struct Answer {
    /// At the time up to which is counted. `None`: it is known.
    before: Option<Counters>,
    now: Counters,
}

/// What is known of the queries in this step.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// Counters of other queries are no continuation.
    queries: Option<Queries>,
    versions: Tracks<Version>,
    /// When requests were counted last, in Unix seconds.
    counted: i64,
    missed: u32,
}

#[derive(Clone, Debug, Default)]
struct Version {
    requests: Known,
    bad: Known,
    /// Not counted yet.
    gained: Gained,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Gained {
    requests: u64,
    bad: u64,
}

/// The largest value of each series, by the hash of its labels.
#[derive(Clone, Debug, Default)]
struct Known(Counters);

/// Asks both queries for both versions. `since`: up to when is counted, if no look of the step has read anything.
pub(super) async fn answered(
    (prometheus, turns): (&Prometheus, &Bodies),
    queries: &Queries,
    namespace: &str,
    since: Option<i64>,
    now: Timestamp,
) -> Answered {
    let reading = async {
        // Answers take memory.
        let _turn = turns.permit(namespace).await;
        read(prometheus, queries, namespace, since, now).await
    };
    let read = match timeout(DEADLINE, reading).await {
        Ok(read) => read,
        Err(_) => {
            Err(format!("{FIELD}: the server did not answer all queries within {} s", DEADLINE.as_secs()))
        }
    };
    Answered { queries: queries.clone(), read }
}

async fn read(
    prometheus: &Prometheus,
    queries: &Queries,
    namespace: &str,
    since: Option<i64>,
    now: Timestamp,
) -> Result<Tracks<Answers>, String> {
    let AnalysisPrometheus { url, requests_query, bad_requests_query, secret_name, ca_secret_name } =
        &*queries.prometheus;
    let source = Source {
        namespace,
        url: url.as_deref(),
        secret: secret_name.as_deref(),
        ca_secret: ca_secret_name.as_deref(),
    };
    let Tracks { stable, candidate } = &queries.services;
    let mut asked = Vec::new();
    for service in [stable, candidate] {
        for (name, text) in [("requestsQuery", requests_query), ("badRequestsQuery", bad_requests_query)] {
            let query = parsed(text, Target { namespace, name: service }, prometheus, name)?;
            asked.push(async move {
                let ask = async |at| prometheus.counters(source, &query, at, now).await;
                let answer = async {
                    let before = match since {
                        Some(since) => Some(ask(Some(since)).await?),
                        None => None,
                    };
                    Ok(Answer { before, now: ask(None).await? })
                };
                answer.await.map_err(|fault: Fault| match fault.is_of_query() {
                    true => format!("{FIELD}.{name}: {fault}"),
                    false => format!("{FIELD}: {fault}"),
                })
            });
        }
    }
    // The first fault is always the same one.
    let answers = join_all(asked).await.into_iter().collect::<Result<Vec<Answer>, String>>()?;
    let [requests, bad, of_candidate, bad_of_candidate] = <[Answer; 4]>::try_from(answers)
        .map_err(|answers| format!("{} answers to 4 queries", answers.len()))?;
    let both = [(&bad, stable), (&bad_of_candidate, candidate)];
    if let Some((_, service)) = both.into_iter().find(|(bad, _)| bad.now.is_empty()) {
        return Err(format!(
            "{FIELD}.badRequestsQuery has no value for the Service {service}: end it with \"or vector(0)\", and check the \
             name of the metric and its labels"
        ));
    }
    Ok(Tracks {
        stable: Answers { requests, bad },
        candidate: Answers { requests: of_candidate, bad: bad_of_candidate },
    })
}

fn parsed(text: &str, target: Target<'_>, prometheus: &Prometheus, name: &str) -> Result<Query, String> {
    let query = Query::parse(text, target, prometheus.scope)
        .map_err(|refusal| format!("{FIELD}.{name}: {}", Fault::InvalidQuery(refusal)))?;
    match query.rate() {
        Some(rate) => Err(format!(
            "{FIELD}.{name} has {rate}(): write the counter itself, such as http_requests_total{{service=\"$name\"}}"
        )),
        None => Ok(query),
    }
}

impl Counting {
    /// Whether the values of the time up to which is counted are needed.
    pub(super) fn begins(&self, queries: &Queries) -> bool {
        self.queries.as_ref() != Some(queries)
    }

    /// What both versions have gained since requests were counted last. `since`: the time of the values before, in Unix
    /// seconds. `age`: seconds of the step. The error says what is wrong.
    pub(super) fn found(
        &mut self,
        answered: &Answered,
        (since, at): (i64, i64),
        age: i64,
    ) -> (Found, Option<String>) {
        match &answered.read {
            Ok(answers) => self.advanced(&answered.queries, answers, (since, at), age),
            Err(why) => self.missing(why.clone()),
        }
    }

    fn advanced(
        &mut self,
        queries: &Queries,
        answers: &Tracks<Answers>,
        (since, at): (i64, i64),
        age: i64,
    ) -> (Found, Option<String>) {
        if self.begins(queries) {
            *self = Self { queries: Some(queries.clone()), counted: since, ..Self::default() };
        }
        let Tracks { stable, candidate } = &mut self.versions;
        stable.advance(&answers.stable);
        candidate.advance(&answers.candidate);
        // Stable may have no requests at all, such as at weight 100.
        let must_speak = [
            (stable.requests.is_any(), &answers.stable, &queries.services.stable),
            (
                candidate.requests.is_any() || age > APPEARS_WITHIN,
                &answers.candidate,
                &queries.services.candidate,
            ),
        ];
        let silent = must_speak.iter().find(|(must, answers, _)| *must && answers.requests.now.is_empty());
        if let Some((_, _, service)) = silent {
            return self.missing(format!(
                "{FIELD}.requestsQuery has no series for the Service {service}: check that its labels have $name, that the \
                 series have the label namespace, which the controller asks for, and what the server scrapes"
            ));
        }
        self.missed = 0;
        let Tracks { stable, candidate } = &mut self.versions;
        let is_over = at.saturating_sub(self.counted) >= POOLED_FOR;
        let have_both = stable.gained.requests > 0 && candidate.gained.requests > 0;
        if !have_both && !is_over {
            return (Found::NoRequests, None);
        }
        self.counted = at;
        let flows = Tracks { stable: stable.gained.counted(), candidate: candidate.gained.counted() };
        (Found::Counted { flows, bound: None }, None)
    }

    fn missing(&mut self, why: String) -> (Found, Option<String>) {
        self.missed = self.missed.saturating_add(1);
        if self.missed >= MISSING_AFTER {
            // So long a gap is no interval: as with the counters of pods.
            *self = Self { missed: self.missed, ..Self::default() };
        }
        (Found::Incomplete, Some(why))
    }
}

impl Version {
    fn advance(&mut self, Answers { requests, bad }: &Answers) {
        for (known, answer) in [(&mut self.requests, requests), (&mut self.bad, bad)] {
            if let Some(before) = &answer.before {
                *known = Known(before.clone());
            }
        }
        let goes_on = self.requests.goes_on(&requests.now);
        let more = Gained {
            requests: self.requests.advance(&requests.now, goes_on),
            bad: self.bad.advance(&bad.now, goes_on),
        };
        let sum = |one: u64, other: u64| one.saturating_add(other).min(MOST_REQUESTS);
        self.gained = Gained {
            requests: sum(self.gained.requests, more.requests),
            bad: sum(self.gained.bad, more.bad),
        };
    }
}

impl Gained {
    /// The flow of what is gained. Bad requests without a request stay for the next one.
    fn counted(&mut self) -> Flow {
        let bad = self.bad.min(self.requests);
        let ended = Counts::new(self.requests, bad).unwrap_or_default();
        *self = Self { requests: 0, bad: self.bad.saturating_sub(bad) };
        Flow { arrivals: ended.requests(), ended, ..Flow::default() }
    }
}

impl Known {
    fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    fn goes_on(&self, now: &Counters) -> bool {
        now.keys().any(|series| self.0.contains_key(series))
    }

    /// What the series have gained. `counts_new`: series that are new began at 0.
    fn advance(&mut self, now: &Counters, counts_new: bool) -> u64 {
        let mut gained = 0.0;
        for (series, value) in now {
            let last = self.0.get(series).copied();
            gained += match last {
                Some(last) if *value >= last => value - last,
                Some(last) if *value > last / 2.0 => continue,
                Some(_) => *value,
                None if counts_new => *value,
                None => 0.0,
            };
            self.0.insert(*series, *value);
        }
        if self.0.len() > MOST_SERIES * 2 {
            self.0.retain(|series, _| now.contains_key(series));
        }
        whole(gained)
    }
}

fn whole(number: f64) -> u64 {
    // The type ends where the number is too large.
    (number.max(0.0).round() as u64).min(MOST_REQUESTS)
}

#[cfg(test)]
mod tests;
