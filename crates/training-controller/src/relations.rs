//! Which TrainingJobs a change of another object wakes.

use api::{
    labels,
    trainingjob::{Phase, TrainingJob},
};
use runtime::{
    controller::Controller,
    key::Key,
    queue::Reason,
    watch::{cache::Cache, relations::Referrers},
};
use workload::{
    faults::event::EventView,
    views::{
        job::JobView,
        node::NodeView,
        pod::{OfInstance, PodView},
    },
};

use crate::{Context, NAME, names, objects::volume_snapshot::VolumeSnapshot};

pub(crate) mod wants;

use wants::{keys_of_dependency, keys_of_wants, source_claim};

/// Everything that wakes a TrainingJob, beside its own changes.
pub(crate) fn declared(controller: Controller<TrainingJob>, ctx: &Context) -> Controller<TrainingJob> {
    let readers = Referrers::of(&ctx.training_jobs, claim_keys);
    let controller = controller
        .owns(&ctx.jobs)
        .owns(&ctx.services)
        .maps_by_reason(&ctx.pods, keys_by_instance, reason_of_pod)
        .maps(&ctx.claims, move |claim| readers.keys(claim))
        .maps(&ctx.snapshots, keys_of_snapshot);
    on_failing_nodes(with_events(with_other_jobs(controller, ctx), ctx), ctx)
}

fn with_other_jobs(controller: Controller<TrainingJob>, ctx: &Context) -> Controller<TrainingJob> {
    let (dependents, jobs, outputs) =
        (ctx.dependents.clone(), ctx.training_jobs.clone(), ctx.outputs.clone());
    controller
        .maps(&ctx.training_jobs, move |job| keys_of_dependents(&dependents, job))
        .maps(&ctx.training_jobs, move |job| keys_of_dependencies(&jobs, &outputs, job))
}

fn with_events(mut controller: Controller<TrainingJob>, ctx: &Context) -> Controller<TrainingJob> {
    for events in [&ctx.attach_failures, &ctx.mount_failures, &ctx.sandbox_failures] {
        let pods = ctx.pods.clone();
        controller = controller.maps(events, move |event| keys_of_event(&pods, event));
    }
    let jobs = ctx.jobs.clone();
    controller.maps(&ctx.creation_failures, move |event| keys_of_job_event(&jobs, event))
}

fn on_failing_nodes(controller: Controller<TrainingJob>, ctx: &Context) -> Controller<TrainingJob> {
    let Some(nodes) = &ctx.nodes else { return controller };
    let (known, pods) = (nodes.clone(), ctx.pods.clone());
    controller.maps(nodes, move |node| keys_on_lost(&known, &pods, node))
}

/// The TrainingJob whose labels a pod has.
pub(crate) fn keys_by_instance(pod: &PodView) -> Vec<Key> {
    let found = pod.belongs_to(names::KIND);
    found.map(|(namespace, name)| Key::new(namespace, name)).into_iter().collect()
}

/// The jobs that may have to be looked at when this one changes.
fn keys_of_dependents(dependents: &Referrers, job: &TrainingJob) -> Vec<Key> {
    keys_of_dependency(job).iter().flat_map(|key| dependents.of_key(key)).collect()
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
    let source = job.spec.resume_from.as_ref().map(|_| source_claim(job, None));
    let results = results.chain(source);
    let names = inputs.chain([output.unwrap_or_else(|| names::claim(name))]).chain(results);
    names.map(|name| Key::new(namespace, &name)).collect()
}

/// A pod that comes up in good order is looked at together with what follows: its next steps are seconds away, and the
/// status reports few of them.
fn reason_of_pod(old: Option<&PodView>, new: Option<&PodView>) -> Reason {
    let comes_up = old.is_none_or(PodView::is_coming_up) && new.is_some_and(PodView::is_coming_up);
    if comes_up { Reason::Detail } else { Reason::Event }
}

/// The TrainingJob that a snapshot was made for.
fn keys_of_snapshot(snapshot: &VolumeSnapshot) -> Vec<Key> {
    let labels = snapshot.metadata.labels.iter().flatten();
    // Earlier releases wrote the second one.
    let of = [labels::KEPT_INSTANCE, labels::INSTANCE];
    let name = of.iter().find_map(|of| labels.clone().find(|(key, _)| key == of)).map(|(_, name)| name);
    let is_own = labels.clone().any(|(key, value)| key == labels::MANAGED_BY && value == NAME);
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    name.filter(|_| is_own).map(|name| Key::new(namespace, name)).into_iter().collect()
}

/// The TrainingJob of the pod that an event is about.
fn keys_of_event(pods: &Cache<PodView>, event: &EventView) -> Vec<Key> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let pod = pods.get(&Key::new(namespace, &event.object)).filter(|pod| event.is_about(pod));
    pod.map(|pod| keys_by_instance(&pod)).unwrap_or_default()
}

/// The TrainingJob of the Job that an event is about.
fn keys_of_job_event(jobs: &Cache<JobView>, event: &EventView) -> Vec<Key> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let job = jobs.get(&Key::new(namespace, &event.object));
    let job = job.filter(|job| event.is_about_object(&job.metadata));
    let owners = job.iter().flat_map(|job| job.metadata.owner_references.iter().flatten());
    owners.map(|owner| Key::new(namespace, &owner.name)).collect()
}

/// The TrainingJobs with pods on a node that is lost or deleted.
fn keys_on_lost(known: &Cache<NodeView>, pods: &Cache<PodView>, node: &NodeView) -> Vec<Key> {
    if known.get(&Key::of(node)).is_some() && node.lost().is_none() {
        return Vec::new();
    }
    let pods = pods.all();
    let stranded = pods.iter().filter(|pod| pod.node.as_deref() == Some(node.name()));
    stranded.flat_map(|pod| keys_by_instance(pod)).collect()
}
