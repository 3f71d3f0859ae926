//! The source of `spec.resumeFrom`, as the caches have it: its job and its claim, and who may still write into it.

use std::sync::Arc;

use api::trainingjob::TrainingJob;
use runtime::key::Key;
use workload::views::pod::PodView;

use super::claims::writers;
use crate::{
    Context, names,
    objects::{
        pod::{has_stopped, job_of},
        training_job::{has_begun, has_trained},
    },
    relations::wants::{resume_key, source_claim},
};

/// What is known of the source.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResumeSource {
    /// The job of `spec.resumeFrom.job`, if it exists and is another one.
    pub(crate) job: Option<Arc<TrainingJob>>,
    /// The claim with the checkpoints.
    pub(crate) claim: String,
    /// Other jobs that have begun, have not ended and write into the claim.
    pub(crate) writers: Vec<String>,
    /// A pod that may still write into the claim.
    pub(crate) pod: Option<String>,
}

/// Names of writers that are kept.
const MOST_WRITERS: usize = 4;

/// `None`: the job begins anew.
pub(super) fn observe(ctx: &Context, job: &TrainingJob) -> Option<ResumeSource> {
    let named = job.spec.resume_from.as_ref()?;
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let own = Key::of(job);
    let other = named.job.as_ref().map(|name| Key::new(namespace, name)).filter(|key| *key != own);
    let other = other.and_then(|key| ctx.training_jobs.get(&key));
    let claim = source_claim(job, other.as_deref());
    let writers: Vec<Key> =
        writers(ctx, namespace, &claim).into_iter().filter(|writer| *writer != own).collect();
    let is_writer = |key: &&Key| ctx.training_jobs.get(key).is_some_and(|job| may_write(&job));
    let names = writers.iter().filter(is_writer);
    let names = names.map(|key| key.name.to_string()).take(MOST_WRITERS).collect();
    // The claim of a job that is gone has its name only if it was made for it.
    let pods = writers.into_iter().chain(resume_key(job)).find_map(|job| {
        let pods = ctx.pods_of.of_key(&job);
        pods.iter().filter_map(|key| ctx.pods.get(key)).find(|pod| writes(pod, &job.name))
    });
    Some(ResumeSource { job: other, claim, writers: names, pod: pods.map(|pod| pod.name().to_owned()) })
}

/// A job that has not begun waits for no claim, so that two new ones do not wait for each other.
fn may_write(job: &TrainingJob) -> bool {
    !has_trained(job) && has_begun(job)
}

/// The pod of an upload reads only.
fn writes(pod: &PodView, job: &str) -> bool {
    !has_stopped(pod) && job_of(pod) != Some(&names::upload(job))
}

#[cfg(test)]
mod tests {
    use api::{
        conditions, reasons,
        trainingjob::{Phase, TrainingJobStatus},
    };
    use runtime::write::conditions::{Verdict, merged};

    use super::*;
    use crate::tests::{at, job};

    #[test]
    fn a_job_that_has_trained_writes_no_more_checkpoints() {
        let mut first = job("first", "{model: m, dataset: d, method: lora}");
        assert!(!may_write(&first), "it has not begun");
        let status =
            TrainingJobStatus { phase: Some(Phase::Running), attempts: 1, ..TrainingJobStatus::default() };
        first.status = Some(status.clone());
        assert!(may_write(&first));
        let uploaded = Verdict {
            type_: conditions::UPLOADED,
            holds: false,
            reason: reasons::UPLOAD_FAILED,
            message: String::new(),
        };
        let conditions = merged(vec![uploaded], &[], Some(1), at(0));
        first.status = Some(TrainingJobStatus { conditions, ..status.clone() });
        assert!(!may_write(&first), "its result is uploaded");
        first.status = Some(status);
        first.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        assert!(!may_write(&first), "it is being deleted");
    }
}
