//! Where a TrainingJob is in its life, from its status and its children. Pure.
//!
//! ```text
//!  due ─▶ active ─▶ ended ─┬▶ clearing ─▶ later ─▶ due …      another attempt
//!  suspended ◀─────────────┤
//!                          ├▶ uploading ─▶ terminal
//!                          └▶ terminal
//! ```
//!
//! `due` also waits for dependencies and claims. An attempt starts when its Job is created, whose name has its number, and has
//! ended when the status says so. Therefore each end is accounted for once, also if the process ends between two writes.

mod checks;

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use workload::{
    time::{elapsed, remaining},
    views::{job::JobView, pod::PodView},
};

use super::{
    clock::deadline,
    failure::{self, Class, Failure, has_failed, has_proven_result},
};
use crate::{
    names,
    objects::{
        pod::{TRAINER, has_stopped, job_of},
        training_job::{has_ended, is_uploading},
    },
    observe::Observed,
    plan::{children::claim, defaults::Timings},
    progress::Access,
    validate::ValidJob,
};

pub(crate) use checks::{has_run, start_fault_fact};

/// Where the job is.
#[derive(Debug)]
pub(crate) enum Stage<'a> {
    /// It has succeeded or failed; nothing is made any more.
    Terminal,
    /// An attempt runs.
    Active(Attempt<'a>),
    /// An attempt has ended, and the status does not say so yet.
    Ended(Attempt<'a>, Box<End>),
    /// The training has succeeded, and its result is uploaded.
    Uploading,
    /// No attempt runs, and pods of earlier ones have not ended yet.
    Clearing { pods: Vec<&'a PodView> },
    /// No attempt runs, because the user says so.
    Suspended,
    /// The next attempt may start at this time.
    Later { at: Timestamp },
    /// The attempt of this number may start.
    Due { attempt: i32 },
}

/// An attempt that has begun.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) number: i32,
    /// `None`: it was deleted.
    pub(crate) job: Option<&'a JobView>,
    pub(crate) pods: Vec<&'a PodView>,
    /// It is over, and what is known of its end is not complete yet.
    pub(crate) is_ending: bool,
    /// When it may have to be looked at again although no object changes.
    pub(crate) requeue_after: Option<Duration>,
}

impl<'a> Attempt<'a> {
    /// The pod of rank 0, by its index: Kubernetes shortens the names of pods.
    pub(crate) fn rank_zero(&self) -> Option<&'a PodView> {
        self.pods.iter().copied().find(|pod| pod.completion_index == Some(0))
    }
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum End {
    Succeeded,
    /// By `spec.suspend`.
    Suspended,
    Failed(Failure),
    /// By `activeDeadlineSeconds`; no other attempt follows.
    DeadlineExceeded(Failure),
}

/// The pods of a gang end one after the other, and the first one that is seen may only follow from another.
const EVIDENCE_IS_COMPLETE_AFTER: Duration = Duration::from_secs(10);
/// Kubernetes notices a dead node after 40 s; the times of nodes and of this process differ.
const NODES_ARE_NOTICED_WITHIN: Duration = Duration::from_secs(60);
/// The watches of Jobs and pods are independent: a Job may be seen to have failed before its pod.
pub(crate) const PODS_ARE_SEEN_WITHIN: Duration = Duration::from_secs(5);
/// Longer than any pause between attempts: a time beyond it was written before the clock was set back.
const LATEST_ATTEMPT: Duration = Duration::from_secs(7_200);
/// A sidecar that is injected, and the processes of a rank, end with their trainer, or they do not end.
pub(crate) const SIDECARS_END_WITHIN: Duration = Duration::from_secs(60);
const RANKS_END_WITHIN: Duration = Duration::from_secs(300);
/// A kubelet closes the log of a container that has ended at once.
const LOGS_ARE_READ_WITHIN: Duration = Duration::from_secs(5);
/// The fact since when an attempt has been over.
const OVER: &str = "over: attempt";
/// The fact since when rank 0 has proven the result.
const PROVEN: &str = "proven: attempt";

pub(crate) fn stage<'a>(
    valid: &ValidJob,
    observed: &'a Observed,
    timings: &Timings,
    now: Timestamp,
) -> Stage<'a> {
    let status = observed.job.status.as_ref();
    if has_ended(&observed.job) {
        return Stage::Terminal;
    }
    let started = observed.started();
    let ended = status.map_or(0, |status| status.ended_attempts);
    if started > ended {
        return current(valid, observed, started, timings, now);
    }
    if is_uploading(status) {
        return Stage::Uploading;
    }
    // A check of the store uses no GPU and no volume.
    let check = names::upload_check(&valid.name);
    let is_left = |pod: &&PodView| !has_stopped(pod) && job_of(pod) != Some(&check);
    let pods: Vec<&PodView> = observed.pods.iter().map(AsRef::as_ref).filter(is_left).collect();
    let is_there = |job: &&std::sync::Arc<JobView>| !job.is_finished();
    if !pods.is_empty() || observed.attempts.values().any(|job| is_there(&job)) {
        return Stage::Clearing { pods };
    }
    if valid.suspend {
        return Stage::Suspended;
    }
    if deadline(valid, status, now) == Some(Duration::ZERO) {
        // No attempt runs. The end is accounted for as that of the last one.
        let failure = exceeded(valid);
        let attempt =
            Attempt { number: started, job: None, pods: Vec::new(), is_ending: false, requeue_after: None };
        return Stage::Ended(attempt, Box::new(End::DeadlineExceeded(failure)));
    }
    let next = status.and_then(|status| status.next_attempt_time.as_ref()).map(|time| time.0);
    let is_ahead = |next: &Timestamp| *next > now && elapsed(now, *next) <= LATEST_ATTEMPT;
    let has_room = status.is_some_and(|status| claim::has_grown(valid, observed, status));
    match next.filter(is_ahead).filter(|_| !has_room) {
        Some(at) => Stage::Later { at },
        None => Stage::Due { attempt: started.saturating_add(1) },
    }
}

fn exceeded(valid: &ValidJob) -> Failure {
    let seconds = valid.active_deadline.unwrap_or_default().as_secs();
    let message = format!("the job did not end within activeDeadlineSeconds, {seconds} s");
    Failure::of_attempt(reasons::DEADLINE_EXCEEDED, Class::Permanent, message)
}

fn current<'a>(
    valid: &ValidJob,
    observed: &'a Observed,
    number: i32,
    timings: &Timings,
    now: Timestamp,
) -> Stage<'a> {
    let name = names::attempt(&valid.name, number);
    let job = observed.attempts.get(&number).map(AsRef::as_ref);
    let pods = job.map(|job| observed.pods_of(job)).unwrap_or_default();
    let status = observed.job.status.as_ref();
    let mut attempt = Attempt { number, job, pods, is_ending: false, requeue_after: None };
    let lost =
        |reason, class, message: &str| End::Failed(Failure::of_attempt(reason, class, message.to_owned()));
    let Some(job) = job else {
        let message = format!("Job {name} was deleted");
        return Stage::Ended(attempt, Box::new(lost(reasons::PREEMPTED, Class::Interruption, &message)));
    };
    if job.completed.is_some() {
        return match unread(&attempt, observed, now) {
            Some(wait) => Stage::Active(Attempt { is_ending: true, requeue_after: Some(wait), ..attempt }),
            None => Stage::Ended(attempt, Box::new(End::Succeeded)),
        };
    }
    if let Some(wait) = proven(job, &attempt, observed, now) {
        return match wait {
            Some(wait) => {
                let is_ending = job.failed.is_some();
                Stage::Active(Attempt { is_ending, requeue_after: Some(wait), ..attempt })
            }
            None => Stage::Ended(attempt, Box::new(End::Succeeded)),
        };
    }
    if let Some(end) = failed(valid, job, &mut attempt, observed, now) {
        return Stage::Ended(attempt, Box::new(end));
    }
    if job.failed.is_some() || attempt.pods.iter().any(|pod| has_failed(pod)) {
        return Stage::Active(Attempt { is_ending: true, ..attempt });
    }
    if job.is_being_deleted() {
        let message = format!("Job {name} was deleted");
        return Stage::Ended(attempt, Box::new(lost(reasons::PREEMPTED, Class::Interruption, &message)));
    }
    if valid.suspend {
        return Stage::Ended(attempt, Box::new(End::Suspended));
    }
    let left = deadline(valid, status, now);
    if left == Some(Duration::ZERO) {
        return Stage::Ended(attempt, Box::new(End::DeadlineExceeded(exceeded(valid))));
    }
    let checks = [
        left.map(Err),
        checks::on_lost_nodes(valid, observed, &attempt, now),
        checks::on_silent_nodes(&attempt, now),
        checks::silent_log(valid, observed, now),
        checks::no_first_step(valid, observed, &attempt, now),
        checks::start_fault(observed, &attempt, timings, now),
        checks::trains_nothing(valid, observed).map(Ok),
        checks::half_placed(valid, observed, &attempt, timings, now),
        checks::avoids_all(observed, &attempt, timings, now),
    ];
    for check in checks.into_iter().flatten() {
        match check {
            Ok(failure) => return Stage::Ended(attempt, Box::new(End::Failed(failure))),
            Err(wait) => {
                attempt.requeue_after = Some(attempt.requeue_after.map_or(wait, |known| known.min(wait)))
            }
        }
    }
    Stage::Active(attempt)
}

/// Whether rank 0 has proven the result and its Job does not complete, and how long that is waited for; `Some(None)`: no
/// longer. A container that is injected runs on, a rank does not end, or a kubelet that was restarted has turned a pod that
/// had succeeded into a failed one.
fn proven(
    job: &JobView,
    attempt: &Attempt<'_>,
    observed: &Observed,
    now: Timestamp,
) -> Option<Option<Duration>> {
    let fact = proven_fact(observed, attempt)?;
    let since = observed.facts.get(&fact).copied().unwrap_or(now);
    let has_ended =
        |pod: &&PodView| pod.container(TRAINER).is_none_or(|container| container.state.terminated.is_some());
    let within = if job.failed.is_some() {
        return Some(unread(attempt, observed, now));
    } else if attempt.pods.iter().all(has_ended) {
        SIDECARS_END_WITHIN
    } else {
        RANKS_END_WITHIN
    };
    Some(remaining(within, since, now))
}

/// For `FactTimes`, once rank 0 has proven the result: its pod may lose the proof when its kubelet is restarted.
pub(crate) fn proven_fact(observed: &Observed, attempt: &Attempt<'_>) -> Option<String> {
    let fact = format!("{PROVEN} {}", attempt.number);
    let has_result = attempt.rank_zero().is_some_and(has_proven_result);
    (has_result || observed.facts.contains_key(&fact)).then_some(fact)
}

/// How long the last lines of a log, and the message of the launcher, may still be waited for.
fn unread(attempt: &Attempt<'_>, observed: &Observed, now: Timestamp) -> Option<Duration> {
    let since = observed.facts.get(&end_fact(attempt.number)).copied().unwrap_or(now);
    let has_ended =
        |pod: &PodView| pod.container(TRAINER).is_some_and(|container| container.state.terminated.is_some());
    let pod = attempt.rank_zero();
    let is_seen = pod.is_some_and(has_ended) || observed.has_newest_pods();
    let mut logs = observed.log.iter();
    let is_read = !logs.any(|log| log.access == Access::Readable && !log.is_complete);
    let waits = [(is_seen, PODS_ARE_SEEN_WITHIN), (is_read, LOGS_ARE_READ_WITHIN)];
    let open = waits.into_iter().filter(|(is_done, _)| !is_done);
    open.filter_map(|(_, within)| remaining(within, since, now)).max()
}

/// The end of an attempt of which a pod has failed, once it is clear which pod failed first.
fn failed(
    valid: &ValidJob,
    job: &JobView,
    attempt: &mut Attempt<'_>,
    observed: &Observed,
    now: Timestamp,
) -> Option<End> {
    let any_failed = attempt.pods.iter().any(|pod| has_failed(pod));
    if !any_failed && job.failed.is_none() {
        return None;
    }
    let since = observed.facts.get(&end_fact(attempt.number)).copied().unwrap_or(now);
    let all_have_stopped = attempt.pods.iter().all(|pod| has_stopped(pod) || has_failed(pod));
    let found = failure::of_pods(attempt.pods.iter().copied(), observed.log.as_ref());
    let is_explained = found.as_ref().is_some_and(|failure| failure.reason != reasons::PEER_LOST);
    if !all_have_stopped && !is_explained {
        // The connections to a rank whose node is dead end long before Kubernetes notices that.
        if let Some(Ok(lost)) = checks::on_lost_nodes(valid, observed, attempt, now) {
            return Some(End::Failed(lost));
        }
    }
    let patience = match (any_failed, is_explained) {
        (true, true) => EVIDENCE_IS_COMPLETE_AFTER,
        (true, false) => NODES_ARE_NOTICED_WITHIN.saturating_add(valid.node_failure),
        (false, _) if observed.has_newest_pods() => Duration::ZERO,
        (false, _) => PODS_ARE_SEEN_WITHIN,
    };
    if !(any_failed && all_have_stopped)
        && let Some(wait) = remaining(patience, since, now)
    {
        attempt.requeue_after = Some(wait);
        return None;
    }
    let of_job = || {
        // A pod that failed would still be there; one that was deleted is not.
        let failed = job.failed.as_ref();
        let why =
            failed.map(|failed| format!(" ({}: {})", failed.reason, failed.message)).unwrap_or_default();
        let message = format!("a pod of Job {} was deleted{why}", job.name());
        Failure::of_attempt(reasons::PREEMPTED, Class::Interruption, message)
    };
    Some(End::Failed(found.unwrap_or_else(of_job)))
}

/// For `FactTimes`, while it is true.
pub(crate) fn end_fact(attempt: i32) -> String {
    format!("{OVER} {attempt}")
}
