//! Jobs and pods that a watch does not show, because it is late, or because an object lacks the labels that it selects.

use std::{sync::Arc, time::Duration};

use api::{labels, trainingjob::TrainingJob};
use runtime::{apply::ApplyError, cache::Key};
use workload::pod::PodView;

use crate::{
    Context, NAME, names,
    observe::{Observed, has_ended},
    plan::{Child, Plan},
};

pub(crate) async fn are_pods_seen(ctx: &Context, job: &TrainingJob) -> Result<bool, ApplyError> {
    let [namespace, name] =
        [&job.metadata.namespace, &job.metadata.name].map(|text| text.clone().unwrap_or_default());
    let labels =
        format!("{}={NAME},{}={},{}={name}", labels::MANAGED_BY, labels::NAME, names::KIND, labels::INSTANCE);
    ctx.pods.are_newest(&namespace, &labels).await
}

/// Pods of the last attempt whose labels were taken off, so that no watch delivers them. They are known by the label of the Job
/// controller.
pub(crate) async fn hidden_pods(
    ctx: &Context,
    job: &TrainingJob,
    observed: &Observed,
) -> Result<Vec<Arc<PodView>>, ApplyError> {
    let [namespace, name] =
        [&job.metadata.namespace, &job.metadata.name].map(|text| text.clone().unwrap_or_default());
    let last = job.status.as_ref().map_or(0, |status| status.attempts);
    let of_last = format!("{}={}", labels::JOB_NAME, names::attempt(&name, last));
    let is_known = |pod: &PodView| observed.pods.iter().any(|known| known.uid() == pod.uid());
    let pods = ctx.pods.read(&namespace, &of_last).await?;
    Ok(pods.into_iter().filter(|pod| !is_known(pod)).map(Arc::new).collect())
}

/// Whether an attempt follows another one, whose pods must all have ended.
pub(crate) fn starts_again(job: &TrainingJob, planned: &Plan) -> bool {
    let has_begun = job.status.as_ref().is_some_and(|status| status.attempts > 0);
    has_begun && planned.children.iter().any(|child| matches!(child, Child::Job(_)))
}

/// Time for the watch of Jobs or pods to catch up.
pub(crate) const LATE_WATCH_RETRY: Duration = Duration::from_secs(1);

/// The Job of the last attempt and its number, if the status says that it runs and the cache does not have it.
pub(crate) fn missing_attempt(observed: &Observed) -> Option<(Key, i32)> {
    let status = observed.job.status.as_ref().filter(|_| !has_ended(&observed.job))?;
    let runs = status.attempts > status.ended_attempts && !observed.attempts.contains_key(&status.attempts);
    let (namespace, name) =
        (observed.job.metadata.namespace.as_deref()?, observed.job.metadata.name.as_deref()?);
    runs.then(|| (Key::new(namespace, &names::attempt(name, status.attempts)), status.attempts))
}
