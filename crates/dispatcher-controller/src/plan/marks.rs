//! What the annotations of a pod say about whether it may go: its deletion cost, and that node autoscalers leave its node
//! alone. Pure.
//!
//! Both are written with one patch: before the number of workers falls, and once a worker has been busy or idle for a while.

use std::{collections::BTreeMap, time::Duration};

use api::labels;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use workload::{pod::PodView, time::remaining};

use super::replicas::Sizing;
use crate::{
    monitors::{WorkerLoad, has_tasks},
    observe::Observed,
};

/// A deletion cost to write, with the annotations for node autoscalers. The pod carries uid and version.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cost {
    pub(crate) pod: Box<Pod>,
    pub(crate) cost: i32,
    /// `None` takes one off.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) guards: BTreeMap<&'static str, Option<String>>,
}

/// It gives way to a worker with a state.
pub(super) const FIRST: i32 = -1;
/// Idle workers have the default.
pub(super) const IDLE: i32 = 0;
/// It may be busy.
pub(super) const UNKNOWN: i32 = 100;
pub(super) const BUSY: i32 = 1_000;

/// Shorter tasks cause no writes.
const MARKED_AFTER: Duration = Duration::from_secs(10);
/// A worker that gets tasks one after the other stays marked.
const UNMARKED_AFTER: Duration = Duration::from_secs(60);

/// A mark that could not be written.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// By the load of the worker.
pub(super) fn cost(pod: &PodView, observed: &Observed) -> i32 {
    let Some(WorkerLoad { queued, in_flight, has_tasks: streamed, works, .. }) = observed.load_of(pod) else {
        return UNKNOWN;
    };
    // Tasks of a shared queue make no worker busy before it takes one.
    let (streamed, queued) = if observed.has_shared_queue() { (works, &None) } else { (streamed, queued) };
    // What Prometheus has of a worker may be half a minute old: it counts only while the stream is cut, and then an idle
    // worker may have become busy.
    match streamed {
        Some(true) => BUSY,
        Some(false) => IDLE,
        None if has_tasks(queued.map(|(tasks, _)| tasks), *in_flight) == Some(true) => BUSY,
        None => UNKNOWN,
    }
}

/// The write of a cost. A worker that may be busy keeps the annotations that it has.
pub(super) fn mark(pod: &PodView, cost: i32, observed: &Observed) -> Cost {
    let guards = if cost >= BUSY {
        guards(pod, true, observed)
    } else if cost <= IDLE && pod.deletion_cost.is_some_and(|known| known > IDLE) {
        // Without a cost of this controller, a user has set them by hand.
        guards(pod, false, observed)
    } else {
        BTreeMap::new()
    };
    Cost { pod: Box::new(pod.identity()), cost, guards }
}

/// The changes of the annotations for node autoscalers. Those in the template of the pod are the user's, and stay.
fn guards(pod: &PodView, keeps: bool, observed: &Observed) -> BTreeMap<&'static str, Option<String>> {
    let Some(template) = template_of(pod, observed) else { return BTreeMap::new() };
    let is_free = |key: &str| !template.contains(&format!("\"{key}\""));
    [
        (labels::DO_NOT_DISRUPT, pod.keeps_from_karpenter, "true"),
        (labels::SAFE_TO_EVICT, pod.keeps_from_autoscaler, "false"),
    ]
    .into_iter()
    .filter(|(key, is_set, _)| *is_set != keeps && is_free(key))
    .map(|(key, _, value)| (key, keeps.then(|| value.to_owned())))
    .collect()
}

/// As JSON; `None`: it is not recorded.
fn template_of<'o>(pod: &PodView, observed: &'o Observed) -> Option<&'o str> {
    let is_in = |pods: &[std::sync::Arc<PodView>]| pods.iter().any(|known| known.uid() == pod.uid());
    if observed.deployed.as_deref().is_some_and(is_in) {
        return observed.deployment.as_ref()?.pinned_template.as_deref();
    }
    let older = observed.older.iter().find(|older| is_in(&older.pods))?;
    older.revision.rendered.as_ref().map(|rendered| &*rendered.template)
}

/// Marks workers that have been busy for a while, and takes the marks off idle ones, unless costs are written for a smaller
/// number anyway.
pub(super) fn marked(sizing: Sizing, observed: &Observed, now: Timestamp) -> Sizing {
    if !sizing.costs.is_empty() || sizing.replicas < deployed(observed) {
        return sizing;
    }
    let (mut costs, mut facts) = (Vec::new(), sizing.facts);
    let mut requeue_after = sizing.requeue_after;
    for pod in observed.pods() {
        let written = pod.deletion_cost.unwrap_or(IDLE);
        let wanted = cost(pod, observed);
        let (word, after) = match wanted {
            BUSY if written != BUSY => ("busy", MARKED_AFTER),
            IDLE if written > IDLE || written < IDLE && sizing.gives_way.is_none() => {
                ("idle", UNMARKED_AFTER)
            }
            _ => continue,
        };
        let fact = format!("{word} {}", pod.uid());
        let since = observed.facts.get(&fact).copied().unwrap_or(now);
        match remaining(after, since, now) {
            Some(wait) => requeue_after = Some(requeue_after.map_or(wait, |planned| planned.min(wait))),
            None => {
                // A write that is denied is not tried with every reading of a load.
                let tried = format!("tried to mark {} in minute {}", pod.uid(), now.as_second() / 60);
                if !observed.facts.contains_key(&tried) {
                    costs.push(mark(pod, wanted, observed));
                }
                facts.push(tried);
                let wait = TRIED_AGAIN_AFTER;
                requeue_after = Some(requeue_after.map_or(wait, |planned| planned.min(wait)));
            }
        }
        facts.push(fact);
    }
    Sizing { costs, facts, requeue_after, ..sizing }
}

fn deployed(observed: &Observed) -> i32 {
    observed.deployment.as_ref().map_or(0, |deployment| deployment.replicas)
}
