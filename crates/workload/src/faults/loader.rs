//! Why the model or the memory of a pod is not loaded, by the state of its init container. Pure.

use std::time::Duration;

use api::loader::{self, ExitCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::EnvVar;

use crate::{
    Cause, Finding,
    faults::container::{crash, keeps_ending, last_end, quote, start_fault},
    time::elapsed,
    views::pod::{Container, PodView, Terminated},
};

/// Time within which a run ends if it meets the fault of the previous run, by the environment of the container.
pub fn stall_timeout(environment: &[EnvVar]) -> Duration {
    loader::stall_timeout(|name| {
        let set = environment.iter().find(|variable| variable.name == name)?;
        // A value from a ConfigMap or a Secret is not known here; assume the longest.
        Some(set.value.as_ref().and_then(|value| value.parse().ok()).unwrap_or(u64::MAX))
    })
}

/// The reason for an exit code of a model's loader; `None` for one that it does not define, and for a usage error, which
/// counts as a crash.
pub fn reason_of_model(code: i32) -> Option<&'static str> {
    ExitCode::from_code(code).filter(|code| *code != ExitCode::Usage).map(ExitCode::reason)
}

/// Why an init container has not loaded what it is to load. `reason_of`: the reason for an exit code that it defines;
/// `stall_timeout`: the time after which a run that met the fault of the previous run would have ended.
pub fn finding(
    pod: &PodView,
    loader: &Container,
    reason_of: impl Fn(i32) -> Option<&'static str>,
    stall_timeout: Duration,
    now: Timestamp,
) -> Finding {
    if loader.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0) {
        return Finding::default();
    }
    if let Some(cause) = start_fault(pod, loader) {
        return Finding { cause: Some(cause), requeue_after: None };
    }
    let since = loader.state.running.as_ref().and_then(|running| running.started_at);
    let runs_for = since.map(|since| elapsed(since, now));
    let requeue_after = runs_for.map(|runs_for| stall_timeout.saturating_sub(runs_for));
    if requeue_after.is_some_and(|left| left.is_zero()) {
        // It has made progress: otherwise it would have ended.
        return Finding::default();
    }
    let cause = failure(pod, loader, reason_of);
    Finding { requeue_after: requeue_after.filter(|_| cause.is_some()), cause }
}

/// Why the last run failed.
fn failure(
    pod: &PodView,
    loader: &Container,
    reason_of: impl Fn(i32) -> Option<&'static str>,
) -> Option<Cause> {
    // After a reboot of its node a loader runs again, and its last end has code 0.
    let ended = last_end(loader).filter(|ended| ended.exit_code != 0)?;
    match reason_of(ended.exit_code) {
        Some(reason) => {
            let message = format!("{} of pod {}: {}", loader.name, pod.name(), termination_message(ended));
            Some(Cause { reason, message })
        }
        None => keeps_ending(loader).map(|ended| crash(pod, loader, ended, None, None)),
    }
}

/// The loader's termination message. Those of other containers may contain anything, and are not repeated.
fn termination_message(ended: &Terminated) -> String {
    if ended.message.is_empty() {
        format!("ended with code {}", ended.exit_code)
    } else {
        quote(&ended.message)
    }
}

#[cfg(test)]
mod tests {
    use api::reasons;

    use super::*;

    const NOON: &str = "2026-01-01T12:00:00Z";

    fn reason(state: &str) -> Option<&'static str> {
        let loader = serde_saphyr::from_str(&format!("{{name: model-loader, {state}}}")).unwrap();
        let found = finding(
            &PodView::default(),
            &loader,
            reason_of_model,
            Duration::from_secs(180),
            NOON.parse().unwrap(),
        );
        found.cause.map(|cause| cause.reason)
    }

    #[test]
    fn a_loader_that_succeeds_after_failures_is_no_fault() {
        assert_eq!(
            reason("state: {terminated: {exitCode: 0}}, lastState: {terminated: {exitCode: 12}}"),
            None
        );
        assert_eq!(
            reason("state: {running: {}}, lastState: {terminated: {exitCode: 12}}"),
            Some(reasons::SOURCE_UNREACHABLE)
        );
    }

    #[test]
    fn a_loader_that_has_run_longer_than_it_waits_is_no_fault() {
        let running = |seconds: i64| {
            let since = NOON.parse::<Timestamp>().unwrap() - jiff::SignedDuration::from_secs(seconds);
            reason(&format!(
                "state: {{running: {{startedAt: '{since}'}}}}, lastState: {{terminated: {{exitCode: 12}}}}"
            ))
        };
        assert_eq!(running(-9), Some(reasons::SOURCE_UNREACHABLE));
        assert_eq!(running(179), Some(reasons::SOURCE_UNREACHABLE));
        assert_eq!(running(180), None);
    }
}
