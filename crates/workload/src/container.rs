//! Why a container does not start, or does not stay. Pure.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use text::{cut, printable};

use crate::{
    Cause,
    pod::{Container, PodView, Terminated},
    time::left,
};

/// Longest text that is repeated from a container, a kubelet or a scheduler.
pub(crate) const LONGEST_QUOTE: usize = 512;

/// How kubelets name an image that cannot be pulled.
pub const IMAGE_FAULTS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
];
/// How kubelets name a container that cannot be created.
const CONFIG_FAULTS: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];
const SECRET: &str = "Secret";
const CONFIG_MAP: &str = "ConfigMap";
const BACK_OFF: &str = "CrashLoopBackOff";
/// A kubelet resets the back-off of a container that ran this long (twice its longest back-off of 5 min).
const STEADY_AFTER: Duration = Duration::from_secs(600);

/// A container that the kubelet cannot start.
pub fn start_fault(pod: &PodView, container: &Container) -> Option<Cause> {
    let waiting = container.state.waiting.as_ref()?;
    if let Some(missing) = missing_reference(pod, container, &waiting.message) {
        return Some(missing);
    }
    let reason = match waiting.reason.as_str() {
        reason if IMAGE_FAULTS.contains(&reason) => reasons::IMAGE_PULL_FAILED,
        reason if CONFIG_FAULTS.contains(&reason) => reasons::CRASH_LOOP,
        _ => return None,
    };
    let message = format!(
        "{} of pod {} cannot start ({}): {}",
        container.name,
        pod.name(),
        waiting.reason,
        quote(&waiting.message)
    );
    Some(Cause { reason, message })
}

/// What a kubelet says of a Secret or a ConfigMap: `secret "x" not found`, `couldn't find key k in Secret demo/x`.
fn missing_reference(pod: &PodView, container: &Container, said: &str) -> Option<Cause> {
    let (kind, what) = if let Some(named) = said.strip_prefix("couldn't find key ") {
        let (key, of) = named.rsplit_once(" in ")?;
        (of.split_once(' ')?.0, format!("{of} has no key \"{key}\""))
    } else {
        let (kind, name) = said.strip_suffix("\" not found")?.split_once(" \"")?;
        let kind = match kind {
            "secret" => SECRET,
            "configmap" => CONFIG_MAP,
            _ => return None,
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        (kind, format!("{kind} {namespace}/{name} does not exist"))
    };
    let reason = match kind {
        SECRET => reasons::SECRET_NOT_FOUND,
        CONFIG_MAP => reasons::CONFIG_MAP_NOT_FOUND,
        _ => return None,
    };
    let message = format!("{}; {} of pod {} needs it: add it", quote(&what), container.name, pod.name());
    Some(Cause { reason, message })
}

/// How the container ended, now or the last time.
pub fn last_end(container: &Container) -> Option<&Terminated> {
    container.state.terminated.as_ref().or(container.last.terminated.as_ref())
}

/// A container that keeps ending: the kubelet waits before it tries again, or the last run was short and not the first.
/// One end is no loop: a node that reboots ends every container once.
pub fn keeps_ending(container: &Container) -> Option<&Terminated> {
    if container.started == Some(true) {
        // This run got through its start, whatever became of earlier ones.
        return None;
    }
    let ended = last_end(container)?;
    let backs_off = container.state.waiting.as_ref().is_some_and(|waiting| waiting.reason == BACK_OFF);
    let ran_for = ended
        .finished_at
        .zip(ended.started_at)
        .and_then(|(end, start)| Duration::try_from(end.duration_since(start)).ok());
    let was_short = ran_for.is_none_or(|ran| ran < STEADY_AFTER);
    (backs_off || (container.restart_count > 1 && was_short)).then_some(ended)
}

pub fn is_out_of_memory(ended: &Terminated) -> bool {
    ended.reason == "OOMKilled"
}

/// How far a container is with its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// It does not run, or has done so before.
    None,
    /// It may take so much longer.
    Left(Duration),
    TimedOut,
}

/// How long a container may still warm up.
pub fn warm_up(container: Option<&Container>, timeout: Duration, now: Timestamp) -> WarmUp {
    let first = container.filter(|one| one.restart_count == 0 && one.started != Some(true));
    let Some(since) = first.and_then(|one| one.state.running.as_ref()?.started_at) else {
        return WarmUp::None;
    };
    match left(timeout, since, now) {
        Some(left) => WarmUp::Left(left),
        None => WarmUp::TimedOut,
    }
}

/// Whether the container was last ended by a signal, as a kubelet does after a startup probe failed for too long.
pub fn was_killed(container: &Container) -> bool {
    last_end(container).is_some_and(|ended| ended.exit_code > 128)
}

/// A container that keeps ending. `why`: as its log says. `memory`: the field that gives it more.
pub fn crash(
    pod: &PodView,
    container: &Container,
    ended: &Terminated,
    why: Option<&str>,
    memory: Option<&str>,
) -> Cause {
    let (name, pod, times) = (container.name.as_str(), pod.name(), container.restart_count);
    if is_out_of_memory(ended) {
        // The log of a container that was killed for its memory does not say so.
        let hint = memory.map_or(format!("see kubectl describe pod {pod}"), |field| format!("raise {field}"));
        let message =
            format!("{name} of pod {pod} used more memory than its limit ({times} restarts); {hint}");
        return Cause { reason: reasons::OUT_OF_MEMORY, message };
    }
    let how = format!("{name} of pod {pod} ended with code {} ({times}", ended.exit_code);
    let hint = hint(pod, name);
    let message = match why {
        Some(why) => format!("{how}{CAUSE_AFTER}{why}{hint}"),
        None => format!("{how} restarts){hint}"),
    };
    Cause { reason: reasons::CRASH_LOOP, message }
}

/// The cause in a message as `crash` writes it of this container.
pub fn written_cause<'a>(message: &'a str, pod: &str, container: &str) -> Option<&'a str> {
    let of_pod = message.strip_prefix(&format!("{container} of pod {pod} "))?;
    let (_, after) = of_pod.split_once(CAUSE_AFTER)?;
    after.rsplit_once(&hint(pod, container)).map(|(cause, _)| cause)
}

/// What stands before the cause in the message of a crash.
const CAUSE_AFTER: &str = " restarts): ";

/// What stands after it.
fn hint(pod: &str, container: &str) -> String {
    format!("; see kubectl logs {pod} -c {container} --previous")
}

/// A text of another program, cut to a length that fits a condition.
pub fn quote(text: &str) -> String {
    // What is left out takes no part of the length, but no more than this is looked at.
    let looked_at = text.trim().get(..text.trim().floor_char_boundary(4 * LONGEST_QUOTE));
    let mut text = cut(printable(looked_at.unwrap_or_default()), LONGEST_QUOTE);
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(state: &str) -> Container {
        serde_saphyr::from_str(&format!("{{name: engine, {state}}}")).unwrap()
    }

    fn loops(state: &str) -> bool {
        keeps_ending(&container(state)).is_some()
    }

    #[test]
    fn one_end_is_no_loop() {
        assert!(!loops("state: {terminated: {exitCode: 1}}"));
        assert!(!loops("restartCount: 1, state: {running: {}}, lastState: {terminated: {exitCode: 255}}"));
        assert!(loops("restartCount: 2, state: {running: {}}, lastState: {terminated: {exitCode: 1}}"));
        assert!(loops(
            "restartCount: 1, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}"
        ));
    }

    #[test]
    fn an_end_after_a_long_run_is_no_loop_however_often_it_happened() {
        let ran = |until: &str| {
            loops(&format!(
                "restartCount: 9, state: {{running: {{}}}}, lastState: {{terminated: {{exitCode: 137, \
                 startedAt: '2026-01-01T00:00:00Z', finishedAt: '2026-01-01T{until}Z'}}}}"
            ))
        };
        assert!(ran("00:09:59"));
        assert!(!ran("00:10:00"));
    }

    #[test]
    fn a_run_that_got_through_its_start_is_no_loop_whatever_came_before() {
        assert!(!loops(
            "restartCount: 2, started: true, state: {running: {}}, lastState: {terminated: {exitCode: 1}}"
        ));
    }

    #[test]
    fn a_quote_is_bounded_and_does_nothing_to_a_terminal() {
        assert_eq!(quote(" a\u{1b}[1;31mb\nc\u{1b}]0;d\u{7} "), "ab c ]0;d ");
        assert_eq!(quote("\u{202e}txt.\u{2066}exe\u{200b}\u{feff}!\u{e0041}"), "txt.exe!");
        assert_eq!(quote(&"x".repeat(9_999)).len(), LONGEST_QUOTE);
        assert!(quote(&"é\u{200b}".repeat(9_999)).len() <= LONGEST_QUOTE);
    }

    #[test]
    fn an_image_that_cannot_be_pulled_and_a_container_that_cannot_be_created_have_a_reason() {
        let pod: PodView = serde_saphyr::from_str("{metadata: {name: chat-0}}").unwrap();
        let reason = |waiting: &str| {
            let container = container(&format!("state: {{waiting: {{reason: {waiting}, message: why}}}}"));
            start_fault(&pod, &container).map(|cause| cause.reason)
        };
        for waiting in IMAGE_FAULTS {
            assert_eq!(reason(waiting), Some(reasons::IMAGE_PULL_FAILED));
        }
        assert_eq!(reason("CreateContainerConfigError"), Some(reasons::CRASH_LOOP));
        assert_eq!(reason("PodInitializing"), None);
    }

    #[test]
    fn a_secret_that_is_missing_or_lacks_a_key_has_a_reason_of_its_own() {
        let pod: PodView = serde_saphyr::from_str("{metadata: {name: chat-0, namespace: demo}}").unwrap();
        let cause = |said: &str| {
            let waiting = serde_json::json!({"reason": "CreateContainerConfigError", "message": said});
            let state = serde_json::json!({"name": "engine", "state": {"waiting": waiting}});
            let Cause { reason, message } =
                start_fault(&pod, &serde_json::from_value(state).unwrap()).unwrap();
            (reason, message.replace("; engine of pod chat-0 needs it: add it", ""))
        };
        let (secret, config_map) = (reasons::SECRET_NOT_FOUND, reasons::CONFIG_MAP_NOT_FOUND);
        for (said, reason, message) in [
            ("secret \"x\" not found", secret, "Secret demo/x does not exist"),
            ("couldn't find key token in Secret demo/hf", secret, "Secret demo/hf has no key \"token\""),
            ("configmap \"x\" not found", config_map, "ConfigMap demo/x does not exist"),
            ("couldn't find key a.b in ConfigMap demo/x", config_map, "ConfigMap demo/x has no key \"a.b\""),
        ] {
            assert_eq!(cause(said), (reason, message.to_owned()));
        }
        for other in ["services have not yet been read at least once", "volume \"x\" not found", "a in b"] {
            assert_eq!(cause(other).0, reasons::CRASH_LOOP, "{other}");
        }
    }

    #[test]
    fn a_warm_up_is_timed_from_the_start_of_the_container() {
        let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let since = |seconds: i64, more: &str| {
            let started = noon - jiff::SignedDuration::from_secs(seconds);
            let engine = container(&format!("state: {{running: {{startedAt: '{started}'}}}}{more}"));
            warm_up(Some(&engine), Duration::from_secs(300), noon)
        };
        assert_eq!(since(0, ""), WarmUp::Left(Duration::from_secs(300)));
        assert_eq!(since(299, ""), WarmUp::Left(Duration::from_secs(1)));
        assert_eq!(since(300, ""), WarmUp::TimedOut);
        assert_eq!(since(-20, ""), WarmUp::Left(Duration::from_secs(300)));
        assert_eq!(since(900, ", started: true"), WarmUp::None, "it has been warm, whatever it is now");
        assert_eq!(since(900, ", restartCount: 1"), WarmUp::None);
    }
}
