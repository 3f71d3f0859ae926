//! Controller of AIInference: creates a Deployment, a Service, a ConfigMap and a PodDisruptionBudget, and reports
//! status. With a canary it does so for two versions, and shares the requests between them by routes of the Gateway API.
//!
//! ```text
//!  AIInference ──┐                                       ┌─▶ deletions of pods on lost nodes or with lost GPUs
//!  children, pods┼▶ observe ─▶ validate → plan ─▶ apply ─┼─▶ ConfigMap, Deployment, Service, PodDisruptionBudget
//!  nodes, claims │   caches      pure     pure     I/O   └─▶ status, events
//!  metrics agents┘
//! ```
//!
//! The state of the loader and of the engine comes from the status of the pod. `workload::faults::pace` limits, over
//! all objects, how many pods on lost nodes or with lost GPUs are deleted at a time.
//!
//! **Invariant:** `plan` and `validate` are pure. Only `apply` writes; it decides only when to reconcile again. Only
//! the crate `runtime` reads the clock, and only `Args` reads the environment.
//!
//! Files of every controller:
//!
//! - `observe.rs`: reads the caches and sends nothing.
//! - `validate.rs`: turns a spec into types that cannot be wrong, or into a condition.
//! - `plan.rs`: decides all writes, with one file in `plan` for each child or policy.
//! - `apply.rs`: sends the writes in a fixed order.
//! - `reconcile.rs`: joins these to `runtime::reconcile`, and asks what a plan doubts.
//! - `metrics.rs`: counts objects by phase.
//!
//! Files of this controller:
//!
//! - `engine.rs`: the table of what vLLM, Triton and TGI need.
//! - `versions.rs`: the version of the candidate, from the spec.
//! - `objects/gateway_api.rs`: the kinds of the Gateway API; below it `http_route.rs`, `grpc_route.rs` and
//!   `inference_pool.rs`. `objects/evaluation.rs`: the ModelEvaluation that a canary asks for.
//! - `looks.rs`: reads the engines of both versions of a canary; `looks/custom.rs` asks a Prometheus server of the user.
//! - `agents.rs`: errors of GPUs, as metrics agents report them.
//! - `names.rs`: names of children and containers.
//! - `validate/source.rs`: where the model comes from. `validate/flags.rs`: refuses arguments that set flags of the
//!   controller.
//!
//! Files of `plan`:
//!
//! - `nodes.rs`: replaces pods on lost nodes or with lost GPUs.
//! - `rollout.rs`: the order of a rollout.
//! - `handover.rs`: the only ready pod stays until another one serves, when its node is emptied.
//! - `revision.rs`: the revision of the current spec.
//! - `pod.rs`: the pod template; `pod/loader.rs`, `pod/engine.rs`, `pod/probes.rs` and `pod/volumes.rs` are its parts.
//! - `children.rs`: the children; `children/config_map.rs`, `children/deployment.rs`, `children/service.rs` and
//!   `children/pod_disruption_budget.rs` have one each.
//! - `metadata.rs`: name, owner and labels of children.
//! - `defaults.rs`: defaults of new pods, from the release and the command line.
//! - `faults.rs`: why a pod does not become ready.
//! - `model.rs`: what pods have loaded, and what new ones must load.
//! - `traffic.rs`: the route and the canary; `traffic/state.rs` is the canary's state machine, `traffic/route.rs` the
//!   HTTPRoute, `traffic/promotion.rs` the version that stable has, `traffic/report.rs` its conditions and events.
//! - `conditions.rs`: the phase and the conditions.
//! - `status.rs`: the status; `status/cold_start.rs` has how long the last new pod took until it was ready.
//! - `events.rs`: events.
//!
//! `workload::faults::crashes` reads why an engine crashed. `workload::templates::revision` decides which template and
//! which pods a spec gets.

#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use api::{aiinference::AIInference, controllers::MODEL_TRANSFER, labels};
use clap::Parser;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use metrics_client::args::AgentsArgs;
use prometheus_api::args::{Prometheus, PrometheusArgs};
use runtime::{
    clock::Clock,
    controller::Controller,
    polling::Trigger,
    process::{Identity, Process, Started, args::RuntimeArgs},
    read::{endpoints::Endpoints, logs::Logs},
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
        crashes::Crashes,
        event::{ATTACH_FAILURES, EventView, MOUNT_FAILURES, SANDBOX_FAILURES},
        facts::FactTimes,
        migrations::Migrations,
        pace::Pace,
    },
    products::Products,
    templates::deployment::{DeploymentView, RenderedDeployment, ReplicaSetView},
    views::{
        claim::ClaimView,
        node::{NodeLosses, NodeView},
        pod::{FAILED, PodView, UNFINISHED},
    },
};

use crate::{
    agents::Agents,
    looks::{Looks, look},
    objects::{
        evaluation::{EvaluationView, evaluation_key},
        gateway_api::{grpc_route::GrpcRoute, http_route::HttpRoute, inference_pool::InferencePool},
    },
    observe::{
        claim_key, grpc_of, keys_by_instance, keys_of_event, keys_on_lost, pool_of, reason_of_pod,
        reason_of_replica_set, route_key, track_crashes, track_losses,
    },
    plan::defaults::Defaults,
    versions::candidate,
};

mod agents;
mod apply;
mod engine;
mod looks;
mod metrics;
mod names;
mod objects;
mod observe;
mod plan;
mod reconcile;
mod validate;
mod versions;

/// Field manager, name of the Lease and value of the label `app.kubernetes.io/managed-by`.
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

/// Defaults of this release. Existing pod templates keep the defaults that they were rendered with.
#[derive(clap::Args, Clone, Debug)]
pub struct InferenceArgs {
    /// Image that copies a model into a pod before the engine starts
    #[arg(long, default_value_t = MODEL_TRANSFER.image(env!("CARGO_PKG_VERSION")))]
    pub loader_image: String,

    /// Image of vLLM [default: the version this release was tested with]
    #[arg(long)]
    pub vllm_image: Option<String>,

    /// Image of Triton [default: the version this release was tested with]
    #[arg(long)]
    pub triton_image: Option<String>,

    /// Image of TGI [default: the version this release was tested with]
    #[arg(long)]
    pub tgi_image: Option<String>,

    /// File with short names of GPU products and the node labels that they select, in place of those of this release
    #[arg(long, env = "GPU_PRODUCTS", value_parser = products, value_name = "FILE")]
    pub gpu_products: Option<Products>,

    /// URL of Hugging Face, or of a mirror, for hf:// sources without modelStore.endpoint [default: huggingface.co]
    #[arg(long, value_parser = endpoint, value_name = "URL")]
    pub hf_endpoint: Option<String>,

    /// URL of ModelScope, or of a mirror, for ms:// sources without modelStore.endpoint [default: www.modelscope.cn]
    #[arg(long, value_parser = endpoint, value_name = "URL")]
    pub ms_endpoint: Option<String>,

    /// Service account of this process; engines must not use it [default: no account is refused]
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub own_service_account: Option<String>,

    /// Namespace of the service account of this process
    #[arg(long, env = "POD_NAMESPACE")]
    pub own_namespace: Option<String>,

    #[command(flatten)]
    pub prometheus: PrometheusArgs,

    #[command(flatten)]
    pub agents: AgentsArgs,
}

/// Read once: what a name selects changes only with the process.
fn products(path: &str) -> Result<Products, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    Products::with_file(&text).map_err(|error| error.to_string())
}

/// It becomes a variable of pods. A password in it would be readable there.
fn endpoint(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let is_plain = |rest: &str| {
        !rest.is_empty() && !rest.contains(['@', '?', '#']) && !rest.contains(char::is_whitespace)
    };
    match rest.is_some_and(is_plain) {
        true => Ok(url.to_owned()),
        false => Err("write an address such as https://hf-mirror.com, without a user and a query".to_owned()),
    }
}

/// A view of a child of an AIInference.
type Child<V> = CachedChild<V, AIInference>;

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) inferences: Cache<AIInference>,
    pub(crate) config_maps: Children<Child<Metadata<ConfigMap>>, ConfigMap>,
    pub(crate) deployments: Children<Child<DeploymentView>, RenderedDeployment>,
    pub(crate) services: Children<Child<Metadata<Service>>, Service>,
    pub(crate) budgets: Children<Child<Metadata<PodDisruptionBudget>>, PodDisruptionBudget>,
    /// Empty while the cluster does not serve the kind.
    pub(crate) routes: Children<Child<HttpRoute>, HttpRoute>,
    /// As `routes`, for `gateway.grpc`.
    pub(crate) grpc_routes: Children<Child<GrpcRoute>, GrpcRoute>,
    /// As `routes`, for `gateway.inferencePool`.
    pub(crate) pools: Children<Child<InferencePool>, InferencePool>,
    /// Those of others, for `spec.routeRef`. All of them, where the cluster has the kind: which one is needed may change.
    pub(crate) foreign_routes: Children<HttpRoute, HttpRoute>,
    /// For `canary.evaluationName`. Empty while the cluster does not serve the kind.
    pub(crate) evaluations: Cache<EvaluationView>,
    pub(crate) replica_sets: Cache<ReplicaSetView>,
    /// Pods of every owner, because all use resources of their nodes.
    pub(crate) pods: Children<PodView, Pod>,
    /// Managed pods with phase Failed.
    pub(crate) failed_pods: Cache<PodView>,
    pub(crate) claims: Cache<ClaimView>,
    pub(crate) attach_failures: Cache<EventView>,
    pub(crate) mount_failures: Cache<EventView>,
    pub(crate) sandbox_failures: Cache<EventView>,
    /// `None` if the process is confined to one namespace: pods on lost nodes are not replaced then, and GPUs not counted.
    pub(crate) nodes: Option<Cache<NodeView>>,
    pub(crate) losses: Arc<Mutex<NodeLosses>>,
    pub(crate) agents: Agents,
    pub(crate) pace: Pace,
    pub(crate) migrations: Migrations,
    pub(crate) fact_times: FactTimes,
    pub(crate) apart: apply::Apart,
    pub(crate) looks: Arc<Looks>,
    /// For the metric custom of an analysis.
    pub(crate) prometheus: Prometheus,
    /// Starts a look.
    pub(crate) looking: Trigger,
    pub(crate) clock: Clock,
    pub(crate) logs: Logs,
    pub(crate) endpoints: Endpoints,
    pub(crate) crashes: Arc<Crashes>,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) defaults: Defaults,
}

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: InferenceArgs) -> Started {
    let ctx = Arc::new(context(process, args));
    metrics::export(process, &ctx.inferences, &ctx.pods);
    let looked = Arc::clone(&ctx);
    let controller = related(process, &ctx).beside(ctx.agents.running(&ctx.pods)).polls(
        looks::POLLING,
        &ctx.looking,
        move |inference, _| {
            let ctx = Arc::clone(&looked);
            async move { look(&ctx, inference).await }
        },
    );
    process.control(controller, move |inference, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&*ctx, inference, now).await }
    })
}

/// The watches, and what is kept in memory.
fn context(process: &mut Process, args: InferenceArgs) -> Context {
    let managed = format!("{}={NAME},{}={}", labels::MANAGED_BY, labels::NAME, names::KIND);
    let nodes = (!process.is_confined()).then(|| process.watch_cluster("Node"));
    let watches_nodes = nodes.is_some();
    let inferences: Cache<AIInference> = process.watch("AIInference");
    let writer = process.writer(&inferences);
    let served = inferences.clone();
    let any_has_gateway = move || served.all().iter().any(|inference| inference.spec.gateway.is_some());
    let calling = inferences.clone();
    let any_has_calls = move || calling.all().iter().any(|inference| grpc_of(inference).is_some());
    let pooled = inferences.clone();
    let any_has_pool = move || pooled.all().iter().any(|inference| pool_of(inference).is_some());
    let referring = inferences.clone();
    let any_has_reference =
        move || referring.all().iter().any(|inference| inference.spec.route_ref.is_some());
    let gated = inferences.clone();
    let any_is_gated = move || gated.all().iter().any(|inference| evaluation_key(inference).is_some());
    let foreign = format!("{}!={NAME}", labels::MANAGED_BY);
    let pods = writer.of(process.watch_selected("Pod", UNFINISHED));
    Context {
        looks: track_looks(&inferences),
        prometheus: Prometheus::new(args.prometheus.clone(), process.secrets(), looks::USER_AGENT),
        inferences,
        config_maps: writer.of(process.watch_labelled("ConfigMap", &managed)),
        deployments: writer.of(process.watch_labelled("Deployment", &managed)),
        services: writer.of(process.watch_labelled("Service", &managed)),
        budgets: writer.of(process.watch_labelled("PodDisruptionBudget", &managed)),
        routes: writer.of(process.watch_if_served_and_wanted("HTTPRoute", Some(&managed), any_has_gateway)),
        grpc_routes: writer.of(process.watch_if_served_and_wanted(
            "GRPCRoute",
            Some(&managed),
            any_has_calls,
        )),
        pools: writer.of(process.watch_if_served_and_wanted("InferencePool", Some(&managed), any_has_pool)),
        foreign_routes: writer.of(process.watch_if_served_and_wanted(
            "ForeignHTTPRoute",
            Some(&foreign),
            any_has_reference,
        )),
        evaluations: process.watch_if_allowed_and_wanted("ModelEvaluation", any_is_gated),
        replica_sets: process.watch_labelled("ReplicaSet", &managed),
        crashes: track_crashes(&pods),
        agents: Agents::new(process, &args.agents, &pods),
        pods,
        failed_pods: process.watch_matching("FailedPod", &managed, FAILED),
        claims: process.watch("PersistentVolumeClaim"),
        attach_failures: process.watch_selected("Event", ATTACH_FAILURES),
        mount_failures: process.watch_selected("MountEvent", MOUNT_FAILURES),
        sandbox_failures: process.watch_selected("SandboxEvent", SANDBOX_FAILURES),
        losses: nodes.as_ref().map(track_losses).unwrap_or_default(),
        nodes,
        pace: Pace::default(),
        migrations: Migrations::default(),
        fact_times: FactTimes::default(),
        apart: apply::Apart::default(),
        looking: Trigger::default(),
        clock: process.clock(),
        logs: process.logs(),
        endpoints: process.endpoints(),
        writer,
        recorder: process.recorder(),
        defaults: Defaults::new(args, watches_nodes, process.refusal_retry_period()),
    }
}

/// Those of deleted objects are forgotten.
fn track_looks(inferences: &Cache<AIInference>) -> Arc<Looks> {
    let looks = Arc::<Looks>::default();
    let kept = Arc::clone(&looks);
    inferences.subscribe(move |change| {
        if let Some(inference) = change.gone() {
            kept.forget(inference.metadata.uid.as_deref().unwrap_or_default());
        }
    });
    looks
}

/// Which changes start a reconcile of which object.
fn related(process: &Process, ctx: &Context) -> Controller<AIInference> {
    let readers = Referrers::of(&ctx.inferences, claim_key);
    let of_candidates = Referrers::of(&ctx.inferences, |inference| claim_key(&candidate(inference)?));
    let of_routes = Referrers::of(&ctx.inferences, route_key);
    let of_evaluations = Referrers::of(&ctx.inferences, evaluation_key);
    let mut controller = process
        .controller(&ctx.inferences)
        .owns(&ctx.config_maps)
        .owns(&ctx.deployments)
        .owns(&ctx.services)
        .owns(&ctx.budgets)
        .owns(&ctx.routes)
        .owns(&ctx.grpc_routes)
        .owns(&ctx.pools)
        .maps(&ctx.foreign_routes, move |route| of_routes.keys(route))
        .maps(&ctx.evaluations, move |evaluation| of_evaluations.keys(evaluation))
        .maps_by_reason(&ctx.replica_sets, keys_by_instance, reason_of_replica_set)
        .maps_by_reason(&ctx.pods, keys_by_instance, reason_of_pod)
        .maps(&ctx.failed_pods, keys_by_instance)
        .maps(&ctx.claims, move |claim| {
            readers.keys(claim).into_iter().chain(of_candidates.keys(claim)).collect()
        });
    for events in [&ctx.attach_failures, &ctx.mount_failures, &ctx.sandbox_failures] {
        let pods = ctx.pods.clone();
        controller = controller.maps(events, move |event| keys_of_event(&pods, event));
    }
    if let Some(nodes) = &ctx.nodes {
        let (known, pods) = (nodes.clone(), ctx.pods.clone());
        controller = controller.maps(nodes, move |node| keys_on_lost(&known, &pods, node));
    }
    controller
}

#[cfg(test)]
mod tests;
