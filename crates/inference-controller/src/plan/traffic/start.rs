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
    time::remaining,
    views::pod::{Container, ContainerState},
};

use super::{
    super::conditions::Assessment,
    report,
    state::{Seen, waits_for_pods},
};
use crate::observe::Observed;

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

/// Pods that load a model or warm up have their own time limits. Between two ends of a container the time goes on. After a
/// restart of the controller and after a pause it begins anew.
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
    let obstacle = refused(observed).or_else(|| report::obstacle(of_pods().as_ref()?).map(str::to_owned));
    let known = observed.facts.get(UNREADY).copied();
    let goes_on = obstacle.is_some() || known.is_some() && has_restarted(observed);
    if !goes_on {
        return Start::default();
    }
    let since = known.unwrap_or(now);
    let fact = Some(UNREADY.to_owned());
    let wait = remaining(Duration::from_secs(u64::from(timeout)), since, now);
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

/// A container that has ended runs again, and may do so for long before it ends again.
fn has_restarted(observed: &Observed) -> bool {
    let mut pods = observed.candidate.iter().flat_map(|version| version.pods());
    pods.any(|pod| {
        let mut containers = pod.init_containers.iter().chain(&pod.containers);
        let is_over =
            |state: &ContainerState| state.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
        let runs_again = |one: &Container| one.restart_count > 0 && !one.ready && !is_over(&one.state);
        !pod.is_ready && containers.any(runs_again)
    })
}
