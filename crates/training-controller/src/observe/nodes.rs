//! The nodes of a job's pods: which are lost, and since when, and what GPUs the others have.

use std::sync::{Arc, Mutex, PoisonError};

use api::trainingjob::TrainingJob;
use jiff::Timestamp;
use runtime::{key::Key, watch::cache::Cache};
use workload::{
    faults::{
        gpu::{self, NodeCapacity},
        stranded::Nodes,
    },
    views::{
        node::{NodeLosses, NodeView},
        pod::PodView,
    },
};

use crate::{Context, objects::pod::has_stopped};

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

/// The lost nodes of these pods.
pub(super) fn observe(ctx: &Context, pods: &[Arc<PodView>], now: Timestamp) -> Nodes {
    let Some(known) = &ctx.nodes else { return Nodes::default() };
    let is_stale = ctx.pods.watch_fails_since().is_some()
        || ctx.training_jobs.watch_fails_since().is_some()
        || known.watch_fails_since().is_some();
    Nodes { is_stale, ..nodes_of(pods.iter().map(AsRef::as_ref), known, &ctx.losses, now) }
}

/// Counted only while a pod finds no node: it reads all pods of the cluster.
pub(super) fn capacities(
    ctx: &Context,
    job: &TrainingJob,
    pods: &[Arc<PodView>],
) -> Option<Vec<NodeCapacity>> {
    let known = ctx.nodes.as_ref().filter(|_| pods.iter().any(|pod| pod.is_unschedulable()))?;
    let resource = ctx.resource_of(job)?;
    let all = [ctx.pods.all(), ctx.other_pods.all()].concat();
    Some(gpu::capacities(known.all().into_iter(), all.iter().map(AsRef::as_ref), &resource))
}

fn nodes_of<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    known: &Cache<NodeView>,
    losses: &Mutex<NodeLosses>,
    now: Timestamp,
) -> Nodes {
    let names = pods.filter(|pod| !has_stopped(pod)).filter_map(|pod| pod.node.as_deref());
    Nodes::of(names, |name| known.get(&Key::new("", name)), || known.all(), losses, now)
}
