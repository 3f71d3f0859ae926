//! What is left of an attempt that has ended, and how it is ended.

use std::time::Duration;

use api::reasons;
use workload::{
    faults::{pace::Allowance, stranded::StrandedPods},
    views::pod::PodView,
};

use super::{Deletion, Scene};
use crate::{
    names,
    objects::pod::{TRAINER, job_of},
};

/// The grace period of pods that have nothing more to save.
const FAILED_GRACE: Duration = Duration::from_secs(30);

/// Why an attempt ends whose trainer is well: it saves within its own grace period.
const HAVE_TIME_TO_SAVE: [&str; 2] = [reasons::PREEMPTED, reasons::DEADLINE_EXCEEDED];

impl Scene<'_> {
    /// The deletion of a Job deletes its pods with the grace period of their spec. A kubelet that has begun to end a container
    /// does not shorten its grace period any more (kubernetes/kubernetes#113712), so pods come before their Job.
    pub(super) fn what_is_left(&self, pods: &[&PodView]) -> Vec<Deletion> {
        let stranded = self.stranded(pods);
        let due = stranded.due();
        // No kubelet reports the end of these.
        let is_lost = |pod: &&PodView| pod.metadata.deletion_timestamp.is_some() && due.contains(&pod.uid());
        let (lost, others): (Vec<&PodView>, Vec<&PodView>) = pods.iter().copied().partition(is_lost);
        let mut deletions: Vec<Deletion> = lost.into_iter().map(Deletion::now).collect();
        deletions.extend(self.failed_pods(&others));
        deletions.extend(self.unfinished_jobs());
        deletions
    }

    /// Jobs of attempts that have ended and still have pods, or would make some. One of which a pod has failed ends by itself,
    /// and the log of that pod stays readable.
    pub(super) fn unfinished_jobs(&self) -> Vec<Deletion> {
        let ends_itself = |job: &str| {
            let mut pods = self.observed.pods.iter().filter(|pod| job_of(pod) == Some(job));
            pods.any(|pod| pod.phase == "Failed")
        };
        let jobs = self.observed.attempts.values();
        let ended = jobs.filter(|job| job.is_active() && !ends_itself(job.name()));
        ended.map(|job| Deletion::job(job)).collect()
    }

    /// Pods of an attempt that has failed: without all ranks, or in a trainer that hangs, there is nothing more to save, and
    /// their GPUs are needed.
    fn failed_pods(&self, pods: &[&PodView]) -> Vec<Deletion> {
        let status = self.observed.job.status.as_ref();
        let failure = status.and_then(|status| {
            status.failure.as_ref().filter(|failure| failure.attempt == status.ended_attempts)
        });
        let Some(failure) = failure.filter(|failure| !HAVE_TIME_TO_SAVE.contains(&&*failure.reason)) else {
            return Vec::new();
        };
        let job = names::attempt(&self.valid.name, failure.attempt);
        let is_of_it = |pod: &&&PodView| job_of(pod) == Some(&job);
        let is_slow = |pod: &&&PodView| {
            let grace = pod.metadata.deletion_grace_period_seconds;
            grace.is_none_or(|seconds| u64::try_from(seconds).unwrap_or_default() > FAILED_GRACE.as_secs())
        };
        let slow = pods.iter().filter(is_of_it).filter(is_slow);
        slow.map(|pod| Deletion::Pod { pod: Box::new(pod.identity()), grace: FAILED_GRACE }).collect()
    }

    pub(super) fn lost_pods_requeue(&self, pods: &[&PodView]) -> Option<Duration> {
        self.stranded(pods).requeue_after(&Allowance::default())
    }

    fn stranded<'p>(&self, pods: &[&'p PodView]) -> StrandedPods<'p> {
        let terms = self.valid.terms(TRAINER);
        StrandedPods::of(pods.iter().copied(), &self.observed.nodes, &terms, self.now)
    }
}
