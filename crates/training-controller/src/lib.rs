//! Controller of TrainingJob: runs fine-tuning in attempts, each a Job, until one has proven its result.
//!
//! ```text
//!  TrainingJob ──┐
//!  Jobs, pods    │             ┌─▶ claim, Service, Job of the next attempt
//!  nodes, claims ┼▶ observe ─▶ validate → plan → apply ─▶ deletions of what has ended
//!  other jobs    │   caches     pure     pure    I/O   ─▶ status, events
//!  log of rank 0 │
//!  metrics agents┘
//! ```
//!
//! `observe` reads only caches and what `progress` has read of a log. `validate` and `plan` are pure. `apply` sends
//! requests. The launcher in each pod (`crates/training-launcher`) finds the checkpoint to resume from, and proves
//! success.
//!
//! **Invariant:** an attempt is one Job. The Job is created once, and only its labels are put back, so an upgrade
//! restarts nothing. The end of an attempt is in the status before anything follows from it. The next attempt begins
//! when every pod of the last attempt has ended. A log that cannot be read ends nothing, and no claim is deleted in
//! doubt.
//!
//! Files, beside those of every controller (`observe.rs`, `validate.rs`, `plan.rs`, `apply.rs`, `metrics.rs`):
//!
//! - `swift.rs`: the command line of ms-swift from method, device, GPUs, nodes and version.
//! - `swift/version.rs`: what differs between versions of ms-swift.
//! - `validate/flags.rs`: which arguments of users are refused.
//! - `wants.rs`: what a job reads of other jobs.
//! - `resume.rs`: the source of a job that goes on from another job.
//! - `progress.rs`: follows the log of rank 0.
//! - `progress/curve.rs`: the curve of the loss.
//! - `progress/losses.rs`: how many logged steps in a row had a loss that trains nothing.
//! - `agents.rs`: how busy the GPUs of a job are, as metrics agents report it.
//! - `job_view.rs`, `volume_snapshot.rs`: views of Jobs and VolumeSnapshots.
//! - `late_watch.rs`: asks the API server for what a watch may not show.
//! - `names.rs`: names of children.
//!
//! Files of `plan`:
//!
//! - `stage.rs`: where a job is in its life.
//! - `stage/checks.rs`: what ends an attempt that runs.
//! - `begin.rs`: begins an attempt.
//! - `end.rs`: writes the end of an attempt.
//! - `clearing.rs`: ends what is left of an attempt.
//! - `failure.rs`: why an attempt failed.
//! - `retry.rs`: what follows a failed attempt.
//! - `mitigation.rs`: settings that need less GPU memory.
//! - `avoid.rs`: the nodes that are not used.
//! - `idle.rs`: whether GPUs are idle.
//! - `loss.rs`: whether the loss is a number.
//! - `dependencies.rs`: what other jobs have left.
//! - `resume.rs`: whether a job can go on from the checkpoints of another job.
//! - `attempt_job.rs`, `pod.rs`, `service.rs`, `claim.rs`: the children of an attempt.
//! - `metadata.rs`: name, owner and labels of children.
//! - `defaults.rs`: defaults of new Jobs, from the release and the command line.
//! - `upload_check.rs`: tries the store before the first attempt.
//! - `upload.rs`: follows the upload.
//! - `upload_job.rs`: the Jobs that speak to the store.
//! - `retention.rs`: what becomes of the claim when the TrainingJob is deleted.
//! - `conditions.rs`: the phase and the conditions.
//! - `status.rs`: the status.
//! - `events.rs`: events.
//! - `held_back.rs`: holds back a status that differs only in details and has not lasted.
//! - `reduced.rs`: the status that is written if the API server refuses the whole status.

#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use api::{
    controllers::{MODEL_TRANSFER, TRAINING_LAUNCHER},
    labels,
    trainingjob::{Device, TrainingJob},
};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::Resource as _;
use metrics_client::args::AgentsArgs;
use runtime::{
    apply::{ApplyError, Writer},
    args::RuntimeArgs,
    cache::{Cache, Key},
    cached_child::{CachedChild, Metadata},
    children::Children,
    controller::Next,
    events::Recorder,
    process::{Identity, Process, Started},
    relations::Referrers,
};
use workload::{
    claim::ClaimView,
    event::{ATTACH_FAILURES, CREATION_FAILURES, EventView, MOUNT_FAILURES},
    facts::FactTimes,
    node::{NodeLosses, NodeView},
    pod::{PodView, UNFINISHED},
};

use crate::{
    agents::Agents,
    apply::{Applied, apply},
    job_view::JobView,
    late_watch::{LATE_WATCH_RETRY, are_pods_seen, hidden_pods, missing_attempt, starts_again},
    observe::{
        claim_keys, keys_by_instance, keys_of_dependencies, keys_of_dependents, keys_of_event,
        keys_of_job_event, keys_of_snapshot, keys_on_lost, lacks_evidence, observe, reason_of_pod,
        track_losses,
    },
    plan::{
        Defaults, has_finalizer, has_stopped, held_back, labels_of_attempt, needs_snapshot, plan, refused,
        rejected, retire,
    },
    progress::Progress,
    validate::{OwnAccount, validate},
    volume_snapshot::VolumeSnapshot,
    wants::{keys_of_wants, output_keys},
};

mod agents;
mod apply;
mod job_view;
mod late_watch;
mod metrics;
mod names;
mod observe;
mod plan;
mod progress;
mod resume;
mod swift;
mod validate;
mod volume_snapshot;
mod wants;

/// Field manager, name of the Lease and value of the label `app.kubernetes.io/managed-by`.
pub const NAME: &str = "training-controller";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub training: TrainingArgs,

    #[command(flatten)]
    pub agents: AgentsArgs,
}

/// Defaults of this release. Jobs that have begun keep those that they began with.
#[derive(clap::Args, Clone, Debug)]
pub struct TrainingArgs {
    /// Image of the launcher, which is put into the trainer's container
    #[arg(long, default_value_t = TRAINING_LAUNCHER.image(env!("CARGO_PKG_VERSION")))]
    pub launcher_image: String,

    /// Image that uploads the result
    #[arg(long, default_value_t = MODEL_TRANSFER.image(env!("CARGO_PKG_VERSION")))]
    pub transfer_image: String,

    /// Image with ms-swift for the devices nvidia, mps and cpu
    #[arg(long, default_value = TRAINER_IMAGE)]
    pub trainer_image: String,

    /// Image with ms-swift for the device ascend
    #[arg(long, default_value = ASCEND_IMAGE)]
    pub ascend_image: String,

    /// Seconds between two attempts after the first failure; each further failure doubles them, up to 600
    #[arg(long, default_value_t = 10)]
    pub first_pause_seconds: u64,

    /// Seconds for which pods may hold GPUs without running, because others of their gang have no node or a volume is not attached
    #[arg(long, default_value_t = 600)]
    pub placement_seconds: u64,

    /// Seconds for which a kubelet may report that a container cannot start, for example without its image. Then the
    /// attempt ends, and its GPUs are given back. A kubelet has then tried to pull an image about five times
    #[arg(long, default_value_t = 120)]
    pub start_fault_seconds: u64,

    /// Service account of this process; trainers must not use it [default: no account is refused]
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub own_service_account: Option<String>,

    /// Namespace of the service account of this process
    #[arg(long, env = "POD_NAMESPACE")]
    pub own_namespace: Option<String>,
}

/// The image of ms-swift's documentation.
const TRAINER_IMAGE: &str = "modelscope-registry.cn-hangzhou.cr.aliyuncs.com/modelscope-repo/modelscope:ubuntu22.04-cuda13.0.3-py312-torch2.11.0-vllm0.25.1-modelscope1.39.0-swift4.4.3";
const ASCEND_IMAGE: &str = "quay.io/ascend/ms-swift:v4.3.0-A2-py311-CANN9.0.0-ubuntu22.04";

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) training_jobs: Cache<TrainingJob>,
    pub(crate) jobs: Children<JobView, Job>,
    pub(crate) services: Children<CachedChild<Metadata<Service>, TrainingJob>, Service>,
    pub(crate) claims: Children<ClaimView, PersistentVolumeClaim>,
    pub(crate) snapshots: Children<VolumeSnapshot, VolumeSnapshot>,
    /// Pods of TrainingJobs, also those that have ended.
    pub(crate) pods: Children<PodView, Pod>,
    /// Pods of everybody else, because all use resources of their nodes.
    pub(crate) other_pods: Cache<PodView>,
    pub(crate) attach_failures: Cache<EventView>,
    pub(crate) mount_failures: Cache<EventView>,
    pub(crate) creation_failures: Cache<EventView>,
    /// `None` if the process is confined to one namespace: attempts on lost nodes are not ended then, and GPUs not counted.
    pub(crate) nodes: Option<Cache<NodeView>>,
    pub(crate) losses: Arc<Mutex<NodeLosses>>,
    /// By the key of a TrainingJob, the pods with its labels.
    pub(crate) pods_of: Referrers,
    /// By namespace and path, the jobs with this outputDir; by the claim of their output, too.
    pub(crate) outputs: Referrers,
    /// By what a job may depend on (names, paths and claims), the jobs.
    pub(crate) dependents: Referrers,
    pub(crate) fact_times: FactTimes,
    pub(crate) progress: Progress,
    pub(crate) agents: Agents,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) defaults: Defaults,
    pub(crate) own_account: OwnAccount,
}

impl Context {
    /// The extended resource that a job requests.
    pub(crate) fn resource_of(&self, job: &TrainingJob) -> Option<String> {
        match (&job.spec.accelerator_resource, job.spec.device) {
            (Some(resource), _) => Some(resource.clone()),
            (None, Device::Nvidia | Device::Ascend | Device::Mps | Device::Cpu) => {
                validate(job).ok()?.accelerators.map(|gpus| gpus.resource)
            }
        }
    }
}

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: TrainingArgs, agents: &AgentsArgs) -> Started {
    let managed = format!("{}={NAME},{}={}", labels::MANAGED_BY, labels::NAME, names::KIND);
    let nodes = (!process.is_confined()).then(|| process.watch_cluster("Node"));
    let watches_nodes = nodes.is_some();
    let training_jobs: Cache<TrainingJob> = process.watch("TrainingJob");
    let writer = process.writer(&training_jobs);
    let roots = training_jobs.clone();
    let any_needs_snapshot = move || roots.all().iter().any(|job| needs_snapshot(job));
    let pods: Children<PodView, Pod> = writer.of(process.watch_labelled("Pod", &managed));
    let others = format!("{}!={NAME}", labels::MANAGED_BY);
    let ctx = Arc::new(Context {
        jobs: writer.of(process.watch_labelled("Job", &managed)),
        services: writer.of(process.watch_labelled("Service", &managed)),
        claims: writer.of(process.watch("PersistentVolumeClaim")),
        snapshots: writer.of(process.watch_if_served_and_wanted("VolumeSnapshot", any_needs_snapshot)),
        pods_of: Referrers::of(&pods, keys_by_instance),
        pods,
        other_pods: process.watch_matching("OtherPod", &others, UNFINISHED),
        attach_failures: process.watch_selected("Event", ATTACH_FAILURES),
        mount_failures: process.watch_selected("MountEvent", MOUNT_FAILURES),
        creation_failures: process.watch_selected("JobEvent", CREATION_FAILURES),
        losses: nodes.as_ref().map(track_losses).unwrap_or_default(),
        nodes,
        outputs: Referrers::of(&training_jobs, output_keys),
        dependents: Referrers::of(&training_jobs, keys_of_wants),
        training_jobs,
        fact_times: FactTimes::default(),
        progress: Progress::default(),
        agents: Agents::new(process, agents),
        writer,
        recorder: process.recorder(),
        own_account: OwnAccount::of(&args),
        defaults: Defaults::new(args, watches_nodes, process.refusal_retry_period()),
    });
    ctx.progress.forget_removed(&ctx.training_jobs);
    metrics::export(process, &ctx.training_jobs);
    ctx.agents.export(process, &ctx.training_jobs, &ctx.pods, &ctx.pods_of);
    let readers = Referrers::of(&ctx.training_jobs, claim_keys);
    let (waiting, awaited) = (Arc::clone(&ctx), Arc::clone(&ctx));
    let mut controller = process
        .controller(&ctx.training_jobs)
        .owns(&ctx.jobs)
        .owns(&ctx.services)
        .maps_by_reason(&ctx.pods, keys_by_instance, reason_of_pod)
        .maps(&ctx.claims, move |claim| readers.keys(claim))
        .maps(&ctx.snapshots, keys_of_snapshot)
        .maps(&ctx.training_jobs, move |job| keys_of_dependents(&waiting, job))
        .maps(&ctx.training_jobs, move |job| {
            keys_of_dependencies(&awaited.training_jobs, &awaited.outputs, job)
        });
    for events in [&ctx.attach_failures, &ctx.mount_failures] {
        let pods = ctx.pods.clone();
        controller = controller.maps(events, move |event| keys_of_event(&pods, event));
    }
    let jobs = ctx.jobs.clone();
    controller = controller.maps(&ctx.creation_failures, move |event| keys_of_job_event(&jobs, event));
    if let Some(nodes) = &ctx.nodes {
        let (known, pods) = (nodes.clone(), ctx.pods.clone());
        controller = controller.maps(nodes, move |node| keys_on_lost(&known, &pods, node));
    }
    let releasing = ctx.writer.releasing_undecodable(&ctx.training_jobs, labels::OUTPUT_FINALIZER);
    let controller = controller.beside(ctx.progress.running(process.logs())).beside(releasing);
    let controller = controller.beside(ctx.agents.running(&ctx.pods));
    process.control(controller, move |job, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&ctx, job, now).await }
    })
}

/// Observes, validates, plans, applies.
async fn reconcile(ctx: &Context, job: Arc<TrainingJob>, now: Timestamp) -> Result<Next, ApplyError> {
    if job.metadata.deletion_timestamp.is_some() {
        ctx.progress.forget(job.metadata.uid.as_deref().unwrap_or_default());
        // The garbage collector deletes the children; applying them now would create them again.
        return if has_finalizer(&job) { retire_output(ctx, job, now).await } else { Ok(Next::Done) };
    }
    let mut observed = observe(ctx, Arc::clone(&job), now);
    if let Some((missing, number)) = missing_attempt(&observed) {
        let owner = job.controller_owner_ref(&()).unwrap_or_default();
        // The watch of Jobs is late, or does not see it without its labels. An attempt that runs must not be taken for one
        // that was deleted.
        match ctx
            .jobs
            .find(
                &missing,
                &owner,
                &labels_of_attempt(job.metadata.name.as_deref().unwrap_or_default(), number),
            )
            .await
        {
            Ok(true) => return Ok(Next::After(LATE_WATCH_RETRY)),
            // One of its name that belongs to another object is not the attempt.
            Ok(false) | Err(ApplyError::Foreign { .. } | ApplyError::Leftover { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if lacks_evidence(&observed) {
        // Without the pod that has failed, a failure would be taken for an interruption.
        if !are_pods_seen(ctx, &job).await? {
            return Ok(Next::After(LATE_WATCH_RETRY));
        }
        let hidden = hidden_pods(ctx, &job, &observed).await?;
        observed.pods.extend(hidden);
        observed.pods_are_newest = true;
    }
    let valid = validate(&job).and_then(|valid| ctx.own_account.is_not_used_by(valid));
    let planned = match &valid {
        Ok(valid) => held_back(plan(valid, &observed, &ctx.defaults, now), &observed, now),
        Err(invalid) => rejected(invalid, &observed, now),
    };
    if starts_again(&job, &planned) {
        let are_seen = observed.pods_are_newest || are_pods_seen(ctx, &job).await?;
        if !are_seen || hidden_pods(ctx, &job, &observed).await?.iter().any(|pod| !has_stopped(pod)) {
            return Ok(Next::After(LATE_WATCH_RETRY));
        }
    }
    let applied = match apply(ctx, &job, &planned, now).await? {
        Applied::Refused(refusal) => {
            let planned = refused(&refusal, planned, &observed, &ctx.defaults, now);
            apply(ctx, &job, &planned, now).await?
        }
        done @ Applied::All { .. } => done,
    };
    Ok(match applied {
        Applied::All { requeue_after: Some(wait) } => Next::After(wait),
        Applied::All { requeue_after: None } | Applied::Refused(_) => Next::Done,
    })
}

/// The TrainingJob is being deleted, and its output not kept as it is.
async fn retire_output(ctx: &Context, job: Arc<TrainingJob>, now: Timestamp) -> Result<Next, ApplyError> {
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let [name, uid] = [&job.metadata.name, &job.metadata.uid].map(|text| text.clone().unwrap_or_default());
    let claim = Key::new(&namespace, &names::claim(&name));
    if ctx.claims.get(&claim).is_none() && !ctx.claims.is_not_listed(&claim).await? {
        // The watch of claims is late.
        return Ok(Next::After(LATE_WATCH_RETRY));
    }
    let claim = ctx.claims.get(&claim);
    let snapshot = ctx.snapshots.get(&Key::new(&namespace, &names::snapshot(&name, &uid)));
    let observed = observe(ctx, Arc::clone(&job), now);
    let retirement = retire(&observed, claim.as_deref(), snapshot.as_deref(), now);
    let wait = apply::retire(ctx, &job, retirement, now).await?;
    Ok(wait.map_or(Next::Done, Next::After))
}

#[cfg(test)]
mod tests;
