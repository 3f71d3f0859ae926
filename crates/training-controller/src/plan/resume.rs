//! Whether a job may go on from the checkpoints of another one, and what keeps it from that. Pure.
//!
//! The launcher decides which checkpoint is complete, and compares what the checkpoint says of itself. What the objects
//! show already is refused here, before a GPU is taken.

use api::{
    reasons,
    trainingjob::{ResolvedResume, TrainingJob},
};
use workload::{Cause, views::claim as claims};

use super::{children::mitigation, dependencies::Dependencies};
use crate::{
    objects::training_job::{has_begun, has_trained, is_being_deleted},
    observe::{Observed, ResumeSource},
    swift::Sharding,
    validate::{Invalid, ValidJob, validate},
};

/// How the source stands.
#[derive(Debug, PartialEq)]
enum State {
    /// The job has none.
    None,
    Ready(ResolvedResume),
    NotReady {
        reason: &'static str,
        message: String,
    },
    Refused(Invalid),
}

/// The source that the status records from the first attempt on.
pub(super) fn source(valid: &ValidJob, observed: &Observed) -> Result<Option<ResolvedResume>, Invalid> {
    match state(valid, observed) {
        State::None | State::NotReady { .. } => Ok(None),
        State::Ready(source) => Ok(Some(source)),
        State::Refused(invalid) => Err(invalid),
    }
}

/// A job waits for its source as for its dependencies.
pub(super) fn awaited(dependencies: Dependencies, valid: &ValidJob, observed: &Observed) -> Dependencies {
    let records = match &dependencies {
        Dependencies::None => Vec::new(),
        Dependencies::Ready(records) => records.clone(),
        Dependencies::NotReady { .. } | Dependencies::Ambiguous(_) => return dependencies,
    };
    match state(valid, observed) {
        State::NotReady { reason, message } => Dependencies::NotReady { records, reason, message },
        State::None | State::Ready(_) | State::Refused(_) => dependencies,
    }
}

/// Whether pods need the claim of the source: a job with a checkpoint of its own goes on without.
pub(super) fn is_needed(observed: &Observed) -> bool {
    observed.job.status.as_ref().is_none_or(|status| status.checkpoint.is_none())
}

fn recorded(observed: &Observed) -> Option<&ResolvedResume> {
    observed.job.status.as_ref()?.resume_from.as_ref()
}

/// The source as far as it is known while it is waited for: its job may be deleted meanwhile.
pub(super) fn seen(valid: &ValidJob, observed: &Observed) -> Option<ResolvedResume> {
    let recorded = recorded(observed).cloned();
    let source =
        observed.resume.as_ref().filter(|_| !has_begun(&observed.job) && valid.resume_from.is_some());
    let job = source.and_then(|source| Some((source.job.as_deref()?, source)));
    let found = job.and_then(|(job, source)| Some(left_by(job, &validate(job).ok()?, source)));
    found.or(recorded)
}

/// What the pods of an attempt mount. A claim that is gone, is being deleted or is used on another node keeps no later attempt
/// from its start.
pub(super) fn mounted(observed: &Observed) -> Option<&ResolvedResume> {
    let claim = |name: &str| observed.claims.get(name).and_then(Option::as_deref);
    recorded(observed).filter(|source| {
        let is_there = claim(&source.claim_name).is_some_and(|claim| claims::deletion(claim).is_none());
        let is_free = !observed.uploaders.contains_key(&source.claim_name);
        is_needed(observed) || (is_there && is_free)
    })
}

/// The claim of the source, of which `fault` says why no pod can use it.
pub(super) fn obstacle(observed: &Observed, fault: impl Fn(&str, &str) -> Option<Cause>) -> Option<Cause> {
    let known = recorded(observed).map(|source| &source.claim_name);
    let claim = known.or(observed.resume.as_ref().map(|source| &source.claim))?;
    is_needed(observed).then(|| fault(claim, "spec.resumeFrom")).flatten()
}

fn state(valid: &ValidJob, observed: &Observed) -> State {
    let Some(wanted) = &valid.resume_from else { return State::None };
    let recorded = recorded(observed);
    if let Some(recorded) = recorded.filter(|_| has_begun(&observed.job)) {
        return State::Ready(recorded.clone());
    }
    let Some(source) = &observed.resume else { return State::None };
    let named = || ResolvedResume { claim_name: source.claim.clone(), path: wanted.path.clone(), uid: None };
    let found = match &source.job {
        Some(job) => of_job(valid, job, source),
        None => Ok(recorded.cloned().unwrap_or_else(named)),
    };
    let found = match found {
        Ok(found) => found,
        Err(state) => return state,
    };
    if let Some(waits) = written(source) {
        return State::NotReady { reason: reasons::WAITING, message: waits };
    }
    let is_missing = observed.claims.get(&source.claim).is_none_or(Option::is_none);
    if let (true, None, Some(name)) = (is_missing, &source.job, &wanted.job) {
        let message = format!(
            "spec.resumeFrom.job: TrainingJob {name} does not exist, and PersistentVolumeClaim {}/{} of an earlier one \
             neither; create this job again with resumeFrom.claimName, or without resumeFrom",
            valid.namespace, source.claim
        );
        return State::NotReady { reason: reasons::DEPENDENCY_NOT_FOUND, message };
    }
    let own = relative(&valid.output.dir, &valid.output.mount_path);
    if source.claim == valid.output.claim.name() && found.path == own {
        return State::Refused(Invalid(format!(
            "spec.resumeFrom: its checkpoints are in the outputDir of this job, which would delete them one by one; create \
             the job again with another name or, to stay in claim {}, with output.mountPath {} and an outputDir below it",
            source.claim, valid.output.mount_path
        )));
    }
    State::Ready(found)
}

/// The source that a job has left.
fn of_job(valid: &ValidJob, job: &TrainingJob, source: &ResumeSource) -> Result<ResolvedResume, State> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    if !has_trained(job) {
        let message =
            format!("spec.resumeFrom: waits until TrainingJob {name} has ended; delete it to go on at once");
        return Err(State::NotReady { reason: reasons::WAITING, message });
    }
    let refused = |message: String| State::Refused(Invalid(message));
    let other = validate(job).map_err(|invalid| {
        refused(format!(
            "spec.resumeFrom.job: TrainingJob {name} is invalid ({invalid}); use resumeFrom.claimName"
        ))
    })?;
    let steps = job.status.as_ref().map_or(0, |status| status.mitigations.len());
    let sharding = mitigation::settings(&other, steps).sharding;
    let differences = differences(valid, &ValidJob { sharding, ..other.clone() });
    if !differences.is_empty() {
        return Err(refused(format!(
            "spec.resumeFrom: this job cannot go on from TrainingJob {name}: {}; create it again with the same, or start \
             a new training with spec.adapters or spec.model",
            differences.join(", and ")
        )));
    }
    // Of one that is being deleted, the last one is not reported.
    let is_kept = !is_being_deleted(job);
    if is_kept && job.status.as_ref().is_none_or(|status| status.checkpoint.is_none()) {
        return Err(refused(format!(
            "spec.resumeFrom: TrainingJob {name} has reported no checkpoint; create this job again without resumeFrom or, if \
             there is one in claim {}, with resumeFrom.claimName",
            source.claim
        )));
    }
    Ok(left_by(job, &other, source))
}

fn left_by(job: &TrainingJob, valid: &ValidJob, source: &ResumeSource) -> ResolvedResume {
    ResolvedResume {
        claim_name: source.claim.clone(),
        path: relative(&valid.output.dir, &valid.output.mount_path),
        uid: job.metadata.uid.clone(),
    }
}

/// Who may still write.
fn written(source: &ResumeSource) -> Option<String> {
    let claim = &source.claim;
    if !source.writers.is_empty() {
        let names = source.writers.join(", ");
        return Some(format!(
            "spec.resumeFrom: waits until the TrainingJobs that write into claim {claim} have ended: {names}"
        ));
    }
    let pod = source.pod.as_ref()?;
    Some(format!("spec.resumeFrom: waits until pod {pod}, which may write into claim {claim}, has ended"))
}

/// What keeps a trainer from going on: `its model is A, and that of this job B`.
fn differences(valid: &ValidJob, other: &ValidJob) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, is: String, wanted: String| {
        if is != wanted {
            found.push(format!("its {what} is {is}, and that of this job {wanted}"));
        }
    };
    let method = |job: &ValidJob| format!("{:?}", job.method).to_lowercase();
    compare("model", other.model.clone(), valid.model.clone());
    compare("dataset", other.datasets.join(","), valid.datasets.join(","));
    compare("method", method(other), method(valid));
    // The user's own configuration of DeepSpeed is compared by the launcher.
    if let (Some(is), Some(wanted)) = (other.sharding, valid.sharding) {
        let name = |sharding: Sharding| sharding.as_argument().unwrap_or("none").to_owned();
        compare("DeepSpeed stage", name(is), name(wanted));
        if is != Sharding::Nothing {
            let count = |job: &ValidJob| {
                format!(
                    "{} (gpus {} x nodes {})",
                    i64::from(job.gpus) * i64::from(job.nodes),
                    job.gpus,
                    job.nodes
                )
            };
            let world = |job: &ValidJob| i64::from(job.gpus) * i64::from(job.nodes);
            if world(other) != world(valid) {
                compare("number of accelerators", count(other), count(valid));
            }
        }
    }
    found
}

/// The folder of the claim; `None`: its root.
fn relative(dir: &str, mount_path: &str) -> Option<String> {
    let below = dir.strip_prefix(mount_path.trim_end_matches('/'))?.trim_matches('/');
    (!below.is_empty()).then(|| below.to_owned())
}
