//! Why a pod does not get ready: the model is not there, the engine does not run, no node takes it. Pure.
//!
//! A container that keeps ending counts as failing until it is ready, also while the kubelet tries it again: a condition
//! that changed with every restart would be of no use.

use std::{sync::Arc, time::Duration};

use api::{loader::ExitCode, reasons};
use jiff::Timestamp;
use workload::{
    Cause, claim,
    container::{is_out_of_memory, keeps_ending, last_end, quote, start_fault},
    crashes::{Crash, Log, log_to_read},
    deployment::DeploymentView,
    gpu::{Demand, Room, unplaced},
    pod::{Container, PodView, Terminated},
};

use super::pod::{ENGINE, LOADER};
use crate::{
    observe::Observed,
    validate::{Source, ValidInference},
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

/// How long a loader waits for a store that does not answer before it ends.
const LOADER_PATIENCE: Duration = Duration::from_secs(180);
/// One eviction is what node pressure does now and then; two of pods that never got ready have a lasting cause.
const EVICTIONS: usize = 2;

impl About {
    fn fault(self, cause: Cause) -> Fault {
        let Cause { reason, message } = cause;
        Fault { about: self, reason, message }
    }
}

/// Why a pod does not get ready. `why`: why its engine crashed, if that is known.
pub(super) fn fault_of(pod: &PodView, why: Option<&str>, now: Timestamp) -> Option<Fault> {
    if pod.is_ready {
        return None;
    }
    let loader = pod.init_container(LOADER).and_then(|loader| loader_fault(pod, loader, now));
    loader.or_else(|| engine_fault(pod, pod.container(ENGINE)?, why))
}

/// Why the engine of a pod crashed: as its log says, or that of another pod of its revision. Until a log was read, which
/// after a restart of the controller is after the first plan, what the status says of this pod stays.
pub(super) fn why(pod: &PodView, observed: &Observed) -> Option<String> {
    let crashes = &observed.crashes;
    let own = crashes.get(pod.uid());
    let known = own.and_then(Crash::cause).or_else(|| crashes.values().find_map(Crash::cause));
    let is_unread = own.is_none_or(|crash| *crash == Crash::Unread);
    known.map(str::to_owned).or_else(|| written_cause(pod.name(), observed).filter(|_| is_unread))
}

/// The cause in a message as `crash` writes it.
fn written_cause(pod: &str, observed: &Observed) -> Option<String> {
    let mut conditions = observed.model.status.iter().flat_map(|status| &status.conditions);
    let written = conditions.find(|condition| condition.reason == reasons::CRASH_LOOP)?;
    let of_pod = written.message.strip_prefix(&format!("{ENGINE} of pod {pod} "))?;
    let (_, after) = of_pod.split_once(CAUSE_AFTER)?;
    after.rsplit_once(&hint(pod, ENGINE)).map(|(cause, _)| cause.to_owned())
}

/// Each costs a request to a node, which may not answer; one cause is enough for a revision.
const MOST_LOGS: usize = 2;

/// Logs of engines that keep ending and have not said why yet.
pub(super) fn logs_to_read(pods: &[Arc<PodView>], observed: &Observed) -> Vec<Log> {
    let is_known = observed.crashes.values().any(|crash| crash.cause().is_some());
    let unready = pods.iter().filter(|pod| !pod.is_ready && !is_known);
    unready
        .filter_map(|pod| log_to_read(pod, pod.container(ENGINE)?, observed.crashes.get(pod.uid())?))
        .take(MOST_LOGS)
        .collect()
}

/// Why no node takes a pod.
pub(super) fn placement_fault(
    valid: &ValidInference,
    pod: &PodView,
    rooms: Option<&[Room]>,
) -> Option<Fault> {
    unplaced(demand(valid), pod, rooms).map(|cause| About::Scheduled.fault(cause))
}

/// What a pod asks of its node; `None` without GPUs.
pub(super) fn demand(valid: &ValidInference) -> Option<Demand<'_>> {
    let gpus = valid.gpus.as_ref()?;
    Some(Demand { gpus, scheduling: valid.pods.scheduling.as_ref() })
}

/// Why the claim with the model cannot be used.
pub(super) fn claim_fault(valid: &ValidInference, observed: &Observed) -> Option<Fault> {
    let Source::Claim { claim, path: _ } = &valid.source else { return None };
    let named = (valid.namespace.as_str(), claim.as_str());
    claim::fault(observed.claim.as_deref(), named, "spec.modelSource", valid.replicas)
        .map(|cause| About::ModelLoaded.fault(cause))
}

/// Why there are not even pods: a quota, or a policy of the namespace. Only the Deployment's status has it.
pub(super) fn creation_fault(deployment: &DeploymentView) -> Option<Fault> {
    let failure = deployment.creation_failure.as_ref()?;
    let message = format!("pods cannot be created: {}", quote(&failure.message));
    Some(About::Scheduled.fault(Cause { reason: reasons::UNSCHEDULABLE, message }))
}

/// Why a pod that was placed does not begin: a volume that another node has.
pub(super) fn attach_fault(pod: &PodView, observed: &Observed) -> Option<Fault> {
    let said = observed.unattached.get(pod.uid())?;
    let node = pod.node.as_deref().unwrap_or_default();
    let message = format!("pod {} waits on node {node} for its volume: {}", pod.name(), quote(said));
    Some(About::Progressing.fault(Cause { reason: reasons::VOLUME_NOT_ATTACHED, message }))
}

/// Pods that kubelets evict or reject again and again.
pub(super) fn eviction_fault(failed: &[&PodView]) -> Option<Fault> {
    let last = failed.iter().max_by_key(|pod| pod.created()).filter(|_| failed.len() >= EVICTIONS)?;
    let message = format!(
        "{} pods were ended by their kubelets; the last one, {}: {}: {}",
        failed.len(),
        last.name(),
        last.reason,
        quote(&last.message)
    );
    Some(About::Progressing.fault(Cause { reason: reasons::EVICTED, message }))
}

/// How long the engine of a pod may still warm up.
pub(super) fn warm_up(pod: &PodView, timeout: Duration, now: Timestamp) -> WarmUp {
    let engine = pod.container(ENGINE);
    let Some(engine) = engine.filter(|engine| engine.restart_count == 0 && engine.started != Some(true))
    else {
        return WarmUp::None;
    };
    let Some(since) = engine.state.running.as_ref().and_then(|running| running.started_at) else {
        return WarmUp::None;
    };
    // Clock skew can make this negative; treat it as zero.
    let taken = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match timeout.checked_sub(taken).filter(|left| !left.is_zero()) {
        Some(left) => WarmUp::Left(left),
        None => WarmUp::TimedOut,
    }
}

/// Whether the engine was last ended by a signal, as a kubelet does after a startup probe failed for too long.
pub(super) fn was_killed(pod: &PodView) -> bool {
    pod.container(ENGINE).and_then(last_end).is_some_and(|ended| ended.exit_code > 128)
}

fn loader_fault(pod: &PodView, loader: &Container, now: Timestamp) -> Option<Fault> {
    if loader.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0) {
        return None;
    }
    if let Some(cause) = start_fault(pod, loader) {
        let keeps_the_model_away = [reasons::SECRET_NOT_FOUND, reasons::CONFIG_MAP_NOT_FOUND];
        let is_about_it = keeps_the_model_away.contains(&cause.reason);
        let about = if is_about_it { About::ModelLoaded } else { About::Progressing };
        return Some(about.fault(cause));
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
            let message = format!("{LOADER} of pod {}: {}", pod.name(), last_words(ended));
            Some(About::ModelLoaded.fault(Cause { reason: code.reason(), message }))
        }
        None => keeps_ending(loader).map(|ended| crash(pod, loader, ended, None)),
    }
}

fn engine_fault(pod: &PodView, engine: &Container, why: Option<&str>) -> Option<Fault> {
    let cause = start_fault(pod, engine).map(|cause| About::Progressing.fault(cause));
    cause.or_else(|| keeps_ending(engine).map(|ended| crash(pod, engine, ended, why)))
}

fn crash(pod: &PodView, container: &Container, ended: &Terminated, why: Option<&str>) -> Fault {
    let (name, pod, times) = (container.name.as_str(), pod.name(), container.restart_count);
    let (reason, how, hint) = if is_out_of_memory(ended) {
        let how = "used more memory than its limit".to_owned();
        let hint = match name {
            ENGINE => "; raise spec.resources.limits.memory".to_owned(),
            _ => format!("; see kubectl describe pod {pod}"),
        };
        (reasons::OUT_OF_MEMORY, how, hint)
    } else {
        let how = format!("ended with code {}", ended.exit_code);
        (reasons::CRASH_LOOP, how, hint(pod, name))
    };
    // The log of an engine that was killed for its memory does not say so.
    let message = match why.filter(|_| reason == reasons::CRASH_LOOP) {
        Some(why) => format!("{name} of pod {pod} {how} ({times}{CAUSE_AFTER}{why}{hint}"),
        None => format!("{name} of pod {pod} {how} ({times} restarts){hint}"),
    };
    About::Progressing.fault(Cause { reason, message })
}

/// What stands before the cause in the message of a crash.
const CAUSE_AFTER: &str = " restarts): ";

/// What stands after it.
fn hint(pod: &str, container: &str) -> String {
    format!("; see kubectl logs {pod} -c {container} --previous")
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
    use workload::container::IMAGE_FAULTS;

    use crate::tests::{at, pod};

    use super::*;

    fn reason_and_condition(parts: &str) -> Option<(&'static str, About)> {
        fault_of(&pod(parts), None, at(0)).map(|fault| (fault.reason, fault.about))
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
    fn an_engine_that_keeps_ending_is_named_until_it_is_ready_whatever_its_code() {
        let crash_loop = Some((reasons::CRASH_LOOP, About::Progressing));
        assert_eq!(
            engine("state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}"),
            crash_loop
        );
        let again = "restartCount: 2, state: {running: {}}, lastState: {terminated: {exitCode: 0}}";
        assert_eq!(engine(again), crash_loop);
        assert_eq!(
            reason_and_condition(
                "{ready: true, containers: [{name: engine, ready: true, state: {running: {}}, \
                 lastState: {terminated: {exitCode: 1}}}]}"
            ),
            None
        );
    }

    #[test]
    fn too_little_memory_has_a_reason_of_its_own() {
        assert_eq!(
            engine("restartCount: 2, lastState: {terminated: {exitCode: 137, reason: OOMKilled}}"),
            Some((reasons::OUT_OF_MEMORY, About::Progressing))
        );
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_named_for_loader_and_engine() {
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
            loader("restartCount: 2, state: {terminated: {exitCode: 2}}"),
            crash_loop,
            "a mistake of the controller, not of the user"
        );
        assert_eq!(loader("restartCount: 2, state: {terminated: {exitCode: 101}}"), crash_loop);
    }

    #[test]
    fn a_reboot_of_the_node_is_no_crash_loop() {
        let rebooted = "{init: [{name: model-loader, restartCount: 1, state: {running: {}}, \
                        lastState: {terminated: {exitCode: 0, reason: Completed}}}], \
                        containers: [{name: engine, restartCount: 1, state: {waiting: {reason: PodInitializing}}, \
                        lastState: {terminated: {exitCode: 255, reason: Unknown}}}]}";
        assert_eq!(reason_and_condition(rebooted), None);
    }

    #[test]
    fn the_message_about_too_little_memory_names_the_field_to_raise() {
        let lacks = pod(
            "{containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 137, reason: OOMKilled}}}]}",
        );
        let message = fault_of(&lacks, None, at(0)).unwrap().message;
        assert!(message.ends_with("raise spec.resources.limits.memory"), "{message}");
    }

    #[test]
    fn pods_that_kubelets_end_again_and_again_are_counted() {
        let evicted = pod("{phase: Failed, name: chat-9}");
        assert_eq!(eviction_fault(&[&evicted]), None);
        let fault = eviction_fault(&[&evicted, &evicted]).unwrap();
        assert_eq!(fault.reason, reasons::EVICTED);
        let of = |name: &str, seconds| pod(&format!("{{name: {name}, created: '{}'}}", at(seconds)));
        let named = eviction_fault(&[&of("old", 0), &of("new", 9), &of("older", -9)]).unwrap().message;
        assert!(named.contains("the last one, new:"), "{named}");
        assert!(fault.message.starts_with("2 pods were ended by their kubelets; the last one, chat-9"));
    }

    #[test]
    fn a_missing_secret_of_the_loader_keeps_the_model_away_and_one_of_the_engine_the_engine() {
        let state =
            "state: {waiting: {reason: CreateContainerConfigError, message: 'secret \"x\" not found'}}";
        assert_eq!(loader(state), Some((reasons::SECRET_NOT_FOUND, About::ModelLoaded)));
        assert_eq!(engine(state), Some((reasons::SECRET_NOT_FOUND, About::Progressing)));
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
    fn a_loader_that_has_run_for_long_again_is_no_fault() {
        let running = |seconds: i64| {
            let since = at(-seconds);
            loader(&format!(
                "state: {{running: {{startedAt: '{since}'}}}}, lastState: {{terminated: {{exitCode: 12}}}}"
            ))
        };
        assert_eq!(running(180), Some((reasons::SOURCE_UNREACHABLE, About::ModelLoaded)));
        assert_eq!(running(181), None);
    }

    #[test]
    fn what_the_loader_said_is_repeated_and_what_the_engine_said_is_not() {
        let loader = fault_of(
            &pod(
                "{init: [{name: model-loader, state: {terminated: {exitCode: 11, message: 'no object under qwen/'}}}]}",
            ),
            None,
            at(0),
        );
        assert_eq!(loader.unwrap().message, "model-loader of pod chat-0: no object under qwen/");
        let engine = fault_of(
            &pod(
                "{containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1, message: 'token=secret'}}}]}",
            ),
            None,
            at(0),
        );
        assert!(!engine.unwrap().message.contains("secret"));
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
