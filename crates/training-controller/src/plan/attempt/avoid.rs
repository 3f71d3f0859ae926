//! Nodes that have refused a pod of the job, or whose GPU failed under one: the next attempts avoid them for an hour. Pure.
//!
//! A pod that was created with such a rule keeps it. An attempt that finds no other node ends, and the next one only prefers
//! other nodes: see `stage`.

use std::time::Duration;

use api::{
    reasons,
    trainingjob::{AvoidedNode, TrainingJobStatus},
};
use jiff::Timestamp;
use runtime::write::conditions::whole_seconds;
use workload::{
    time::{elapsed, remaining},
    views::pod::PodView,
};

use super::failure::was_refused;
use crate::observe::Observed;

/// A GPU is reset, and a device plugin is restarted, within minutes by their operators. A job of one node must not wait for
/// longer if that is its only one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);
/// Nodes in the status. Beyond it the oldest is forgotten.
const MOST: usize = 16;
/// Names in a message.
const MOST_NAMES: usize = 4;

/// How long a node is still avoided; `None`: no longer. A time that is too far ahead was written before the clock was set back.
fn left(node: &AvoidedNode, now: Timestamp) -> Option<Duration> {
    let since = node.time.as_ref()?.0;
    remaining(FORGOTTEN_AFTER, since, now).filter(|_| elapsed(now, since) <= FORGOTTEN_AFTER)
}

/// Nodes that an attempt avoids which is created now.
pub(crate) fn avoided(status: &TrainingJobStatus, now: Timestamp) -> Vec<AvoidedNode> {
    status.avoided_nodes.iter().filter(|node| left(node, now).is_some()).cloned().collect()
}

/// Whether the nodes are used if there is no other: the attempt before has found none. Some that buy nodes for pods, such as
/// Karpenter, ignore a pod that may not use a certain node.
pub(crate) fn are_last_choice(status: &TrainingJobStatus) -> bool {
    let last = status.failure.as_ref().filter(|failure| failure.attempt == status.ended_attempts);
    last.is_some_and(|failure| failure.reason == reasons::UNSCHEDULABLE)
}

/// `found` is added, unless it is known.
pub(crate) fn add(known: &mut Vec<AvoidedNode>, found: Vec<AvoidedNode>, now: Timestamp) {
    for node in found {
        if known.iter().any(|one| one.node == node.node && left(one, now).is_some()) {
            continue;
        }
        known.retain(|one| one.node != node.node);
        if known.len() >= MOST {
            known.remove(0);
        }
        known.push(node);
    }
}

/// Nodes whose GPU failed while a pod of the job held it.
pub(crate) fn with_gpu_faults(observed: &Observed, now: Timestamp) -> Vec<AvoidedNode> {
    let node = |(name, fault): (&String, &String)| new(name, reasons::GPU_FAULT, fault.clone(), now);
    observed.gpu_faults.iter().map(node).collect()
}

/// Nodes that have refused pods of this attempt and of the one before. A device plugin that restarts, and a scheduler that
/// knows the pods of a node too late (`OutOfcpu`), cause one refusal.
pub(crate) fn that_refused(
    pods: &[&PodView],
    before: &TrainingJobStatus,
    now: Timestamp,
) -> Vec<AvoidedNode> {
    let last = before.failure.as_ref().filter(|failure| failure.reason == reasons::POD_REFUSED);
    let refused =
        pods.iter().filter(|pod| was_refused(pod)).filter_map(|pod| Some((pod, pod.node.as_ref()?)));
    refused
        .filter(|(_, node)| last.is_some_and(|last| last.node.as_ref() == Some(*node)))
        .map(|(pod, node)| new(node, reasons::POD_REFUSED, format!("pod {}", pod.name()), now))
        .collect()
}

fn new(node: &str, reason: &str, message: String, now: Timestamp) -> AvoidedNode {
    AvoidedNode {
        node: node.to_owned(),
        reason: reason.to_owned(),
        message: Some(message),
        time: Some(whole_seconds(now)),
    }
}

/// `; nodes a and b are avoided …`, for a message; empty if none is.
pub(crate) fn words(nodes: &[AvoidedNode]) -> String {
    let names: Vec<&str> = nodes.iter().take(MOST_NAMES).map(|node| node.node.as_str()).collect();
    let more = match nodes.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match names.as_slice() {
        [] => String::new(),
        [one] => format!("; node {one} is avoided for an hour after its fault (status.avoidedNodes)"),
        names => {
            format!(
                "; nodes {}{more} are avoided for an hour after their faults (status.avoidedNodes)",
                names.join(", ")
            )
        }
    }
}
