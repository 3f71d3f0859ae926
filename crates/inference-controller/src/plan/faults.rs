//! Why a pod does not become ready: the model is missing, the engine does not run, or the pod is unschedulable. Pure.
//!
//! A container that keeps ending counts as faulty until it is ready, also while it runs again; otherwise conditions would
//! change with every restart.

use std::{sync::Arc, time::Duration};

use api::{loader::STALLED, reasons};
use jiff::Timestamp;
use workload::{
    Cause, Finding,
    faults::{
        container::{
            crash, fault_of_added, is_out_of_memory, keeps_ending, last_end, quote, start_fault,
            written_cause,
        },
        crashes::{Crash, Log, log_to_read},
        event::{MissingSecret, SetupFailure},
        evictions,
        gpu::{Demand, NodeCapacity},
        loader, refused_pods,
        unplaced::unplaced,
    },
    templates::{deployment::DeploymentView, revision::Revision},
    views::{
        claim,
        pod::{Container, PodView, Terminated},
    },
};

use super::pod::{
    loader::stall_timeout,
    volumes::{AUTHORITY, AUTHORITY_KEY, authority_secret},
};
use crate::{
    names::{ENGINE, LOADER, Track},
    observe::Observed,
    validate::{Source, ValidInference},
};

/// A fault and the condition that reports it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) condition: FaultyCondition,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// A fault, and when to check again even if no object changes.
pub(super) type Found = (Option<Fault>, Option<Duration>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultyCondition {
    ModelLoaded,
    Scheduled,
    Progressing,
}

impl FaultyCondition {
    fn found(self, finding: Finding) -> Found {
        let Finding { cause, requeue_after } = finding;
        (cause.map(|cause| self.fault(cause)), requeue_after)
    }

    fn fault(self, cause: Cause) -> Fault {
        let Cause { reason, message } = cause;
        Fault { condition: self, reason, message }
    }
}

/// Why a pod is not ready.
pub(super) fn fault_of(
    valid: &ValidInference,
    revision: &Revision<'_>,
    pod: &PodView,
    observed: &Observed,
    now: Timestamp,
) -> Found {
    if pod.is_ready {
        return (None, None);
    }
    let (loader, loader_requeue_after) = pod.init_container(LOADER).map_or((None, None), |loader| {
        let finding = loader::finding(pod, loader, loader::reason_of_model, stall_timeout(valid), now);
        // A loader that does not run is a fault of Progressing, a missing model one of ModelLoaded.
        let does_not_run = [reasons::CRASH_LOOP, reasons::OUT_OF_MEMORY, reasons::IMAGE_PULL_FAILED];
        let is_process_fault =
            finding.cause.as_ref().is_some_and(|cause| does_not_run.contains(&cause.reason));
        if is_process_fault {
            FaultyCondition::Progressing.found(finding)
        } else {
            FaultyCondition::ModelLoaded.found(finding)
        }
    });
    let (volume, volume_requeue_after) = observed
        .unattached
        .get(pod.uid())
        .map_or((None, None), |failure| volume_fault(valid, pod, failure, now));
    let (unplaced, unplaced_requeue_after) =
        FaultyCondition::Scheduled.found(unplaced(demand(valid), pod, capacities(revision, observed), now));
    let fault = loader
        .or_else(|| engine_fault(valid.track, pod, pod.container(ENGINE)?, why(pod, observed).as_deref()))
        .or_else(|| {
            fault_of_added(pod, &[LOADER, ENGINE]).map(|cause| FaultyCondition::Progressing.fault(cause))
        })
        .or(volume)
        .or(unplaced);
    let requeue_after = [loader_requeue_after, volume_requeue_after, unplaced_requeue_after];
    (fault, requeue_after.into_iter().flatten().min())
}

/// Why a volume of the pod is not attached or mounted. Without the authorities of the store, the model cannot be loaded.
fn volume_fault(valid: &ValidInference, pod: &PodView, failure: &SetupFailure, now: Timestamp) -> Found {
    let finding = failure.finding(pod, now);
    let (Some((AUTHORITY, missing)), Some(secret)) =
        (failure.missing_secret(), authority_secret(&valid.source))
    else {
        return FaultyCondition::Progressing.found(finding);
    };
    let what = match missing {
        MissingSecret::Secret => "not found".to_owned(),
        MissingSecret::Key => format!("has no key {AUTHORITY_KEY:?}"),
    };
    let message = format!("Secret {}/{secret} {what} (spec.modelStore.caSecretName)", valid.namespace);
    let cause = finding.cause.map(|cause| Cause { message, ..cause });
    FaultyCondition::ModelLoaded.found(Finding { cause, ..finding })
}

/// Repeated evictions, while no pod is ready.
pub(super) fn eviction_fault(observed: &Observed, pods: &[&PodView], now: Timestamp) -> Found {
    if pods.iter().any(|pod| pod.is_ready) {
        return (None, None);
    }
    FaultyCondition::Progressing.found(evictions::finding(&observed.failed, pods, now))
}

/// Why the engine of a pod crashed: from its log, or from that of another pod of the object. Until the log has been read,
/// for example after a restart of the controller, the cause in the last status is used.
pub(super) fn why(pod: &PodView, observed: &Observed) -> Option<String> {
    let crashes = &observed.crashes;
    let own = crashes.get(pod.uid());
    let is_unread = own.is_none_or(|crash| *crash == Crash::Unread);
    let of_own = own.and_then(Crash::cause).map(str::to_owned);
    let mut written = observed.inference.status.iter().flat_map(|status| &status.conditions);
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

/// What is raised for an engine that needs more memory. The other field would make new pods of stable.
pub(super) fn memory_field(track: Track) -> &'static str {
    match track {
        Track::Stable => "spec.resources.limits.memory",
        Track::Canary => "spec.canary.resources.limits.memory",
    }
}

/// Limits the requests to kubelets per reconcile. One cause is enough for a revision.
const MOST_LOGS: usize = 2;

/// Logs of unready engines that `ended` names, without a known cause.
pub(super) fn logs_to_read(
    pods: &[Arc<PodView>],
    ended: impl Fn(&Container) -> Option<&Terminated>,
    observed: &Observed,
) -> Vec<Log> {
    let is_known = observed.crashes.values().any(|crash| crash.cause().is_some());
    let unready = pods.iter().filter(|pod| !pod.is_ready && !is_known);
    let log = |pod: &Arc<PodView>| {
        let engine = pod.container(ENGINE)?;
        log_to_read(pod, engine, ended(engine)?, observed.crashes.get(pod.uid())?)
    };
    unready.filter_map(log).take(MOST_LOGS).collect()
}

/// The GPU demand of a pod; `None` without GPUs.
pub(super) fn demand(valid: &ValidInference) -> Option<Demand<'_>> {
    let gpus = valid.gpus.as_ref()?;
    Some(Demand { gpus, scheduling: valid.pods.scheduling.as_ref() })
}

/// The capacity of the nodes. `None`: it is not known, or the pods select other nodes than this release would. A pinned
/// template keeps the labels of GPU products that it was rendered with.
pub(super) fn capacities<'o>(revision: &Revision<'_>, observed: &'o Observed) -> Option<&'o [NodeCapacity]> {
    let is_of_nodes =
        |field: &String| field == "spec.affinity" || field.starts_with("spec.affinity.nodeAffinity");
    let selects_others = revision.outdated.iter().any(is_of_nodes);
    observed.capacities.as_deref().filter(|_| !selects_others)
}

/// Why the claim with the model cannot be used.
pub(super) fn claim_fault(valid: &ValidInference, observed: &Observed) -> Option<Fault> {
    let Source::Claim { claim, path: _ } = &valid.source else { return None };
    let named = (valid.namespace.as_str(), claim.as_str());
    let mounts = claim::Mounts { count: valid.replicas, field: "replicas" };
    claim::fault(observed.claim.as_deref(), named, "spec.modelSource", mounts)
        .map(|cause| FaultyCondition::ModelLoaded.fault(cause))
}

/// The containers of the controller, with the fields of their resources.
const HELPERS: [(&str, &str); 1] = [(LOADER, "spec.helperResources or spec.modelLoader.resources")];

/// Why pods cannot be created, such as a quota. Only the Deployment's status reports it.
pub(super) fn creation_fault(deployment: &DeploymentView) -> Option<Fault> {
    let failure = deployment.creation_failure.as_ref()?;
    let fix = refused_pods::fix(&failure.message, &HELPERS);
    let message = format!("pods cannot be created: {}{fix}", quote(&failure.message));
    Some(FaultyCondition::Scheduled.fault(Cause { reason: reasons::UNSCHEDULABLE, message }))
}

fn engine_fault(track: Track, pod: &PodView, engine: &Container, why: Option<&str>) -> Option<Fault> {
    let crashed = || {
        let raise = Some(memory_field(track));
        keeps_ending(engine).map(|ended| crash(pod, engine, ended, why, raise))
    };
    start_fault(pod, engine)
        .or_else(|| stalled(pod, engine))
        .or_else(crashed)
        .map(|cause| FaultyCondition::Progressing.fault(cause))
}

/// An engine that its liveness probe has found stalled, until the next one serves. The probe has written that to the
/// termination log. One end is enough: it is no reboot.
fn stalled(pod: &PodView, engine: &Container) -> Option<Cause> {
    let is_named = |ended: &&Terminated| engine.started != Some(true) && !is_out_of_memory(ended);
    let ended = last_end(engine).filter(is_named)?;
    let how = quote(ended.message.strip_prefix(STALLED)?);
    let (pod, times) = (pod.name(), engine.restart_count);
    let message = format!(
        "engine of pod {pod} was restarted ({times} restarts): {how}; see kubectl logs {pod} -c engine --previous, and \
         spec.stallSeconds"
    );
    Some(Cause { reason: reasons::ENGINE_STALLED, message })
}

#[cfg(test)]
mod tests {
    use api::loader::ExitCode;
    use workload::faults::container::IMAGE_FAULTS;

    use crate::{
        plan::revision::revision,
        tests::{Scene, at, defaults, pod},
        validate::validate,
    };

    use super::*;

    fn fault(parts: &str) -> Option<Fault> {
        let observed = Scene::ready(1).observed();
        let valid = validate(&observed.inference).unwrap();
        let revision = revision(&valid, &observed, &defaults(&[]));
        fault_of(&valid, &revision, &pod(parts), &observed, at(0)).0
    }

    fn reason_and_condition(parts: &str) -> Option<(&'static str, FaultyCondition)> {
        fault(parts).map(|fault| (fault.reason, fault.condition))
    }

    fn engine(state: &str) -> Option<(&'static str, FaultyCondition)> {
        reason_and_condition(&format!("{{containers: [{{name: engine, {state}}}]}}"))
    }

    fn loader(state: &str) -> Option<(&'static str, FaultyCondition)> {
        reason_and_condition(&format!(
            "{{init: [{{name: model-loader, {state}}}], \
             containers: [{{name: engine, state: {{waiting: {{reason: PodInitializing}}}}}}]}}"
        ))
    }

    #[test]
    fn an_engine_that_stalled_is_named_until_the_next_one_serves() {
        let again = |more: &str, reason: &str| {
            engine(&format!(
                "restartCount: 1, {more} state: {{running: {{}}}}, lastState: {{terminated: {{exitCode: 137, \
                 reason: {reason}, message: 'EngineStalled: requests run (3), and there was no token for 300 s'}}}}"
            ))
        };
        let stalled = Some((reasons::ENGINE_STALLED, FaultyCondition::Progressing));
        assert_eq!(again("started: false,", "Error"), stalled);
        assert_eq!(again("started: true,", "Error"), None);
        assert_eq!(again("started: false,", "OOMKilled"), None, "one end is no loop");
        let message = fault(
            "{name: chat-0, containers: [{name: engine, restartCount: 1, state: {running: {}}, lastState: \
             {terminated: {exitCode: 143, message: 'EngineStalled: requests run (3)'}}}]}",
        );
        let message = message.unwrap().message;
        let begin = "engine of pod chat-0 was restarted (1 restarts): requests run (3)";
        assert!(message.starts_with(begin), "{message}");
    }

    #[test]
    fn an_engine_that_keeps_ending_is_a_fault_until_it_is_ready_for_any_exit_code() {
        let crash_loop = Some((reasons::CRASH_LOOP, FaultyCondition::Progressing));
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
    fn a_container_of_a_mesh_that_keeps_ending_is_a_fault() {
        let loops = "restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}";
        let parts = format!(
            "{{init: [{{name: istio-init, {loops}}}], containers: [{{name: engine, state: {{waiting: {{reason: \
             PodInitializing}}}}}}]}}"
        );
        assert_eq!(reason_and_condition(&parts), Some((reasons::CRASH_LOOP, FaultyCondition::Progressing)));
    }

    #[test]
    fn an_oom_kill_has_the_reason_out_of_memory() {
        assert_eq!(
            engine("restartCount: 2, lastState: {terminated: {exitCode: 137, reason: OOMKilled}}"),
            Some((reasons::OUT_OF_MEMORY, FaultyCondition::Progressing))
        );
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_a_fault_of_loader_and_engine() {
        for reason in IMAGE_FAULTS {
            let expected = Some((reasons::IMAGE_PULL_FAILED, FaultyCondition::Progressing));
            assert_eq!(engine(&format!("state: {{waiting: {{reason: {reason}}}}}")), expected);
            assert_eq!(loader(&format!("state: {{waiting: {{reason: {reason}}}}}")), expected);
        }
    }

    #[test]
    fn every_exit_code_of_the_loader_has_a_reason() {
        for code in ExitCode::ALL.into_iter().filter(|code| *code != ExitCode::Usage) {
            let state = format!("state: {{terminated: {{exitCode: {}, message: why}}}}", code.code());
            assert_eq!(loader(&state), Some((code.reason(), FaultyCondition::ModelLoaded)));
        }
        let crash_loop = Some((reasons::CRASH_LOOP, FaultyCondition::Progressing));
        assert_eq!(
            loader("restartCount: 2, state: {terminated: {exitCode: 2}}"),
            crash_loop,
            "a fault of the controller, not of the user"
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
    fn the_message_about_an_oom_kill_names_the_field_to_raise() {
        let killed = "{containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 137, reason: OOMKilled}}}]}";
        let message = fault(killed).unwrap().message;
        assert!(message.ends_with("raise spec.resources.limits.memory"), "{message}");
    }

    #[test]
    fn a_missing_secret_is_a_fault_of_the_container_that_needs_it() {
        let state =
            "state: {waiting: {reason: CreateContainerConfigError, message: 'secret \"x\" not found'}}";
        assert_eq!(loader(state), Some((reasons::SECRET_NOT_FOUND, FaultyCondition::ModelLoaded)));
        assert_eq!(engine(state), Some((reasons::SECRET_NOT_FOUND, FaultyCondition::Progressing)));
    }

    #[test]
    fn only_the_termination_message_of_the_loader_is_quoted() {
        let loader = "{init: [{name: model-loader, state: {terminated: {exitCode: 11, message: 'no object under qwen/'}}}]}";
        assert_eq!(fault(loader).unwrap().message, "model-loader of pod chat-0: no object under qwen/");
        let engine = "{containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1, message: 'token=secret'}}}]}";
        assert!(!fault(engine).unwrap().message.contains("secret"));
    }
}
