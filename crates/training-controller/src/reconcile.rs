//! What `runtime::reconcile` calls for one TrainingJob, and what the API server is asked in doubt.

use std::sync::Arc;

use api::{labels, trainingjob::TrainingJob};
use jiff::Timestamp;
use kube::Resource as _;
use runtime::{
    key::Key,
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, children::PUT_BACK_LABELS, refusal::Refusal},
};
use workload::views::pod::PodView;

use crate::{
    Context, NAME,
    apply::apply,
    names,
    objects::{pod::has_stopped, training_job::is_being_deleted},
    observe::{Doubt, Observed, observe},
    plan::{Plan, labels_of_attempt, plan, refused},
};

impl Reconciler for Context {
    type Root = TrainingJob;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    const FINALIZER: Option<&'static str> = Some(labels::OUTPUT_FINALIZER);

    /// The garbage collector deletes the children; applying them now would create them again.
    fn forget(&self, job: &TrainingJob) {
        self.progress.forget(job.metadata.uid.as_deref().unwrap_or_default());
    }

    fn observe(&self, job: Arc<TrainingJob>, now: Timestamp) -> Observed {
        observe(self, job, now)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        plan(observed, &self.own_account, &self.defaults, now)
    }

    async fn confirm(&self, doubt: Doubt, observed: &mut Observed) -> Result<Confirmation, ApplyError> {
        let is_so = match doubt {
            Doubt::MissingAttempt(number) => is_attempt_missing(self, &observed.job, number).await?,
            Doubt::UnseenPods => are_newest_pods_seen(self, observed).await?,
            Doubt::RunningPods => have_pods_ended(self, observed).await?,
            Doubt::MissingClaim => {
                // The list may fail for long, and the log of a deleted job is of no use.
                self.progress.forget(observed.job.metadata.uid.as_deref().unwrap_or_default());
                let [namespace, name] = address(&observed.job);
                let key = Key::new(namespace, &names::claim(name));
                let is_missing = self.claims.is_not_listed(&key).await?;
                // A watch may have brought it meanwhile.
                observed.made_claim = self.claims.get(&key);
                is_missing
            }
        };
        Ok(observed.answered(doubt, is_so))
    }

    async fn apply(&self, job: &TrainingJob, plan: &Plan, now: Timestamp) -> Result<Applied, ApplyError> {
        apply(self, job, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, planned: Plan, observed: &Observed, now: Timestamp) -> Plan {
        refused(refusal, planned, observed, &self.defaults, now)
    }
}

/// Namespace and name.
fn address(job: &TrainingJob) -> [&str; 2] {
    [&job.metadata.namespace, &job.metadata.name].map(|text| text.as_deref().unwrap_or_default())
}

/// Whether the API server has no such attempt either: a watch may be late, or not see it without its labels.
async fn is_attempt_missing(ctx: &Context, job: &TrainingJob, number: i32) -> Result<bool, ApplyError> {
    let [namespace, name] = address(job);
    let owner = job.controller_owner_ref(&()).unwrap_or_default();
    let key = Key::new(namespace, &names::attempt(name, number));
    is_missing(job, ctx.jobs.find(&key, &owner, &labels_of_attempt(name, number)).await)
}

/// `found`: what the API server says of the Job of the attempt.
fn is_missing(job: &TrainingJob, found: Result<bool, ApplyError>) -> Result<bool, ApplyError> {
    match found {
        Ok(is_there) => Ok(!is_there),
        // One of its name that belongs to another object is not the attempt.
        Err(ApplyError::Foreign { .. } | ApplyError::Leftover { .. }) => Ok(true),
        // It is there, and does not get its labels back. A deletion does not wait for that without end.
        Err(ApplyError::Call { step: PUT_BACK_LABELS, .. }) if is_being_deleted(job) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the watch of pods is up to date. What it does not show is observed from then on.
async fn are_newest_pods_seen(ctx: &Context, observed: &mut Observed) -> Result<bool, ApplyError> {
    if !are_pods_seen(ctx, &observed.job).await? {
        return Ok(false);
    }
    let hidden = hidden_pods(ctx, observed).await?;
    observed.pods.extend(hidden);
    Ok(true)
}

/// Whether no pod of the last attempt runs, also of those that the watch does not show.
async fn have_pods_ended(ctx: &Context, observed: &Observed) -> Result<bool, ApplyError> {
    if !observed.has_newest_pods() && !are_pods_seen(ctx, &observed.job).await? {
        return Ok(false);
    }
    Ok(hidden_pods(ctx, observed).await?.iter().all(|pod| has_stopped(pod)))
}

async fn are_pods_seen(ctx: &Context, job: &TrainingJob) -> Result<bool, ApplyError> {
    let [namespace, name] = address(job);
    let labels =
        format!("{}={NAME},{}={},{}={name}", labels::MANAGED_BY, labels::NAME, names::KIND, labels::INSTANCE);
    ctx.pods.are_newest(namespace, &labels).await
}

/// Pods of the newest attempts whose labels were taken off, so that no watch delivers them. They are known by the label of the Job
/// controller.
async fn hidden_pods(ctx: &Context, observed: &Observed) -> Result<Vec<Arc<PodView>>, ApplyError> {
    let [namespace, name] = address(&observed.job);
    let last = observed.job.status.as_ref().map_or(0, |status| status.attempts);
    // The status does not know the next one yet if the controller was ended after it had made its Job. Where one may be made,
    // its creation finds it.
    let more = i32::from(is_being_deleted(&observed.job));
    let jobs: Vec<String> =
        (last..=last.saturating_add(more)).map(|number| names::attempt(name, number)).collect();
    let of_newest = format!("{} in ({})", labels::JOB_NAME, jobs.join(","));
    let is_known = |pod: &PodView| observed.pods.iter().any(|known| known.uid() == pod.uid());
    let pods = ctx.pods.read(namespace, &of_newest).await?;
    Ok(pods.into_iter().filter(|pod| !is_known(pod)).map(Arc::new).collect())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::core::Status;

    use super::*;
    use crate::tests::{at, job};

    fn failed(step: &'static str, code: u16, message: &str) -> Result<bool, ApplyError> {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        let (key, source) = (Key::new("demo", "qwen-1"), Box::new(kube::Error::Api(status.boxed())));
        Err(ApplyError::Call { step, kind: "Job", key, source })
    }

    /// A webhook refuses the labels, or is down.
    #[test]
    fn a_deletion_does_not_wait_without_end_for_labels() {
        let denied = || {
            failed(PUT_BACK_LABELS, 403, "admission webhook \"labels.example.com\" denied the request: no")
        };
        let down = || failed(PUT_BACK_LABELS, 500, "failed calling webhook \"labels.example.com\"");
        let mut job = job("qwen", "{model: m, dataset: d, method: lora}");
        for failed in [denied, down] {
            assert!(
                is_missing(&job, failed()).is_err(),
                "an attempt that runs is not taken for a deleted one"
            );
        }
        job.metadata.deletion_timestamp = Some(Time(at(0)));
        assert!(matches!(is_missing(&job, denied()), Ok(false)));
        assert!(matches!(is_missing(&job, down()), Ok(false)));
        assert!(is_missing(&job, failed("look for", 503, "away")).is_err(), "it is asked again");
        assert!(matches!(is_missing(&job, Ok(false)), Ok(true)));
    }
}
