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

/// A watch that fails usually resumes within this time.
const WATCHED_AGAIN_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Start {
    pub(super) fact: Option<String>,
    /// What keeps them, for as long as `analysis.timeoutSeconds`.
    pub(super) is_overdue: Option<String>,
    pub(super) wait: Option<Duration>,
}

/// Pods that load a model or warm up have their own time limits. A container that is started again counts as crashing until it
/// is ready. After a restart of the controller and after a pause the time begins anew.
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
    let refused = observed.apart.get(report::CANDIDATE).map(|(_, message)| message.clone());
    let obstacle = refused.or_else(|| report::obstacle(of_pods().as_ref()?).map(str::to_owned));
    let Some(obstacle) = obstacle else { return Start::default() };
    let since = observed.facts.get(UNREADY).copied().unwrap_or(now);
    let fact = Some(UNREADY.to_owned());
    let wait = remaining(Duration::from_secs(u64::from(timeout)), since, now);
    // The pods may run unseen.
    let is_seen =
        !observed.watch_fails && observed.candidate.as_ref().is_none_or(|version| !version.watch_fails);
    match wait {
        None if is_seen => {
            let is_overdue = Some(format!(
                "its pods have not become ready within {timeout} s (spec.canary.analysis.timeoutSeconds): {obstacle}"
            ));
            Start { fact, is_overdue, wait: None }
        }
        None => Start { fact, is_overdue: None, wait: Some(WATCHED_AGAIN_WITHIN) },
        wait => Start { fact, is_overdue: None, wait },
    }
}
