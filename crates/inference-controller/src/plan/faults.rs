//! What is wrong with a pod: why the model is not there, why the engine does not run, why no node takes it. Pure.
//!
//! A container that has failed counts as failing until it is ready, also while the kubelet tries it again: a condition
//! that turned over with every restart would help nobody.

use std::time::Duration;

use api::{loader::ExitCode, reasons};
use jiff::Timestamp;

use super::{
    gpus::shortage,
    pod::{ENGINE, LOADER},
};
use crate::{
    observe::{Container, ContainerState, DeploymentView, PodView, Room, Terminated},
    validate::{Gpus, ValidInference},
};

/// Something that is wrong, and the condition that says so.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) about: About,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    ModelLoaded,
    Scheduled,
    Progressing,
}

/// How far a pod is with its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarmUp {
    /// The engine does not run, or has done so before.
    None,
    /// It may take so much longer.
    Left(Duration),
    TimedOut,
}

/// Longest text that we repeat from a container, a kubelet or a scheduler.
const LONGEST_QUOTE: usize = 512;

/// How kubelets name an image that they do not get.
const IMAGE_FAULTS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
];
/// How kubelets name a container that cannot even be made, most often for want of a Secret or a key in it.
const CONFIG_FAULTS: [&str; 3] = ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];

/// Why a pod does not get ready.
pub(super) fn fault_of(pod: &PodView) -> Option<Fault> {
    if pod.is_ready {
        return None;
    }
    let loader = pod.init_containers.iter().find(|container| container.name == LOADER);
    let engine = pod.containers.iter().find(|container| container.name == ENGINE);
    loader
        .and_then(|loader| loader_fault(pod, loader))
        .or_else(|| engine.and_then(|engine| engine_fault(pod, engine)))
}

/// Why no node takes a pod. What is not counted as too few GPUs, because something else is wrong, or because the
/// scheduler knows more than we do, is told in the scheduler's words.
pub(super) fn placement_fault(
    valid: &ValidInference,
    pod: &PodView,
    rooms: Option<&[Room]>,
) -> Option<Fault> {
    let scheduled = pod.scheduled.as_ref().filter(|scheduled| scheduled.status == "False")?;
    if scheduled.reason != "Unschedulable" {
        return None;
    }
    let said = quote(&scheduled.message);
    let fault = |reason, message| Some(Fault { about: About::Scheduled, reason, message });
    let Some(gpus) = &valid.gpus else { return fault(reasons::UNSCHEDULABLE, said) };
    if let Some(short) = rooms.and_then(|rooms| shortage(valid, gpus, rooms)) {
        return Some(short);
    }
    let Gpus { count, resource, products } = gpus;
    let products: Vec<&str> =
        products.iter().flat_map(|product| &product.values).map(String::as_str).collect();
    if said.contains(&format!("Insufficient {resource}")) {
        let on = if products.is_empty() { String::new() } else { format!(" on {}", products.join(" or ")) };
        return fault(
            reasons::INSUFFICIENT_GPU,
            format!("needs {count} {resource}{on}; the scheduler says: {said}"),
        );
    }
    if !products.is_empty()
        && said.contains("didn't match Pod's node affinity")
        && !said.contains("Insufficient")
    {
        return fault(
            reasons::NO_SUCH_PRODUCT,
            format!("no node has {}; the scheduler says: {said}", products.join(" or ")),
        );
    }
    fault(reasons::UNSCHEDULABLE, said)
}

/// Why there are not even pods: a quota, or a policy of the namespace. Only the Deployment is told.
pub(super) fn creation_fault(deployment: &DeploymentView) -> Option<Fault> {
    Some(Fault {
        about: About::Scheduled,
        reason: reasons::UNSCHEDULABLE,
        message: format!("pods cannot be created: {}", quote(deployment.creation_failure.as_deref()?)),
    })
}

/// How long the engine of a pod may still warm up.
pub(super) fn warm_up(pod: &PodView, timeout: Duration, now: Timestamp) -> WarmUp {
    let engine = pod.containers.iter().find(|container| container.name == ENGINE);
    let Some(engine) = engine.filter(|engine| engine.restart_count == 0 && engine.started != Some(true))
    else {
        return WarmUp::None;
    };
    let Some(since) = engine.state.running.as_ref().and_then(|running| running.started_at) else {
        return WarmUp::None;
    };
    // A node's clock that is ahead of ours has not warmed up for less than nothing.
    let taken = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match timeout.checked_sub(taken).filter(|left| !left.is_zero()) {
        Some(left) => WarmUp::Left(left),
        None => WarmUp::TimedOut,
    }
}

fn loader_fault(pod: &PodView, loader: &Container) -> Option<Fault> {
    if loader.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0) {
        return None;
    }
    if let Some(fault) = start_fault(pod, loader) {
        return Some(fault);
    }
    let ended = failure_of(loader)?;
    let known = ExitCode::from_code(ended.exit_code).filter(|code| *code != ExitCode::Usage);
    Some(match known {
        Some(code) => Fault {
            about: About::ModelLoaded,
            reason: code.reason(),
            message: format!("{LOADER} of pod {}: {}", pod.name(), said(ended)),
        },
        None => crash(pod, loader, ended),
    })
}

fn engine_fault(pod: &PodView, engine: &Container) -> Option<Fault> {
    start_fault(pod, engine).or_else(|| failure_of(engine).map(|ended| crash(pod, engine, ended)))
}

/// A container that the kubelet cannot start.
fn start_fault(pod: &PodView, container: &Container) -> Option<Fault> {
    let waiting = container.state.waiting.as_ref()?;
    let reason = match waiting.reason.as_str() {
        reason if IMAGE_FAULTS.contains(&reason) => reasons::IMAGE_PULL_FAILED,
        reason if CONFIG_FAULTS.contains(&reason) => reasons::CRASH_LOOP,
        _ => return None,
    };
    Some(Fault {
        about: About::Progressing,
        reason,
        message: format!(
            "{} of pod {} cannot start ({}): {}",
            container.name,
            pod.name(),
            waiting.reason,
            quote(&waiting.message)
        ),
    })
}

/// How the container ended, now or the last time.
fn failure_of(container: &Container) -> Option<&Terminated> {
    let Container { state, last, .. } = container;
    let ended = |state: &'_ ContainerState| state.terminated.is_some();
    [state, last].into_iter().find(|state| ended(state)).and_then(|state| state.terminated.as_ref())
}

fn crash(pod: &PodView, container: &Container, ended: &Terminated) -> Fault {
    let (name, pod, times) = (container.name.as_str(), pod.name(), container.restart_count);
    let (reason, how, hint) = if ended.reason == "OOMKilled" {
        let how = "used more memory than its limit".to_owned();
        let hint = match name {
            ENGINE => "raise spec.resources.limits.memory".to_owned(),
            _ => format!("see kubectl describe pod {pod}"),
        };
        (reasons::OUT_OF_MEMORY, how, hint)
    } else {
        let how = format!("ended with code {}", ended.exit_code);
        (reasons::CRASH_LOOP, how, format!("see kubectl logs {pod} -c {name} --previous"))
    };
    let message = format!("{name} of pod {pod} {how} ({times} restarts); {hint}");
    Fault { about: About::Progressing, reason, message }
}

/// The loader's own last words. Those of other containers may hold anything, and are not repeated.
fn said(ended: &Terminated) -> String {
    if ended.message.is_empty() {
        format!("ended with code {}", ended.exit_code)
    } else {
        quote(&ended.message)
    }
}

fn quote(text: &str) -> String {
    let text = text.trim();
    text.get(..text.floor_char_boundary(LONGEST_QUOTE)).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use crate::{
        tests::{at, model, pod},
        validate::validate,
    };

    use super::*;

    fn reason_and_condition(parts: &str) -> Option<(&'static str, About)> {
        fault_of(&pod(parts)).map(|fault| (fault.reason, fault.about))
    }

    fn engine(state: &str) -> Option<(&'static str, About)> {
        reason_and_condition(&format!("{{containers: [{{name: engine, {state}}}]}}"))
    }

    fn loader(state: &str) -> Option<(&'static str, About)> {
        reason_and_condition(&format!(
            "{{init: [{{name: model-loader, {state}}}], \
             containers: [{{name: engine, state: {{waiting: {{reason: PodInitializing}}}}}}]}}"
        ))
    }

    #[test]
    fn an_engine_that_has_ended_is_named_until_it_is_ready() {
        let crash_loop = Some((reasons::CRASH_LOOP, About::Progressing));
        assert_eq!(engine("state: {terminated: {exitCode: 1, reason: Error}}"), crash_loop);
        assert_eq!(
            engine("state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}"),
            crash_loop
        );
        assert_eq!(engine("state: {running: {}}, lastState: {terminated: {exitCode: 0}}"), crash_loop);
        assert_eq!(
            reason_and_condition(
                "{ready: true, containers: [{name: engine, ready: true, state: {running: {}}, \
                 lastState: {terminated: {exitCode: 1}}}]}"
            ),
            None
        );
    }

    #[test]
    fn too_little_memory_is_told_apart_from_a_crash() {
        assert_eq!(
            engine("lastState: {terminated: {exitCode: 137, reason: OOMKilled}}"),
            Some((reasons::OUT_OF_MEMORY, About::Progressing))
        );
    }

    #[test]
    fn an_image_that_does_not_come_is_told_for_loader_and_engine() {
        for reason in IMAGE_FAULTS {
            let expected = Some((reasons::IMAGE_PULL_FAILED, About::Progressing));
            assert_eq!(engine(&format!("state: {{waiting: {{reason: {reason}}}}}")), expected);
            assert_eq!(loader(&format!("state: {{waiting: {{reason: {reason}}}}}")), expected);
        }
    }

    #[test]
    fn every_exit_code_of_the_loader_says_why_the_model_is_not_there() {
        for code in ExitCode::ALL.into_iter().filter(|code| *code != ExitCode::Usage) {
            let state = format!("state: {{terminated: {{exitCode: {}, message: why}}}}", code.code());
            assert_eq!(loader(&state), Some((code.reason(), About::ModelLoaded)));
        }
        let crash_loop = Some((reasons::CRASH_LOOP, About::Progressing));
        assert_eq!(
            loader("state: {terminated: {exitCode: 2}}"),
            crash_loop,
            "our own mistake, not the user's"
        );
        assert_eq!(loader("state: {terminated: {exitCode: 101}}"), crash_loop);
    }

    #[test]
    fn a_loader_that_has_succeeded_at_last_is_no_fault() {
        assert_eq!(
            loader("state: {terminated: {exitCode: 0}}, lastState: {terminated: {exitCode: 12}}"),
            None
        );
        assert_eq!(
            loader("state: {running: {}}, lastState: {terminated: {exitCode: 12}}"),
            Some((reasons::SOURCE_UNREACHABLE, About::ModelLoaded))
        );
    }

    #[test]
    fn what_the_loader_said_is_repeated_and_what_the_engine_said_is_not() {
        let loader = fault_of(&pod(
            "{init: [{name: model-loader, state: {terminated: {exitCode: 11, message: 'no object under qwen/'}}}]}",
        ));
        assert_eq!(loader.unwrap().message, "model-loader of pod chat-0: no object under qwen/");
        let engine = fault_of(&pod(
            "{containers: [{name: engine, state: {terminated: {exitCode: 1, message: 'token=secret'}}}]}",
        ));
        assert!(!engine.unwrap().message.contains("secret"));
    }

    fn placement(message: &str) -> &'static str {
        let spec = "{modelSource: s3://m, engine: vllm, gpu: {count: 2, productLabel: A100}}";
        let parts = format!(
            "{{conditions: [{{type: PodScheduled, status: 'False', reason: Unschedulable, message: '{}'}}]}}",
            message.replace('\'', "''")
        );
        placement_fault(&validate(&model(spec)).unwrap(), &pod(&parts), None).unwrap().reason
    }

    #[test]
    fn the_schedulers_words_become_a_reason() {
        assert_eq!(
            placement(
                "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector."
            ),
            reasons::INSUFFICIENT_GPU
        );
        assert_eq!(
            placement("0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."),
            reasons::NO_SUCH_PRODUCT
        );
        assert_eq!(placement("0/4 nodes are available: 4 Insufficient cpu."), reasons::UNSCHEDULABLE);
    }

    #[test]
    fn a_warm_up_is_timed_from_the_start_of_the_engine() {
        let since = |seconds: i64, more: &str| {
            let pod = pod(&format!(
                "{{containers: [{{name: engine, state: {{running: {{startedAt: '{}'}}}}{more}}}]}}",
                at(-seconds)
            ));
            warm_up(&pod, Duration::from_secs(300), at(0))
        };
        assert_eq!(since(0, ""), WarmUp::Left(Duration::from_secs(300)));
        assert_eq!(since(299, ""), WarmUp::Left(Duration::from_secs(1)));
        assert_eq!(since(300, ""), WarmUp::TimedOut);
        assert_eq!(since(-20, ""), WarmUp::Left(Duration::from_secs(300)));
        assert_eq!(since(900, ", started: true"), WarmUp::None, "it has been warm, whatever it is now");
        assert_eq!(since(900, ", restartCount: 1"), WarmUp::None);
    }
}
