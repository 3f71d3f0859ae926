//! Controller of AIDispatcher: creates a Deployment of workers, their PodDisruptionBudget and Services, and reports the
//! status.
//!
//! ```text
//!  AIDispatcher ──┐
//!  children, pods ┼▶ observe ─▶ validate → plan → apply ─▶ marks of pods, Deployment, budget
//!  claims         │  caches      pure     pure    I/O   ─▶ status, events
//!  monitors       ┘
//! ```
//!
//! The number of workers follows the queue. `observe` reads caches and records loads in `pools`. `validate` and `plan`
//! are pure. `apply` sends requests.
//!
//! **Invariant:** an unknown load is never zero. Idle workers end before busy workers, unless deletion costs cannot be
//! set in time. Tokens never fall, and no token is counted twice.
//!
//! Files, beside those of every controller (`observe.rs`, `validate.rs`, `plan.rs`, `apply.rs`, `metrics.rs`):
//!
//! - `reconcile.rs`: one reconcile, as `runtime::reconcile` plays it.
//! - `relations.rs`: which AIDispatchers are reconciled after a change of another object.
//! - `relations/budgets.rs`: the PodDisruptionBudgets of the namespaces.
//! - `load.rs`: the load of a worker and of a pool.
//! - `monitors.rs`: receives what the sidecars of workers report.
//! - `prometheus.rs`: reads the load of workers from Prometheus, by option.
//! - `records.rs`: what is kept in memory beside the caches:
//!   - `records/pools.rs`: the past values that decisions on replicas need.
//!   - `records/tokens.rs`: the tokens of workers, and their sum.
//!   - `records/deleted_pods.rs`: pods that were deleted lately.
//!   - `records/revisions.rs`: which ReplicaSets belong, or have belonged, to which AIDispatcher.
//! - `names.rs`: names of children and of containers.
//! - `validate/defaults.rs`: defaults of new pods, from the release and the command line.
//!
//! Files of `plan`:
//!
//! - `replicas.rs`: how many workers there are, and which are removed first.
//! - `replicas/replacement.rs`: which idle worker gives way to a new worker that restores a state.
//! - `replicas/marks.rs`: the annotations of pods that say whether a pod may be removed.
//! - `rollout.rs`: whether a new worker starts before an old worker ends.
//! - `disruption_budget.rs`: the PodDisruptionBudget of a pool.
//! - `services.rs`: the Services of a pool.
//! - `omission.rs`: what is reported of a child that the pool can do without.
//! - `pod.rs`: the pod template; `pod/worker.rs`, `pod/monitor.rs` and `pod/volumes.rs` are its parts.
//! - `deployment.rs`: the Deployment.
//! - `revision.rs`: the revision of the current spec.
//! - `metadata.rs`: name, owner and labels of children.
//! - `readiness.rs`: whether a worker counts as ready.
//! - `status.rs`: the status.
//! - `status/conditions.rs`: the phase and the conditions.
//! - `status/conditions/faults.rs`: why a pod does not become ready.
//! - `status/conditions/checkpoint_failed.rs`: the condition CheckpointFailed.
//! - `status/conditions/scaling_active.rs`: the condition ScalingActive.
//! - `status/events.rs`: events.
//! - `outcome.rs`: what is remembered and reported after the Deployment was written.

#![forbid(unsafe_code)]

use std::{sync::Arc, time::Duration};

use api::{
    aidispatcher::AIDispatcher,
    controllers::{AGENT, MONITOR},
    labels,
};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use reqwest::Url;
use runtime::{
    controller::Controller,
    polling::Polling,
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
    faults::facts::FactTimes,
    templates::deployment::{DeploymentView, RenderedDeployment, ReplicaSetView},
    views::{claim::ClaimView, pod::PodView},
};

use crate::{
    load::WorkerLoad,
    monitors::Monitors,
    observe::look,
    prometheus::Prometheus,
    records::{deleted_pods::DeletedPods, pools::Pools, revisions::Revisions, tokens::TokenNotes},
    relations::{
        budgets::Budgets, claim_key, keys_by_instance, namespace_of, reason_of_pod, reason_of_replica_set,
    },
    validate::defaults::Defaults,
};

mod apply;
mod load;
mod metrics;
mod monitors;
mod names;
mod observe;
mod plan;
mod prometheus;
mod reconcile;
mod records;
mod relations;
mod validate;

/// Field manager, name of the Lease and value of the label `app.kubernetes.io/managed-by`.
pub const NAME: &str = "dispatcher-controller";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub dispatcher: DispatcherArgs,
}

/// Defaults of this release. Existing pod templates keep the defaults that they were rendered with.
#[derive(clap::Args, Clone, Debug)]
pub struct DispatcherArgs {
    /// Image of the monitor, which is beside each worker
    #[arg(long, default_value_t = MONITOR.image(env!("CARGO_PKG_VERSION")))]
    pub monitor_image: String,

    /// Image of the agent that ships: the workers of objects without spec.image, unless their role has an option
    #[arg(long, default_value_t = AGENT.image(env!("CARGO_PKG_VERSION")))]
    pub agent_image: String,

    /// Image of workers with role coder [default: the agent that ships]
    #[arg(long)]
    pub coder_image: Option<String>,

    /// Image of workers with role reviewer [default: the agent that ships]
    #[arg(long)]
    pub reviewer_image: Option<String>,

    /// Image of workers with role planner [default: the agent that ships]
    #[arg(long)]
    pub planner_image: Option<String>,

    /// URL of the vector store of objects without memoryConfig.endpoint [default: none; that field is required]
    #[arg(long, env = "MEMORY_ENDPOINT", value_name = "URL", value_parser = http_endpoint)]
    pub memory_endpoint: Option<String>,

    /// Secret with the key `api-key` for that store, in the namespace of the object [default: none]
    #[arg(long, requires = "memory_endpoint")]
    pub memory_secret_name: Option<String>,

    /// Prometheus-compatible server from which queue depths and tasks in flight are read (agent_queue_depth and
    /// agent_tasks_in_flight by namespace, pool and worker) [default: they are read from the monitors, each second]
    #[arg(long, value_name = "URL", value_parser = http_url)]
    pub prometheus_url: Option<Url>,

    /// Seconds between two checkpoints of a worker that runs
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub checkpoint_seconds: u32,

    /// Seconds after which a worker on a node that is unreachable is replaced
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub node_failure_seconds: u32,

    /// Service account of this process; workers must not use it [default: no account is refused]
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub own_service_account: Option<String>,

    /// Namespace of the service account of this process
    #[arg(long, env = "POD_NAMESPACE")]
    pub own_namespace: Option<String>,
}

/// A view of a child of an AIDispatcher.
type Child<V> = CachedChild<V, AIDispatcher>;

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) dispatchers: Cache<AIDispatcher>,
    pub(crate) deployments: Children<Child<DeploymentView>, RenderedDeployment>,
    pub(crate) services: Children<Child<Metadata<Service>>, Service>,
    pub(crate) budgets: Children<Child<Metadata<PodDisruptionBudget>>, PodDisruptionBudget>,
    /// Also those of users.
    pub(crate) all_budgets: Budgets,
    pub(crate) replica_sets: Cache<ReplicaSetView>,
    /// Pods of workers, those that have ended included.
    pub(crate) pods: Children<PodView, Pod>,
    pub(crate) claims: Cache<ClaimView>,
    pub(crate) monitors: Monitors,
    pub(crate) tokens: Arc<TokenNotes>,
    pub(crate) deleted_pods: Arc<DeletedPods>,
    pub(crate) revisions: Arc<Revisions>,
    pub(crate) pools: Pools,
    /// `None`: load is read from the monitors.
    pub(crate) prometheus: Option<Prometheus>,
    pub(crate) fact_times: FactTimes,
    /// By uid of the AIDispatcher: that annotations of its pods for node autoscalers were refused, and when.
    pub(crate) guard_refusals: FactTimes,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) defaults: Defaults,
}

impl Context {
    pub(crate) fn load_of(&self, uid: &str, pod: &PodView, now: Timestamp) -> WorkerLoad {
        let streamed = self.monitors.load_of(pod, now);
        match &self.prometheus {
            Some(prometheus) => prometheus.replace_load(streamed, uid, pod.name()),
            None => streamed,
        }
    }
}

/// Minimum time between two polls of one object that changes of its load cause.
const MIN_POLL_GAP: Duration = Duration::from_millis(200);
/// Measured numbers are observed, and written, this often.
const MEASURED_EVERY: Duration = Duration::from_secs(10);

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: DispatcherArgs) -> Started {
    let ctx = Arc::new(watched(process, args));
    metrics::export(process, &ctx.dispatchers);
    let controller = related(process.controller(&ctx.dispatchers), &ctx);
    let controller = polled(controller, &ctx).beside(ctx.monitors.running());
    process.control(controller, move |dispatcher, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&*ctx, dispatcher, now).await }
    })
}

/// Declares the watches.
fn watched(process: &mut Process, args: DispatcherArgs) -> Context {
    let managed = format!("{}={NAME},{}={}", labels::MANAGED_BY, labels::NAME, names::KIND);
    let dispatchers = process.watch::<AIDispatcher>("AIDispatcher");
    let writer = process.writer(&dispatchers);
    let pods = writer.of(process.watch_labelled("Pod", &managed));
    let deployments = writer.of(process.watch_labelled("Deployment", &managed));
    let replica_sets = process.watch_labelled("ReplicaSet", &managed);
    let revisions = Revisions::tracked(&dispatchers, &deployments, &replica_sets);
    let tokens = TokenNotes::tracked(&pods, &dispatchers, Arc::clone(&revisions));
    Context {
        services: writer.of(process.watch_labelled("Service", &managed)),
        budgets: writer.of(process.watch_labelled("PodDisruptionBudget", &managed)),
        all_budgets: Budgets::watched(process),
        deployments,
        replica_sets,
        claims: process.watch("PersistentVolumeClaim"),
        monitors: Monitors::new(process, &pods, &revisions, Arc::clone(&tokens)),
        tokens,
        deleted_pods: DeletedPods::tracked(&pods),
        revisions,
        pools: Pools::forgetting_deleted(&dispatchers),
        prometheus: args.prometheus_url.clone().map(|url| Prometheus::new(url, &dispatchers)),
        pods,
        fact_times: FactTimes::default(),
        guard_refusals: FactTimes::default(),
        writer,
        recorder: process.recorder(),
        defaults: Defaults::new(args, process.refusal_retry_period()),
        dispatchers,
    }
}

/// Names the objects whose changes reconcile an AIDispatcher.
fn related(controller: Controller<AIDispatcher>, ctx: &Context) -> Controller<AIDispatcher> {
    let readers = Referrers::of(&ctx.dispatchers, claim_key);
    let neighbours = Referrers::of(&ctx.dispatchers, |dispatcher: &AIDispatcher| [namespace_of(dispatcher)]);
    controller
        .owns(&ctx.deployments)
        .owns(&ctx.services)
        .owns(&ctx.budgets)
        .maps_by_reason(&ctx.replica_sets, keys_by_instance, reason_of_replica_set)
        .maps_by_reason(&ctx.pods, keys_by_instance, reason_of_pod)
        .maps(&ctx.claims, move |claim| readers.keys(claim))
        .maps(&ctx.all_budgets.all, move |budget| match budget.is_of_others() {
            true => neighbours.of_key(&namespace_of(budget)),
            false => Vec::new(),
        })
}

/// Looks at the load of each pool periodically, and when a monitor reports another one.
fn polled(controller: Controller<AIDispatcher>, ctx: &Arc<Context>) -> Controller<AIDispatcher> {
    let polling =
        Polling { period: MEASURED_EVERY, at_once: 64, deadline: Duration::from_secs(5), gap: MIN_POLL_GAP };
    let polled = Arc::clone(ctx);
    controller.polls(polling, ctx.monitors.trigger(), move |dispatcher, now| {
        let ctx = Arc::clone(&polled);
        async move {
            if let Some(prometheus) = &ctx.prometheus {
                prometheus.ask(&dispatcher, now).await;
            }
            look(&ctx, &dispatcher, now)
        }
    })
}

/// URLs are in messages and in pods, so they carry no credentials.
fn http_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}"))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err("must be an http or https URL".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err("must have neither a user nor a query".to_owned());
    }
    Ok(url)
}

/// As it was written, because it is a part of pod templates.
fn http_endpoint(text: &str) -> Result<String, String> {
    http_url(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests;
