//! Why a pod does not get ready: the model is not there, the engine does not run, no node takes it. Pure.
//!
//! A container that keeps ending counts as failing until it is ready, also while the kubelet tries it again: a condition
//! that changed with every restart would be of no use.

use std::{sync::Arc, time::Duration};

use api::reasons;
use jiff::Timestamp;
use workload::{
    Cause, Finding, claim,
    container::{crash, keeps_ending, quote, start_fault, written_cause},
    crashes::{Crash, Log, log_to_read},
    deployment::DeploymentView,
    evictions,
    gpu::{Demand, Room, unplaced},
    loader,
    pod::{Container, PodView},
};

use super::pod::{ENGINE, LOADER, loader::gives_up_within};
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

/// A fault, and when there may be another or none although no object changes.
pub(super) type Found = (Option<Fault>, Option<Duration>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    ModelLoaded,
    Scheduled,
    Progressing,
}

impl About {
    fn found(self, finding: Finding) -> Found {
        let Finding { cause, look_again } = finding;
        (cause.map(|cause| self.fault(cause)), look_again)
    }

    fn fault(self, cause: Cause) -> Fault {
        let Cause { reason, message } = cause;
        Fault { about: self, reason, message }
    }
}

/// Why a pod does not get ready.
pub(super) fn fault_of(valid: &ValidInference, pod: &PodView, observed: &Observed, now: Timestamp) -> Found {
    if pod.is_ready {
        return (None, None);
    }
    let (loader, gives_up) = pod.init_container(LOADER).map_or((None, None), |loader| {
        let finding = loader::finding(pod, loader, gives_up_within(valid), now);
        // A model that is not there is one thing, a container that does not run another.
        let does_not_run = [reasons::CRASH_LOOP, reasons::OUT_OF_MEMORY, reasons::IMAGE_PULL_FAILED];
        let is_there = finding.cause.as_ref().is_some_and(|cause| does_not_run.contains(&cause.reason));
        if is_there { About::Progressing.found(finding) } else { About::ModelLoaded.found(finding) }
    });
    let volume = observed.unattached.get(pod.uid()).map(|failure| failure.finding(pod, now));
    let (volume, waits) = About::Progressing.found(volume.unwrap_or_default());
    let fault = loader
        .or_else(|| engine_fault(pod, pod.container(ENGINE)?, why(pod, observed).as_deref()))
        .or(volume)
        .or_else(|| placement_fault(valid, pod, observed.rooms.as_deref()));
    (fault, gives_up.into_iter().chain(waits).min())
}

/// That kubelets have ended pods again and again, and what is left of them is not ready.
pub(super) fn eviction_fault(observed: &Observed, pods: &[&PodView], now: Timestamp) -> Found {
    if pods.iter().any(|pod| pod.is_ready) {
        return (None, None);
    }
    About::Progressing.found(evictions::finding(&observed.failed, pods, now))
}

/// Why the engine of a pod crashed: as its log says, or that of another pod of its revision. Until a log was read, which
/// after a restart of the controller is after the first plan, what the status says of this pod stays.
fn why(pod: &PodView, observed: &Observed) -> Option<String> {
    let crashes = &observed.crashes;
    let own = crashes.get(pod.uid());
    let is_unread = own.is_none_or(|crash| *crash == Crash::Unread);
    let of_own = own.and_then(Crash::cause).map(str::to_owned);
    let mut written = observed.model.status.iter().flat_map(|status| &status.conditions);
    let written = written.find(|condition| is_unread && condition.reason == reasons::CRASH_LOOP);
    let written = written.and_then(|written| written_cause(&written.message, pod.name(), ENGINE));
    let of_own = of_own.or_else(|| written.map(str::to_owned));
    of_own.or_else(|| {
        let of_another =
            |other: &PodView| Some((other.name().to_owned(), crashes.get(other.uid())?.cause()?));
        let (name, cause) = observed.pods().find_map(of_another)?;
        Some(format!("pod {name} ended with {cause}"))
    })
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
fn placement_fault(valid: &ValidInference, pod: &PodView, rooms: Option<&[Room]>) -> Option<Fault> {
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

fn engine_fault(pod: &PodView, engine: &Container, why: Option<&str>) -> Option<Fault> {
    let crashed = || {
        let raise = Some("spec.resources.limits.memory");
        keeps_ending(engine).map(|ended| crash(pod, engine, ended, why, raise))
    };
    start_fault(pod, engine).or_else(crashed).map(|cause| About::Progressing.fault(cause))
}

#[cfg(test)]
mod tests {
    use api::loader::ExitCode;
    use workload::container::IMAGE_FAULTS;

    use crate::{
        tests::{Scene, at, pod},
        validate::validate,
    };

    use super::*;

    fn fault(parts: &str) -> Option<Fault> {
        let observed = Scene::ready(1).observed();
        fault_of(&validate(&observed.model).unwrap(), &pod(parts), &observed, at(0)).0
    }

    fn reason_and_condition(parts: &str) -> Option<(&'static str, About)> {
        fault(parts).map(|fault| (fault.reason, fault.about))
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
        let lacks = "{containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 137, reason: OOMKilled}}}]}";
        let message = fault(lacks).unwrap().message;
        assert!(message.ends_with("raise spec.resources.limits.memory"), "{message}");
    }

    #[test]
    fn a_missing_secret_of_the_loader_keeps_the_model_away_and_one_of_the_engine_the_engine() {
        let state =
            "state: {waiting: {reason: CreateContainerConfigError, message: 'secret \"x\" not found'}}";
        assert_eq!(loader(state), Some((reasons::SECRET_NOT_FOUND, About::ModelLoaded)));
        assert_eq!(engine(state), Some((reasons::SECRET_NOT_FOUND, About::Progressing)));
    }

    #[test]
    fn what_the_loader_said_is_repeated_and_what_the_engine_said_is_not() {
        let loader = "{init: [{name: model-loader, state: {terminated: {exitCode: 11, message: 'no object under qwen/'}}}]}";
        assert_eq!(fault(loader).unwrap().message, "model-loader of pod chat-0: no object under qwen/");
        let engine = "{containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1, message: 'token=secret'}}}]}";
        assert!(!fault(engine).unwrap().message.contains("secret"));
    }
}
