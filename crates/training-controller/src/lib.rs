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
//! - `reconcile.rs`: what `runtime::reconcile` calls, and what the API server is asked in doubt.
//! - `relations.rs`: which TrainingJobs a change of another object wakes.
//! - `relations/wants.rs`: what a job reads of other jobs.
//! - `names.rs`: names of children.
//! - `objects.rs`: single objects.
//! - `objects/training_job.rs`, `objects/pod.rs`: what a TrainingJob and its pods say by themselves.
//! - `objects/volume_snapshot.rs`: view of VolumeSnapshots.
//! - `observe/dependencies.rs`: what a job reads of others, and which others need it.
//! - `observe/claims.rs`: its claims, and who else uses them.
//! - `observe/resume.rs`: the source of a job that goes on from another job.
//! - `observe/nodes.rs`: lost nodes, and the GPUs of the others.
//! - `progress.rs`: follows the log of rank 0.
//! - `progress/curve.rs`: the curve of the loss.
//! - `progress/losses.rs`: how many logged steps in a row had a loss that trains nothing.
//! - `agents.rs`: how busy the GPUs of a job are, as metrics agents report it.
//! - `swift.rs`: the command line of ms-swift from method, device, GPUs, nodes and version.
//! - `swift/version.rs`: what differs between versions of ms-swift.
//! - `validate/flags.rs`: which arguments of users are refused.
//!
//! Files of `plan`:
//!
//! - `doubts.rs`: what a plan rests on and a watch may not show.
//! - `defaults.rs`: defaults of new Jobs, from the release and the command line.
//! - `dependencies.rs`: what other jobs have left.
//! - `resume.rs`: whether a job can go on from the checkpoints of another job.
//! - `loss.rs`: whether the loss is a number.
//! - `begin.rs`: begins an attempt.
//! - `end.rs`: writes the end of an attempt.
//! - `clearing.rs`: ends what is left of an attempt.
//! - `upload.rs`: follows the upload.
//! - `upload/check.rs`: tries the store before the first attempt.
//! - `retention.rs`: what becomes of the claim when the TrainingJob is deleted.
//! - `refused.rs`: the plan after the API server has refused a write.
//! - `attempt.rs`: attempts.
//! - `attempt/stage.rs`: where a job is in its life.
//! - `attempt/stage/checks.rs`: what ends an attempt that runs.
//! - `attempt/clock.rs`: the clock of `activeDeadlineSeconds`.
//! - `attempt/failure.rs`: why an attempt failed.
//! - `attempt/retry.rs`: what follows a failed attempt.
//! - `attempt/avoid.rs`: the nodes that are not used.
//! - `attempt/idle.rs`: whether GPUs are idle.
//! - `children.rs`: children, as they are created.
//! - `children/attempt_job.rs`, `children/pod.rs`, `children/service.rs`, `children/claim.rs`: those of an attempt.
//! - `children/mitigation.rs`: settings that need less GPU memory.
//! - `children/upload_job.rs`: the Jobs that speak to the store.
//! - `children/metadata.rs`: name, owner and labels.
//! - `children/template.rs`: what all pods have in common.
//! - `status.rs`: the status.
//! - `status/conditions.rs`: the phase and the conditions.
//! - `status/events.rs`: events.
//! - `status/held_back.rs`: holds back a status that differs only in details and has not lasted.
//! - `status/reduced.rs`: the status that is written if the API server refuses the whole status.

#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use api::{
    controllers::{MODEL_TRANSFER, TRAINING_LAUNCHER},
    labels,
    trainingjob::{Device, TrainingJob},
};
use clap::Parser;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use metrics_client::args::AgentsArgs;
use runtime::{
    process::{Identity, Process, Started, args::RuntimeArgs},
    reconcile::reconcile,
    watch::{
        cache::Cache,
        cached_child::{CachedChild, Metadata},
        relations::Referrers,
    },
    write::{apply::Writer, children::Children, events::Recorder},
};
use workload::{
    faults::{
        event::{ATTACH_FAILURES, CREATION_FAILURES, EventView, MOUNT_FAILURES, SANDBOX_FAILURES},
        facts::FactTimes,
    },
    own_account::OwnAccount,
    products::Products,
    views::{
        claim::ClaimView,
        job::JobView,
        node::{NodeLosses, NodeView},
        pod::{PodView, UNFINISHED},
    },
};

use crate::{
    agents::Agents,
    objects::{training_job::needs_snapshot, volume_snapshot::VolumeSnapshot},
    observe::track_losses,
    plan::Defaults,
    progress::Progress,
    relations::{
        keys_by_instance,
        wants::{keys_of_wants, output_keys},
    },
    validate::validate,
};

mod agents;
mod apply;
mod metrics;
mod names;
mod objects;
mod observe;
mod plan;
mod progress;
mod reconcile;
mod relations;
mod swift;
mod validate;

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

    /// File with short names of GPU products and the node labels that they select, in place of those of this release
    #[arg(long, env = "GPU_PRODUCTS", value_parser = products, value_name = "FILE")]
    pub gpu_products: Option<Products>,

    /// Service account of this process; trainers must not use it [default: no account is refused]
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub own_service_account: Option<String>,

    /// Namespace of the service account of this process
    #[arg(long, env = "POD_NAMESPACE")]
    pub own_namespace: Option<String>,
}

/// Read once: what a name selects changes only with the process.
fn products(path: &str) -> Result<Products, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    Products::with_file(&text).map_err(|error| error.to_string())
}

/// The account of this process.
pub(crate) fn own_account(args: &TrainingArgs) -> OwnAccount {
    OwnAccount::new(args.own_namespace.clone(), args.own_service_account.clone())
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
    pub(crate) sandbox_failures: Cache<EventView>,
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
    fn new(process: &mut Process, args: TrainingArgs, agents: &AgentsArgs) -> Self {
        let managed = format!("{}={NAME},{}={}", labels::MANAGED_BY, labels::NAME, names::KIND);
        let others = format!("{}!={NAME}", labels::MANAGED_BY);
        let nodes = (!process.is_confined()).then(|| process.watch_cluster("Node"));
        let watches_nodes = nodes.is_some();
        let training_jobs: Cache<TrainingJob> = process.watch("TrainingJob");
        let writer = process.writer(&training_jobs);
        let roots = training_jobs.clone();
        let any_needs_snapshot = move || roots.all().iter().any(|job| needs_snapshot(job));
        let pods: Children<PodView, Pod> = writer.of(process.watch_labelled("Pod", &managed));
        Self {
            jobs: writer.of(process.watch_labelled("Job", &managed)),
            services: writer.of(process.watch_labelled("Service", &managed)),
            claims: writer.of(process.watch("PersistentVolumeClaim")),
            snapshots: writer.of(process.watch_if_served_and_wanted(
                "VolumeSnapshot",
                None,
                any_needs_snapshot,
            )),
            pods_of: Referrers::of(&pods, keys_by_instance),
            pods,
            other_pods: process.watch_matching("OtherPod", &others, UNFINISHED),
            attach_failures: process.watch_selected("Event", ATTACH_FAILURES),
            mount_failures: process.watch_selected("MountEvent", MOUNT_FAILURES),
            sandbox_failures: process.watch_selected("SandboxEvent", SANDBOX_FAILURES),
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
            own_account: own_account(&args),
            defaults: Defaults::new(args, watches_nodes, process.refusal_retry_period()),
        }
    }

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
    let ctx = Arc::new(Context::new(process, args, agents));
    ctx.progress.forget_removed(&ctx.training_jobs);
    metrics::export(process, &ctx.training_jobs);
    ctx.agents.export(process, &ctx.training_jobs, &ctx.pods, &ctx.pods_of);
    let releasing = ctx.writer.releasing_undecodable(&ctx.training_jobs, labels::OUTPUT_FINALIZER);
    let controller = relations::declared(process.controller(&ctx.training_jobs), &ctx)
        .beside(ctx.progress.running(process.logs()))
        .beside(releasing)
        .beside(ctx.agents.running(&ctx.pods));
    process.control(controller, move |job, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&*ctx, job, now).await }
    })
}

#[cfg(test)]
mod tests;
