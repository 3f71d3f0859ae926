//! The phase and the conditions of a TrainingJob, each with a reason and a message. Pure.
//!
//! Transition times are set in `status`.

use api::{conditions, reasons, trainingjob::Phase};
use jiff::Timestamp;
use runtime::write::{conditions::Verdict, refusal::Refusal};
use workload::{
    Cause,
    faults::{container::start_fault, gpu::Demand, refused_pods, unplaced::unplaced},
    uploads::UPLOADER,
    views::{
        claim::{self, ClaimView},
        pod::PodView,
    },
};

use crate::{
    objects::{
        pod::TRAINER,
        training_job::{condition, has_running_attempt},
    },
    observe::Observed,
    plan::{
        attempt::{
            avoid,
            stage::{self, Attempt, Stage},
        },
        children::{
            claim::{conflict, shortage},
            pod::{INSTALLER, runs_on_cpu_instead},
        },
        dependencies::{Dependencies, results},
        loss, resume,
    },
    progress::Access,
    validate::{Claim, Invalid, ValidJob},
};

/// Phase and conditions without transition times.
#[derive(Debug)]
pub(crate) struct Assessment {
    pub(crate) phase: Phase,
    /// The reason and the message of the condition that explains the phase.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) verdicts: Vec<Verdict>,
}

fn holds(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict { type_, holds: true, reason, message: message.into() }
}

fn fails(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict { type_, holds: false, reason, message: message.into() }
}

/// Reasons that need a change by a user.
pub(crate) const STALLS: [&str; 16] = [
    reasons::AMBIGUOUS_DEPENDENCY,
    reasons::DEPENDENCY_NOT_FOUND,
    reasons::CYCLE,
    reasons::CLAIM_NOT_FOUND,
    reasons::CLAIM_NOT_SHAREABLE,
    reasons::CLAIM_DIFFERS,
    reasons::OWNERSHIP_CONFLICT,
    reasons::INVALID_SPEC,
    reasons::SECRET_NOT_FOUND,
    reasons::CONFIG_MAP_NOT_FOUND,
    reasons::IMAGE_PULL_FAILED,
    reasons::SOURCE_UNAUTHORIZED,
    reasons::SOURCE_NOT_FOUND,
    reasons::SOURCE_UNREACHABLE,
    reasons::OUT_OF_SPACE,
    reasons::OUTPUT_UNUSABLE,
];

/// Why the last attempt could not start, if that needs a person: the job waits without GPUs.
fn start_stall(observed: &Observed) -> Option<(&'static str, &str)> {
    let status = observed.job.status.as_ref().filter(|status| status.failed_starts.is_some())?;
    let failure = status.failure.as_ref()?;
    let reason = STALLS.into_iter().find(|reason| *reason == failure.reason)?;
    Some((reason, failure.message.as_deref().unwrap_or_default()))
}

impl Assessment {
    fn explained_by(phase: Phase, mut verdicts: Vec<Verdict>, type_: &str) -> Self {
        let explains = verdicts.iter().find(|verdict| verdict.type_ == type_);
        let (reason, message) =
            explains.map_or(("", String::new()), |verdict| (verdict.reason, verdict.message.clone()));
        let is_stalled = verdicts.iter().any(|verdict| verdict.type_ == conditions::STALLED);
        if phase == Phase::Pending && STALLS.contains(&reason) && !is_stalled {
            verdicts.push(holds(conditions::STALLED, reason, message.clone()));
        } else if phase == Phase::Pending && reason != reasons::SUSPENDED && !is_stalled {
            verdicts.push(holds(conditions::RECONCILING, reason_or(reason), message.clone()));
        }
        Self { phase, reason, message, verdicts }
    }

    /// Puts a verdict in the place of the one of its type.
    pub(crate) fn replace(&mut self, verdict: Verdict) {
        self.verdicts.retain(|known| known.type_ != verdict.type_);
        self.verdicts.push(verdict);
    }
}

/// The API server wants a reason.
fn reason_or(reason: &'static str) -> &'static str {
    if reason.is_empty() { reasons::NOT_RUNNING } else { reason }
}

/// Conditions of every stage with a valid spec.
struct Common {
    accepted: Verdict,
    dependencies: Option<Verdict>,
    suspended: Option<Verdict>,
    loss: Option<Verdict>,
}

fn common(valid: &ValidJob, observed: &Observed, dependencies: &Dependencies) -> Common {
    let note = if valid.pods.paused {
        "spec.paused is true: nothing is started, ended or deleted".to_owned()
    } else if runs_on_cpu_instead(valid.device) {
        "no Linux node has a Metal device: the trainer uses the CPU".to_owned()
    } else {
        shortage(valid, observed).unwrap_or_default()
    };
    let accepted = match dependencies {
        Dependencies::Ambiguous(message) => {
            fails(conditions::ACCEPTED, reasons::AMBIGUOUS_DEPENDENCY, message.clone())
        }
        Dependencies::None | Dependencies::Ready(_) | Dependencies::NotReady { .. } => {
            holds(conditions::ACCEPTED, reasons::VALID, note)
        }
    };
    let dependencies = match dependencies {
        Dependencies::Ready(records) => {
            let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
            Some(holds(conditions::DEPENDENCIES_READY, reasons::ALL_SUCCEEDED, names.join(", ")))
        }
        Dependencies::NotReady { reason, message, records: _ } => {
            Some(fails(conditions::DEPENDENCIES_READY, reason, message.clone()))
        }
        Dependencies::None | Dependencies::Ambiguous(_) => None,
    };
    let was_suspended = condition(observed.job.status.as_ref(), conditions::SUSPENDED).is_some();
    let suspended = match (valid.suspend, was_suspended) {
        (true, _) => Some(holds(conditions::SUSPENDED, reasons::SUSPENDED, "spec.suspend is true")),
        (false, true) => Some(fails(conditions::SUSPENDED, reasons::RESUMED, "")),
        (false, false) => None,
    };
    Common { accepted, dependencies, suspended, loss: loss::verdict(valid, observed) }
}

impl Common {
    fn with(self, more: impl IntoIterator<Item = Verdict>) -> Vec<Verdict> {
        let Self { accepted, dependencies, suspended, loss } = self;
        [Some(accepted), dependencies, suspended, loss].into_iter().flatten().chain(more).collect()
    }
}

/// No attempt runs.
pub(crate) fn of_waiting(
    valid: &ValidJob,
    observed: &Observed,
    dependencies: &Dependencies,
    stage: &Stage<'_>,
    obstacle: Option<Cause>,
) -> Assessment {
    let common = common(valid, observed, dependencies);
    let running = not_running(valid, observed, stage);
    let type_ = match (dependencies, &obstacle) {
        _ if valid.suspend => conditions::SUSPENDED,
        (Dependencies::Ambiguous(_), _) => conditions::ACCEPTED,
        (Dependencies::NotReady { .. }, _) => conditions::DEPENDENCIES_READY,
        (_, Some(_)) => conditions::SCHEDULED,
        (_, None) => conditions::RUNNING,
    };
    let scheduled = obstacle.map(|Cause { reason, message }| fails(conditions::SCHEDULED, reason, message));
    Assessment::explained_by(Phase::Pending, common.with(scheduled.into_iter().chain([running])), type_)
}

fn not_running(valid: &ValidJob, observed: &Observed, stage: &Stage<'_>) -> Verdict {
    let failure = observed.job.status.as_ref().and_then(|status| status.failure.as_ref());
    let last = failure
        .and_then(|failure| failure.message.clone())
        .map(|message| format!("; the last one: {message}"));
    let status = observed.job.status.as_ref();
    let retries = status.filter(|status| status.failed_starts.is_none()).map_or(0, |status| status.retries);
    let reason = start_stall(observed).map_or(reasons::RETRYING, |(reason, _)| reason);
    let budget = match retries {
        0 => String::new(),
        used if used < valid.retry_limit => String::new(),
        used => format!("; all {used} retries are used, raise retryLimit for more"),
    };
    let last = format!("{}{budget}", last.unwrap_or_default());
    match stage {
        Stage::Clearing { pods } if !pods.is_empty() => {
            let message = format!(
                "the next attempt starts when the pods of the last one have ended; still there: {}{last}",
                pods.first().map_or("", |pod| pod.name())
            );
            fails(conditions::RUNNING, reason, message)
        }
        Stage::Later { at } => {
            let at = at.round(jiff::Unit::Second).unwrap_or(*at);
            let message = format!("the next attempt starts at {at}{last}");
            fails(conditions::RUNNING, reason, message)
        }
        _ if failure.is_some() => {
            fails(conditions::RUNNING, reason, format!("the next attempt starts{last}"))
        }
        _ => fails(conditions::RUNNING, reasons::NOT_RUNNING, ""),
    }
}

/// An attempt has begun.
pub(crate) fn of_active(
    valid: &ValidJob,
    observed: &Observed,
    dependencies: &Dependencies,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> Assessment {
    let common = common(valid, observed, dependencies);
    let scheduled = scheduled(valid, observed, attempt, now);
    let running = running(valid, observed, attempt, now);
    let phase = if running.holds { Phase::Running } else { Phase::Pending };
    let type_ = if running.holds || scheduled.holds { conditions::RUNNING } else { conditions::SCHEDULED };
    // What the last attempt lacked may still be missing until this one runs.
    let stall = start_stall(observed).filter(|_| !running.holds && !STALLS.contains(&running.reason));
    let stall = stall.map(|(reason, last)| {
        stalled(reason, format!("attempt {} starts; the last one: {last}", attempt.number))
    });
    let verdicts = common.with([scheduled, running].into_iter().chain(stall));
    Assessment::explained_by(phase, verdicts, type_)
}

fn scheduled(valid: &ValidJob, observed: &Observed, attempt: &Attempt<'_>, now: Timestamp) -> Verdict {
    if let Some(job) = attempt.job.filter(|job| job.is_suspended) {
        let queue = valid.queue.as_ref().map_or("", |queue| &queue.name);
        let why = match job.suspended_message.as_str() {
            "" => String::new(),
            message => format!(": {}", workload::faults::container::quote(message)),
        };
        let message = format!("Job {} waits for Kueue's queue {queue}{why}", job.name());
        return fails(conditions::SCHEDULED, reasons::QUOTA_PENDING, message);
    }
    let mut causes = attempt
        .pods
        .iter()
        .filter_map(|pod| unplaced(demand(valid), pod, observed.capacities.as_deref(), now).cause)
        .filter(|cause| !(cause.message.contains(UNBOUND) && are_claims_bound(observed)));
    if let Some(Cause { reason, message }) = causes.next() {
        let wanted = if valid.nodes > 1 { format!("{} pods: ", valid.nodes) } else { String::new() };
        let known = observed.job.status.as_ref().map_or(&[][..], |status| &status.avoided_nodes);
        return fails(conditions::SCHEDULED, reason, format!("{wanted}{message}{}", avoid::words(known)));
    }
    let wanted = usize::try_from(valid.nodes).unwrap_or_default();
    if attempt.pods.len() < wanted
        && let Some(why) = &observed.refused_pods
    {
        let reason = why_no_pod_is_created(why);
        let fix = refused_pods::fix(why, &HELPERS);
        let message = match attempt.pods.len() {
            0 => format!("no pod was created: {why}{fix}"),
            made => format!("only {made} of {wanted} pods were created: {why}{fix}"),
        };
        return fails(conditions::SCHEDULED, reason, message);
    }
    let placed = attempt.pods.iter().filter(|pod| pod.node.is_some()).count();
    if placed < wanted {
        let message = format!("{placed} of {wanted} pods have a node");
        return fails(conditions::SCHEDULED, reasons::STARTING, message);
    }
    let nodes: Vec<&str> =
        attempt.pods.iter().filter_map(|pod| pod.node.as_deref()).take(MOST_NODES).collect();
    holds(conditions::SCHEDULED, reasons::SCHEDULED, nodes.join(", "))
}

/// What each pod of an attempt asks of its node; `None` without accelerators.
pub(crate) fn demand(valid: &ValidJob) -> Option<Demand<'_>> {
    let gpus = valid.accelerators.as_ref()?;
    Some(Demand { gpus, scheduling: valid.pods.scheduling.as_ref() })
}

/// The reason for these words of the API server.
pub(crate) fn why_no_pod_is_created(words: &str) -> &'static str {
    if words.contains("exceeded quota") { reasons::QUOTA_PENDING } else { reasons::DENIED }
}

/// The containers of the controller, with the field of their resources.
pub(crate) const HELPERS: [(&str, &str); 2] =
    [(INSTALLER, "spec.helperResources"), (UPLOADER, "spec.helperResources")];

/// What the scheduler says of a pod whose claims have no volume yet. It says so until it looks at the pod again.
const UNBOUND: &str = "unbound immediate PersistentVolumeClaims";

fn are_claims_bound(observed: &Observed) -> bool {
    observed.claims.values().all(|claim| claim.as_ref().is_some_and(|claim| claim.is_bound()))
}

/// Nodes in a message.
const MOST_NODES: usize = 8;

fn running(valid: &ValidJob, observed: &Observed, attempt: &Attempt<'_>, now: Timestamp) -> Verdict {
    // A rank that has succeeded counts as started.
    let trains = |pod: &&&PodView| {
        let state = pod.container(TRAINER).map(|one| &one.state);
        state.is_some_and(|state| {
            state.running.is_some() || state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0)
        })
    };
    let count = attempt.pods.iter().filter(trains).count();
    let wanted = usize::try_from(valid.nodes).unwrap_or_default();
    let number = attempt.number;
    let has_begun = stage::has_run(observed.job.status.as_ref(), number);
    if count < wanted && !has_begun {
        let cause = attempt.pods.iter().find_map(|pod| waits_because(pod, observed, now));
        let Cause { reason, message } = cause.unwrap_or_else(|| Cause {
            reason: reasons::STARTING,
            message: format!("attempt {number}: the trainer runs in {count} of {wanted} pods"),
        });
        return fails(conditions::RUNNING, reason, message);
    }
    // What becomes of the others is the end of the attempt, which is not clear yet.
    let ranks = if count < wanted {
        format!(": the trainer runs in {count} of {wanted} pods")
    } else {
        String::new()
    };
    let log = observed.log.as_ref();
    let unread = match log.map(|log| &log.access) {
        Some(Access::Forbidden) => {
            "; progress is unknown, because the controller must not read logs (pods/log)".to_owned()
        }
        Some(Access::Unreadable(why)) => {
            format!("; the log cannot be read: {}", workload::faults::container::quote(why))
        }
        Some(Access::Readable | Access::Unknown) | None => String::new(),
    };
    if log.is_some_and(|log| log.has_stepped) || has_reported(observed, number) {
        holds(conditions::RUNNING, reasons::TRAINING, format!("attempt {number}{ranks}{unread}"))
    } else {
        let what = "loads the model and prepares the data";
        holds(conditions::RUNNING, reasons::PREPARING, format!("attempt {number} {what}{ranks}{unread}"))
    }
}

/// Before the log is open again after a restart of the controller.
fn has_reported(observed: &Observed, attempt: i32) -> bool {
    let progress = observed.job.status.as_ref().and_then(|status| status.progress.as_ref());
    progress.is_some_and(|progress| progress.attempt == attempt)
}

pub(crate) fn waits_because(pod: &PodView, observed: &Observed, now: Timestamp) -> Option<Cause> {
    let mut containers = pod.init_containers.iter().chain(&pod.containers);
    containers.find_map(|one| start_fault(pod, one)).or_else(|| {
        let failure = observed.unattached.get(pod.uid())?;
        failure.finding(pod, now).cause
    })
}

/// What keeps the next attempt from being started: claims that are not there, are being deleted, cannot be shared, or are
/// still uploaded from.
pub(crate) fn obstacle(valid: &ValidJob, observed: &Observed) -> Option<Cause> {
    let place = |name: &str| observed.claims.get(name).and_then(Option::as_deref);
    let unusable = |name: &str, field: &str| {
        let mounts = claim::Mounts { count: valid.nodes, field: "nodes" };
        let fault = claim::fault(place(name), (&valid.namespace, name), field, mounts);
        let fault = fault.or_else(|| being_deleted(place(name)?, field));
        fault.or_else(|| uploaded_from(name, valid, observed))
    };
    let of_inputs = || valid.inputs.iter().find_map(|input| unusable(&input.claim_name, "spec.inputs"));
    let records = observed.job.status.as_ref().map_or(&[][..], |status| &status.dependencies);
    let of_results = || {
        results(records).into_iter().find_map(|result| {
            let record = records.iter().find(|record| record.result.as_ref() == Some(&result));
            let job = record.map_or("", |record| &record.name);
            unusable(&result.claim_name, &format!("what reads the result of TrainingJob {job}"))
        })
    };
    let of_output = || match &valid.output.claim {
        Claim::Existing(name) => unusable(name, "spec.output.claimName"),
        // It is made with the first attempt.
        Claim::Made { name, .. } => {
            let conflict = conflict(valid, place(name)?, &observed.job);
            conflict.or_else(|| unusable(name, "spec.output.claimName"))
        }
    };
    let of_source = || resume::obstacle(observed, unusable);
    of_inputs().or_else(of_results).or_else(of_source).or_else(of_output)
}

/// Pods that mount the claim go on; no other pod is scheduled with it.
fn being_deleted(claim: &ClaimView, field: &str) -> Option<Cause> {
    let deleted = claim::deletion(claim)?;
    let message = format!("{deleted}; create it again when it is gone, or change {field}");
    Some(Cause { reason: reasons::CLAIM_NOT_FOUND, message })
}

/// Of a volume that one node has at a time, the pods of an attempt would wait for the upload, with their GPUs.
fn uploaded_from(claim: &str, valid: &ValidJob, observed: &Observed) -> Option<Cause> {
    let pod = observed.uploaders.get(claim)?;
    let message = format!(
        "PersistentVolumeClaim {}/{claim} can be mounted on one node at a time, and pod {pod} uploads from it: the attempt \
         starts when that pod has ended",
        valid.namespace
    );
    Some(Cause { reason: reasons::WAITING, message })
}

/// The result is uploaded.
pub(crate) fn of_uploading(
    valid: &ValidJob,
    observed: &Observed,
    dependencies: &Dependencies,
    uploaded: Verdict,
) -> Assessment {
    let common = common(valid, observed, dependencies);
    let running = fails(conditions::RUNNING, reasons::NOT_RUNNING, "the training has succeeded");
    Assessment::explained_by(Phase::Running, common.with([running, uploaded]), conditions::UPLOADED)
}

/// The store of the upload is tried before the first attempt; the reason and the message say how far it is.
pub(crate) fn of_checking(
    valid: &ValidJob,
    observed: &Observed,
    dependencies: &Dependencies,
    (reason, message): (&'static str, String),
    is_stalled: bool,
) -> Assessment {
    let common = common(valid, observed, dependencies);
    let running = fails(conditions::RUNNING, reason, message.clone());
    let stalled = is_stalled.then(|| stalled(reason, message));
    let verdicts = common.with([running].into_iter().chain(stalled));
    Assessment::explained_by(Phase::Pending, verdicts, conditions::RUNNING)
}

/// The job has succeeded.
pub(crate) fn of_success(
    valid: &ValidJob,
    observed: &Observed,
    dependencies: &Dependencies,
    uploaded: Option<Verdict>,
    message: String,
) -> Assessment {
    let common = common(valid, observed, dependencies);
    let running = fails(conditions::RUNNING, reasons::NOT_RUNNING, "the job has ended");
    let complete = holds(conditions::COMPLETE, reasons::SUCCEEDED, message);
    let verdicts = common.with(uploaded.into_iter().chain([running, complete]));
    Assessment::explained_by(Phase::Succeeded, verdicts, conditions::COMPLETE)
}

/// The job has failed.
pub(crate) fn of_failure(
    valid: &ValidJob,
    observed: &Observed,
    dependencies: &Dependencies,
    (reason, message): (&'static str, String),
) -> Assessment {
    let mut common = common(valid, observed, dependencies);
    if reason == reasons::OUTPUT_NOT_EMPTY {
        common.accepted = fails(conditions::ACCEPTED, reason, message.clone());
    }
    let running = fails(conditions::RUNNING, reasons::NOT_RUNNING, "the job has ended");
    let failed = holds(conditions::FAILED, reason, message.clone());
    let stalled = holds(conditions::STALLED, reason, message);
    let no_progress =
        (reason == reasons::NO_PROGRESS).then(|| holds(conditions::NO_PROGRESS, reasons::NO_PROGRESS, ""));
    let verdicts = common.with(no_progress.into_iter().chain([running, failed, stalled]));
    Assessment::explained_by(Phase::Failed, verdicts, conditions::FAILED)
}

/// The spec is invalid: what runs is left alone.
pub(crate) fn of_invalid(invalid: &Invalid, observed: &Observed) -> Assessment {
    let message = invalid.to_string();
    let before = observed.job.status.clone().unwrap_or_default();
    let phase = if has_running_attempt(&observed.job) {
        before.phase.unwrap_or(Phase::Pending)
    } else {
        Phase::Pending
    };
    let accepted = fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone());
    let stalled = holds(conditions::STALLED, reasons::INVALID_SPEC, message);
    Assessment::explained_by(phase, vec![accepted, stalled], conditions::ACCEPTED)
}

/// The API server refuses a child, and no attempt runs.
pub(crate) fn with_refusal(mut assessment: Assessment, refusal: &Refusal) -> Assessment {
    let Some((reason, message)) = refusal_of(refusal) else { return assessment };
    if reason == reasons::INVALID_SPEC {
        assessment.replace(fails(conditions::ACCEPTED, reason, message.clone()));
    }
    assessment.replace(fails(conditions::RUNNING, reason, message.clone()));
    assessment.replace(stalled(reason, message.clone()));
    Assessment { phase: Phase::Pending, reason, message, ..assessment }
}

/// Reason and message of a refusal; `None`: it passes by itself.
pub(crate) fn refusal_of(refusal: &Refusal) -> Option<(&'static str, String)> {
    match refusal {
        // The garbage collector is about to delete the child of the deleted owner; no fault.
        Refusal::Leftover { .. } => None,
        Refusal::OwnershipConflict(message) => Some((reasons::OWNERSHIP_CONFLICT, message.clone())),
        Refusal::Denied(message) => Some((reasons::DENIED, message.clone())),
        Refusal::Invalid(message) => Some((reasons::INVALID_SPEC, message.clone())),
    }
}

pub(crate) fn stalled(reason: &'static str, message: String) -> Verdict {
    holds(conditions::STALLED, reason, message)
}
