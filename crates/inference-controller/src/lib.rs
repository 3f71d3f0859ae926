//! Runs model servers: turns an AIInference into a Deployment, a Service and a truthful status.
//!
//! ```text
//!  AIInference ──┐            ┌─▶ leave ─▶ pods of lost nodes are deleted
//!  children, pods┼▶ observe ──┤
//!  nodes, claims ┘   caches   └─▶ validate → plan → apply ─▶ ConfigMap, Deployment, Service, PodDisruptionBudget
//!                                   pure     pure    I/O  ─▶ status, events
//! ```
//!
//! `observe` reads caches and sends nothing, `validate` and `plan` are pure, `apply` carries out and decides nothing.
//! What a pod of each engine looks like is one table, in `engine`. No other controller is called: the loader and the
//! engine are seen through their pods. What no object can decide alone, how many pods may leave lost nodes at a time, is
//! in `workload::pace`.

#![forbid(unsafe_code)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use api::{aiinference::AIInference, controllers::MODEL_TRANSFER, labels};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use runtime::{
    apply::{ApplyError, Writer},
    args::RuntimeArgs,
    cache::Cache,
    children::Children,
    controller::Next,
    events::Recorder,
    kept::{Kept, Metadata},
    logs::Logs,
    process::{Identity, Process, Started},
    refusal::Refusal,
    relations::Referrers,
};

use workload::{
    claim::ClaimView,
    crashes::Crashes,
    departures::Departures,
    deployment::{DeploymentView, RenderedDeployment, ReplicaSetView},
    event::{ATTACH_FAILURES, EventView, MOUNT_FAILURES},
    lasting::Lasting,
    node::{Losses, NodeView},
    pace::{Allowance, Pace},
    pod::{FAILED, PodView, UNFINISHED},
};

use crate::{
    apply::{Applied, apply, leave},
    observe::{
        Observed, claim_key, count_managed, follow, follow_crashes, keys_by_instance, keys_of_event,
        keys_on_lost, observe,
    },
    plan::{Defaults, Plan, due, leaving, plan, refused, rejected, runs, takes_back},
    validate::{Invalid, OwnAccount, ValidInference, validate},
};

mod apply;
mod engine;
mod metrics;
mod names;
mod observe;
mod plan;
mod validate;

/// Field manager, name of the Lease and value of the managed-by label.
pub const NAME: &str = "inference-controller";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub inference: InferenceArgs,
}

/// Defaults of this release. What runs already keeps those that it was first rendered with.
#[derive(clap::Args, Clone, Debug)]
pub struct InferenceArgs {
    /// Image that copies a model into a pod before the engine starts
    #[arg(long, default_value_t = MODEL_TRANSFER.image(env!("CARGO_PKG_VERSION")))]
    pub loader_image: String,

    /// Image of vLLM; default: the one that this release was made for
    #[arg(long)]
    pub vllm_image: Option<String>,

    /// Image of Triton; default: the one that this release was made for
    #[arg(long)]
    pub triton_image: Option<String>,

    /// Image of TGI; default: the one that this release was made for
    #[arg(long)]
    pub tgi_image: Option<String>,

    /// Service account of this process, as which no engine may run; default: none is refused
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub own_service_account: Option<String>,

    /// Namespace of that service account
    #[arg(long, env = "POD_NAMESPACE")]
    pub own_namespace: Option<String>,
}

/// A child of an AIInference, by a view of it.
type Own<V> = Kept<V, AIInference>;

/// What every reconcile has at hand.
pub(crate) struct Context {
    pub(crate) models: Cache<AIInference>,
    pub(crate) config_maps: Children<Own<Metadata<ConfigMap>>, ConfigMap>,
    pub(crate) deployments: Children<Own<DeploymentView>, RenderedDeployment>,
    pub(crate) services: Children<Own<Metadata<Service>>, Service>,
    pub(crate) budgets: Children<Own<Metadata<PodDisruptionBudget>>, PodDisruptionBudget>,
    pub(crate) replica_sets: Cache<ReplicaSetView>,
    /// Of every owner, since all hold something of their nodes.
    pub(crate) pods: Children<PodView, Pod>,
    /// Managed pods that kubelets have ended.
    pub(crate) failed_pods: Cache<PodView>,
    pub(crate) claims: Cache<ClaimView>,
    pub(crate) attach_failures: Cache<EventView>,
    pub(crate) mount_failures: Cache<EventView>,
    /// None in a process that may see one namespace alone: then no pod leaves a lost node, and no GPU is counted.
    pub(crate) nodes: Option<Cache<NodeView>>,
    pub(crate) losses: Arc<Mutex<Losses>>,
    pub(crate) pace: Pace,
    pub(crate) departures: Departures,
    pub(crate) lasting: Lasting,
    pub(crate) logs: Logs,
    pub(crate) crashes: Arc<Crashes>,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) defaults: Defaults,
    pub(crate) own_account: OwnAccount,
}

/// Names what is watched and what runs for it.
pub fn start(process: &mut Process, args: InferenceArgs) -> Started {
    let ours = format!("{}={NAME},{}={}", labels::MANAGED_BY, labels::NAME, names::KIND);
    let nodes = (!process.is_confined()).then(|| process.watch_cluster("Node"));
    let sees_nodes = nodes.is_some();
    let models = process.watch("AIInference");
    let writer = process.writer(&models);
    let pods = writer.of(process.watch_selected("Pod", UNFINISHED));
    let ctx = Arc::new(Context {
        models,
        config_maps: writer.of(process.watch_labelled("ConfigMap", &ours)),
        deployments: writer.of(process.watch_labelled("Deployment", &ours)),
        services: writer.of(process.watch_labelled("Service", &ours)),
        budgets: writer.of(process.watch_labelled("PodDisruptionBudget", &ours)),
        replica_sets: process.watch_labelled("ReplicaSet", &ours),
        crashes: follow_crashes(&pods),
        pods,
        failed_pods: process.watch_matching("FailedPod", &ours, FAILED),
        claims: process.watch("PersistentVolumeClaim"),
        attach_failures: process.watch_selected("Event", ATTACH_FAILURES),
        mount_failures: process.watch_selected("MountEvent", MOUNT_FAILURES),
        losses: nodes.as_ref().map(follow).unwrap_or_default(),
        nodes,
        pace: Pace::default(),
        departures: Departures::default(),
        lasting: Lasting::default(),
        logs: process.logs(),
        writer,
        recorder: process.recorder(),
        own_account: OwnAccount::of(&args),
        defaults: Defaults::new(args, sees_nodes, process.refusal_retry_period()),
    });
    metrics::export(process, &ctx.models, &ctx.pods);
    let readers = Referrers::of(&ctx.models, claim_key);
    let mut controller = process
        .controller(&ctx.models)
        .owns(&ctx.config_maps)
        .owns(&ctx.deployments)
        .owns(&ctx.services)
        .owns(&ctx.budgets)
        .maps(&ctx.replica_sets, keys_by_instance)
        .maps(&ctx.pods, keys_by_instance)
        .maps(&ctx.failed_pods, keys_by_instance)
        .maps(&ctx.claims, move |claim| readers.keys(claim));
    for events in [&ctx.attach_failures, &ctx.mount_failures] {
        let pods = ctx.pods.clone();
        controller = controller.maps(events, move |event| keys_of_event(&pods, event));
    }
    if let Some(nodes) = &ctx.nodes {
        let (known, pods) = (nodes.clone(), ctx.pods.clone());
        controller = controller.maps(nodes, move |node| keys_on_lost(&known, &pods, node));
    }
    process.control(controller, move |model, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&ctx, model, now).await }
    })
}

/// Observe, leave lost nodes, validate, plan, apply.
async fn reconcile(ctx: &Context, model: Arc<AIInference>, now: Timestamp) -> Result<Next, ApplyError> {
    if model.metadata.deletion_timestamp.is_some() {
        // Its children go with it, by their owner references; to repair them now would bring them back.
        return Ok(Next::Done);
    }
    let mut observed = observe(ctx, Arc::clone(&model), now);
    if is_behind(&observed) {
        // Another process has rendered a newer spec, and the watch of this one is late. Or the annotation was written by
        // hand, and is repaired like any other field. The API server knows which.
        if !ctx.writer.is_newest(&ctx.models, &model).await? {
            return Ok(Next::After(LOOK_AGAIN_AT_ROOT));
        }
    }
    // The one decision that no object can make alone: how many pods may leave lost nodes at a time. They leave whatever
    // becomes of the spec and the children.
    let allowance = ctx.pace.allow(&due(&observed, now), || count_managed(&ctx.pods), now);
    let leaving = leaving(&observed, &allowance, now);
    let mut left = Ok(None);
    if !leaving.is_empty() {
        left = leave(ctx, &model, leaving, now).await;
        // What is planned speaks of what is there now.
        observed = observe(ctx, Arc::clone(&model), now);
    }
    let valid = validate(&model)
        .and_then(|valid| ctx.own_account.is_not_that_of(valid))
        .and_then(|valid| unless_newly_refused(valid, &observed));
    let applied = match &valid {
        // The annotation `refresh` asks for another template, and changes no generation.
        Ok(valid) if takes_back(valid, &observed) && !ctx.writer.is_newest(&ctx.models, &model).await? => {
            left?;
            return Ok(Next::After(LOOK_AGAIN_AT_ROOT));
        }
        Ok(valid) => {
            let refusal = left.as_ref().ok().and_then(Option::as_ref);
            carry_out(ctx, valid, &observed, &allowance, refusal, now).await?
        }
        Err(invalid) => apply(ctx, &model, rejected(invalid, &observed, &allowance, now), now).await?,
    };
    left?;
    Ok(match applied {
        Applied::All { requeue_after: Some(wait) } => Next::After(wait),
        Applied::All { requeue_after: None } | Applied::Refused(_) => Next::Done,
    })
}

/// `refusal`: of the deletion of a pod; it is reported like that of a child, and holds up no child.
async fn carry_out(
    ctx: &Context,
    valid: &ValidInference,
    observed: &Observed,
    allowance: &Allowance,
    refusal: Option<&Refusal>,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let refused = |refusal| refused(refusal, valid, observed, allowance, &ctx.defaults, now);
    let mut plan = plan(valid, observed, allowance, &ctx.defaults, now);
    ctx.lasting.note(&valid.owner.uid, &plan.lasting, now);
    if let Some(refusal) = refusal {
        plan = Plan { children: plan.children, deletions: plan.deletions, ..refused(refusal) };
    }
    match apply(ctx, &observed.model, plan, now).await? {
        Applied::Refused(refusal) => apply(ctx, &observed.model, refused(&refusal), now).await,
        done @ Applied::All { .. } => Ok(done),
    }
}

/// For the watch of AIInferences to catch up.
const LOOK_AGAIN_AT_ROOT: Duration = Duration::from_secs(1);

/// Whether the Deployment says that it was rendered for a later spec than the one that is known.
fn is_behind(observed: &Observed) -> bool {
    let rendered =
        observed.deployment.as_ref().and_then(|deployment| deployment.generation.as_deref()?.parse().ok());
    rendered > observed.model.metadata.generation
}

/// What this release refuses and an earlier one accepted is refused only to pods that do not run yet.
fn unless_newly_refused(valid: ValidInference, observed: &Observed) -> Result<ValidInference, Invalid> {
    match &valid.tolerated {
        Some(invalid) if !runs(&valid, observed) => Err(invalid.clone()),
        Some(_) | None => Ok(valid),
    }
}

#[cfg(test)]
mod tests;
