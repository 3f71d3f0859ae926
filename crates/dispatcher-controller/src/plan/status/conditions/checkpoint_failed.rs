//! The condition CheckpointFailed: state that is lost, not saved or damaged, and workers that have started without one. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{conditions, reasons};
use jiff::Timestamp;
use runtime::write::conditions::Verdict;
use workload::{faults::container::quote, time::remaining, views::pod::PodView};

use super::holds;
use crate::{
    names::{LOADER, MONITOR},
    observe::Observed,
    records::tokens::last_message_of,
};

/// State that was lost is reported for so long after the pod has ended.
const LOSS_REPORTED_FOR: Duration = Duration::from_secs(600);
/// The beginning of a fact: the state of a pod was lost. Uid and time follow.
pub(in crate::plan) const LOST: &str = "lost ";

/// State that is lost, not saved or damaged.
pub(super) struct Unsaved {
    /// Present only while True.
    pub(super) verdict: Option<Verdict>,
    /// The state of a pod was lost that was not among the facts.
    pub(super) is_newly_lost: bool,
    /// The losses that are reported.
    pub(super) facts: Vec<String>,
    pub(super) requeue_after: Option<Duration>,
}

pub(super) fn unsaved(observed: &Observed, now: Timestamp) -> Unsaved {
    let type_ = conditions::CHECKPOINT_FAILED;
    let reported = reported_losses(observed);
    let ended = observed.ending.iter().filter_map(|pod| {
        let ended = pod.init_container(MONITOR)?.state.terminated.as_ref()?;
        let since = ended.finished_at.or(reported.get(pod.uid()).copied()).unwrap_or(now);
        Some((pod, last_message_of(pod)?.error?, since))
    });
    let ended: Vec<(&Arc<PodView>, String, Timestamp)> = ended.collect();
    let wait = |since: Timestamp| remaining(LOSS_REPORTED_FOR, since.min(now), now);
    let lost = ended.iter().filter(|(_, _, since)| wait(*since).is_some());
    let is_newly_lost = lost.clone().any(|(pod, _, _)| !reported.contains_key(pod.uid()));
    let mut losses = reported;
    losses.extend(ended.iter().map(|(pod, _, since)| (pod.uid().to_owned(), *since)));
    let message = of_pods(lost.map(|(pod, error, _)| (pod.name(), error.clone())), "was not saved");
    let message = message.or_else(|| {
        // The pods are gone soon; the condition is kept for a while.
        let known = observed.condition(type_).filter(|known| known.reason == reasons::STATE_LOST);
        let message = known?.message.clone();
        if losses.is_empty() {
            // Another process has reported it.
            losses.insert(String::new(), now);
        }
        losses.values().any(|since| wait(*since).is_some()).then_some(message)
    });
    let is_kept = |uid: &str, since: Timestamp| {
        wait(since).is_some() || ended.iter().any(|(pod, _, _)| pod.uid() == uid)
    };
    let kept = losses.iter().filter(|(uid, since)| is_kept(uid, **since));
    let facts = kept.map(|(uid, since)| format!("{LOST}{uid} {since}")).collect();
    let requeue_after = losses.values().filter_map(|since| wait(*since)).min();
    let loads = || observed.pods().filter_map(|pod| Some((pod.name(), observed.load_of(pod)?)));
    let unsaved = || {
        let unsaved = loads().filter_map(|(pod, load)| Some((pod, load.unsaved.clone()?)));
        of_pods(unsaved, "is not saved now").map(|message| holds(type_, reasons::STATE_NOT_SAVED, message))
    };
    let damaged = || {
        let (pod, damage) = loads().find_map(|(pod, load)| Some((pod, load.damaged.as_deref()?)))?;
        Some(holds(
            type_,
            reasons::STATE_DAMAGED,
            format!("the monitor of pod {pod} reports: {}", quote(damage)),
        ))
    };
    let lost = message.map(|message| holds(type_, reasons::STATE_LOST, message));
    let verdict = lost.or_else(unsaved).or_else(damaged).or_else(|| started_empty(observed));
    Unsaved { verdict, is_newly_lost, facts, requeue_after }
}

/// Workers that have started without a state, until they have saved one and no older state waits. The loader leaves the
/// reason.
fn started_empty(observed: &Observed) -> Option<Verdict> {
    let mut empty = observed.pods().filter_map(|pod| {
        let ended = pod.init_container(LOADER)?.state.terminated.as_ref()?;
        let load = observed.load_of(pod);
        let is_saved = load.is_some_and(|load| load.saved.is_some());
        let waiting = load.and_then(|load| load.waiting).unwrap_or_default();
        let why = (ended.exit_code == 0 && (!is_saved || waiting > 0)).then(|| ended.message.trim())?;
        (!why.is_empty()).then_some((pod.name(), why, waiting))
    });
    let (first, why, waiting) = empty.next()?;
    let others = others(empty.count() + 1);
    let wait = match waiting {
        0 => String::new(),
        1 => "; one saved state waits for one more worker".to_owned(),
        count => format!("; {count} saved states wait for as many more workers"),
    };
    let message = format!("pod {first}{others} has started without a saved state: {}{wait}", quote(why));
    Some(holds(conditions::CHECKPOINT_FAILED, reasons::STARTED_EMPTY, message))
}

/// By uid of the pod, when the state was lost that the last plan has reported.
fn reported_losses(observed: &Observed) -> BTreeMap<String, Timestamp> {
    let losses = observed.facts.keys().filter_map(|fact| fact.strip_prefix(LOST)?.rsplit_once(' '));
    losses.filter_map(|(uid, since)| Some((uid.to_owned(), since.parse().ok()?))).collect()
}

/// The first pod, how many others there are, and why.
fn of_pods<'p>(mut pods: impl Iterator<Item = (&'p str, String)>, what: &str) -> Option<String> {
    let (first, error) = pods.next()?;
    Some(format!("the state of pod {first}{} {what}: {}", others(pods.count() + 1), quote(&error)))
}

/// Behind the name of the first of `count` pods.
pub(super) fn others(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        2 => " and 1 other".to_owned(),
        count => format!(" and {} others", count - 1),
    }
}
