//! Collects everything that the plan of one TrainingJob needs from the caches and the in-memory records. It sends nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use api::{
    labels,
    trainingjob::{Phase, TrainingJob},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use runtime::{
    cache::{Cache, Key},
    queue::Reason,
    relations::Referrers,
};
use workload::{
    claim::ClaimView,
    container::start_fault,
    event::{EventView, VolumeFailure},
    gpu::{self, NodeCapacity},
    node::{NodeLosses, NodeView},
    pod::{Container, PodView},
    stranded::Nodes,
};

use crate::{
    Context, NAME,
    agents::Utilization,
    job_view::JobView,
    names,
    plan::{UPLOADER, has_stopped, needs_finalizer},
    progress::LogState,
    resume,
    volume_snapshot::VolumeSnapshot,
    wants::{self, Want, keys_of_dependency, keys_of_path, keys_of_wants, wants},
};

/// The claims that a job mounts, by name; `None`: there is no such claim.
pub(crate) type Claims = BTreeMap<String, Option<Arc<ClaimView>>>;

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
    pub(crate) resume: Option<resume::ResumeSource>,
    /// By claim that pods of one node alone can mount, the pod that uploads from it, of another job.
    pub(crate) uploaders: BTreeMap<String, String>,
    /// Names of jobs that wait for each other, beginning with this one; empty if there is no such circle.
    pub(crate) cycle: Vec<String>,
    /// Jobs that have not ended and still need this one, which has ended or is being deleted: see `needs`.
    pub(crate) dependents: usize,
    pub(crate) nodes: Nodes,
    /// Capacity of its accelerators by node; `None` unless it is needed, because counting reads all pods of the cluster.
    pub(crate) capacities: Option<Vec<NodeCapacity>>,
    /// Failures of volumes, by uid of the scheduled pod that waits for one.
    pub(crate) unattached: BTreeMap<String, VolumeFailure>,
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
}

/// What a plan rests on and the caches may not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// The Job of this attempt is not seen, and the status says that the attempt runs.
    MissingAttempt(i32),
    /// The Job of an attempt is over, and no pod is seen that shows how.
    UnseenPods,
    /// All pods that are seen of the last attempt have ended.
    RunningPods,
    /// The claim of a job that is being deleted is not seen.
    MissingClaim,
}

impl Observed {
    /// Whether the API server was asked, and has no newer pods.
    pub(crate) fn has_newest_pods(&self) -> bool {
        self.confirmed.contains(&Doubt::UnseenPods)
    }
}

/// Something that the job waits for, and the jobs that could provide it.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    pub(crate) want: Want,
    /// Several have the same outputDir: the choice would be arbitrary.
    pub(crate) candidates: Vec<Arc<TrainingJob>>,
}

/// A circle of more jobs is found by none of them in time; each still waits for another.
const LONGEST_CYCLE: usize = 1_000;

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
    let dependencies = dependencies(ctx, &job);
    let cycle = cycle(&job, |job| {
        let candidates = dependencies_of(ctx, job).into_iter().flat_map(|dependency| dependency.candidates);
        let source = wants::resume_key(job).and_then(|key| ctx.training_jobs.get(&key));
        candidates.chain(source).collect()
    });
    let resume = if has_ended(&job) { None } else { resume::observe(ctx, &job) };
    let dependents = dependents(&ctx.training_jobs, &ctx.dependents, &job);
    let claim = |key: Key| (key.name.to_string(), ctx.claims.get(&key));
    let source = resume.as_ref().map(|source| Key::new(namespace, &source.claim));
    let claims: Claims = claim_keys(&job).into_iter().chain(source).map(claim).collect();
    let uploaders = if has_ended(&job) { BTreeMap::new() } else { uploaders(ctx, &job, &claims) };
    let (mut nodes, mut capacities) = (Nodes::default(), None);
    if let Some(known) = &ctx.nodes {
        nodes = nodes_of(pods.iter().map(AsRef::as_ref), known, &ctx.losses, now);
        nodes.is_stale = ctx.pods.watch_fails_since().is_some()
            || ctx.training_jobs.watch_fails_since().is_some()
            || known.watch_fails_since().is_some();
        if pods.iter().any(|pod| pod.is_unschedulable()) {
            let all = [ctx.pods.all(), ctx.other_pods.all()].concat();
            let resource = ctx.resource_of(&job);
            capacities = resource.map(|resource| {
                gpu::capacities(known.all().into_iter(), all.iter().map(AsRef::as_ref), &resource)
            });
        }
    }
    let facts = ctx.fact_times.of(&uid);
    let mut unattached = BTreeMap::new();
    let is_waiting =
        |pod: &&Arc<PodView>| pod.node.is_some() && !pod.is_over() && !pod.has_started_containers();
    let waiting: Vec<&Arc<PodView>> = pods.iter().filter(is_waiting).collect();
    if !waiting.is_empty() {
        let (attach, mount) = (ctx.attach_failures.all(), ctx.mount_failures.all());
        let failure = |pod: &Arc<PodView>| VolumeFailure::of(pod, &attach, &mount, &facts);
        let failures = waiting.into_iter().filter_map(|pod| Some((pod.uid().to_owned(), failure(pod)?)));
        unattached.extend(failures);
    }
    let last = upload.as_ref().or(attempts.values().next_back()).or(upload_check.as_ref());
    let refused_pods = last.filter(|job| !job.is_finished()).and_then(|job| {
        let all = ctx.creation_failures.all();
        let about = all.iter().filter(|event| event.is_about_object(&job.metadata));
        about.max_by_key(|event| event.last()).map(|event| event.message().to_owned())
    });
    let is_being_deleted = job.metadata.deletion_timestamp.is_some();
    let made_claim = is_being_deleted.then(|| ctx.claims.get(&Key::new(namespace, &names::claim(name))));
    let snapshot =
        is_being_deleted.then(|| ctx.snapshots.get(&Key::new(namespace, &names::snapshot(name, &uid))));
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
    }
}

/// The name of the Job that controls a pod.
pub(crate) fn job_of(pod: &PodView) -> Option<&str> {
    owner_of(pod).map(|owner| owner.name.as_str())
}

/// Whether it is a pod of this very Job, and not of an earlier one of its name.
pub(crate) fn is_pod_of(pod: &PodView, job: &JobView) -> bool {
    owner_of(pod).is_some_and(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
}

fn owner_of(pod: &PodView) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Of a job that has not ended.
fn dependencies(ctx: &Context, job: &TrainingJob) -> Vec<Dependency> {
    if has_ended(job) { Vec::new() } else { dependencies_of(ctx, job) }
}

fn dependencies_of(ctx: &Context, job: &TrainingJob) -> Vec<Dependency> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let found = |keys: Vec<Key>| -> Vec<Arc<TrainingJob>> {
        keys.iter().filter_map(|key| ctx.training_jobs.get(key)).collect()
    };
    let candidates = |want: &Want| match want {
        Want::Job(name) => found(vec![Key::new(namespace, name)]),
        Want::Path { path, field: _ } => {
            let mut longest = keys_of_path(namespace, path).into_iter();
            longest
                .find_map(|key| Some(ctx.outputs.of_key(&key)).filter(|jobs| !jobs.is_empty()))
                .map_or_else(Vec::new, found)
        }
    };
    wants(job).into_iter().map(|want| Dependency { candidates: candidates(&want), want }).collect()
}

/// The shortest way from a job back to itself over jobs that have not ended.
fn cycle(job: &Arc<TrainingJob>, next: impl Fn(&TrainingJob) -> Vec<Arc<TrainingJob>>) -> Vec<String> {
    let name = |job: &TrainingJob| job.metadata.name.clone().unwrap_or_default();
    let mut ways = vec![(Arc::clone(job), vec![name(job)])];
    let mut seen = BTreeSet::from([Key::of(&**job)]);
    let mut at = 0;
    while let Some((from, way)) = ways.get(at).cloned() {
        at += 1;
        if has_ended(&from) || seen.len() > LONGEST_CYCLE {
            continue;
        }
        for to in next(&from) {
            if Key::of(&*to) == Key::of(&**job) {
                return way;
            }
            if seen.insert(Key::of(&*to)) {
                let way = way.iter().cloned().chain([name(&to)]).collect();
                ways.push((to, way));
            }
        }
    }
    Vec::new()
}

/// A training that has succeeded is uploaded while the jobs that read it start.
fn uploaders(ctx: &Context, job: &TrainingJob, claims: &Claims) -> BTreeMap<String, String> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let own = Key::of(job);
    let uploader = |name: &String| {
        let writers = resume::writers(ctx, namespace, name).into_iter().filter(|key| *key != own);
        writers.into_iter().find_map(|key| uploader(&ctx.pods, &ctx.pods_of, &key))
    };
    let of_one_node = claims.iter().filter(|(_, claim)| {
        let claim = claim.as_ref();
        claim.is_some_and(|claim| !claim.is_writable_by_many())
    });
    of_one_node.filter_map(|(name, _)| Some((name.clone(), uploader(name)?))).collect()
}

/// The pod that uploads the result of this job: the volume is on its node. One that cannot start, or whose uploader has ended
/// beside a container that was injected, may stay so for long.
fn uploader(pods: &Cache<PodView>, pods_of: &Referrers, job: &Key) -> Option<String> {
    let upload = names::upload(&job.name);
    let holds = |pod: &Arc<PodView>| {
        let uploads = |one: &Container| one.state.terminated.is_none() && start_fault(pod, one).is_none();
        pod.node.is_some()
            && !has_stopped(pod)
            && job_of(pod).is_some_and(|name| name == upload)
            && pod.container(UPLOADER).is_none_or(uploads)
    };
    let mut pods = pods_of.of_key(job).into_iter().filter_map(|key| pods.get(&key));
    pods.find(holds).map(|pod| pod.name().to_owned())
}

fn dependents(jobs: &Cache<TrainingJob>, dependents: &Referrers, job: &TrainingJob) -> usize {
    // What has been trained is read before it is uploaded, and while its job is being deleted.
    if !has_ended(job) && job.metadata.deletion_timestamp.is_none() {
        return 0;
    }
    let own = Key::of(job);
    let keys: BTreeSet<Key> = keys_of_dependency(job)
        .iter()
        .flat_map(|key| dependents.of_key(key))
        .filter(|key| *key != own)
        .collect();
    keys.iter().filter(|key| jobs.get(key).is_some_and(|other| needs(&other, job))).count()
}

/// Whether a job that has not ended does not have the result of `job` yet, or reads it in a claim that is deleted with
/// `job`. A claim that is kept does not need its job.
fn needs(dependent: &TrainingJob, job: &TrainingJob) -> bool {
    if has_ended(dependent) || needs_checkpoints(dependent, job) {
        return !has_ended(dependent);
    }
    if !wants(dependent).iter().any(|want| wants::may_be_of(want, job)) {
        return false;
    }
    let recorded = dependent.status.iter().flat_map(|status| &status.dependencies);
    let mut results =
        recorded.filter(|record| record.result.is_some() && Some(&record.uid) == job.metadata.uid.as_ref());
    let is_satisfied = if needs_finalizer(job) {
        let mut results = results.peekable();
        // One that is only in dependsOn gives nothing to read.
        results.peek().is_some() && results.all(|record| record.path.is_none())
    } else {
        results.next().is_some()
    };
    !has_ended(dependent) && !is_satisfied
}

/// Whether a job that goes on from the checkpoints of `job` has not found them yet or, if they are deleted with `job`, has
/// none of its own. One that names the claim needs no more than that it stays.
fn needs_checkpoints(dependent: &TrainingJob, job: &TrainingJob) -> bool {
    let is_source = wants::resume_key(dependent).is_some_and(|key| keys_of_dependency(job).contains(&key));
    let status = dependent.status.as_ref();
    let names_claim = dependent.spec.resume_from.as_ref().is_some_and(|source| source.claim_name.is_some());
    let is_found = status
        .and_then(|status| status.resume_from.as_ref())
        .is_some_and(|source| source.uid == job.metadata.uid);
    let has_own = status.is_some_and(|status| status.checkpoint.is_some());
    is_source && !((names_claim || is_found) && (has_own || !needs_finalizer(job)))
}

pub(crate) fn has_ended(job: &TrainingJob) -> bool {
    let phase = job.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

/// The jobs that may have to be looked at when this one changes.
pub(crate) fn keys_of_dependents(ctx: &Context, job: &TrainingJob) -> Vec<Key> {
    keys_of_dependency(job).iter().flat_map(|key| ctx.dependents.of_key(key)).collect()
}

/// The jobs whose time to live may begin when this one changes. While it runs, nothing that it needs of them changes, but for
/// checkpoints of others, which it needs until it has its own.
pub(crate) fn keys_of_dependencies(
    jobs: &Cache<TrainingJob>,
    outputs: &Referrers,
    job: &TrainingJob,
) -> Vec<Key> {
    let runs = job.status.as_ref().and_then(|status| status.phase) == Some(Phase::Running);
    if runs
        && job.spec.resume_from.is_none()
        && jobs.get(&Key::of(job)).is_some_and(|known| known.metadata.uid == job.metadata.uid)
    {
        return Vec::new();
    }
    // A key of a name has no job in the index of outputs, and the other way round. All others have a `/`.
    let wanted = keys_of_wants(job);
    let by_path: Vec<Key> = wanted.iter().flat_map(|key| outputs.of_key(key)).collect();
    wanted.into_iter().filter(|key| !key.name.contains('/')).chain(by_path).collect()
}

/// The claims that a job mounts, for the index of claims too.
pub(crate) fn claim_keys(job: &TrainingJob) -> Vec<Key> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let output = job.spec.output.as_ref().and_then(|output| output.claim_name.clone());
    let inputs = job.spec.inputs.iter().map(|input| input.claim_name.clone());
    let records = job.status.iter().flat_map(|status| &status.dependencies);
    let results = records.filter_map(|record| Some(record.result.as_ref()?.claim_name.clone()));
    let source = job.spec.resume_from.as_ref().map(|_| resume::claim(job, None));
    let results = results.chain(source);
    let names = inputs.chain([output.unwrap_or_else(|| names::claim(name))]).chain(results);
    names.map(|name| Key::new(namespace, &name)).collect()
}

/// Records node losses from every change of a node.
pub(crate) fn track_losses(nodes: &Cache<NodeView>) -> Arc<Mutex<NodeLosses>> {
    let losses = Arc::new(Mutex::new(NodeLosses::default()));
    let shared = Arc::clone(&losses);
    nodes.subscribe(move |change| {
        if let Some(node) = change.new {
            shared.lock().unwrap_or_else(PoisonError::into_inner).note(&change.key.name, node);
        }
    });
    losses
}

pub(crate) fn keys_by_instance(pod: &PodView) -> Vec<Key> {
    let namespace = pod.meta().namespace.as_deref().unwrap_or_default();
    let name = pod.instance.as_ref().and_then(|instance| instance.of_kind(names::KIND));
    name.map(|name| Key::new(namespace, name)).into_iter().collect()
}

/// A pod that comes up in good order is looked at together with what follows: its next steps are seconds away, and the
/// status reports few of them.
pub(crate) fn reason_of_pod(old: Option<&PodView>, new: Option<&PodView>) -> Reason {
    let comes_up = old.is_none_or(PodView::is_coming_up) && new.is_some_and(PodView::is_coming_up);
    if comes_up { Reason::Detail } else { Reason::Event }
}

/// The TrainingJob that a snapshot was made for.
pub(crate) fn keys_of_snapshot(snapshot: &VolumeSnapshot) -> Vec<Key> {
    let labels = snapshot.metadata.labels.iter().flatten();
    let name = labels.clone().find(|(key, _)| *key == labels::INSTANCE).map(|(_, name)| name);
    let is_own = labels.clone().any(|(key, value)| key == labels::MANAGED_BY && value == NAME);
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    name.filter(|_| is_own).map(|name| Key::new(namespace, name)).into_iter().collect()
}

/// The TrainingJob of the pod that an event is about.
pub(crate) fn keys_of_event(pods: &Cache<PodView>, event: &EventView) -> Vec<Key> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let pod = pods.get(&Key::new(namespace, &event.object)).filter(|pod| event.is_about(pod));
    pod.map(|pod| keys_by_instance(&pod)).unwrap_or_default()
}

/// The TrainingJob of the Job that an event is about.
pub(crate) fn keys_of_job_event(jobs: &Cache<JobView>, event: &EventView) -> Vec<Key> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let job = jobs.get(&Key::new(namespace, &event.object));
    let job = job.filter(|job| event.is_about_object(&job.metadata));
    let owners = job.iter().flat_map(|job| job.metadata.owner_references.iter().flatten());
    owners.map(|owner| Key::new(namespace, &owner.name)).collect()
}

/// The TrainingJobs with pods on a node that is lost or deleted.
pub(crate) fn keys_on_lost(known: &Cache<NodeView>, pods: &Cache<PodView>, node: &NodeView) -> Vec<Key> {
    if known.get(&Key::of(node)).is_some() && node.lost().is_none() {
        return Vec::new();
    }
    let pods = pods.all();
    let stranded = pods.iter().filter(|pod| pod.node.as_deref() == Some(node.name()));
    stranded.flat_map(|pod| keys_by_instance(pod)).collect()
}

fn nodes_of<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    known: &Cache<NodeView>,
    losses: &Mutex<NodeLosses>,
    now: Timestamp,
) -> Nodes {
    let mut lost = BTreeMap::new();
    for name in pods
        .filter(|pod| pod.phase != "Failed" && pod.phase != "Succeeded")
        .filter_map(|pod| pod.node.as_deref())
    {
        if !lost.contains_key(name) {
            let node = known.get(&Key::new("", name));
            let mut losses = losses.lock().unwrap_or_else(PoisonError::into_inner);
            lost.extend(losses.of(name, node.as_deref(), now).map(|loss| (name.to_owned(), loss)));
        }
    }
    if lost.is_empty() {
        return Nodes::default();
    }
    let all = known.all();
    Nodes {
        lost,
        down: all.iter().filter(|node| node.lost().is_some()).count(),
        all: all.len(),
        is_stale: false,
    }
}

#[cfg(test)]
mod tests {
    use api::trainingjob::{Checkpoint, Dependency as Record, DependencyResult, TrainingJobStatus};
    use serde_json::json;

    use super::*;
    use crate::tests::job;

    /// A job in this phase, with this record of the job sft.
    fn dependent(phase: Phase, record: Option<Record>) -> TrainingJob {
        let mut dpo = job("dpo", "{model: /outputs/sft, dataset: d, method: dpo}");
        dpo.status = Some(TrainingJobStatus {
            phase: Some(phase),
            dependencies: record.into_iter().collect(),
            ..TrainingJobStatus::default()
        });
        dpo
    }

    fn record(path: Option<&str>) -> Option<Record> {
        Some(Record {
            name: "sft".into(),
            uid: "uid-of-sft".into(),
            path: path.map(str::to_owned),
            result: Some(DependencyResult { claim_name: "sft-output".into(), ..DependencyResult::default() }),
        })
    }

    fn succeeded(retention: &str) -> TrainingJob {
        let spec = format!(
            "{{model: m, dataset: d, method: lora, outputDir: /outputs/sft, output: {{retention: {retention}}}}}"
        );
        let mut sft = job("sft", &spec);
        sft.status =
            Some(TrainingJobStatus { phase: Some(Phase::Succeeded), ..TrainingJobStatus::default() });
        sft
    }

    /// Two jobs in the caches, with the indexes of outputs and of dependents.
    fn known(sft: TrainingJob, dpo: TrainingJob) -> (Cache<TrainingJob>, Referrers, Referrers) {
        let jobs: Cache<TrainingJob> = Cache::default();
        let outputs = Referrers::of(&jobs, crate::wants::output_keys);
        let dependents = Referrers::of(&jobs, keys_of_wants);
        jobs.upsert(sft);
        jobs.upsert(dpo);
        (jobs, outputs, dependents)
    }

    #[test]
    fn a_result_that_is_deleted_with_its_job_is_needed_until_its_reader_has_ended() {
        let path = || record(Some("/outputs/sft"));
        for retention in ["Delete", "Snapshot"] {
            for (phase, expected) in
                [(Phase::Pending, 1), (Phase::Running, 1), (Phase::Succeeded, 0), (Phase::Failed, 0)]
            {
                let sft = succeeded(retention);
                let (jobs, _, index) = known(sft.clone(), dependent(phase, path()));
                assert_eq!(dependents(&jobs, &index, &sft), expected, "{retention} {phase:?}");
            }
        }
        let needs = |retention, record| needs(&dependent(Phase::Running, record), &succeeded(retention));
        assert!(!needs("Retain", path()), "the claim is kept");
        assert!(!needs("Delete", record(None)), "it reads nothing");
        assert!(needs("Retain", None) && needs("Delete", None), "it waits for the result");
    }

    /// A job that goes on from this source and has, or has not, a checkpoint of its own.
    fn successor(source: &str, has_own: bool) -> TrainingJob {
        let mut next =
            job("next", &format!("{{model: m, dataset: d, method: lora, resumeFrom: {{{source}}}}}"));
        next.status = Some(TrainingJobStatus {
            phase: Some(Phase::Running),
            checkpoint: has_own.then(Checkpoint::default),
            ..TrainingJobStatus::default()
        });
        next
    }

    #[test]
    fn a_claim_that_another_job_names_for_its_checkpoints_is_needed_until_that_one_has_its_own() {
        for (source, retention, has_own, expected) in [
            ("claimName: sft-output, path: sft", "Delete", false, 1),
            ("claimName: sft-output", "Snapshot", false, 1),
            ("claimName: sft-output", "Delete", true, 0),
            ("claimName: sft-output", "Retain", false, 0),
            ("claimName: other-output", "Delete", false, 0),
            ("job: sft", "Delete", false, 1),
        ] {
            let sft = succeeded(retention);
            let next = successor(source, has_own);
            let (jobs, outputs, index) = known(sft.clone(), next.clone());
            assert_eq!(dependents(&jobs, &index, &sft), expected, "{source} {retention} {has_own}");
            // Its end, or its own checkpoint, wakes the other one.
            let is_of_sft = source.contains("sft");
            let woken = keys_of_dependencies(&jobs, &outputs, &next);
            assert_eq!(woken.contains(&Key::new("demo", "sft")), is_of_sft, "{source}: {woken:?}");
            let mut ended = next;
            ended.status.as_mut().unwrap().phase = Some(Phase::Failed);
            let (jobs, _, index) = known(sft.clone(), ended);
            assert_eq!(dependents(&jobs, &index, &sft), 0, "{source} {retention}");
        }
    }

    #[test]
    fn a_pod_that_uploads_on_a_node_has_the_volume_until_it_ends() {
        let sft = Key::new("demo", "sft");
        let found = |job: &str, node: &str, phase: &str| {
            let labels =
                json!({labels::MANAGED_BY: NAME, labels::NAME: names::KIND, labels::INSTANCE: "sft"});
            let owner =
                json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "u", "controller": true});
            let pod = json!({
                "metadata": {"name": "pod", "namespace": "demo", "labels": labels, "ownerReferences": [owner]},
                "spec": if node.is_empty() { json!({}) } else { json!({"nodeName": node}) },
                "status": {"phase": phase},
            });
            let pods: Cache<PodView> = Cache::default();
            let pods_of = Referrers::of(&pods, keys_by_instance);
            pods.upsert(serde_json::from_value(pod).unwrap());
            uploader(&pods, &pods_of, &sft)
        };
        assert_eq!(found("sft-upload", "node-1", "Pending").as_deref(), Some("pod"));
        assert_eq!(found("sft-upload", "node-1", "Running").as_deref(), Some("pod"));
        for (job, node, phase) in [
            ("sft-upload", "", "Pending"),
            ("sft-upload", "node-1", "Succeeded"),
            ("sft-upload", "node-1", "Failed"),
            ("sft-1", "node-1", "Running"),
        ] {
            assert_eq!(found(job, node, phase), None, "{job} {node} {phase}");
        }
    }

    #[test]
    fn a_job_that_is_deleted_while_it_runs_starts_the_time_of_what_it_read() {
        let dpo = dependent(Phase::Running, record(Some("/outputs/sft")));
        let (jobs, outputs, _) = known(succeeded("Delete"), dpo.clone());
        assert_eq!(keys_of_dependencies(&jobs, &outputs, &dpo), [], "its progress does not matter to others");
        jobs.replace(vec![Arc::new(succeeded("Delete"))], "2");
        assert_eq!(keys_of_dependencies(&jobs, &outputs, &dpo), [Key::new("demo", "sft")]);
    }

    #[test]
    fn the_claims_of_results_are_looked_up_and_watched() {
        let dpo = dependent(Phase::Running, record(Some("/outputs/sft")));
        let names: Vec<String> = claim_keys(&dpo).iter().map(|key| key.name.to_string()).collect();
        assert_eq!(names, ["dpo-output", "sft-output"]);
    }
}
