//! Which requests reach which version: the route, and the candidate with its children. Pure.
//!
//! - `state.rs`: the canary as a state machine.
//! - `route.rs`: the HTTPRoute, and what the gateways say about it.
//! - `promotion.rs`: which version stable has after a promotion.
//! - `report.rs`: conditions and events.

use std::time::Duration;

use api::aiinference::{
    AIInferenceStatus,
    traffic::{CanaryPhase, CanaryStatus, RouteStatus},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use runtime::write::{conditions::Verdict, events::Note};
use workload::faults::crashes::Log;

use self::{
    route::{Answer, answer},
    state::{Next, Pods, Seen, Share, Wanted, next},
};
use super::{
    accepted,
    children::{Child, Superfluous, children},
    conditions::{self, Assessment, Decided},
    decided,
    defaults::Defaults,
    faults,
    handover::Mark,
    metadata::metadata_of,
};
use crate::{
    http_route::HttpRoute,
    names::{self, Track},
    observe::Observed,
    validate::{Invalid, ValidInference, owner},
};

pub(crate) mod promotion;
pub(crate) mod report;
mod route;
mod state;

/// All that follows from `spec.gateway` and `spec.canary`.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) route: Option<HttpRoute>,
    /// Of the candidate.
    pub(super) children: Vec<Child>,
    pub(super) marks: Vec<Mark>,
    pub(super) superfluous: Vec<Superfluous>,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) notes: Vec<Note>,
    /// Of the candidate.
    pub(super) facts: Vec<String>,
    pub(super) own_facts: Vec<String>,
    /// Of pods of the candidate that crash.
    pub(super) logs: Vec<Log>,
    pub(super) canary: Option<CanaryStatus>,
    pub(super) promoted: Option<String>,
    pub(super) min_stable: Option<i32>,
    pub(super) requeue_after: Option<Duration>,
    /// It sends the candidate more requests than before, and the API server has to be asked whether it has an endpoint.
    pub(super) needs_endpoint: bool,
}

/// Requests may run for so long if `spec.drainSeconds` does not say.
const DRAIN: Duration = Duration::from_secs(300);
const SHORTEST_DRAIN: Duration = Duration::from_secs(30);
/// A kind that is installed later, and an answer of a gateway that does not come, start no reconcile.
const LOOKS_AGAIN: Duration = Duration::from_secs(30);

pub(super) fn traffic(
    stable: &ValidInference,
    of_stable: (&Decided<'_>, &Assessment),
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Traffic {
    let inference = &observed.inference;
    let status = inference.status.as_ref();
    let before = status.and_then(|status| status.canary.as_ref());
    let version = observed.candidate.as_deref();
    let valid = match (&inference.spec.canary, version) {
        (Some(_), Some(version)) => match accepted(version, defaults) {
            Ok(valid) => Some(ValidInference { track: Track::Canary, ..valid }),
            Err(invalid) => return kept(Some(&invalid), observed, now),
        },
        (Some(_) | None, _) => None,
    };
    let of_candidate =
        valid.as_ref().zip(version).map(|(valid, version)| decided(valid, version, defaults, now));
    let seen = seen(stable, of_stable, valid.as_ref().zip(of_candidate.as_ref()), observed);
    let promoted = status.and_then(|status| status.promoted_revision.as_deref());
    let decision = next(before, promoted, inference.spec.canary.as_ref(), &seen, now);
    let rises = decision.share.weight > seen.route.unwrap_or_default().share.weight
        || decision.share.matches && !seen.route.unwrap_or_default().share.matches;
    let needs_endpoint = rises && observed.has_endpoint.is_none();
    // The list of endpoints follows the pods, or could not be read.
    let lacks_endpoint = rises && observed.has_endpoint == Some(false);
    let Next { status: canary, promoted, share, pods, wait } = decision;
    let share = if lacks_endpoint { unraised(share, &seen) } else { share };
    let waits_for = lacks_endpoint.then_some(Duration::from_secs(1));
    let mut traffic = Traffic {
        route: rendered(observed, share),
        promoted,
        min_stable: canary
            .as_ref()
            .filter(|canary| is_under_way(canary))
            .map(|_| status.and_then(|status| status.min_stable_replicas).unwrap_or(stable.replicas)),
        requeue_after: wait.into_iter().chain(waits_for).chain(looks_again(observed)).min(),
        needs_endpoint,
        superfluous: superfluous_route(observed),
        ..Traffic::default()
    };
    let assessment = valid.as_ref().zip(version).map(|(valid, version)| {
        let valid = ValidInference { replicas: replicas(pods, valid, version), ..valid.clone() };
        let decided = decided(&valid, version, defaults, now);
        let assessment = conditions::of_valid(&valid, version, &decided, now);
        if let Wanted::Replicas(_) = pods {
            traffic.children =
                children(&valid, &decided.revision, version, decided.rollout.strategy, &decided.handover);
        }
        // Also where its other children stay as they are: a budget must not hold back a drain for longer than the handover.
        if pods != Wanted::Deleted {
            traffic.superfluous.extend(super::children::superfluous(&valid, version, &decided.handover));
        }
        traffic.logs = faults::logs_to_read(decided.revision.pods, version);
        let Decided { rollout, handover, .. } = decided;
        traffic.marks = handover.marks;
        traffic.facts = rollout.shortages.into_iter().chain(handover.fact).collect();
        traffic.facts.extend(version.unattached.iter().filter_map(|(uid, failure)| failure.fact(uid)));
        let waits = [rollout.requeue_after, handover.requeue_after, assessment.requeue_after];
        traffic.requeue_after = waits.into_iter().flatten().chain(traffic.requeue_after).min();
        assessment
    });
    if pods == Wanted::Deleted {
        traffic.superfluous.extend(version.into_iter().flat_map(all_children));
    }
    let (verdicts, unanswered) = report::verdicts(observed, canary.as_ref(), assessment.as_ref(), now);
    traffic.verdicts = verdicts;
    traffic.requeue_after =
        traffic.requeue_after.into_iter().chain(unanswered.as_ref().map(|(_, wait)| *wait)).min();
    traffic.own_facts = unanswered.map(|(fact, _)| fact).into_iter().collect();
    traffic.notes = report::notes(before, canary.as_ref(), inference.spec.canary.as_ref());
    traffic.canary = canary;
    traffic
}

/// For an invalid or paused object the shares stay. A candidate without a ready pod gets no requests.
pub(super) fn kept(invalid: Option<&Invalid>, observed: &Observed, now: Timestamp) -> Traffic {
    let name = observed.inference.metadata.name.as_deref().unwrap_or_default();
    let shared = route::seen(name, observed.route.as_ref()).share;
    let serves = observed.candidate.as_ref().is_some_and(|version| version.pods().any(|pod| pod.is_ready));
    let stable_serves = observed.pods().any(|pod| pod.is_ready);
    let ends = observed.inference.spec.canary.as_ref().map_or(stable_serves, |canary| canary.abort);
    let share = if serves && !ends { shared } else { Share { weight: 0, matches: false, ..shared } };
    let status = observed.inference.status.as_ref();
    let canary = status.and_then(|status| status.canary.clone());
    let (mut verdicts, unanswered) = report::verdicts(observed, canary.as_ref(), None, now);
    if let Some(invalid) = invalid {
        report::replace(&mut verdicts, report::invalid(invalid));
    }
    Traffic {
        route: observed.route.as_ref().and_then(|_| rendered(observed, share)),
        superfluous: superfluous_route(observed),
        verdicts,
        promoted: status.and_then(|status| status.promoted_revision.clone()),
        min_stable: status.and_then(|status| status.min_stable_replicas),
        requeue_after: looks_again(observed)
            .into_iter()
            .chain(unanswered.as_ref().map(|(_, wait)| *wait))
            .min(),
        own_facts: unanswered.map(|(fact, _)| fact).into_iter().collect(),
        canary,
        ..Traffic::default()
    }
}

impl Traffic {
    /// The facts of the last plan, where only those of the route were looked at.
    pub(super) fn facts_of_kept(&self, observed: &Observed) -> Option<Vec<String>> {
        let others = observed.facts.keys().filter(|fact| *fact != report::UNANSWERED).cloned();
        Some(others.chain(self.own_facts.iter().cloned()).collect())
    }

    /// Its parts of the status.
    pub(super) fn status(&self, observed: &Observed, status: AIInferenceStatus) -> AIInferenceStatus {
        let inference = &observed.inference;
        let name = inference.metadata.name.as_deref().unwrap_or_default();
        let route = inference.spec.gateway.as_ref().map(|gateway| RouteStatus {
            name: names::route(name),
            accepted: observed.route.as_ref().is_some_and(|route| answer(route) == Answer::Accepted),
            address: route::address(inference, gateway),
        });
        AIInferenceStatus {
            route,
            canary: self.canary.clone(),
            promoted_revision: self.promoted.clone(),
            min_stable_replicas: self.min_stable,
            ..status
        }
    }
}

fn seen(
    stable: &ValidInference,
    (decided, assessment): (&Decided<'_>, &Assessment),
    of_candidate: Option<(&ValidInference, &Decided<'_>)>,
    observed: &Observed,
) -> Seen {
    let is_only = decided.revision.is_deployed && observed.others().next().is_none();
    let counts = assessment.counts;
    let pods = observed.candidate.as_deref().map(|version| {
        // While it rolls, its Service has pods of two versions.
        let revision = of_candidate.map(|(_, decided)| &decided.revision);
        let revision = revision.filter(|known| known.is_deployed && version.others().next().is_none());
        let ready = revision.map_or(0, |revision| revision.ready().count());
        let is_rolling = revision.is_none() && version.deployment.is_some();
        Pods {
            is_rolling,
            exists: version.has_children(),
            all: count(version.pods().count()),
            ready: count(ready),
            // Endpoints are asked by the name of the Service, which may be that of another owner.
            has_endpoint: version.service.is_some() && version.pods().any(|pod| pod.is_ready),
        }
    });
    let drain = stable.drain_seconds.map(|seconds| Duration::from_secs(u64::from(seconds.unsigned_abs())));
    Seen {
        revision: of_candidate.map(|(valid, _)| valid.spec_hash.clone()).unwrap_or_default(),
        stable: stable.spec_hash.clone(),
        is_stopped: stable.replicas == 0,
        stable_has_endpoint: observed.pods().any(|pod| pod.is_ready),
        stable_is_complete: is_only && stable.replicas > 0 && counts.updated_ready >= stable.replicas,
        candidate: pods.unwrap_or_default(),
        route: observed
            .inference
            .spec
            .gateway
            .as_ref()
            .map(|_| route::seen(&stable.name, observed.route.as_ref())),
        drain: drain.unwrap_or(DRAIN).max(SHORTEST_DRAIN),
    }
}

/// No more requests than it has.
fn unraised(share: Share, seen: &Seen) -> Share {
    let known = seen.route.unwrap_or_default().share;
    Share { weight: share.weight.min(known.weight), matches: share.matches && known.matches, ..share }
}

/// Whether this status decides something that the next reconcile has to do.
pub(super) fn moves(observed: &Observed, status: &AIInferenceStatus) -> bool {
    let before = observed.inference.status.as_ref();
    let of_canary = |canary: &CanaryStatus| CanaryStatus { replicas: 0, ready_replicas: 0, ..canary.clone() };
    before.and_then(|before| before.canary.as_ref()).map(of_canary) != status.canary.as_ref().map(of_canary)
        || before.and_then(|before| before.promoted_revision.as_ref()) != status.promoted_revision.as_ref()
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

/// Stopped with stable.
fn replicas(pods: Wanted, valid: &ValidInference, version: &Observed) -> i32 {
    match pods {
        Wanted::Replicas(replicas) => replicas,
        Wanted::Kept | Wanted::Deleted => {
            version.deployment.as_ref().map_or(valid.replicas, |deployment| deployment.replicas)
        }
    }
}

fn is_under_way(canary: &CanaryStatus) -> bool {
    use CanaryPhase::{
        Aborted, Analysing, AwaitingApproval, Dark, Promoted, Promoting, RolledBack, RollingBack, Starting,
    };
    match canary.phase {
        Some(Starting | Dark | Analysing | AwaitingApproval | Promoting | RollingBack) | None => true,
        Some(Promoted | RolledBack | Aborted) => false,
    }
}

fn rendered(observed: &Observed, share: Share) -> Option<HttpRoute> {
    let inference = &observed.inference;
    let gateway = inference.spec.gateway.as_ref().filter(|_| !observed.has_no_routes)?;
    // A Service of that name may belong to another owner.
    observed.route.as_ref().map(drop).or(observed.service.as_ref().map(drop))?;
    let (namespace, name) = (inference.metadata.namespace.as_deref()?, inference.metadata.name.as_deref()?);
    let metadata = metadata_of(namespace, name, owner(inference).ok()?, names::route(name));
    Some(route::route(inference, gateway, share, metadata))
}

/// Nothing that is watched changes when the kind is installed.
fn looks_again(observed: &Observed) -> Option<Duration> {
    let waits = observed.inference.spec.gateway.is_some() && observed.has_no_routes;
    waits.then_some(LOOKS_AGAIN)
}

fn superfluous_route(observed: &Observed) -> Vec<Superfluous> {
    let is_wanted = observed.inference.spec.gateway.is_some();
    let route = observed.route.as_ref().filter(|_| !is_wanted);
    let route = route.filter(|route| route.metadata.deletion_timestamp.is_none());
    let identity = route.map(|route| HttpRoute { metadata: route.metadata.clone(), ..HttpRoute::default() });
    identity.map(|route| Superfluous::Route(Box::new(route))).into_iter().collect()
}

/// Its pods go with the Deployment.
fn all_children(version: &Observed) -> Vec<Superfluous> {
    let deployment = version.deployment.as_ref().map(|deployment| deployment.metadata.clone());
    let is_left = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none();
    let named = |metadata: Option<ObjectMeta>| metadata.filter(is_left);
    let deployment = named(deployment)
        .map(|metadata| Superfluous::Deployment(Box::new(Deployment { metadata, ..Deployment::default() })));
    let service = named(version.service.clone())
        .map(|metadata| Superfluous::Service(Box::new(Service { metadata, ..Service::default() })));
    let budget = named(version.budget.clone()).map(|metadata| {
        Superfluous::PodDisruptionBudget(Box::new(PodDisruptionBudget { metadata, ..Default::default() }))
    });
    let config_map = named(version.config_map.clone())
        .map(|metadata| Superfluous::ConfigMap(Box::new(ConfigMap { metadata, ..ConfigMap::default() })));
    [deployment, service, budget, config_map].into_iter().flatten().collect()
}
