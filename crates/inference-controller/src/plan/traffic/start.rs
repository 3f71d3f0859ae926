//! Whether a candidate tries to become ready for too long. Pure.

use std::time::Duration;

use api::aiinference::{
    analysis::AnalysisMode,
    traffic::{Canary, CanaryStatus},
};
use jiff::Timestamp;
use workload::time::remaining;

use super::{
    super::conditions::Assessment,
    report,
    state::{Seen, waits_for_pods},
};
use crate::observe::Observed;

/// Something keeps the pods of a candidate from becoming ready, before its first step.
pub(super) const UNREADY: &str = "the candidate cannot become ready";

#[derive(Debug, Default)]
pub(super) struct Start {
    pub(super) fact: Option<String>,
    /// What keeps them, for as long as `analysis.timeoutSeconds`.
    pub(super) is_overdue: Option<String>,
    pub(super) wait: Option<Duration>,
}

/// Pods that load a model or warm up have their own time limits. Of what follows one obstacle, such as a crash in a loop, the
/// time goes on: it ends when the pods are ready. After a restart of the controller and after a pause it begins anew.
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
    let assessment = of_pods();
    let obstacle = assessment.as_ref().and_then(|assessment| report::obstacle(assessment));
    let known = observed.facts.get(UNREADY).copied();
    if known.is_none() && obstacle.is_none() {
        return Start::default();
    }
    let wait = remaining(Duration::from_secs(u64::from(timeout)), known.unwrap_or(now), now);
    let is_overdue = obstacle.filter(|_| wait.is_none()).map(|obstacle| {
        format!("its pods have not become ready within {timeout} s (spec.canary.analysis.timeoutSeconds): {obstacle}")
    });
    Start { fact: Some(UNREADY.to_owned()), is_overdue, wait }
}
