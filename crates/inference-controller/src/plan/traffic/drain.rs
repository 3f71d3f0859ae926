//! Whether requests still run in the engines of a candidate that gets no more. Its GPUs are free as soon as none does. Pure.

use std::{collections::BTreeSet, time::Duration};

use api::aiinference::{Engine, traffic::CanaryStatus};
use engine_metrics::engine;
use jiff::Timestamp;
use verdict::counters::MOST_PODS;
use workload::time::remaining;

use super::{evidence::pod_to_read, state::Seen};
use crate::{
    engine::Profile,
    looks::{Ask, Look, Requests},
    observe::Observed,
};

/// Requests may run for so long if `spec.drainSeconds` does not say.
const DRAIN: Duration = Duration::from_secs(300);
const SHORTEST_DRAIN: Duration = Duration::from_secs(30);
/// A gateway accepts weights before all its proxies have them. Two looks after this time end 30 s after it at the earliest.
const SETTLES_WITHIN: Duration = Duration::from_secs(25);
/// Between two looks at the engines.
const INTERVAL: Duration = Duration::from_secs(5);

/// A stopped object whose gateways have not accepted that its candidate gets no requests.
pub(super) const STOPPED: &str = "a stopped candidate waits for its gateways";

/// How long requests of the candidate may still run.
pub(super) fn longest(observed: &Observed) -> Duration {
    let given = observed.inference.spec.drain_seconds;
    let given = given.map(|seconds| Duration::from_secs(u64::from(seconds.unsigned_abs())));
    given.unwrap_or(DRAIN).max(SHORTEST_DRAIN)
}

/// A stopped candidate that waits for gateways.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    pub(super) fact: Option<String>,
    /// It has waited for as long as its requests may run. Stable is gone already, and its pods end their requests first.
    pub(super) is_over: bool,
    pub(super) wait: Option<Duration>,
}

/// Gateways may be removed for good, and then accept nothing. After a restart the time is counted anew.
pub(super) fn stopped(observed: &Observed, seen: &Seen, now: Timestamp) -> Stopped {
    if !seen.waits_for_gateways() {
        return Stopped::default();
    }
    let since = observed.facts.get(STOPPED).copied().unwrap_or(now);
    let wait = remaining(seen.drain, since, now);
    Stopped { fact: Some(STOPPED.to_owned()), is_over: wait.is_none(), wait }
}

/// How many requests the candidate's engines had in the last look.
pub(super) fn running(observed: &Observed, canary: &CanaryStatus) -> Option<u64> {
    let requests = looks(observed, canary.draining_since.as_ref()?.0).last()?.requests.as_ref();
    requests.map(|requests| requests.running)
}

/// No request ran in two looks at all of its pods, and none ended between the two.
pub(super) fn is_over(observed: &Observed, before: Option<&CanaryStatus>) -> bool {
    let since = before.and_then(|before| before.draining_since.as_ref());
    let (Some(since), Some(version)) = (since, observed.candidate.as_deref()) else { return false };
    let pods: BTreeSet<&str> = version.pods().map(|pod| pod.uid()).collect();
    if version.watch_fails || pods.is_empty() {
        return false;
    }
    let settled = since.0.as_second().saturating_add(SETTLES_WITHIN.as_secs().cast_signed());
    let mut last = looks(observed, since.0).rev().take(2).map(|look| {
        let is_of_all = |requests: &&Requests| pods.iter().all(|uid| requests.pods.contains(*uid));
        let requests = look.requests.as_ref().filter(is_of_all);
        requests.filter(|requests| requests.running == 0 && look.ended > settled)
    });
    let (newest, earlier) = (last.next().flatten(), last.next().flatten());
    newest.is_some() && newest == earlier
}

/// The next look if it is due, or when it will be.
pub(super) fn look(
    observed: &Observed,
    canary: Option<&CanaryStatus>,
    now: Timestamp,
) -> (Option<Ask>, Option<Duration>) {
    let nothing = (None, None);
    let since = canary.filter(|canary| canary.served).and_then(|canary| canary.draining_since.as_ref());
    let (Some(since), Some(version), false) =
        (since, observed.candidate.as_deref(), observed.looking.is_asked)
    else {
        return nothing;
    };
    let engine = observed.inference.spec.engine;
    let Some(known) = counts_what_runs(engine) else { return nothing };
    let last = looks(observed, since.0).last().and_then(|look| Timestamp::from_second(look.ended).ok());
    let wait = match last {
        Some(last) => remaining(INTERVAL, last, now),
        None => remaining(SETTLES_WITHIN, since.0, now),
    };
    if wait.is_some() {
        return (None, wait);
    }
    let metrics = &Profile::newest(engine).metrics;
    let pods: Vec<_> = version.pods().map(|pod| pod_to_read(pod, true)).collect();
    let port = u16::try_from(metrics.port).ok();
    let Some(port) = port.filter(|_| !pods.is_empty() && pods.len() <= MOST_PODS) else {
        return nothing;
    };
    let step_since = since.0.as_second();
    let ask = Ask {
        step_since,
        counted_until: step_since,
        engine: known,
        port,
        path: metrics.path,
        pods,
        metrics: Vec::new(),
        queries: None,
    };
    (Some(ask), None)
}

/// Engines whose gauges are there from the start and count each request. Triton does not count those that it executes, and TGI
/// has no gauges before its first request.
fn counts_what_runs(engine: Engine) -> Option<engine::Engine> {
    match engine {
        Engine::Vllm => engine::Engine::named(engine.as_str()),
        Engine::Triton | Engine::Tgi => None,
    }
}

/// Of this drain, in the order of their times.
fn looks(observed: &Observed, since: Timestamp) -> impl DoubleEndedIterator<Item = &Look> {
    let since = since.as_second();
    observed.looking.looks.iter().filter(move |look| look.step_since == since)
}
