//! Why a pod does not become ready: its memory is not loaded, its worker does not run, or it is unschedulable. Pure.
//!
//! A container that keeps ending counts as faulty until it is ready, also while it runs again; otherwise conditions would
//! change with every restart.

use std::{sync::Arc, time::Duration};

use api::{monitor::ExitCode, reasons};
use jiff::Timestamp;
use workload::{
    Cause, Finding,
    faults::{
        container::{crash, fault_of_added, keeps_ending, last_end, quote, start_fault},
        evictions, loader, refused_pods,
        unplaced::unplaced,
    },
    templates::{deployment::DeploymentView, revision::Revision},
    time::remaining,
    views::{
        claim,
        pod::{Container, PodView, Terminated},
    },
};

use crate::{
    load::WorkerLoad,
    names::{LOADER, MONITOR, WORKER},
    observe::Observed,
    plan::{
        readiness::{Readiness, is_ready, readiness},
        revision::{Seen, seen},
    },
    validate::{Checkpoint, Storage, ValidDispatcher, Workers},
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
    MemoryReady,
    Progressing,
}

/// A loader that runs for so long after a fault has made progress. It tries a store again for a minute. The first and the last
/// step may take a minute each (three requests of 20 s).
const STALL_TIMEOUT: Duration = Duration::from_secs(190);

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
pub(super) fn fault_of(valid: &ValidDispatcher, pod: &PodView, now: Timestamp) -> Found {
    let unproven = match readiness(pod, now) {
        Readiness::Ready => return (None, None),
        Readiness::Unproven(wait) => Some(wait),
        Readiness::NotReady => None,
    };
    let (loader, requeue_after) = pod.init_container(LOADER).map_or((None, None), |loader| {
        let reason_of =
            |code| ExitCode::from_code(code).filter(|code| *code != ExitCode::Usage).map(ExitCode::reason);
        let finding = loader::finding(pod, loader, reason_of, STALL_TIMEOUT, now);
        let of_process = [reasons::CRASH_LOOP, reasons::OUT_OF_MEMORY, reasons::IMAGE_PULL_FAILED];
        let is_process_fault = finding.cause.as_ref().is_some_and(|cause| of_process.contains(&cause.reason));
        let code = last_end(loader).and_then(|ended| ExitCode::from_code(ended.exit_code));
        if is_process_fault || code.is_some_and(ExitCode::is_of_checkpoints) || valid.memory.is_none() {
            FaultyCondition::Progressing.found(finding)
        } else {
            FaultyCondition::MemoryReady.found(finding)
        }
    });
    let containers =
        [(pod.init_container(MONITOR), None), (pod.container(WORKER), Some("spec.resources.limits.memory"))];
    let of_container = containers.into_iter().find_map(|(container, memory)| {
        let container = container?;
        let ends = || keeps_ending(container).or_else(|| ended_before(container, unproven.is_some()));
        let crashed = || ends().map(|ended| crash(pod, container, ended, None, memory));
        start_fault(pod, container).or_else(crashed)
    });
    let of_container = of_container.or_else(|| fault_of_added(pod, &[LOADER, MONITOR, WORKER]));
    let (unplaced, unplaced_requeue_after) =
        FaultyCondition::Progressing.found(unplaced(None, pod, None, now));
    let fault =
        loader.or_else(|| of_container.map(|cause| FaultyCondition::Progressing.fault(cause))).or(unplaced);
    (fault, requeue_after.into_iter().chain(unproven).chain(unplaced_requeue_after).min())
}

/// The last end of a restarted container that has not yet run long enough. A single end is not a fault, because a
/// reboot of the node ends every container once.
fn ended_before(container: &Container, is_unproven: bool) -> Option<&Terminated> {
    (is_unproven && container.restart_count > 1).then(|| last_end(container)).flatten()
}

/// Repeated evictions, while no pod is ready.
pub(super) fn eviction_fault(observed: &Observed, pods: &[&PodView], now: Timestamp) -> Found {
    if pods.iter().any(|pod| is_ready(pod, now)) {
        return (None, None);
    }
    FaultyCondition::Progressing.found(evictions::finding(&observed.failed, pods, now))
}

/// A worker that runs for so long without being ready does not work as its contract says. Its first answer, five seconds of
/// answers, and the probes come before.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Some agents read gigabytes of memory before they answer, and have no startup probe. Until then the phase is not Failed.
const FAILED_AFTER: Duration = Duration::from_secs(180);

/// Why workers that run are not ready.
#[derive(Debug, Default)]
pub(super) struct Unready {
    pub(super) fault: Option<Fault>,
    /// It makes the phase Failed.
    pub(super) is_stuck: bool,
    /// That a worker whose startup probe has succeeded is not ready. No field of its pod says since when.
    pub(super) fact: Option<String>,
    pub(super) requeue_after: Option<Duration>,
}

/// Why workers that run are not ready, while none of the revision is: they report no load, or a probe fails.
pub(super) fn unready_fault(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    now: Timestamp,
) -> Unready {
    let pods = revision.pods;
    let running = pods.iter().filter_map(|pod| {
        let worker = pod.container(WORKER)?;
        let running = worker.state.running.as_ref()?;
        // The kubelet asks no other probe before that of the start has succeeded.
        let has_started = worker.started != Some(false);
        Some((running.started_at.or(pod.placed())?, pod)).filter(|_| has_started)
    });
    // A node that is lost makes pods unready that have worked.
    let was_ready =
        |(since, pod): (Timestamp, &Arc<PodView>)| pod.ready_changed.is_some_and(|changed| changed > since);
    if pods.iter().any(|pod| pod.is_ready) || running.clone().any(was_ready) {
        return Unready::default();
    }
    let Some((since, pod)) = running.min_by_key(|(since, pod)| (*since, pod.uid())) else {
        return Unready::default();
    };
    let has_startup_probe = valid.probes.as_ref().is_some_and(|probes| probes.liveness.is_some());
    let fact = has_startup_probe.then(|| format!("not ready {} {since}", pod.uid()));
    let since = match &fact {
        Some(fact) => observed.facts.get(fact).copied().unwrap_or(now),
        None => since,
    };
    if let Some(wait) = remaining(READY_WITHIN, since, now) {
        return Unready { fact, requeue_after: Some(wait), ..Unready::default() };
    }
    let requeue_after = remaining(FAILED_AFTER, since, now);
    let cause = unready_cause(valid, observed, revision, pod);
    let fault = cause.map(|cause| FaultyCondition::Progressing.fault(cause));
    let is_stuck =
        requeue_after.is_none() && fault.as_ref().is_some_and(|fault| needs_a_change(fault.reason));
    Unready { fault, is_stuck, fact, requeue_after }
}

/// `pod` has run for long enough.
fn unready_cause(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    pod: &PodView,
) -> Option<Cause> {
    let name = pod.name();
    let Seen { reported, ready } = seen(revision, observed);
    let reports = revision.pods.iter().filter_map(|pod| observed.load_of(pod)).any(WorkerLoad::is_reported);
    if reports {
        // Its load is known; without paths the kubelet asks the monitor again in a moment.
        let probes = valid.probes.as_ref()?;
        let paths: Vec<&str> =
            [&probes.readiness, &probes.liveness].into_iter().flatten().map(String::as_str).collect();
        let message = format!(
            "pod {name} reports its load and is not ready: {} on port {} must answer (spec.probes)",
            paths.join(" and "),
            probes.port
        );
        let reason = if ready { reasons::WORKERS_NOT_READY } else { reasons::PROBE_FAILED };
        return Some(Cause { reason, message });
    }
    let why = observed.load_of(pod).and_then(|load| load.fault.as_deref());
    let why = why.map(|why| format!(": {}", quote(why))).unwrap_or_default();
    let must = format!("the worker must serve /metrics on port {} (AGENT_METRICS_PORT)", valid.metrics_port);
    Some(if reported {
        let message = format!("no worker reports a load now, such as that of pod {name}{why}; {must}");
        Cause { reason: reasons::WORKERS_NOT_READY, message }
    } else {
        let message = format!(
            "no worker of this revision has reported a load, such as that of pod {name}{why}; {must}"
        );
        Cause { reason: reasons::NEVER_REPORTED, message }
    })
}

/// Why the claim for checkpoints cannot be used.
pub(super) fn claim_fault(valid: &ValidDispatcher, observed: &Observed, replicas: i32) -> Option<Fault> {
    let Some(Checkpoint { storage: Storage::Claim(claim), .. }) = &valid.checkpoint else { return None };
    let named = (valid.namespace.as_str(), claim.as_str());
    let field = match valid.workers {
        Workers::Fixed(_) => "replicas",
        Workers::Scaled(_) => "autoscaling.maxReplicas",
    };
    let mounts = claim::Mounts { count: replicas, field };
    claim::fault_of_writers(observed.claim.as_deref(), named, "spec.checkpoint.claimName", mounts)
        .map(|cause| FaultyCondition::Progressing.fault(cause))
}

/// The containers of the controller, with the field of their resources.
const HELPERS: [(&str, &str); 2] = [(MONITOR, "spec.helperResources"), (LOADER, "spec.helperResources")];

/// Why pods cannot be created, such as a quota. Only the Deployment's status reports it.
pub(super) fn creation_fault(deployment: &DeploymentView) -> Option<Fault> {
    let failure = deployment.creation_failure.as_ref()?;
    let fix = refused_pods::fix(&failure.message, &HELPERS);
    let message = format!("pods cannot be created: {}{fix}", quote(&failure.message));
    Some(FaultyCondition::Progressing.fault(Cause { reason: reasons::UNSCHEDULABLE, message }))
}

/// Whether the fault makes the phase Failed: neither a shortage of the cluster, nor a revision that has worked.
pub(super) fn needs_a_change(reason: &str) -> bool {
    let passes_by_itself = [
        reasons::UNSCHEDULABLE,
        reasons::SCHEDULING_GATED,
        reasons::NO_SCHEDULER,
        reasons::WORKERS_NOT_READY,
    ];
    !passes_by_itself.contains(&reason)
}

#[cfg(test)]
mod tests {
    use crate::{
        tests::{at, defaults, dispatcher, pod},
        validate::validate,
    };

    use super::*;

    fn fault(parts: &str) -> Option<(&'static str, FaultyCondition)> {
        let spec = "{role: coder, image: 'a:1', memoryConfig: {collection: c, dim: 3, endpoint: 'http://m'}}";
        let valid = validate(&dispatcher(spec), &defaults(&[])).unwrap();
        fault_of(&valid, &pod(parts), at(0)).0.map(|fault| (fault.reason, fault.condition))
    }

    #[test]
    fn every_exit_code_of_the_loader_has_a_reason() {
        for code in ExitCode::ALL.into_iter().filter(|code| *code != ExitCode::Usage) {
            let parts = format!(
                "{{init: [{{name: memory-loader, state: {{terminated: {{exitCode: {}, message: why}}}}}}]}}",
                code.code()
            );
            let condition = match code.code() {
                20..25 => FaultyCondition::MemoryReady,
                _ => FaultyCondition::Progressing,
            };
            assert_eq!(fault(&parts), Some((code.reason(), condition)));
        }
        let usage = "{init: [{name: memory-loader, restartCount: 2, state: {terminated: {exitCode: 2}}}]}";
        assert_eq!(fault(usage), Some((reasons::CRASH_LOOP, FaultyCondition::Progressing)));
    }

    #[test]
    fn a_worker_that_keeps_ending_and_an_image_that_cannot_be_pulled_are_faults() {
        let worker = |state: &str| fault(&format!("{{containers: [{{name: worker, {state}}}]}}"));
        let crash = Some((reasons::CRASH_LOOP, FaultyCondition::Progressing));
        let again = "state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}";
        assert_eq!(worker(again), crash);
        let image = Some((reasons::IMAGE_PULL_FAILED, FaultyCondition::Progressing));
        assert_eq!(worker("state: {waiting: {reason: ImagePullBackOff}}"), image);
        let oom = "restartCount: 2, lastState: {terminated: {exitCode: 137, reason: OOMKilled}}";
        assert_eq!(worker(oom), Some((reasons::OUT_OF_MEMORY, FaultyCondition::Progressing)));
        assert_eq!(worker("state: {running: {}}"), None);
    }

    #[test]
    fn a_worker_that_keeps_ending_is_a_fault_also_while_it_runs_for_a_moment() {
        let runs = |restarts: i32, seconds: i64| {
            fault(&format!(
                "{{conditions: [{{type: Ready, status: 'True', lastTransitionTime: '{}'}}], containers: [{{name: \
                 worker, started: true, restartCount: {restarts}, state: {{running: {{}}}}, lastState: {{terminated: \
                 {{exitCode: 1}}}}}}]}}",
                at(-seconds)
            ))
        };
        assert_eq!(runs(2, 3), Some((reasons::CRASH_LOOP, FaultyCondition::Progressing)));
        assert_eq!((runs(1, 3), runs(2, 10)), (None, None));
    }

    #[test]
    fn a_container_of_a_mesh_that_keeps_ending_is_a_fault() {
        let loops = "restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}";
        let expected = Some((reasons::CRASH_LOOP, FaultyCondition::Progressing));
        assert_eq!(fault(&format!("{{init: [{{name: istio-init, {loops}}}]}}")), expected);
    }

    #[test]
    fn a_monitor_that_keeps_ending_is_a_fault() {
        let parts = "{init: [{name: monitor, restartCount: 3, lastState: {terminated: {exitCode: 137, reason: \
                     OOMKilled}}, state: {waiting: {reason: CrashLoopBackOff}}}]}";
        assert_eq!(fault(parts), Some((reasons::OUT_OF_MEMORY, FaultyCondition::Progressing)));
    }
}
