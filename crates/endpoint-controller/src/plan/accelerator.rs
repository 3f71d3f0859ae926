//! Which node labels an accelerator stands for, and whether a node has one. Pure.
//!
//! The pods select all labels of a short name, whichever nodes there are: a new kind of node restarts no pod.

use std::{collections::BTreeSet, iter, sync::Arc};

use api::{conditions, reasons};
use workload::{
    faults::gpu::{Demand, Gpus, capacities, is_of},
    products::{NodeLabel, Products},
};

use super::conditions::{Statement, fails, holds};
use crate::{
    cluster::NodeLabels,
    observe::Observed,
    validate::{Accelerator, Product, ValidEndpoint},
};

/// More are not shown in a status.
const MOST_LABELS: usize = 64;

/// The labels by which nodes are selected; `None` if any node with the resource is.
fn gpus(valid: &ValidEndpoint, products: &Products) -> Option<Gpus> {
    match &valid.accelerator {
        Accelerator::Gpus { product: Product::Labelled(label), count } => {
            Some(Gpus::new(*count, "nvidia.com/gpu", [label.as_str()]).resolved(products))
        }
        Accelerator::Gpus { product: Product::Resource(_), .. } | Accelerator::Cpu => None,
    }
}

/// Labels that nodes have, or all of them if no node has one.
pub(super) fn labels(valid: &ValidEndpoint, observed: &Observed, products: &Products) -> Vec<String> {
    let Some(gpus) = gpus(valid, products) else { return Vec::new() };
    let pairs = |label: &NodeLabel| -> Vec<String> {
        label.values.iter().map(|value| format!("{}={value}", label.key)).collect()
    };
    let nodes = observed.nodes.as_deref().unwrap_or_default();
    let seen: BTreeSet<String> = gpus.products.iter().flat_map(|label| seen(label, nodes)).collect();
    let found = if seen.is_empty() { gpus.products.iter().flat_map(pairs).collect() } else { seen };
    found.into_iter().take(MOST_LABELS).collect()
}

/// The values of one label that nodes have.
fn seen(label: &NodeLabel, nodes: &[Arc<NodeLabels>]) -> Vec<String> {
    let single = |value: &String| NodeLabel { values: vec![value.clone()], ..label.clone() };
    let is_seen = |value: &&String| {
        let label = [single(value)];
        nodes.iter().any(|node| is_of(&node.0, &label))
    };
    label.values.iter().filter(is_seen).map(|value| format!("{}={value}", label.key)).collect()
}

/// `None` where nodes cannot be read, and where no label names the accelerator.
pub(super) fn statement(
    valid: &ValidEndpoint,
    observed: &Observed,
    products: &Products,
) -> Option<Statement> {
    let type_ = conditions::ACCELERATOR_RESOLVED;
    let nodes = observed.nodes.as_ref()?;
    let gpus = gpus(valid, products)?;
    let name = &valid.endpoint.spec.accelerator;
    if nodes.iter().any(|node| is_of(&node.0, &gpus.products)) {
        return Some(holds(type_, reasons::RESOLVED, format!("nodes have {name}")));
    }
    // Only for the message, so that nodes are copied only then.
    let nodes = nodes.iter().map(|node| Arc::new(node.0.clone()));
    let capacities = capacities(nodes, iter::empty(), &gpus.resource);
    let short = Demand { gpus: &gpus, scheduling: None }.shortage(&capacities)?;
    let hint = match name.contains('=') {
        true => "",
        false => "; write one of these, a short name such as h100, or label.key=value",
    };
    let message = format!("{}{hint}", short.message);
    (short.reason == reasons::NO_SUCH_PRODUCT).then(|| fails(type_, reasons::NO_SUCH_PRODUCT, message))
}
