//! Decides all writes for one AIInference and returns them as one value. Pure: no request, no clock, no randomness.
//!
//! Each child and each policy has its own file.

use std::time::Duration;

use api::aiinference::AIInferenceStatus;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use runtime::{
    reconcile::Decision,
    write::{events::Note, refusal::Refusal},
};
use serde::Serialize;
use workload::faults::{container::keeps_ending, crashes::Log, pace::Allowance};

use crate::{
    looks::Ask,
    objects::gateway_api::{grpc_route::GrpcRoute, http_route::HttpRoute, inference_pool::InferencePool},
    observe::{OF_CANDIDATE, Observed},
    validate::{Invalid, ValidInference},
};

pub(crate) mod children;
mod conditions;
pub(crate) mod defaults;
mod events;
mod faults;
pub(crate) mod handover;
mod metadata;
mod model;
pub(crate) mod nodes;
mod pod;
mod revision;
mod rollout;
mod status;
pub(crate) mod traffic;

use children::{Child, Superfluous, children, superfluous};
use conditions::Decided;
use defaults::Defaults;
use handover::{Mark, Release};
use nodes::PodDeletion;
use status::Delayed;
use traffic::{Traffic, Weights, traffic};

/// All writes for one AIInference.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// Pods that leave lost nodes and broken GPUs. They are deleted first, and all else describes the state after that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) deletions: Vec<PodDeletion>,
    /// What is sent instead of all else if one of the deletions fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unless_deleted: Option<Box<Plan>>,
    /// Pods whose annotations say whether they may go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<Mark>,
    /// In the order in which they are applied.
    pub(crate) children: Vec<Child>,
    /// The headless Service. It is apart from the children, because the pods serve without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headless: Option<Box<Service>>,
    /// What pods have loaded, for the loaders of others. It follows the pods and not the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digests: Option<Box<ConfigMap>>,
    /// Children of the candidate. They are apart, because nothing of stable waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) candidate: Vec<Child>,
    /// The HTTPRoute, apart from the children as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<Box<HttpRoute>>,
    /// The GRPCRoute, with the same shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grpc_route: Option<Box<GrpcRoute>>,
    /// The InferencePools of both versions, apart as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pools: Vec<InferencePool>,
    /// Shares in the HTTPRoute of `spec.routeRef`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weights: Option<Box<Weights>>,
    /// Children of the candidate, the routes and the pools, to delete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) superfluous_apart: Vec<Superfluous>,
    /// A look at the engines of both versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) look: Option<Ask>,
    /// When the next one is due.
    #[serde(skip)]
    pub(crate) next_look: Option<Duration>,
    /// Children to delete.
    pub(crate) superfluous: Vec<Superfluous>,
    pub(crate) status: AIInferenceStatus,
    pub(crate) events: Vec<Note>,
    /// Logs to read, for the causes of crashes.
    pub(crate) logs: Vec<Log>,
    /// Facts that are true now, for `FactTimes`. `None`: those of the last plan stay.
    #[serde(skip)]
    pub(crate) facts: Option<Vec<String>>,
    /// When to reconcile again even if no object changes.
    pub(crate) requeue_after: Option<Duration>,
    /// What the deletions rest on, for the plan after a refusal.
    #[serde(skip)]
    allowance: Allowance,
    /// See `Doubt::Endpoint`.
    #[serde(skip)]
    needs_endpoint: bool,
}

/// What a plan rests on and the caches may not know.
#[derive(Debug, PartialEq)]
pub(crate) enum Doubt {
    /// Whether the cached object is the newest.
    Object,
    /// Whether the candidate's Service has a ready endpoint, before it gets more requests.
    Endpoint,
    /// How many of these pods may be deleted now. What is granted counts for all objects of the process.
    Pace { due: Vec<String>, now: Timestamp },
}

/// The plan for an object, or what it has to know first.
pub(crate) fn plan(observed: &Observed, defaults: &Defaults, now: Timestamp) -> Decision<Plan, Doubt> {
    let version = observed.candidate.as_deref();
    let due: Vec<&str> =
        [Some(observed), version].into_iter().flatten().flat_map(|track| nodes::due(track, now)).collect();
    // Until the pace is asked, as if it allowed all.
    let allowance = observed.allowance.clone().unwrap_or_else(|| allowed(&due));
    // The spec has no part in it: neither an invalid one nor a refused child delays these deletions.
    let tracks = [Some(observed), version].into_iter().flatten();
    let deletions: Vec<PodDeletion> =
        tracks.flat_map(|track| nodes::pod_deletions(track, &allowance, now)).collect();
    let spec = accepted(observed, defaults);
    if deletions.is_empty() {
        if needs_newest(&spec, observed) {
            return Decision::Doubt(Doubt::Object);
        }
        let plan = plan_of(&spec, observed, &allowance, defaults, now);
        return if plan.needs_endpoint { Decision::Doubt(Doubt::Endpoint) } else { Decision::Plan(plan) };
    }
    let left = observed.without(deletions.iter().map(PodDeletion::record));
    let spec_for_left = accepted(&left, defaults);
    if observed.allowance.is_none() {
        // Before the pace: what it grants is used up even if a late watch then keeps the pods from being deleted.
        return Decision::Doubt(match needs_newest(&spec_for_left, &left) {
            true => Doubt::Object,
            false => Doubt::Pace { due: due.into_iter().map(str::to_owned).collect(), now },
        });
    }
    // With the grants, no doubt delays the deletions. What would need an answer is left to the next plan.
    let confirmed = |spec: &Result<ValidInference, Invalid>, seen: &Observed| match needs_newest(spec, seen) {
        true => unchanged(observed, &allowance),
        false => unraised(plan_of(spec, seen, &allowance, defaults, now), seen),
    };
    let unless_deleted = Some(Box::new(confirmed(&spec, observed)));
    Decision::Plan(Plan { deletions, unless_deleted, ..confirmed(&spec_for_left, &left) })
}

/// A plan that has not asked whether the candidate has an endpoint gives it no more requests.
fn unraised(mut plan: Plan, observed: &Observed) -> Plan {
    if plan.needs_endpoint {
        let status = observed.inference.status.as_ref();
        (plan.route, plan.grpc_route, plan.weights) = (None, None, None);
        plan.status.canary = status.and_then(|status| status.canary.clone());
        plan.requeue_after = Some(Duration::ZERO);
    }
    plan
}

/// The allowance of all these pods.
fn allowed(due: &[&str]) -> Allowance {
    Allowance { pods: due.iter().map(|&uid| uid.to_owned()).collect(), requeue_after: None }
}

/// The plan on what is there after `before` was refused: reports that, and retries later.
pub(crate) fn refused(
    refusal: &Refusal,
    before: &Plan,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    match accepted(observed, defaults) {
        Ok(valid) => of_refused(refusal, &valid, before, observed, defaults, now),
        Err(invalid) => rejected(&invalid, observed, &before.allowance, now),
    }
}

/// The spec, if pods may run with it.
fn accepted(observed: &Observed, defaults: &Defaults) -> Result<ValidInference, Invalid> {
    let valid = traffic::promotion::stable(observed)?;
    let account = valid.pods.service_account_name.as_deref();
    defaults.own_account.is_not_used_by(&valid.namespace, account).map_err(Invalid)?;
    let valid = defaults.resolved(pod::has_room_for_volumes(valid)?);
    match &valid.tolerated {
        // A flag that an earlier release accepted is refused only if no pods run with it.
        Some(invalid) if !revision::has_pods(&valid, observed) => Err(invalid.clone()),
        Some(_) | None => Ok(valid),
    }
}

/// Whether the plan must not rest on a cache that may be late.
fn needs_newest(spec: &Result<ValidInference, Invalid>, observed: &Observed) -> bool {
    // The annotation `refresh` changes the template without a new generation.
    let restores = || spec.as_ref().is_ok_and(|valid| revision::restores_older(valid, observed));
    // It may have been started again.
    let gives_up = traffic::waits_for_gateways(observed);
    !observed.is_newest && (is_behind(observed) || gives_up || restores())
}

/// Whether a Deployment, of stable or of the candidate, was rendered for a newer spec than the cached one. Either this process's
/// watch is late and another process has applied it, or the annotation was edited by hand and must be repaired.
fn is_behind(observed: &Observed) -> bool {
    let annotated = |version: &Observed| version.deployment.as_ref()?.generation.clone();
    let rendered = |version: &Observed| annotated(version)?.split('-').next()?.parse::<i64>().ok();
    let generation = observed.inference.metadata.generation;
    let of_stable = rendered(observed);
    let of_candidate = observed.candidate.as_deref().and_then(rendered);
    // A promotion is in the status alone.
    let status = observed.inference.status.as_ref();
    let is_told = status.is_some_and(|status| status.promoted_revision.is_some());
    let has_promoted = annotated(observed).is_some_and(|generation| generation.contains('-'));
    of_stable.max(of_candidate) > generation || of_stable == generation && has_promoted && !is_told
}

fn plan_of(
    spec: &Result<ValidInference, Invalid>,
    observed: &Observed,
    allowance: &Allowance,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    match spec {
        Ok(valid) => of_valid(valid, observed, allowance, defaults, now),
        Err(invalid) => rejected(invalid, observed, allowance, now),
    }
}

/// The plan for a valid spec, without deletions.
pub(crate) fn of_valid(
    valid: &ValidInference,
    observed: &Observed,
    allowance: &Allowance,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let decided = decided(valid, observed, defaults, now);
    let assessment = conditions::of_valid(valid, observed, &decided, now);
    let traffic = match valid.pods.paused {
        true => traffic::kept(None, observed, now),
        false => traffic(valid, (&decided, &assessment), observed, defaults, now),
    };
    let assessment = assessment.with_traffic(&traffic.verdicts, observed);
    let Decided { revision, migration: _, rollout, handover } = decided;
    let of_nodes = requeue_after(observed, allowance, now);
    let of_assessment = assessment.requeue_after;
    let waits =
        [rollout.requeue_after, of_nodes, of_assessment, handover.requeue_after, traffic.requeue_after];
    let soonest = waits.into_iter().flatten().min();
    let mut events = events::of_change(observed.inference.status.as_ref(), &assessment);
    let mut facts = rollout.shortages;
    facts.extend(observed.unattached.iter().filter_map(|(uid, failure)| failure.fact(uid)));
    facts.extend(handover.fact.clone());
    facts.extend(traffic.own_facts.iter().cloned());
    facts.extend(traffic.facts.iter().map(|fact| format!("{OF_CANDIDATE}{fact}")));
    let status = status::of_valid(valid, &revision, observed, assessment, nodes::migrations(observed), now);
    let status = traffic.status(observed, status);
    if let Some(warning) =
        rollout.warning.filter(|warning| !valid.pods.paused && !events::was_announced(observed, warning))
    {
        // Writes only the warning; the next reconcile applies the change.
        let of_canary = traffic.notes.iter().filter(|_| traffic::moves(observed, &status)).cloned();
        let announced = [events::announcement(warning)].into_iter().chain(of_canary).collect();
        let announcement = status_only(observed, status, announced, Some(Duration::ZERO), allowance);
        return Plan { facts: Some(facts), ..announcement };
    }
    let Delayed { status, wait, fact } = status::delayed(observed, status, now);
    facts.extend(fact);
    let mut logs = faults::logs_to_read(revision.pods, keeps_ending, observed);
    logs.extend(traffic.logs.iter().cloned());
    // The status is written last, and what was decided is done after that. Nothing that is watched may change in between.
    let moves = traffic::moves(observed, &status);
    if moves {
        events.extend(traffic.notes.iter().cloned());
    }
    let soonest = soonest.into_iter().chain(wait).chain(moves.then_some(Duration::ZERO)).min();
    let written = status_only(observed, status, events, soonest, allowance);
    let written = Plan { logs, facts: Some(facts), ..written };
    if valid.pods.paused {
        return released(written, observed, now);
    }
    let Traffic {
        route,
        grpc_route,
        pools,
        weights,
        children: candidate,
        marks,
        superfluous: of_traffic,
        needs_endpoint,
        look,
        next_look,
        ..
    } = traffic;
    Plan {
        children: children(valid, &revision, observed, rollout.strategy, &handover),
        headless: children::service::headless(valid, &revision, observed).map(Box::new),
        superfluous: superfluous(valid, observed, &handover),
        superfluous_apart: of_traffic,
        marks: handover.marks.into_iter().chain(marks).collect(),
        candidate,
        route: route.map(Box::new),
        grpc_route: grpc_route.map(Box::new),
        pools,
        weights: weights.map(Box::new),
        look,
        next_look,
        needs_endpoint,
        ..written
    }
}

/// A plan without children, with the end of budgets that hold back the eviction of a single pod, of both versions.
fn released(mut plan: Plan, observed: &Observed, now: Timestamp) -> Plan {
    let candidate = observed.candidate.as_deref().map(|version| (OF_CANDIDATE, version));
    for (prefix, version) in [Some(("", observed)), candidate].into_iter().flatten() {
        let Release { budget, fact, requeue_after } = handover::release(version, now);
        if let Some(fact) = fact {
            let fact = format!("{prefix}{fact}");
            let known = || observed.facts.keys().filter(|known| **known != fact).cloned().collect();
            let facts: &mut Vec<String> = plan.facts.get_or_insert_with(known);
            facts.push(fact);
        }
        plan.requeue_after = plan.requeue_after.into_iter().chain(requeue_after).min();
        plan.superfluous.extend(budget.map(|budget| Superfluous::PodDisruptionBudget(Box::new(budget))));
    }
    plan
}

/// The plan for an invalid spec: children stay unchanged.
fn rejected(invalid: &Invalid, observed: &Observed, allowance: &Allowance, now: Timestamp) -> Plan {
    let traffic = traffic::kept(None, observed, now);
    let assessment = conditions::of_invalid(invalid, observed).with_traffic(&traffic.verdicts, observed);
    let events = events::of_change(observed.inference.status.as_ref(), &assessment);
    let migrations = nodes::migrations(observed);
    let status = AIInferenceStatus { migrations, ..status::of_invalid(observed, assessment, now) };
    let status = traffic.status(observed, status);
    let requeue_after =
        requeue_after(observed, allowance, now).into_iter().chain(traffic.requeue_after).min();
    let plan = status_only(observed, status, events, requeue_after, allowance);
    let plan = released(Plan { facts: traffic.facts_of_kept(observed), ..plan }, observed, now);
    if observed.inference.spec.pods.paused {
        return plan;
    }
    Plan {
        route: traffic.route.map(Box::new),
        grpc_route: traffic.grpc_route.map(Box::new),
        weights: traffic.weights.map(Box::new),
        ..plan
    }
}

/// The plan after the API server has refused a child or the deletion of a pod: report it, and retry later.
fn of_refused(
    refusal: &Refusal,
    valid: &ValidInference,
    before: &Plan,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let allowance = &before.allowance;
    let (refusal, wait) = refusal.clone().judged(&*observed.inference, defaults.refusal_retry, now);
    let decided = decided(valid, observed, defaults, now);
    let assessment = conditions::of_refused(&refusal, valid, observed, &decided, now);
    let traffic = traffic::kept(None, observed, now);
    let assessment = assessment.with_traffic(&traffic.verdicts, observed);
    let mut events = events::of_change(observed.inference.status.as_ref(), &assessment);
    let migrations = nodes::migrations(observed);
    let status = status::of_valid(valid, &decided.revision, observed, assessment, migrations, now);
    // The route and the candidate were written as the plan before says. If a deletion was refused, that is the plan without
    // it; if a child was, that plan is one step behind, and the next one goes on from there.
    let written = &before.unless_deleted.as_deref().unwrap_or(before).status;
    let status = AIInferenceStatus {
        canary: written.canary.clone(),
        promoted_revision: written.promoted_revision.clone(),
        min_stable_replicas: written.min_stable_replicas,
        ..traffic.status(observed, status)
    };
    let moves = traffic::moves(observed, &status);
    if moves {
        events.extend(traffic::notes(observed, &status));
    }
    // The engines are read also while a child of stable is refused.
    let waits = [Some(wait), traffic.requeue_after, before.next_look, moves.then_some(Duration::ZERO)];
    let requeue_after =
        requeue_after(observed, allowance, now).into_iter().chain(waits.into_iter().flatten()).min();
    // The plan before has noted its facts.
    released(status_only(observed, status, events, requeue_after, allowance), observed, now)
}

/// When to look again at pods on lost nodes, of both versions.
fn requeue_after(observed: &Observed, allowance: &Allowance, now: Timestamp) -> Option<Duration> {
    let tracks = [Some(observed), observed.candidate.as_deref()].into_iter().flatten();
    tracks.filter_map(|track| nodes::requeue_after(track, allowance, now)).min()
}

fn decided<'a>(
    valid: &ValidInference,
    observed: &'a Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Decided<'a> {
    let revision = revision::revision(valid, observed, defaults);
    let rollout = rollout::rollout(valid, &revision, observed, now);
    let migration = nodes::migration_state(valid, &revision, observed, now);
    let handover = handover::handover(valid, &revision, observed, defaults, now);
    Decided { revision, migration, rollout, handover }
}

/// A plan that writes nothing, and is made again at once.
fn unchanged(observed: &Observed, allowance: &Allowance) -> Plan {
    let status = observed.inference.status.clone().unwrap_or_default();
    status_only(observed, status, Vec::new(), Some(Duration::ZERO), allowance)
}

/// A plan that writes only the status, events and what pods have loaded.
fn status_only(
    observed: &Observed,
    status: AIInferenceStatus,
    events: Vec<Note>,
    requeue_after: Option<Duration>,
    allowance: &Allowance,
) -> Plan {
    let (deletions, unless_deleted, marks, children, headless) = Default::default();
    let (superfluous, logs, facts, candidate, superfluous_apart, look) = Default::default();
    let (route, grpc_route, pools, weights, next_look) = Default::default();
    let allowance = allowance.clone();
    let digests = model::record(observed).map(Box::new);
    Plan {
        deletions,
        unless_deleted,
        marks,
        children,
        headless,
        digests,
        candidate,
        route,
        grpc_route,
        pools,
        weights,
        superfluous_apart,
        look,
        next_look,
        superfluous,
        status,
        events,
        logs,
        facts,
        requeue_after,
        allowance,
        needs_endpoint: false,
    }
}

#[cfg(test)]
mod tests;
