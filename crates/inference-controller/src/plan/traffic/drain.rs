//! Whether requests still run in the engines of a candidate that gets no more. Its GPUs are free as soon as none does. Pure.

use std::{collections::BTreeSet, time::Duration};

use api::aiinference::{Engine, traffic::CanaryStatus};
use engine_metrics::engine;
use jiff::Timestamp;
use verdict::counters::MOST_PODS;
use workload::time::remaining;

use super::evidence::pod_to_read;
use crate::{
    engine::Profile,
    looks::{Ask, Look, Requests},
    observe::Observed,
};

/// A gateway accepts weights before all its proxies have them. Two looks after this time end 30 s after it at the earliest.
const SETTLES_WITHIN: Duration = Duration::from_secs(25);
/// Between two looks at the engines.
const INTERVAL: Duration = Duration::from_secs(5);

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
