//! Reads the caches and sends nothing: the children of an endpoint, who else has their names, and what the cluster has.

use std::{collections::BTreeMap, sync::Arc};

use api::aiinference::endpoint::InferenceEndpoint;
use jiff::Timestamp;
use kube::Resource;
use runtime::{
    key::Key,
    watch::cache::{Cache, controller_of, is_of_kind},
};

use crate::{
    Child, Context,
    child::{HpaView, InferenceView, ScalerView},
    cluster::{METRICS_API, NodeLabels},
    endpoint::Endpoint,
    rivals::Rival,
};

/// What is known of one endpoint.
pub(crate) struct Observed {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The API server has no newer version of it. `false`: it was not asked.
    pub(crate) is_newest: bool,
    pub(crate) inference: Sighting<InferenceView>,
    pub(crate) hpa: Sighting<HpaView>,
    pub(crate) scaler: Sighting<ScalerView>,
    pub(crate) rival: Option<Rival>,
    /// `None` if the process is confined to one namespace.
    pub(crate) nodes: Option<Vec<Arc<NodeLabels>>>,
    pub(crate) metrics_api: MetricsApi,
    /// Whether the cluster has the kind AIInference.
    pub(crate) serves_inferences: bool,
    /// Whether the cluster has the kind AIScaler.
    pub(crate) serves_scalers: bool,
    /// Since when facts have been true, from memory.
    pub(crate) facts: BTreeMap<String, Timestamp>,
}

/// The object of the endpoint's name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sighting<V> {
    /// There is none, or one of a deleted endpoint of this name, which the garbage collector deletes.
    Absent,
    Own(Box<V>),
    Foreign {
        /// That it belongs to its owner, or has none.
        owner: String,
    },
}

/// The API that a HorizontalPodAutoscaler reads CPU and memory from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsApi {
    Missing,
    /// It is registered, and does not answer.
    Unavailable,
    Available,
    /// The process is confined to one namespace.
    Unknown,
}

/// Of an object whose owner was deleted without it, or that a user has made.
pub(crate) const NO_OWNER: &str = "has no owner";

impl<V> Sighting<V> {
    pub(crate) fn own(&self) -> Option<&V> {
        match self {
            Self::Own(view) => Some(view),
            Self::Absent | Self::Foreign { .. } => None,
        }
    }
}

pub(crate) fn observe(ctx: &Context, endpoint: Arc<Endpoint>) -> Observed {
    let key = Key::of(&*endpoint);
    let uid = endpoint.metadata.uid.clone().unwrap_or_default();
    Observed {
        inference: sighting(&ctx.inferences, &key, &uid),
        hpa: sighting(&ctx.hpas, &key, &uid),
        scaler: sighting(&ctx.scalers, &key, &uid),
        rival: ctx.rivals.of(&key, &uid),
        nodes: ctx.nodes.as_ref().map(Cache::all),
        metrics_api: metrics_api(ctx),
        serves_inferences: !ctx.inferences.is_absent(),
        serves_scalers: !ctx.scalers.is_absent(),
        facts: ctx.fact_times.of(&uid),
        is_newest: false,
        endpoint,
    }
}

fn sighting<V>(children: &Cache<Child<V>>, key: &Key, uid: &str) -> Sighting<V>
where
    V: Resource<DynamicType = ()> + Clone,
{
    let Some(child) = children.get(key) else { return Sighting::Absent };
    match controller_of(&*child) {
        Some(owner) if owner.uid == uid => Sighting::Own(Box::new((**child).clone())),
        Some(owner) if is_of_kind::<InferenceEndpoint>(owner) && *owner.name == *key.name => Sighting::Absent,
        Some(owner) => Sighting::Foreign { owner: format!("belongs to {} {}", owner.kind, owner.name) },
        None => Sighting::Foreign { owner: NO_OWNER.to_owned() },
    }
}

fn metrics_api(ctx: &Context) -> MetricsApi {
    let Some(services) = &ctx.api_services else { return MetricsApi::Unknown };
    match services.get(&Key::new("", METRICS_API)) {
        None => MetricsApi::Missing,
        Some(service) if service.is_available => MetricsApi::Available,
        Some(_) => MetricsApi::Unavailable,
    }
}
