//! Which nodes of a job's pods are lost, and since when.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use runtime::cache::{Cache, Key};
use workload::{
    node::{NodeLosses, NodeView},
    pod::PodView,
    stranded::Nodes,
};

use crate::objects::pod::has_stopped;

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

pub(super) fn nodes_of<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    known: &Cache<NodeView>,
    losses: &Mutex<NodeLosses>,
    now: Timestamp,
) -> Nodes {
    let mut lost = BTreeMap::new();
    for name in pods.filter(|pod| !has_stopped(pod)).filter_map(|pod| pod.node.as_deref()) {
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
