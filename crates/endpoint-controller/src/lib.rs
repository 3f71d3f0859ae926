//! Controller of InferenceEndpoint: creates an AIInference and at most one autoscaler, and mirrors their status.
//!
//! ```text
//!  InferenceEndpoint ──────────┐                                       ┌─▶ AIInference
//!  AIInference, autoscalers ───┼▶ observe ─▶ validate → plan ─▶ apply ─┼─▶ HorizontalPodAutoscaler or AIScaler
//!  nodes, API of CPU metrics ──┘   caches      pure     pure     I/O   └─▶ status, events
//! ```
//!
//! **Invariant:** it owns no pod, no Service and no route. The replicas of the AIInference have one writer at each time:
//! this controller, or the autoscaler. The annotation `ai.infra.example.com/replicas` of the AIInference says which. The
//! writer changes only at the number of replicas that there is.
//!
//! Files, beside those of every controller (`reconcile.rs`, `observe.rs`, `validate.rs`, `plan.rs`, `apply.rs`,
//! `metrics.rs`):
//!
//! - `endpoint.rs`: the object itself, with fields of its spec that this release does not know.
//! - `child.rs`: the children, as they are seen and as they are written.
//! - `rivals.rs`: autoscalers of others that set the replicas of an endpoint.
//! - `cluster.rs`: labels of nodes, and whether the cluster has metrics of CPU and memory.
//!
//! Files of `plan`:
//!
//! - `replicas.rs`: who sets the replicas.
//! - `inference.rs`: the AIInference.
//! - `scaler.rs`: the autoscaler.
//! - `accelerator.rs`: which node labels an accelerator stands for.
//! - `conditions.rs`, `status.rs`, `events.rs`: what a user reads.

#![forbid(unsafe_code)]

use std::sync::Arc;

use api::{aiinference::AIInference, aiinference::endpoint::InferenceEndpoint, aiscaler::AIScaler, labels};
use clap::Parser;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use runtime::{
    key::Key,
    process::{Identity, Process, Started, args::RuntimeArgs},
    reconcile::reconcile,
    watch::{cache::Cache, cached_child::CachedChild},
    write::{apply::Writer, children::Children, events::Recorder},
};
use workload::{faults::facts::FactTimes, products::Products, templates::rendered::Rendered};

use crate::{
    child::{HpaView, InferenceView, ScalerView},
    cluster::{ApiServiceView, NodeLabels},
    endpoint::Endpoint,
    rivals::{Rivals, Targeting},
    validate::Library,
};

mod apply;
mod child;
mod cluster;
mod endpoint;
mod metrics;
mod observe;
mod plan;
mod reconcile;
mod rivals;
#[cfg(test)]
mod tests;
mod validate;

/// Field manager, name of the Lease and value of the label `app.kubernetes.io/managed-by`.
pub const NAME: &str = "endpoint-controller";

/// Field manager that holds the replicas at their number, from when this controller stops to set them until an autoscaler
/// sets others.
pub(crate) const HANDOVER: &str = "endpoint-controller-handover";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// What names in specs mean.
#[derive(clap::Args, Clone, Debug)]
pub struct EndpointArgs {
    /// Library of models, in place of ModelScope for a model without a scheme: s3://bucket/prefix/{id} or pvc://claim/{id}
    #[arg(long, env = "MODEL_LIBRARY", value_parser = Library::parse, value_name = "SOURCE")]
    pub model_library: Option<Library>,

    /// File with short names of GPU products and the node labels that they select, in place of those of this release
    #[arg(long, env = "GPU_PRODUCTS", value_parser = products, value_name = "FILE")]
    pub gpu_products: Option<Products>,
}

/// Read once: what a name selects changes only with the process.
fn products(path: &str) -> Result<Products, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    Products::with_file(&text).map_err(|error| error.to_string())
}

/// A view of a child of an InferenceEndpoint.
type Child<V> = CachedChild<V, InferenceEndpoint>;

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) endpoints: Cache<Endpoint>,
    /// Those of every owner, because an endpoint must not take the name of another one.
    pub(crate) inferences: Children<Child<InferenceView>, Rendered<AIInference>>,
    pub(crate) hpas: Children<Child<HpaView>, Rendered<HorizontalPodAutoscaler>>,
    pub(crate) scalers: Children<Child<ScalerView>, Rendered<AIScaler>>,
    pub(crate) rivals: Rivals,
    /// `None` if the process is confined to one namespace.
    pub(crate) nodes: Option<Cache<NodeLabels>>,
    pub(crate) api_services: Option<Cache<ApiServiceView>>,
    pub(crate) fact_times: FactTimes,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Settings,
}

/// What the command line says.
pub(crate) struct Settings {
    pub(crate) library: Option<Library>,
    pub(crate) products: Products,
    pub(crate) refusal_retry: std::time::Duration,
}

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: EndpointArgs) -> Started {
    let ctx = Arc::new(context(process, args));
    metrics::export(process, &ctx.endpoints);
    let mut controller =
        process.controller(&ctx.endpoints).owns(&ctx.inferences).owns(&ctx.hpas).owns(&ctx.scalers);
    controller = controller
        .maps(&ctx.rivals.hpas, endpoint_of(&ctx.endpoints))
        .maps(&ctx.rivals.scalers, endpoint_of(&ctx.endpoints));
    if let Some(nodes) = &ctx.nodes {
        let endpoints = ctx.endpoints.clone();
        controller = controller.maps(nodes, move |_| {
            keys(&endpoints, |endpoint| endpoint.spec.accelerator != api::aiinference::endpoint::CPU)
        });
    }
    if let Some(api_services) = &ctx.api_services {
        let endpoints = ctx.endpoints.clone();
        controller = controller.maps(api_services, move |service| {
            keys(&endpoints, |endpoint| service.has_metrics_of_pods() && endpoint.spec.autoscaling.is_some())
        });
    }
    process.control(controller, move |endpoint, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&*ctx, endpoint, now).await }
    })
}

fn context(process: &mut Process, args: EndpointArgs) -> Context {
    let EndpointArgs { model_library, gpu_products } = args;
    let endpoints: Cache<Endpoint> = process.watch("InferenceEndpoint");
    let writer = process.writer(&endpoints);
    let sees_cluster = !process.is_confined();
    Context {
        inferences: writer.of(process.watch_if_served("AIInference")),
        hpas: writer.of(process.watch("HorizontalPodAutoscaler")),
        scalers: writer.of(process.watch_if_served("AIScaler")),
        rivals: Rivals::watch(process),
        nodes: sees_cluster.then(|| process.watch_cluster("Node")),
        api_services: sees_cluster.then(|| process.watch_cluster("APIService")),
        endpoints,
        fact_times: FactTimes::default(),
        writer,
        recorder: process.recorder(),
        settings: Settings {
            library: model_library,
            products: gpu_products.unwrap_or_default(),
            refusal_retry: process.refusal_retry_period(),
        },
    }
}

/// The endpoint whose AIInference this autoscaler scales.
fn endpoint_of<T: Targeting>(endpoints: &Cache<Endpoint>) -> impl Fn(&T) -> Vec<Key> + use<T> {
    let endpoints = endpoints.clone();
    move |autoscaler| {
        let key = autoscaler.inference().filter(|key| endpoints.get(key).is_some());
        key.into_iter().collect()
    }
}

fn keys(endpoints: &Cache<Endpoint>, are_concerned: impl Fn(&Endpoint) -> bool) -> Vec<Key> {
    endpoints
        .all()
        .iter()
        .filter(|endpoint| are_concerned(endpoint))
        .map(|endpoint| Key::of(&**endpoint))
        .collect()
}
