//! Collects everything that the plan of one TrainingJob needs from the caches and the in-memory records. It sends nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::trainingjob::TrainingJob;
use jiff::Timestamp;
use runtime::{key::Key, reconcile::Confirmation};
use workload::{
    faults::{event::SetupFailure, gpu::NodeCapacity, stranded::Nodes},
    views::{claim::ClaimView, job::JobView, pod::PodView},
};

use crate::{
    Context,
    agents::Utilization,
    names,
    objects::{
        training_job::{has_ended, is_being_deleted},
        volume_snapshot::VolumeSnapshot,
    },
    progress::LogState,
    relations::claim_keys,
};

mod claims;
mod dependencies;
mod nodes;
mod resume;

pub(crate) use claims::Claims;
use claims::uploaders;
pub(crate) use dependencies::Dependency;
pub(crate) use nodes::track_losses;
pub(crate) use resume::ResumeSource;

/// One TrainingJob with its children, from the caches.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) job: Arc<TrainingJob>,
    /// The Jobs of its attempts, by number.
    pub(crate) attempts: BTreeMap<i32, Arc<JobView>>,
    /// The Job that uploads its result.
    pub(crate) upload: Option<Arc<JobView>>,
    /// The Job that tries the store of its upload.
    pub(crate) upload_check: Option<Arc<JobView>>,
    /// Pods of all its Jobs, also of Jobs that are gone and of an earlier TrainingJob of its name.
    pub(crate) pods: Vec<Arc<PodView>>,
    /// Of its inputs, of its output, and of the recorded results of other jobs.
    pub(crate) claims: Claims,
    /// What it reads of other jobs.
    pub(crate) dependencies: Vec<Dependency>,
    /// Where the checkpoints of `spec.resumeFrom` are.
    pub(crate) resume: Option<ResumeSource>,
    /// By claim that pods of one node alone can mount, the pod that uploads from it, of another job.
    pub(crate) uploaders: BTreeMap<String, String>,
    /// Names of jobs that wait for each other, beginning with this one; empty if there is no such circle.
    pub(crate) cycle: Vec<String>,
    /// Jobs that have not ended and still need this one, which has ended or is being deleted: see `needs`.
    pub(crate) dependents: usize,
    pub(crate) nodes: Nodes,
    /// Capacity of its accelerators by node; `None` unless it is needed, because counting reads all pods of the cluster.
    pub(crate) capacities: Option<Vec<NodeCapacity>>,
    /// Failures to set up pods, by uid of the scheduled pod that waits for one.
    pub(crate) unattached: BTreeMap<String, SetupFailure>,
    /// Why the Job that uploads, or else that of the last attempt, has no pods, as the API server says it.
    pub(crate) refused_pods: Option<String>,
    /// Of the pods that run.
    pub(crate) gpus: Utilization,
    /// Errors of GPUs that its pods held, by node.
    pub(crate) gpu_faults: BTreeMap<String, String>,
    /// What was read of the log of rank 0.
    pub(crate) log: Option<LogState>,
    /// Facts of the last plan, and since when each has been true.
    pub(crate) facts: BTreeMap<String, Timestamp>,
    /// While it is being deleted, the claim that was made for its output, and the snapshot of it.
    pub(crate) made_claim: Option<Arc<ClaimView>>,
    pub(crate) snapshot: Option<Arc<VolumeSnapshot>>,
    /// What the API server was asked.
    pub(crate) confirmed: BTreeSet<Doubt>,
    /// While it is being deleted: the API server has an attempt or a pod that the caches do not show, or show otherwise.
    pub(crate) has_unseen: bool,
}

/// What a plan rests on and the caches may not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// The Job of this attempt is not seen, and the status says that the attempt runs.
    MissingAttempt(i32),
    /// The Job of an attempt is over, and no pod is seen that shows how; or its pods are not seen to start.
    UnseenPods,
    /// All pods that are seen of the last attempt have ended.
    RunningPods,
    /// The claim of a job that is being deleted is not seen.
    MissingClaim,
}

impl Observed {
    /// The number of the last attempt, whether or not the status has it.
    pub(crate) fn started(&self) -> i32 {
        let recorded = self.job.status.as_ref().map_or(0, |status| status.attempts);
        self.attempts.keys().copied().max().unwrap_or_default().max(recorded)
    }

    /// Pods of this very Job, and not of an earlier one of its name.
    pub(crate) fn pods_of(&self, job: &JobView) -> Vec<&PodView> {
        self.pods.iter().map(AsRef::as_ref).filter(|pod| job.has_pod(pod)).collect()
    }

    /// Whether the API server was asked, and has no newer pods.
    pub(crate) fn has_newest_pods(&self) -> bool {
        self.confirmed.contains(&Doubt::UnseenPods)
    }

    /// Notes what the API server says of a doubt. A deletion that waits for a watch has a plan of its own: its time is limited,
    /// and a watch may never show an object whose labels were taken off.
    pub(crate) fn answered(&mut self, doubt: Doubt, is_so: bool) -> Confirmation {
        self.confirmed.insert(doubt);
        let has_plan = match doubt {
            Doubt::MissingAttempt(_) | Doubt::RunningPods => is_being_deleted(&self.job),
            Doubt::UnseenPods | Doubt::MissingClaim => false,
        };
        self.has_unseen |= has_plan && !is_so;
        Confirmation::of_newest(is_so || has_plan)
    }
}

pub(crate) fn observe(ctx: &Context, job: Arc<TrainingJob>, now: Timestamp) -> Observed {
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let namespace = &*job.metadata.namespace.clone().unwrap_or_default();
    let (mut attempts, mut upload, mut upload_check) = (BTreeMap::new(), None, None);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    for child in ctx.jobs.owned_by::<TrainingJob>(namespace, &uid) {
        match names::attempt_of(child.name(), name) {
            Some(number) => drop(attempts.insert(number, child)),
            None if child.name() == names::upload(name) => upload = Some(child),
            None if child.name() == names::upload_check(name) => upload_check = Some(child),
            None => {}
        }
    }
    let keys = ctx.pods_of.of_key(&Key::of(&*job));
    let pods: Vec<Arc<PodView>> = keys.iter().filter_map(|key| ctx.pods.get(key)).collect();
    let dependencies = dependencies::dependencies(ctx, &job);
    let cycle = dependencies::cycle(ctx, &job);
    let resume = if has_ended(&job) { None } else { resume::observe(ctx, &job) };
    let dependents = dependencies::dependents(&ctx.training_jobs, &ctx.dependents, &job);
    let claim = |key: Key| (key.name.to_string(), ctx.claims.get(&key));
    let source = resume.as_ref().map(|source| Key::new(namespace, &source.claim));
    let claims: Claims = claim_keys(&job).into_iter().chain(source).map(claim).collect();
    let uploaders = if has_ended(&job) { BTreeMap::new() } else { uploaders(ctx, &job, &claims) };
    let nodes = nodes::observe(ctx, &pods, now);
    let capacities = nodes::capacities(ctx, &job, &pods);
    let facts = ctx.fact_times.of(&uid);
    let unattached = unattached(ctx, &pods, &facts);
    let last = upload.as_ref().or(attempts.values().next_back()).or(upload_check.as_ref());
    let refused_pods = last.filter(|job| !job.is_finished()).and_then(|job| refused_pods(ctx, job));
    let retires = is_being_deleted(&job);
    let made_claim = retires.then(|| ctx.claims.get(&Key::new(namespace, &names::claim(name))));
    let snapshot = retires.then(|| ctx.snapshots.get(&Key::new(namespace, &names::snapshot(name, &uid))));
    let (made_claim, snapshot) = (made_claim.flatten(), snapshot.flatten());
    let log = ctx.progress.of(&uid, now);
    let gpus = ctx.agents.utilization(pods.iter().filter(|pod| !pod.is_over()).map(AsRef::as_ref));
    let gpu_faults = ctx.agents.faults(pods.iter().map(AsRef::as_ref));
    Observed {
        job,
        attempts,
        upload,
        upload_check,
        pods,
        claims,
        dependencies,
        resume,
        uploaders,
        cycle,
        dependents,
        nodes,
        capacities,
        unattached,
        refused_pods,
        gpus,
        gpu_faults,
        log,
        facts,
        made_claim,
        snapshot,
        confirmed: BTreeSet::new(),
        has_unseen: false,
    }
}

/// Failures to set up pods, by uid of the pod.
fn unattached(
    ctx: &Context,
    pods: &[Arc<PodView>],
    facts: &BTreeMap<String, Timestamp>,
) -> BTreeMap<String, SetupFailure> {
    let is_waiting =
        |pod: &&Arc<PodView>| pod.node.is_some() && !pod.is_over() && !pod.has_started_containers();
    let waiting: Vec<&Arc<PodView>> = pods.iter().filter(is_waiting).collect();
    if waiting.is_empty() {
        return BTreeMap::new();
    }
    let attach = ctx.attach_failures.all();
    let of_kubelet = [ctx.mount_failures.all(), ctx.sandbox_failures.all()].concat();
    let failure = |pod: &Arc<PodView>| SetupFailure::of(pod, &attach, &of_kubelet, facts);
    waiting.into_iter().filter_map(|pod| Some((pod.uid().to_owned(), failure(pod)?))).collect()
}

/// Why this Job has no pods, as the API server says it.
fn refused_pods(ctx: &Context, job: &JobView) -> Option<String> {
    let all = ctx.creation_failures.all();
    let about = all.iter().filter(|event| event.is_about_object(&job.metadata));
    about.max_by_key(|event| event.last()).map(|event| event.message().to_owned())
}

#[cfg(test)]
mod tests;
