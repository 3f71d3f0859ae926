//! Why a container does not start or keeps ending. Pure.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use text::{cut, printable};

use crate::{
    Cause,
    time::remaining,
    views::pod::{Container, PodView, Terminated},
};

/// Maximum length of a text quoted from a container, a kubelet or the scheduler.
pub(crate) const LONGEST_QUOTE: usize = 512;

/// Waiting reasons of an image that cannot be pulled.
pub const IMAGE_FAULTS: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];
/// Waiting reasons of a container that cannot be created.
const CONFIG_FAULTS: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];
const SECRET: &str = "Secret";
const CONFIG_MAP: &str = "ConfigMap";
const BACK_OFF: &str = "CrashLoopBackOff";
/// A kubelet resets the restart back-off of a container that ran this long (twice its maximum back-off of 5 min).
const STEADY_AFTER: Duration = Duration::from_secs(600);

/// Why the kubelet cannot start a container.
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
        "{} of pod {} cannot start ({}): {}{}",
        container.name,
        pod.name(),
        waiting.reason,
        quote(&waiting.message),
        remedy(&waiting.message)
    );
    Some(Cause { reason, message })
}

/// What containerd, CRI-O and Linux say of an image that has no program for the CPU of the node.
const OTHER_ARCHITECTURE: [&str; 3] =
    ["exec format error", "no match for platform", "no image found in manifest list for architecture"];

/// What helps, if the text of a runtime does not say it.
fn remedy(text: &str) -> &'static str {
    if OTHER_ARCHITECTURE.iter().any(|known| text.contains(known)) {
        "; the image is for another CPU architecture than the node: use an image for both, or choose nodes with \
         scheduling.nodeSelector and the label kubernetes.io/arch"
    } else {
        ""
    }
}

/// Why a container that is not in the rendered pod keeps the pod from starting: a webhook has added it, as a mesh does. `own`:
/// the names of the rendered containers.
pub fn fault_of_added(pod: &PodView, own: &[&str]) -> Option<Cause> {
    let containers = pod.init_containers.iter().chain(&pod.containers);
    let is_done = |one: &Container| one.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0);
    let added = containers.filter(|container| !own.contains(&&*container.name) && !is_done(container));
    let fault = |container: &Container| {
        let crashed = || keeps_ending(container).map(|ended| crash(pod, container, ended, None, None));
        start_fault(pod, container).or_else(crashed)
    };
    let Cause { reason, message } = added.filter_map(fault).next()?;
    Some(Cause {
        reason,
        message: format!("{message}; a webhook of the cluster has added this container to the pod"),
    })
}

/// A missing Secret, ConfigMap or key, from a kubelet's message: `secret "x" not found`, `couldn't find key k in Secret
/// demo/x`.
fn missing_reference(pod: &PodView, container: &Container, text: &str) -> Option<Cause> {
    let (kind, what) = if let Some(named) = text.strip_prefix("couldn't find key ") {
        let (key, of) = named.rsplit_once(" in ")?;
        (of.split_once(' ')?.0, format!("{of} has no key \"{key}\""))
    } else {
        let (kind, name) = text.strip_suffix("\" not found")?.split_once(" \"")?;
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

/// The latest end of the container.
pub fn last_end(container: &Container) -> Option<&Terminated> {
    container.state.terminated.as_ref().or(container.last.terminated.as_ref())
}

/// The latest end of a container that ends repeatedly: the kubelet is in back-off, or the container restarted more than
/// once and its last run was short. A single end does not count: a reboot of the node ends every container once.
pub fn keeps_ending(container: &Container) -> Option<&Terminated> {
    if container.started == Some(true) {
        // The startup probe of the present run has succeeded.
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

/// The state of a container's warm-up: its first run until its startup probe succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// The container is not running, has started, or has restarted.
    None,
    /// The remaining time.
    Remaining(Duration),
    TimedOut,
}

/// The warm-up of a container that may take `timeout`.
pub fn warm_up(container: Option<&Container>, timeout: Duration, now: Timestamp) -> WarmUp {
    let first = container.filter(|one| one.restart_count == 0 && one.started != Some(true));
    let Some(since) = first.and_then(|one| one.state.running.as_ref()?.started_at) else {
        return WarmUp::None;
    };
    match remaining(timeout, since, now) {
        Some(remaining) => WarmUp::Remaining(remaining),
        None => WarmUp::TimedOut,
    }
}

/// Whether a signal ended the container, as when the kubelet kills it after its startup probe timed out.
pub fn was_killed(container: &Container) -> bool {
    last_end(container).is_some_and(|ended| ended.exit_code > 128)
}

/// The cause for a container that keeps ending. `why`: the cause from its log. `memory`: the field that sets its limit.
pub fn crash(
    pod: &PodView,
    container: &Container,
    ended: &Terminated,
    why: Option<&str>,
    memory: Option<&str>,
) -> Cause {
    let (name, pod, times) = (container.name.as_str(), pod.name(), container.restart_count);
    if is_out_of_memory(ended) {
        // The log of a container killed for its memory shows no cause.
        let hint = memory.map_or(format!("see kubectl describe pod {pod}"), |field| format!("raise {field}"));
        let message =
            format!("{name} of pod {pod} used more memory than its limit ({times} restarts); {hint}");
        return Cause { reason: reasons::OUT_OF_MEMORY, message };
    }
    let how = format!("{name} of pod {pod} ended with code {} ({times}", ended.exit_code);
    let hint = hint(pod, name);
    let message = match why {
        Some(why) => format!("{how}{CAUSE_AFTER}{why}{hint}{}", remedy(why)),
        None => format!("{how} restarts){hint}{}", remedy(&ended.message)),
    };
    Cause { reason: reasons::CRASH_LOOP, message }
}

/// The inverse of `crash`: extracts `why` from its message.
pub fn written_cause<'a>(message: &'a str, pod: &str, container: &str) -> Option<&'a str> {
    let of_pod = message.strip_prefix(&format!("{container} of pod {pod} "))?;
    let (_, after) = of_pod.split_once(CAUSE_AFTER)?;
    after.rsplit_once(&hint(pod, container)).map(|(cause, _)| cause)
}

/// Separates the restarts from the cause in the message of `crash`.
const CAUSE_AFTER: &str = " restarts): ";

/// The end of the message of `crash`.
fn hint(pod: &str, container: &str) -> String {
    format!("; see kubectl logs {pod} -c {container} --previous")
}

/// A text of another program without control characters, cut to fit a condition.
pub fn quote(text: &str) -> String {
    // Removed characters do not count towards the length, so more than the limit is read.
    let read = text.trim().get(..text.trim().floor_char_boundary(4 * LONGEST_QUOTE));
    let mut text = cut(printable(read.unwrap_or_default()), LONGEST_QUOTE);
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
    fn a_single_end_is_no_loop() {
        assert!(!loops("state: {terminated: {exitCode: 1}}"));
        assert!(!loops("restartCount: 1, state: {running: {}}, lastState: {terminated: {exitCode: 255}}"));
        assert!(loops("restartCount: 2, state: {running: {}}, lastState: {terminated: {exitCode: 1}}"));
        assert!(loops(
            "restartCount: 1, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}"
        ));
    }

    #[test]
    fn repeated_ends_after_long_runs_are_no_loop() {
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
    fn a_started_container_is_no_loop() {
        assert!(!loops(
            "restartCount: 2, started: true, state: {running: {}}, lastState: {terminated: {exitCode: 1}}"
        ));
    }

    #[test]
    fn a_quote_is_bounded_and_has_no_control_characters() {
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
    fn an_image_for_another_architecture_is_named() {
        let pod: PodView = serde_saphyr::from_str("{metadata: {name: chat-0}}").unwrap();
        let starts = |reason: &str, text: &str| {
            let state = serde_json::json!({"name": "engine", "state": {"waiting": {"reason": reason, "message": text}}});
            start_fault(&pod, &serde_json::from_value(state).unwrap()).unwrap().message
        };
        let expected = "label kubernetes.io/arch";
        for (reason, text) in [
            ("ErrImagePull", "failed to pull image: no match for platform in manifest: not found"),
            ("RunContainerError", "exec: \"/engine\": exec format error: unknown"),
        ] {
            assert!(starts(reason, text).ends_with(expected), "{text}");
        }
        assert!(!starts("ErrImagePull", "not found").contains(expected));
        let engine = container("restartCount: 2");
        let ended = |message: &str| Terminated {
            exit_code: 255,
            message: message.to_owned(),
            ..Terminated::default()
        };
        let crash =
            |message: &str, why: Option<&str>| crash(&pod, &engine, &ended(message), why, None).message;
        assert!(crash("exec /engine: exec format error", None).ends_with(expected));
        let why = "exec /engine: exec format error";
        let message = crash("", Some(why));
        assert!(message.ends_with(expected));
        assert_eq!(written_cause(&message, "chat-0", "engine"), Some(why));
    }

    #[test]
    fn a_container_that_a_webhook_has_added_is_named() {
        let fault = |parts: &str| {
            let labels = "{app.kubernetes.io/managed-by: a-controller, app.kubernetes.io/name: a, \
                          app.kubernetes.io/instance: b}";
            let text = format!("{{metadata: {{name: chat-0, labels: {labels}}}, status: {{{parts}}}}}");
            let pod: PodView = serde_saphyr::from_str(&text).unwrap();
            fault_of_added(&pod, &["engine"])
        };
        let loops = |name: &str| {
            format!(
                "{{name: {name}, restartCount: 4, state: {{waiting: {{reason: CrashLoopBackOff}}}}, lastState: \
                 {{terminated: {{exitCode: 1}}}}}}"
            )
        };
        let Cause { reason, message } =
            fault(&format!("initContainerStatuses: [{}]", loops("istio-init"))).unwrap();
        assert_eq!(reason, reasons::CRASH_LOOP);
        assert!(message.starts_with("istio-init of pod chat-0 ended with code 1"), "{message}");
        assert!(
            message.ends_with("a webhook of the cluster has added this container to the pod"),
            "{message}"
        );
        assert_eq!(fault(&format!("containerStatuses: [{}]", loops("engine"))), None);
        let done = "initContainerStatuses: [{name: istio-init, restartCount: 3, state: {terminated: {exitCode: 0}}}]";
        assert_eq!(fault(done), None);
        let image = "containerStatuses: [{name: istio-proxy, state: {waiting: {reason: ErrImagePull}}}]";
        assert_eq!(fault(image).unwrap().reason, reasons::IMAGE_PULL_FAILED);
    }

    #[test]
    fn missing_secrets_config_maps_and_keys_have_their_own_reasons() {
        let pod: PodView = serde_saphyr::from_str("{metadata: {name: chat-0, namespace: demo}}").unwrap();
        let cause = |text: &str| {
            let waiting = serde_json::json!({"reason": "CreateContainerConfigError", "message": text});
            let state = serde_json::json!({"name": "engine", "state": {"waiting": waiting}});
            let Cause { reason, message } =
                start_fault(&pod, &serde_json::from_value(state).unwrap()).unwrap();
            (reason, message.replace("; engine of pod chat-0 needs it: add it", ""))
        };
        let (secret, config_map) = (reasons::SECRET_NOT_FOUND, reasons::CONFIG_MAP_NOT_FOUND);
        for (text, reason, message) in [
            ("secret \"x\" not found", secret, "Secret demo/x does not exist"),
            ("couldn't find key token in Secret demo/hf", secret, "Secret demo/hf has no key \"token\""),
            ("configmap \"x\" not found", config_map, "ConfigMap demo/x does not exist"),
            ("couldn't find key a.b in ConfigMap demo/x", config_map, "ConfigMap demo/x has no key \"a.b\""),
        ] {
            assert_eq!(cause(text), (reason, message.to_owned()));
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
        assert_eq!(since(0, ""), WarmUp::Remaining(Duration::from_secs(300)));
        assert_eq!(since(299, ""), WarmUp::Remaining(Duration::from_secs(1)));
        assert_eq!(since(300, ""), WarmUp::TimedOut);
        assert_eq!(since(-20, ""), WarmUp::Remaining(Duration::from_secs(300)));
        assert_eq!(since(900, ", started: true"), WarmUp::None, "the startup probe has succeeded");
        assert_eq!(since(900, ", restartCount: 1"), WarmUp::None);
    }
}
