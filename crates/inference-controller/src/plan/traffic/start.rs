//! Whether a candidate tries to become ready for too long. Pure.

use std::time::Duration;

use api::{
    aiinference::{
        analysis::AnalysisMode,
        traffic::{Canary, CanaryStatus},
    },
    reasons,
};
use jiff::Timestamp;
use workload::{
    faults::container::{crash, last_end},
    time::remaining,
    views::pod::{Container, PodView, Terminated},
};

use super::{
    super::{conditions::Assessment, faults},
    report,
    state::{Seen, waits_for_pods},
};
use crate::{
    names::{ENGINE, Track},
    observe::Observed,
};

/// Something keeps the pods of a candidate from becoming ready, before its first step.
pub(super) const UNREADY: &str = "the candidate cannot become ready";

/// A watch that fails usually resumes within this time.
const WATCHED_AGAIN_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Start {
    pub(super) fact: Option<String>,
    /// What keeps them, for as long as `analysis.timeoutSeconds`.
    pub(super) is_overdue: Option<String>,
    pub(super) wait: Option<Duration>,
}

/// The time starts when something keeps the pods from becoming ready, or when a container has ended and is not ready. It runs
/// on as long as one of the two holds. Once started, it also runs on while another manager changes a child. When it is over,
/// the candidate is rolled back if something keeps the pods now, or if a container ends after that. Pods that load a model or
/// warm up have their own time limits. After a restart of the controller and after a pause the time begins anew.
pub(super) fn start(
    observed: &Observed,
    (before, canary): (Option<&CanaryStatus>, Option<&Canary>),
    seen: &Seen,
    of_pods: impl FnOnce() -> Option<Assessment>,
    now: Timestamp,
) -> Start {
    let analysis = canary.and_then(|canary| canary.analysis.as_ref());
    let timeout = analysis.filter(|analysis| analysis.mode == AnalysisMode::Enforce);
    let timeout = timeout.map(|analysis| analysis.timeout_seconds.unsigned_abs());
    let (Some(before), Some(canary), Some(timeout)) = (before, canary, timeout) else {
        return Start::default();
    };
    if !waits_for_pods(before, canary, seen) {
        return Start::default();
    }
    let of_pods = of_pods();
    let of_pods = of_pods.as_ref().and_then(report::obstacle).map(str::to_owned);
    let obstacle = of_pods.or_else(|| refused(observed));
    let known = observed.facts.get(UNREADY).copied();
    let is_changed = known.is_some() && observed.apart.contains_key(report::CANDIDATE);
    if obstacle.is_none() && !is_changed && ends(observed).next().is_none() {
        return Start::default();
    }
    let since = known.unwrap_or(now);
    let fact = Some(UNREADY.to_owned());
    let time = Duration::from_secs(u64::from(timeout));
    let wait = remaining(time, since, now);
    let is_late = |end: &Terminated| end.finished_at.is_some_and(|at| remaining(time, since, at).is_none());
    let obstacle = obstacle.or_else(|| {
        let (pod, container, end) = ends(observed).find(|(_, _, end)| is_late(end))?;
        let version = observed.candidate.as_ref()?;
        let is_engine = container.name == ENGINE;
        let why = is_engine.then(|| faults::why(pod, version)).flatten();
        let field = is_engine.then_some(faults::memory_field(Track::Canary));
        Some(crash(pod, container, end, why.as_deref(), field).message)
    });
    // The pods may run unseen.
    let is_seen =
        !observed.watch_fails && observed.candidate.as_ref().is_none_or(|version| !version.watch_fails);
    match (obstacle, wait) {
        (Some(obstacle), None) if is_seen => {
            let is_overdue = Some(format!(
                "its pods have not become ready within {timeout} s (spec.canary.analysis.timeoutSeconds): {obstacle}"
            ));
            Start { fact, is_overdue, wait: None }
        }
        (Some(_), None) => Start { fact, is_overdue: None, wait: Some(WATCHED_AGAIN_WITHIN) },
        // Without an obstacle now, the next one decides.
        (_, wait) => Start { fact, is_overdue: None, wait },
    }
}

/// Why pods or the Service of the candidate do not exist. What is refused of its other children keeps no pod back.
fn refused(observed: &Observed) -> Option<String> {
    let version = observed.candidate.as_ref()?;
    let has_pods = version.pods().next().is_some();
    let (reason, message) = observed.apart.get(report::CANDIDATE)?;
    // What another manager changes again is there, but for pods that it takes away.
    let lacks_a_child = !has_pods || version.service.is_none() && *reason != reasons::FIELD_CONFLICT;
    lacks_a_child.then(|| message.clone())
}

/// The last ends of containers that are not ready. Such a container may run again for long, and look as in its first run.
fn ends(observed: &Observed) -> impl Iterator<Item = (&PodView, &Container, &Terminated)> {
    let pods = observed.candidate.iter().flat_map(|version| version.pods()).filter(|pod| !pod.is_ready);
    pods.flat_map(|pod| {
        let containers = pod.init_containers.iter().chain(&pod.containers).filter(|one| !one.ready);
        containers.filter_map(move |one| Some((pod, one, last_end(one)?)))
    })
}
