//! What ends an attempt that runs, although none of its pods has failed: lost and silent nodes, silent trainers, pods that
//! cannot start or find no place. Pure.

use std::time::Duration;

use api::{
    reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use jiff::Timestamp;
use workload::{
    Cause,
    faults::{pace::Allowance, stranded::StrandedPods},
    time::{elapsed, remaining},
    views::{node::LossKind, pod::PodView},
};

use super::Attempt;
use crate::{
    objects::pod::{TRAINER, has_stopped},
    observe::Observed,
    plan::{
        attempt::{
            avoid,
            failure::{Class, Failure, has_failed},
        },
        defaults::Timings,
        loss,
    },
    progress::{Access, LogState},
    validate::{ValidJob, flags},
};

/// A pod that is being deleted has ended at its deletion timestamp; its kubelet says so at once.
const ENDS_ARE_REPORTED_WITHIN: Duration = Duration::from_secs(120);
/// So many times the time of a half-placed gang: images are large, and kubelets report only what has failed.
const START_FACTOR: u32 = 6;
/// Steps differ, and the first ones are slow.
const SLOW_STEPS: f64 = 3.0;
/// Logged steps are so many steps apart by default. A first line that comes later is waited for longer.
const FIRST_LINE: f64 = crate::swift::LOGGED_EVERY;
/// Steps of a training of which the number is not known yet, for the first line of a log that is written by fractions.
const ANY_STEPS: i64 = 1_000_000;
/// So many times `firstStepSeconds` at most.
const LATEST_FIRST_LINE: f64 = 1_000.0;
/// The fact since when a container of an attempt cannot start.
const START_FAULT: &str = "cannot start: attempt";

/// `Ok`: the attempt is over; `Err`: when to look again.
pub(super) type Check = Result<Failure, Duration>;

/// Pods on lost nodes are given up; a kubelet that reports NotReady while its pod runs is not a lost node.
pub(super) fn on_lost_nodes(
    valid: &ValidJob,
    observed: &Observed,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> Option<Check> {
    let pods = attempt.pods.iter().copied();
    let stranded = StrandedPods::of(pods, &observed.nodes, &valid.terms(TRAINER), now);
    if stranded.due().is_empty() {
        return stranded.requeue_after(&Allowance::default()).map(Err);
    }
    if let Some(wait) = is_seen_to_train(valid, observed, attempt, now) {
        return Some(Err(wait));
    }
    let message = stranded.outlook_message().unwrap_or_default();
    let message = message.split("; pod ").next().unwrap_or_default();
    Some(Ok(Failure::of_attempt(reasons::NODE_LOST, Class::Interruption, message.to_owned())))
}

/// A kubelet may be silent while its trainer runs: a gang makes a step only with all of its ranks, and the log of rank 0 on
/// another node shows it. The time to wait is that of the node, from the last step on, and three steps at least.
fn is_seen_to_train(
    valid: &ValidJob,
    observed: &Observed,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> Option<Duration> {
    let lost = |pod: &PodView| pod.node.as_ref().and_then(|node| observed.nodes.lost.get(node));
    let is_deleted = |pod: &&PodView| lost(pod).is_some_and(|loss| loss.kind == LossKind::Deleted);
    let rank_zero = attempt.rank_zero().filter(|pod| lost(pod).is_none())?;
    if attempt.pods.iter().any(is_deleted) || attempt.pods.iter().any(|pod| has_failed(pod)) {
        return None;
    }
    rank_zero.container(TRAINER)?.state.running.as_ref()?;
    let log = observed.log.as_ref().filter(|log| log.has_stepped && log.access == Access::Readable)?;
    remaining(valid.node_failure.max(some_steps(valid, log).unwrap_or_default()), log.last_sign?, now)
}

/// Pods whose grace period is over and whose kubelets say nothing: the only sign of a dead node for a controller that sees no
/// nodes.
pub(super) fn on_silent_nodes(attempt: &Attempt<'_>, now: Timestamp) -> Option<Check> {
    let leaving = attempt.pods.iter().filter(|pod| !has_stopped(pod));
    let ends = leaving.filter_map(|pod| Some((pod.metadata.deletion_timestamp.as_ref()?.0, pod)));
    let (end, pod) = ends.min_by_key(|(end, _)| *end)?;
    Some(match remaining(ENDS_ARE_REPORTED_WITHIN, end, now) {
        Some(wait) => Err(wait),
        None => {
            let node = pod.node.as_deref().unwrap_or_default();
            let message = format!(
                "pod {} should have ended {} s ago, and the kubelet of node {node} does not report it",
                pod.name(),
                elapsed(end, now).as_secs()
            );
            Ok(Failure::of_attempt(reasons::NODE_LOST, Class::Interruption, message))
        }
    })
}

/// Whether all ranks of this attempt have run at the same time.
pub(crate) fn has_run(status: Option<&TrainingJobStatus>, attempt: i32) -> bool {
    status.is_some_and(|status| status.phase == Some(Phase::Running) && status.attempts == attempt)
}

/// Silence counts only of a log that can be read: what cannot be seen is no reason to end anything.
pub(super) fn silent_log(valid: &ValidJob, observed: &Observed, now: Timestamp) -> Option<Check> {
    let log = observed.log.as_ref().filter(|log| log.has_stepped && log.access == Access::Readable)?;
    let since = log.last_sign?;
    let limit = silence_limit(valid, log)?;
    Some(match remaining(limit, since, now) {
        Some(wait) => Err(wait),
        None => {
            let step = log.report.as_ref().map_or(0, |report| report.step);
            let message = format!(
                "no step, evaluation or checkpoint for {} s after step {step} (noProgressSeconds; create the job again with \
                 more if an evaluation or a checkpoint takes longer)",
                limit.as_secs()
            );
            Ok(Failure::of_attempt(reasons::NO_PROGRESS, Class::Transient, message))
        }
    })
}

/// No step is logged although all ranks run, and nothing is downloaded or prepared: a rendezvous or a download hangs.
pub(super) fn no_first_step(
    valid: &ValidJob,
    observed: &Observed,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> Option<Check> {
    if !has_run(observed.job.status.as_ref(), attempt.number) {
        return None;
    }
    let log = observed.log.as_ref().filter(|log| !log.has_stepped && log.access == Access::Readable)?;
    let every = flags::logging_steps(&valid.extra_args, ANY_STEPS)?;
    let limit = valid.first_step.mul_f64((every / FIRST_LINE).clamp(1.0, LATEST_FIRST_LINE));
    Some(match remaining(limit, log.last_sign?, now) {
        Some(wait) => Err(wait),
        None => {
            let message = format!(
                "no step, and no progress of a download or of the preparation of data, for {} s while all pods run \
                 (firstStepSeconds; raise it if the model and the data take longer)",
                limit.as_secs()
            );
            Ok(Failure::of_attempt(reasons::NO_PROGRESS, Class::Transient, message))
        }
    })
}

/// A loss that trains nothing, if the user wants it to end the attempt.
pub(super) fn trains_nothing(valid: &ValidJob, observed: &Observed) -> Option<Failure> {
    let message = loss::ends_attempt(valid, observed)?;
    Some(Failure::of_attempt(reasons::LOSS_NOT_FINITE, Class::Transient, message))
}

/// `noProgressSeconds`, or longer if lines are far apart because steps are slow or few are logged. `None`: the log is not
/// written by steps.
fn silence_limit(valid: &ValidJob, log: &LogState) -> Option<Duration> {
    Some(some_steps(valid, log)?.max(valid.no_progress))
}

/// In which a line of steps is written; `None`: the trainer logs none.
fn some_steps(valid: &ValidJob, log: &LogState) -> Option<Duration> {
    let report = log.report.as_ref();
    let every = flags::logging_steps(&valid.extra_args, report.map_or(0, |report| report.total_steps))?;
    let step = report.and_then(|report| report.seconds_per_step.as_ref()?.parse::<f64>().ok());
    let seconds = step.unwrap_or_default() * every * SLOW_STEPS;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// The first container of an attempt that its kubelet cannot start, before all ranks have run.
fn start_fault_of(attempt: &Attempt<'_>) -> Option<Cause> {
    let of_pod = |pod: &&PodView| {
        let mut containers = pod.init_containers.iter().chain(&pod.containers);
        containers.find_map(|one| workload::faults::container::start_fault(pod, one))
    };
    attempt.pods.iter().filter(|pod| pod.node.is_some() && !has_stopped(pod)).find_map(of_pod)
}

/// For `FactTimes`, while a container cannot start.
pub(crate) fn start_fault_fact(attempt: &Attempt<'_>) -> Option<String> {
    start_fault_of(attempt).map(|_| format!("{START_FAULT} {}", attempt.number))
}

/// An image that is pulled slowly is no fault: a kubelet reports only what has failed.
pub(super) fn start_fault(
    observed: &Observed,
    attempt: &Attempt<'_>,
    timings: &Timings,
    now: Timestamp,
) -> Option<Check> {
    if has_run(observed.job.status.as_ref(), attempt.number) {
        return None;
    }
    let cause = start_fault_of(attempt)?;
    let since = observed.facts.get(&start_fault_fact(attempt)?).copied().unwrap_or(now);
    let failure = || {
        let message = format!("{}; its GPUs were given back", cause.message);
        Failure::of_attempt(cause.reason, Class::CannotStart, message)
    };
    Some(remaining(timings.start_fault, since, now).map_or_else(|| Ok(failure()), Err))
}

/// No pod finds a node while nodes are avoided.
pub(super) fn avoids_all(
    observed: &Observed,
    attempt: &Attempt<'_>,
    timings: &Timings,
    now: Timestamp,
) -> Option<Check> {
    let status = observed.job.status.as_ref()?;
    if attempt.pods.iter().any(|pod| pod.node.is_some()) || avoid::are_last_choice(status) {
        return None;
    }
    let created = attempt.pods.iter().filter_map(|pod| pod.metadata.creation_timestamp.as_ref());
    let since = created.map(|time| time.0).min()?;
    let avoided = avoid::avoided(status, since);
    if avoided.is_empty() {
        return None;
    }
    let seconds = timings.placement.as_secs();
    let message = format!(
        "no node was found for {seconds} s{}; the next attempt uses them if there is no other",
        avoid::words(&avoided)
    );
    let failure = Failure::of_attempt(reasons::UNSCHEDULABLE, Class::CannotStart, message);
    Some(remaining(timings.placement, since, now).map_or(Ok(failure), Err))
}

/// Pods that hold GPUs and wait for others that cannot start, or are not even created. Once all have run, the loss of one is a
/// failure of its own.
pub(super) fn half_placed(
    valid: &ValidJob,
    observed: &Observed,
    attempt: &Attempt<'_>,
    timings: &Timings,
    now: Timestamp,
) -> Option<Check> {
    if has_run(observed.job.status.as_ref(), attempt.number) {
        return None;
    }
    let placed = attempt.pods.iter().filter(|pod| pod.node.is_some() && !has_stopped(pod));
    // The oldest pod with a node: from then on a GPU has been held for nothing.
    let since = placed.filter_map(|pod| pod.placed()).min()?;
    let begun = |pod: &&&PodView| {
        let state = pod.container(TRAINER).map(|one| &one.state);
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    let waits = attempt.pods.iter().find(|pod| !begun(pod));
    let are_all = attempt.pods.len() >= usize::try_from(valid.nodes).unwrap_or_default();
    if waits.is_none() && are_all {
        return None;
    }
    let waited = elapsed(since, now).as_secs();
    let Some(pod) = waits else {
        let left = remaining(timings.placement, since, now);
        return Some(left.map_or_else(|| Ok(not_created(valid, observed, attempt, waited)), Err));
    };
    let failure = not_placed(pod, observed, waited);
    let starts = failure.reason == reasons::STARTING;
    let limit = timings.placement.saturating_mul(if starts { START_FACTOR } else { 1 });
    Some(remaining(limit, since, now).map_or(Ok(failure), Err))
}

fn not_created(valid: &ValidJob, observed: &Observed, attempt: &Attempt<'_>, seconds: u64) -> Failure {
    let why = observed.refused_pods.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let message = format!(
        "only {} of {} pods were created within {seconds} s{why}; the GPUs of the others were given back",
        attempt.pods.len(),
        valid.nodes
    );
    Failure::of_attempt(reasons::UNSCHEDULABLE, Class::CannotStart, message)
}

fn not_placed(pod: &PodView, observed: &Observed, seconds: u64) -> Failure {
    if pod.node.is_none() {
        let message = format!(
            "pod {} found no node for {seconds} s while others of its gang held theirs; they were given back",
            pod.name()
        );
        return Failure::of_attempt(reasons::UNSCHEDULABLE, Class::CannotStart, message);
    }
    // A volume that another pod uses becomes free.
    let volume = observed.unattached.get(pod.uid()).map(|failure| failure.cause_of(pod));
    if let Some(cause) = volume {
        let message = format!("{}; its GPUs were given back after {seconds} s", cause.message);
        return Failure::of_attempt(cause.reason, Class::CannotStart, message);
    }
    let node = pod.node.as_deref().unwrap_or_default();
    let message = format!(
        "pod {} on node {node} did not start for {seconds} s, and no kubelet says why: its image is pulled, or its volume \
         mounted; its GPUs were given back",
        pod.name()
    );
    Failure::of_attempt(reasons::STARTING, Class::CannotStart, message)
}
