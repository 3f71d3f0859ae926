//! The status: what the AIInference has, conditions with their times, and how long a minor change may be delayed. Pure.

use std::{borrow::Cow, time::Duration};

use api::aiinference::endpoint::{Child, InferenceEndpointStatus, Resolved};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use runtime::write::conditions::{Verdict, merged};
use workload::reporting::{Unwritten, with_messages};

use super::conditions::{Assessment, Statement};
use crate::{
    child::{HpaView, InferenceView, ScalerView},
    observe::Observed,
};

/// Counts change with every pod. A status that differs only in them and in messages is written after this time.
const MINOR_EVERY: Duration = Duration::from_secs(10);

/// One that differs only in messages is written after this time: the AIInference has them at once.
const MESSAGES_EVERY: Duration = Duration::from_secs(60);

/// A new object, or a new generation, that comes up without a fault has nothing to say for this time.
const BEGINNING_LASTS: Duration = Duration::from_secs(5);

/// A status, or the stored one while the write may be delayed.
pub(super) struct Delayed {
    pub(super) status: InferenceEndpointStatus,
    pub(super) wait: Option<Duration>,
    /// That the planned status is not written yet.
    pub(super) fact: Option<String>,
}

pub(super) fn of_valid(
    observed: &Observed,
    assessment: &Assessment,
    resolved: Resolved,
    now: Timestamp,
) -> InferenceEndpointStatus {
    InferenceEndpointStatus { resolved: Some(resolved), ..written(observed, assessment, now) }
}

/// What was resolved for the last valid spec stays.
pub(super) fn of_invalid(
    observed: &Observed,
    assessment: &Assessment,
    now: Timestamp,
) -> InferenceEndpointStatus {
    written(observed, assessment, now)
}

fn written(observed: &Observed, assessment: &Assessment, now: Timestamp) -> InferenceEndpointStatus {
    let before = observed.endpoint.status.clone().unwrap_or_default();
    let generation = observed.endpoint.metadata.generation;
    let inference = observed.inference.own();
    let ready_replicas = inference.map_or(0, |inference| inference.status.ready_replicas);
    let replicas = inference.map_or(0, |inference| inference.replicas);
    InferenceEndpointStatus {
        phase: Some(assessment.phase),
        url: inference.and_then(|inference| inference.status.url.clone()),
        ready_replicas,
        replicas,
        ready: inference.map(|_| format!("{ready_replicas}/{replicas}")),
        resolved: before.resolved,
        children: children(observed),
        observed_generation: generation.unwrap_or_default(),
        conditions: conditions(&assessment.verdicts, &before.conditions, generation, now),
    }
}

fn conditions(
    statements: &[Statement],
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let verdict = |Statement { type_, holds, reason, message }: &Statement| Verdict {
        type_,
        holds: *holds,
        reason: match reason {
            Cow::Borrowed(reason) => reason,
            // That of a child follows.
            Cow::Owned(_) => "",
        },
        message: message.clone(),
    };
    let conditions = merged(statements.iter().map(verdict).collect(), before, generation, now);
    let with_reason = |(condition, statement): (Condition, &Statement)| Condition {
        reason: statement.reason.to_string(),
        ..condition
    };
    conditions.into_iter().zip(statements).map(with_reason).collect()
}

/// Those that exist.
fn children(observed: &Observed) -> Vec<Child> {
    let inference = observed.inference.own().map(|child| (InferenceView::kind(&()), &child.metadata));
    let hpa = observed.hpa.own().map(|child| (HpaView::kind(&()), &child.metadata));
    let scaler = observed.scaler.own().map(|child| (ScalerView::kind(&()), &child.metadata));
    let child = |(kind, meta): (Cow<'_, str>, &ObjectMeta)| Child {
        kind: kind.into_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    inference.into_iter().chain(hpa).chain(scaler).map(child).collect()
}

pub(super) fn delayed(
    observed: &Observed,
    comes_up: bool,
    planned: InferenceEndpointStatus,
    now: Timestamp,
) -> Delayed {
    let Some(before) = &observed.endpoint.status else {
        return Delayed { status: planned, wait: None, fact: None };
    };
    let Some(Unwritten { fact, wait }) = unwritten(observed, before, comes_up, &planned, now) else {
        return Delayed { status: planned, wait: None, fact: None };
    };
    let status = if wait.is_some() { before.clone() } else { planned };
    Delayed { status, wait, fact: Some(fact) }
}

fn unwritten(
    observed: &Observed,
    before: &InferenceEndpointStatus,
    comes_up: bool,
    planned: &InferenceEndpointStatus,
    now: Timestamp,
) -> Option<Unwritten> {
    if before == planned {
        return None;
    }
    if comes_up && before.observed_generation != planned.observed_generation {
        return Some(Unwritten::first(BEGINNING_LASTS, &observed.facts, now));
    }
    let is_minor = without_details(before, comes_up) == without_details(planned, comes_up);
    let every =
        if without_messages(before) == without_messages(planned) { MESSAGES_EVERY } else { MINOR_EVERY };
    let InferenceEndpointStatus { ready_replicas, children, .. } = before;
    let uids: Vec<&str> = children.iter().map(|child| child.uid.as_str()).collect();
    let numbers = (ready_replicas, uids);
    is_minor.then(|| Unwritten::measured(numbers, &before.conditions, every, &observed.facts, now))
}

fn without_messages(status: &InferenceEndpointStatus) -> InferenceEndpointStatus {
    let conditions = with_messages(&status.conditions, |_| String::new());
    InferenceEndpointStatus { conditions, ..status.clone() }
}

/// Without what changes often while pods start. While nothing is wrong, reasons are such details.
fn without_details(status: &InferenceEndpointStatus, comes_up: bool) -> InferenceEndpointStatus {
    let mut status = InferenceEndpointStatus {
        ready_replicas: 0,
        ready: None,
        children: Vec::new(),
        url: None,
        conditions: with_messages(&status.conditions, |_| String::new()),
        ..status.clone()
    };
    if comes_up {
        // A condition whose status changes is no detail.
        status.conditions.retain(|condition| condition.status == "True");
        status.conditions.iter_mut().for_each(|condition| condition.reason.clear());
    }
    status
}
