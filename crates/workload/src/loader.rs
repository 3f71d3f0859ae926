//! Why the model loader of a pod has not brought the model, as its init container says. Pure.

use std::time::Duration;

use api::loader::ExitCode;
use jiff::Timestamp;

use crate::{
    Cause,
    container::{crash, keeps_ending, last_end, quote, start_fault},
    pod::{Container, PodView, Terminated},
};

/// How long a loader waits for a store that does not answer before it ends.
const LOADER_PATIENCE: Duration = Duration::from_secs(180);

/// Why the model is not there.
pub fn fault(pod: &PodView, loader: &Container, now: Timestamp) -> Option<Cause> {
    if loader.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0) {
        return None;
    }
    if let Some(cause) = start_fault(pod, loader) {
        return Some(cause);
    }
    let since = loader.state.running.as_ref().and_then(|running| running.started_at);
    let runs_for = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
    if runs_for.is_some_and(|runs| runs > LOADER_PATIENCE) {
        // Without progress it would have ended.
        return None;
    }
    // One that is run again, after a reboot of its node, has ended with code 0 before.
    let ended = last_end(loader).filter(|ended| ended.exit_code != 0)?;
    match ExitCode::from_code(ended.exit_code).filter(|code| *code != ExitCode::Usage) {
        Some(code) => {
            let message = format!("{} of pod {}: {}", loader.name, pod.name(), last_words(ended));
            Some(Cause { reason: code.reason(), message })
        }
        None => keeps_ending(loader).map(|ended| crash(pod, loader, ended, None, None)),
    }
}

/// The loader's termination message. Those of other containers may hold anything, and are not repeated.
fn last_words(ended: &Terminated) -> String {
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
        fault(&PodView::default(), &loader, NOON.parse().unwrap()).map(|cause| cause.reason)
    }

    #[test]
    fn a_loader_that_has_succeeded_at_last_is_no_fault() {
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
    fn a_loader_that_has_run_for_long_again_is_no_fault() {
        let running = |seconds: i64| {
            let since = NOON.parse::<Timestamp>().unwrap() - jiff::SignedDuration::from_secs(seconds);
            reason(&format!(
                "state: {{running: {{startedAt: '{since}'}}}}, lastState: {{terminated: {{exitCode: 12}}}}"
            ))
        };
        assert_eq!(running(180), Some(reasons::SOURCE_UNREACHABLE));
        assert_eq!(running(181), None);
    }
}
