//! Counts the requests of the metric custom by queries to a Prometheus-compatible server.
//!
//! A query gives series of counters. It is asked for two times, and what a series has gained between them is counted. So
//! nothing has to be kept but the last of these times, and a restart of the controller loses no request.
//!
//! | what is seen of a series | requests | bad requests |
//! |---|---|---|
//! | it is there at both times | the difference | the difference |
//! | it fell: its counter began anew | none | none |
//! | it is new | none: it may be an old counter under a new name | all: the first error makes its series |
//! | it is gone | none | none |
//!
//! There are never more bad requests than requests.

use std::time::Duration;

use api::aiinference::analysis::AnalysisPrometheus;
use futures::future::try_join_all;
use jiff::Timestamp;
use prometheus_api::{
    Counters, Fault,
    args::{Prometheus, Source},
    promql::{Query, Target},
};
use tokio::time::timeout;
use verdict::{
    counters::MISSING_AFTER,
    interval::{Counts, Flow, MOST_REQUESTS, Tracks},
};

use super::Found;

/// Seconds by which the times of the queries are earlier: servers have the values of a time only when the scrapes of it, and
/// what is written by others, have arrived.
const LAG: i64 = 30;
/// Seconds of a step in which the candidate may have no series: a server scrapes new pods after a while.
const APPEARS_WITHIN: i64 = 150;
/// All queries of a look. It is less than the time of a whole look.
const DEADLINE: Duration = Duration::from_secs(8);

/// What is asked for the metric custom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Queries {
    pub(crate) prometheus: AnalysisPrometheus,
    /// Names of the Services.
    pub(crate) services: Tracks<String>,
}

/// Up to when requests are counted, and the time of the look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) since: i64,
    pub(super) now: Timestamp,
}

/// What a look has read.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    until: i64,
    read: Result<Tracks<Gained>, String>,
}

/// What one version has gained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Gained {
    /// `None`: it has no series.
    requests: Option<u64>,
    bad: u64,
}

/// Up to when the queries are counted in this step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    until: Option<i64>,
    missed: u32,
}

/// Asks both queries for both versions.
pub(super) async fn answered(
    prometheus: &Prometheus,
    queries: &Queries,
    namespace: &str,
    window: Window,
) -> Answered {
    let until = window.now.as_second().max(window.since);
    let read = match timeout(DEADLINE, read(prometheus, queries, namespace, window, until)).await {
        Ok(read) => read,
        Err(_) => Err(format!("the server did not answer all queries within {} s", DEADLINE.as_secs())),
    };
    Answered { until, read }
}

async fn read(
    prometheus: &Prometheus,
    queries: &Queries,
    namespace: &str,
    window: Window,
    until: i64,
) -> Result<Tracks<Gained>, String> {
    let AnalysisPrometheus { url, requests_query, bad_requests_query, secret_name, ca_secret_name } =
        &queries.prometheus;
    let source = Source {
        namespace,
        url: url.as_deref(),
        secret: secret_name.as_deref(),
        ca_secret: ca_secret_name.as_deref(),
    };
    let field = |name: &str| format!("spec.canary.analysis.prometheus.{name}");
    let mut asked = Vec::new();
    for service in [&queries.services.stable, &queries.services.candidate] {
        for (name, text) in [("requestsQuery", requests_query), ("badRequestsQuery", bad_requests_query)] {
            let query = Query::parse(text, Target { namespace, name: service }, prometheus.scope)
                .map_err(|refusal| format!("{}: {}", field(name), Fault::InvalidQuery(refusal)))?;
            for at in [window.since, until] {
                let query = query.clone();
                asked.push(async move {
                    let at = at.saturating_sub(LAG);
                    let counters = prometheus.counters(source, &query, at, window.now).await;
                    counters.map_err(|fault| format!("{}: {fault}", field(name)))
                });
            }
        }
    }
    let answers = try_join_all(asked).await?;
    let [stable, candidate] = [&answers[..4], &answers[4..]];
    Ok(Tracks {
        stable: gained(stable, &queries.services.stable)?,
        candidate: gained(candidate, &queries.services.candidate)?,
    })
}

/// `answers`: requests before and now, bad ones before and now.
fn gained(answers: &[Counters], service: &str) -> Result<Gained, String> {
    let [before, now, bad_before, bad_now] = answers else { return Err("an answer is missing".to_owned()) };
    if bad_now.is_empty() {
        return Err(format!(
            "spec.canary.analysis.prometheus.badRequestsQuery has no value for the Service {service}: end it with \
             \"or vector(0)\", and check the name of the metric and its labels"
        ));
    }
    let requests =
        whole(now.iter().map(|(labels, now)| before.get(labels).map_or(0.0, |before| now - before)));
    let bad =
        whole(bad_now.iter().map(|(labels, now)| bad_before.get(labels).map_or(*now, |before| now - before)));
    Ok(Gained { requests: (!now.is_empty()).then_some(requests), bad: bad.min(requests) })
}

/// The sum of what was gained, without what fell.
fn whole(gains: impl Iterator<Item = f64>) -> u64 {
    let sum: f64 = gains.map(|gain| gain.max(0.0)).sum();
    // The type of the sum ends where it is too large.
    (sum.round() as u64).min(MOST_REQUESTS)
}

impl Counted {
    pub(super) fn until(&self) -> Option<i64> {
        self.until
    }

    /// What both versions have gained since the last look that was complete. `age`: seconds of the step.
    pub(super) fn found(&mut self, answered: &Answered, age: i64, fault: &mut Option<String>) -> Found {
        let gained = match &answered.read {
            Ok(gained) => gained,
            Err(why) => return self.missing(why.clone(), fault),
        };
        let Some(requests) = gained.candidate.requests else {
            if age <= APPEARS_WITHIN {
                return Found::NoRequests;
            }
            let why = "spec.canary.analysis.prometheus.requestsQuery has no series for the Service of the candidate: \
                       check that its labels have $name, and what the server scrapes";
            return self.missing(why.to_owned(), fault);
        };
        let flow = |requests: u64, bad: u64| {
            let ended = Counts::new(requests, bad).unwrap_or_default();
            Flow { arrivals: requests, ended, ..Flow::default() }
        };
        let flows = Tracks {
            // A version that gets no requests any more may have no series any more.
            stable: flow(gained.stable.requests.unwrap_or_default(), gained.stable.bad),
            candidate: flow(requests, gained.candidate.bad),
        };
        *self = Self { until: Some(answered.until), missed: 0 };
        Found::Counted { flows, bound: None }
    }

    fn missing(&mut self, why: String, fault: &mut Option<String>) -> Found {
        // The first one that is not of an engine.
        *fault = Some(why);
        self.missed = self.missed.saturating_add(1);
        if self.missed >= MISSING_AFTER {
            // So long a gap is no interval: as with the counters of pods.
            self.until = None;
        }
        Found::Incomplete
    }
}

#[cfg(test)]
mod tests;
