//! What the annotations of a pod say about whether it may go: its deletion cost, and that node autoscalers leave its node
//! alone. Pure.
//!
//! Both are written with one patch: before the number of workers falls, and once a worker has been busy or idle for a while.

use std::{collections::BTreeMap, time::Duration};

use api::labels;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use workload::{time::remaining, views::pod::PodView};

use crate::{
    load::{WorkerLoad, has_tasks},
    observe::Observed,
};

/// A deletion cost to write, with the annotations for node autoscalers. The pod carries uid and version.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mark {
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
/// It may be busy, and it was when it was last read.
pub(super) const WAS_BUSY: i32 = 500;
pub(super) const BUSY: i32 = 1_000;

/// Shorter tasks cause no writes.
const MARKED_AFTER: Duration = Duration::from_secs(10);
/// A worker that gets tasks one after the other stays marked.
const UNMARKED_AFTER: Duration = Duration::from_secs(60);

/// A worker that serves only the depth of its queue may work on a task: few tasks take longer.
const QUIET_FOR: Duration = Duration::from_secs(600);

/// A mark that could not be written.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Annotations for node autoscalers that were refused. A policy of the cluster seldom changes.
const GUARDS_TRIED_AGAIN_AFTER: Duration = Duration::from_secs(3_600);

/// By the load of the worker.
pub(super) fn cost(pod: &PodView, observed: &Observed) -> i32 {
    let Some(load) = observed.load_of(pod) else { return unread(pod, None) };
    let WorkerLoad { queued, in_flight, .. } = load;
    let streamed = streamed(load, observed);
    // Tasks of a shared queue make no worker busy before it takes one.
    let queued = if observed.has_shared_queue() { &None } else { queued };
    // What Prometheus has of a worker may be half a minute old: it counts only while the stream is cut, and then an idle
    // worker may have become busy.
    match streamed {
        Some(true) => BUSY,
        Some(false) => IDLE,
        None if has_tasks(queued.map(|(tasks, _)| tasks), *in_flight) == Some(true) => BUSY,
        None => unread(pod, load.last_tasks.map(|(tasks, _)| tasks)),
    }
}

/// By what was known last. The streams of all workers may be cut at once: then busy ones must not go like idle ones. A
/// controller that has begun since has only the mark.
fn unread(pod: &PodView, last_tasks: Option<u64>) -> i32 {
    let was_busy = match last_tasks {
        Some(tasks) => tasks > 0,
        None => pod.deletion_cost.is_some_and(|known| known >= WAS_BUSY),
    };
    if was_busy { WAS_BUSY } else { UNKNOWN }
}

/// Whether a worker has tasks as far as its stream shows it now. `None`: unknown.
fn streamed(load: &WorkerLoad, observed: &Observed) -> Option<bool> {
    if observed.has_shared_queue() { load.works } else { load.has_tasks }
}

/// A task that takes longer does not protect a worker that is not ready: it may hang.
pub(in crate::plan) const LONGEST_TASK: Duration = Duration::from_secs(3_600);

/// Whether a worker has tasks. Of a worker that does not answer, the last reading counts for as long as a task may take.
pub(in crate::plan) fn has_tasks_now(pod: &PodView, observed: &Observed, now: Timestamp) -> bool {
    let Some(load) = observed.load_of(pod) else { return false };
    let is_recent = |since: Timestamp| remaining(LONGEST_TASK, since, now).is_some();
    let had_tasks = || load.last_tasks.is_some_and(|(tasks, read)| tasks > 0 && is_recent(read));
    let has_tasks = streamed(load, observed).unwrap_or_else(had_tasks);
    has_tasks && (pod.is_ready || pod.ready_changed.is_none_or(is_recent))
}

/// The write of a cost. A worker that may be busy keeps the annotations that it has.
pub(super) fn mark(pod: &PodView, cost: i32, observed: &Observed, now: Timestamp) -> Mark {
    let guards = if are_guards_refused(observed, now) {
        BTreeMap::new()
    } else if cost >= BUSY {
        guards(pod, true, observed)
    } else if cost <= IDLE && is_marked(pod) {
        guards(pod, false, observed)
    } else {
        BTreeMap::new()
    };
    Mark { pod: Box::new(pod.identity()), cost, guards }
}

/// Without a cost of this controller, a user has set the annotations by hand.
fn is_marked(pod: &PodView) -> bool {
    pod.deletion_cost.is_some_and(|known| known > IDLE)
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

/// Whether annotations for node autoscalers were refused lately: then costs are written alone.
fn are_guards_refused(observed: &Observed, now: Timestamp) -> bool {
    observed.guards_refused.is_some_and(|since| remaining(GUARDS_TRIED_AGAIN_AFTER, since, now).is_some())
}

/// Marks that follow the load of workers, whatever their number.
#[derive(Debug, Default)]
pub(in crate::plan) struct Marking {
    pub(in crate::plan) marks: Vec<Mark>,
    pub(in crate::plan) facts: Vec<String>,
    pub(in crate::plan) requeue_after: Option<Duration>,
}

/// Marks workers that have been busy for a while, and takes the marks off idle ones. `has_first`: a worker that is to go
/// before all others keeps its cost.
pub(in crate::plan) fn marking(has_first: bool, observed: &Observed, now: Timestamp) -> Marking {
    let Marking { mut marks, mut facts, mut requeue_after } = Marking::default();
    for pod in observed.pods() {
        let written = pod.deletion_cost.unwrap_or(IDLE);
        let lacks_guards = || !are_guards_refused(observed, now) && !guards(pod, true, observed).is_empty();
        let is_quiet = || observed.load_of(pod).is_some_and(|load| load.is_quiet);
        let (word, wanted, after) = match cost(pod, observed) {
            BUSY if written != BUSY || lacks_guards() => ("busy", BUSY, MARKED_AFTER),
            IDLE if written > IDLE || written < IDLE && !has_first => ("idle", IDLE, UNMARKED_AFTER),
            UNKNOWN | WAS_BUSY if is_marked(pod) && is_quiet() => ("quiet", IDLE, QUIET_FOR),
            _ => continue,
        };
        let fact = format!("{word} {}", pod.uid());
        let since = observed.facts.get(&fact).copied().unwrap_or(now);
        let wait = remaining(after, since, now);
        if wait.is_none() {
            // A write that is denied is not tried with every reading of a load.
            let tried = format!("tried to mark {} in minute {}", pod.uid(), now.as_second() / 60);
            if !observed.facts.contains_key(&tried) {
                marks.push(mark(pod, wanted, observed, now));
            }
            facts.push(tried);
        }
        requeue_after = requeue_after.into_iter().chain([wait.unwrap_or(TRIED_AGAIN_AFTER)]).min();
        facts.push(fact);
    }
    Marking { marks, facts, requeue_after }
}
