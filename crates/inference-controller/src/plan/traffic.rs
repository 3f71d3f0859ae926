//! Which requests reach which version: the route, and the candidate with its children. Pure.
//!
//! - `state.rs`: the canary as a state machine.
//! - `analysis.rs`: what the requests of both versions say of the candidate.
//! - `evidence.rs`: a crash or a verdict against it, and the next look at the engines.
//! - `start.rs`: whether a candidate tries to become ready for too long.
//! - `drain.rs`: whether requests still run in the engines of a candidate that gets no more.
//! - `gate.rs`: the evaluation that lets a candidate have requests.
//! - `route.rs`: the HTTPRoute, and what the gateways say about it. `referred.rs`: that of `spec.routeRef`.
//! - `grpc.rs`: the GRPCRoute. `pool.rs`: the InferencePools. `routes.rs`: several routes as one.
//! - `promotion.rs`: which version stable has after a promotion.
//! - `report.rs`: conditions and events.

use std::time::Duration;

use api::aiinference::{
    AIInferenceStatus,
    analysis::AnalysisStatus,
    traffic::{Canary, CanaryPhase, CanaryStatus, RouteStatus},
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
use runtime::write::{children::Values, conditions::Verdict, events::Note};
use serde::Serialize;
use workload::{
    faults::{container::last_end, crashes::Log},
    views::pod::PodView,
};

use self::{
    analysis::{Analysed, analysed},
    evidence::{finding, latest_failure, look},
    gate::evaluated,
    route::{Answer, Asked, answer},
    routes::{Routes, Shares},
    state::{Finding, Gate, Next, Pods, Route, Seen, Share, Wanted, next, pods_at_start},
};
use super::{
    accepted,
    children::{Child, Superfluous, children},
    conditions::{self, Assessment, Decided},
    decided,
    defaults::Defaults,
    faults,
    handover::{self, Mark, Release},
    metadata::metadata_of,
    model,
};
use crate::{
    looks::Ask,
    names::{self, Track},
    objects::gateway_api::{grpc_route::GrpcRoute, http_route::HttpRoute, inference_pool::InferencePool},
    observe::{Observed, grpc_of, pool_of},
    validate::{Invalid, ValidInference, owner},
};

mod analysis;
mod drain;
mod evidence;
mod gate;
mod grpc;
mod pool;
pub(crate) mod promotion;
mod referred;
pub(crate) mod report;
mod route;
mod routes;
mod start;
mod state;

/// All that follows from `spec.gateway` and `spec.canary`.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) route: Option<HttpRoute>,
    pub(super) grpc_route: Option<GrpcRoute>,
    pub(super) pools: Vec<InferencePool>,
    pub(super) weights: Option<Weights>,
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
    /// The engines of both versions are to be read.
    pub(super) look: Option<Ask>,
    /// When the next look is due.
    pub(super) next_look: Option<Duration>,
}

/// A write of two weights in the HTTPRoute of `spec.routeRef`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Weights {
    pub(crate) route: HttpRoute,
    pub(crate) values: Values,
}

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
            Err(invalid) => return unjudged(&invalid, version, observed, now),
        },
        (Some(_) | None, _) => None,
    };
    let of_candidate =
        valid.as_ref().zip(version).map(|(valid, version)| decided(valid, version, defaults, now));
    let spec = inference.spec.canary.as_ref();
    let analysed =
        before.zip(spec).and_then(|(before, canary)| analysed(before, canary, &observed.looking.looks));
    let (finding, wait_for_finding) = finding(observed, before, spec, analysed.as_ref(), now);
    let same = before.zip(valid.as_ref()).map(|(before, valid)| before.revision == valid.spec_hash);
    let before_of_version = before.filter(|_| same == Some(true));
    let ready = version
        .zip(of_candidate.as_ref())
        .filter(|(_, decided)| decided.revision.is_deployed)
        .map(|(version, decided)| model::of_ready_pods(&decided.revision, version));
    let evaluated = evaluated(observed, spec, before_of_version, &ready.unwrap_or_default());
    let seen = Seen {
        finding,
        latest_failure: version.and_then(|version| latest_failure(version, now)),
        gate: evaluated.gate,
        is_drained: drain::is_over(observed, before),
        ..seen(stable, of_stable, valid.as_ref().zip(of_candidate.as_ref()), observed)
    };
    let stopped = drain::stopped(observed, &seen, now);
    let of_pods = || {
        let (valid, version) = (valid.as_ref()?, version?);
        let valid = ValidInference { replicas: pods_at_start(spec?), ..valid.clone() };
        let decided = decided(&valid, version, defaults, now);
        Some(conditions::of_valid(&valid, version, &decided, now))
    };
    let start = start::start(observed, (before_of_version, spec), &seen, of_pods, now);
    let seen = Seen { is_given_up: stopped.is_over, is_overdue: start.is_overdue, ..seen };
    let promoted = status.and_then(|status| status.promoted_revision.as_deref());
    let decision = next(before, promoted, inference.spec.canary.as_ref(), &seen, now);
    let routes = seen_routes(observed);
    let shares = routes.map(|routes| routes.shares(decision.share)).unwrap_or_default();
    let rises = routes.is_some_and(|routes| routes.rise_with(shares));
    let needs_endpoint = rises && observed.has_endpoint.is_none();
    // The list of endpoints follows the pods, or could not be read.
    let lacks_endpoint = rises && observed.has_endpoint == Some(false);
    let unraised = routes.filter(|_| lacks_endpoint).map(|routes| routes.unraised(decision.share));
    let shares = unraised.unwrap_or(shares);
    let Next { status: canary, promoted, share: _, pods, wait } = decision;
    let canary = canary.map(|canary| with_analysis(canary, before, spec, analysed.as_ref()));
    let canary = canary.map(|canary| match canary.revision == seen.revision {
        true => CanaryStatus { evaluation: evaluated.passed.clone(), ..canary },
        false => canary,
    });
    let drains = canary.as_ref().is_some_and(|canary| canary.draining_since.is_some());
    let (look, wait_for_look) = match (drains, wait) {
        (true, Some(_)) => drain::look(observed, canary.as_ref(), now),
        // Its time is over.
        (true, None) => (None, None),
        (false, _) => look(observed, canary.as_ref(), analysed.as_ref(), now),
    };
    let waits_for = lacks_endpoint.then_some(Duration::from_secs(1));
    let mut traffic = Traffic {
        route: rendered(observed, shares.http),
        grpc_route: rendered_grpc(observed, shares.grpc),
        weights: weights(observed, shares.http),
        promoted,
        min_stable: canary
            .as_ref()
            .filter(|canary| is_under_way(canary))
            .map(|_| status.and_then(|status| status.min_stable_replicas).unwrap_or(stable.replicas)),
        requeue_after: wait
            .into_iter()
            .chain(waits_for)
            .chain(wait_for_look)
            .chain(wait_for_finding)
            .chain(stopped.wait)
            .chain(start.wait)
            .chain(looks_again(observed))
            .min(),
        needs_endpoint,
        look,
        next_look: wait_for_look,
        superfluous: superfluous_routes(observed),
        pools: pool::pool(observed, Track::Stable).into_iter().collect(),
        ..Traffic::default()
    };
    let is_answered = answer_of(observed) == Some(Answer::Accepted);
    let unwanted = pool::superfluous(observed, is_answered).into_iter().map(Box::new);
    traffic.superfluous.extend(unwanted.map(Superfluous::InferencePool));
    let assessment = valid.as_ref().zip(version).map(|(valid, version)| {
        let valid = ValidInference { replicas: replicas(pods, valid, version), ..valid.clone() };
        let decided = decided(&valid, version, defaults, now);
        let assessment = conditions::of_valid(&valid, version, &decided, now);
        if pods != Wanted::Deleted {
            traffic.pools.extend(pool::pool(observed, Track::Canary));
        }
        if let Wanted::Replicas(_) = pods {
            traffic.children =
                children(&valid, &decided.revision, version, decided.rollout.strategy, &decided.handover);
        }
        // Also where its other children stay as they are: a budget must not hold back a drain for longer than the handover.
        if pods != Wanted::Deleted {
            traffic.superfluous.extend(super::children::superfluous(&valid, version, &decided.handover));
        }
        // Before the first share, the end of one long run may end its canary. Then the cause of an earlier end is known. A power
        // cut asks for few logs of a candidate, and for thousands of all stable engines.
        traffic.logs = faults::logs_to_read(decided.revision.pods, last_end, version);
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
    let of_pods = report::OfCandidate {
        assessment: assessment.as_ref(),
        analysed: analysed.as_ref(),
        evaluated: Some(&evaluated),
    };
    let (verdicts, unanswered) = report::verdicts(observed, canary.as_ref(), of_pods, now);
    traffic.verdicts = verdicts;
    traffic.requeue_after =
        traffic.requeue_after.into_iter().chain(unanswered.as_ref().map(|(_, wait)| *wait)).min();
    traffic.own_facts =
        unanswered.map(|(fact, _)| fact).into_iter().chain(stopped.fact).chain(start.fact).collect();
    traffic.notes = report::notes(before, canary.as_ref(), inference.spec.canary.as_ref(), analysed.as_ref());
    traffic.canary = canary;
    traffic
}

/// A candidate whose spec is invalid keeps its share. The budget of its only pod holds back no drain for ever.
fn unjudged(invalid: &Invalid, version: &Observed, observed: &Observed, now: Timestamp) -> Traffic {
    let mut traffic = kept(Some(invalid), observed, now);
    let Release { budget, fact, requeue_after } = handover::release(version, now);
    traffic.superfluous.extend(budget.map(|budget| Superfluous::PodDisruptionBudget(Box::new(budget))));
    traffic.facts.extend(fact);
    traffic.requeue_after = traffic.requeue_after.into_iter().chain(requeue_after).min();
    traffic
}

/// For an invalid or paused object the shares stay. A candidate without a ready pod gets no requests.
pub(super) fn kept(invalid: Option<&Invalid>, observed: &Observed, now: Timestamp) -> Traffic {
    let routes = seen_routes(observed);
    let shared = routes.map(|routes| routes.as_one().share).unwrap_or_default();
    let serves = observed.candidate.as_ref().is_some_and(|version| version.pods().any(|pod| pod.is_ready));
    let stable_serves = observed.pods().any(|pod| pod.is_ready);
    let ends = observed.inference.spec.canary.as_ref().map_or(stable_serves, |canary| canary.abort);
    let share = if serves && !ends { shared } else { shared.without_requests() };
    let Shares { http, grpc } = routes.map(|routes| routes.unraised(share)).unwrap_or_default();
    let status = observed.inference.status.as_ref();
    let canary = status.and_then(|status| status.canary.clone());
    // The owner of a route may have given it requests again. Their end is counted anew.
    let canary = canary.map(|canary| match shared.has_requests() {
        true => CanaryStatus { served: true, draining_since: None, ..canary },
        false => canary,
    });
    let (mut verdicts, unanswered) =
        report::verdicts(observed, canary.as_ref(), report::OfCandidate::default(), now);
    if let Some(invalid) = invalid {
        report::replace(&mut verdicts, report::invalid(invalid));
        report::unjudged(&mut verdicts, share);
    }
    Traffic {
        route: observed.route.as_ref().and_then(|_| rendered(observed, http)),
        grpc_route: observed.grpc_route.as_ref().and_then(|_| rendered_grpc(observed, grpc)),
        weights: weights(observed, http),
        superfluous: superfluous_routes(observed),
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

/// Whether the candidate of a stopped object has waited for its gateways. At the end of the wait its pods go.
pub(super) fn waits_for_gateways(observed: &Observed) -> bool {
    observed.facts.contains_key(drain::STOPPED)
}

impl Traffic {
    /// The facts of the last plan, where only that of the route was looked at. `None`: it has not changed.
    pub(super) fn facts_of_kept(&self, observed: &Observed) -> Option<Vec<String>> {
        // This plan does not look at gateways and pods, so a later wait for them begins anew.
        let unseen = [report::UNANSWERED, drain::STOPPED, start::UNREADY];
        let others = observed.facts.keys().filter(|fact| !unseen.contains(&fact.as_str())).cloned();
        let kept: Vec<String> = others.chain(self.own_facts.iter().cloned()).collect();
        let is_same =
            kept.len() == observed.facts.len() && kept.iter().all(|fact| observed.facts.contains_key(fact));
        (!is_same).then_some(kept)
    }

    /// Its parts of the status.
    pub(super) fn status(&self, observed: &Observed, status: AIInferenceStatus) -> AIInferenceStatus {
        let inference = &observed.inference;
        let name = inference.metadata.name.as_deref().unwrap_or_default();
        let accepted = answer_of(observed) == Some(Answer::Accepted);
        let of_gateway = inference.spec.gateway.as_ref();
        let of_gateway = of_gateway.map(|gateway| (names::route(name), route::address(inference, gateway)));
        let referred = inference.spec.route_ref.as_ref().map(|known| (known.name.clone(), None));
        let route = of_gateway.or(referred).map(|(name, address)| {
            let parents = stored(observed).map(|route| route::of_parents(route, asked(observed, route)));
            RouteStatus { name, accepted, address, parents: parents.unwrap_or_default() }
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
        let stays =
            |pod: &&PodView| pod.node.as_ref().is_none_or(|node| !version.leaving_nodes.contains(node));
        let is_rolling = revision.is_none() && version.deployment.is_some();
        Pods {
            is_rolling,
            exists: version.has_children(),
            all: count(version.pods().count()),
            staying: if is_rolling { 0 } else { count(version.pods().filter(stays).count()) },
            ready: count(ready),
            // Endpoints are asked by the name of the Service, which may be that of another owner.
            has_endpoint: version.service.is_some()
                && pool::has_candidate(observed)
                && version.pods().any(|pod| pod.is_ready),
        }
    });
    Seen {
        revision: of_candidate.map(|(valid, _)| valid.spec_hash.clone()).unwrap_or_default(),
        stable: stable.spec_hash.clone(),
        is_stopped: stable.replicas == 0,
        stable_has_endpoint: observed.pods().any(|pod| pod.is_ready),
        gate: Gate::Open,
        rules_refused: rules_refused(observed),
        is_contested: report::is_contested(observed),
        is_overdue: None,
        finding: Finding::NotAsked,
        latest_failure: None,
        stable_is_complete: is_only
            && stable.replicas > 0
            && counts.updated_ready >= stable.replicas
            && model::has_promoted(&decided.revision, observed),
        candidate: pods.unwrap_or_default(),
        route: seen_routes(observed).map(|routes| routes.as_one()),
        drain: drain::longest(observed),
        is_drained: false,
        is_given_up: false,
    }
}

fn rules_refused(observed: &Observed) -> Option<String> {
    let of = |known: &HttpRoute| route::rules_refused(&known.metadata, &known.status);
    stored(observed).and_then(of).or_else(|| {
        let known = observed.grpc_route.as_ref()?;
        route::rules_refused(&known.metadata, &known.status)
    })
}

fn with_analysis(
    canary: CanaryStatus,
    before: Option<&CanaryStatus>,
    spec: Option<&Canary>,
    analysed: Option<&Analysed>,
) -> CanaryStatus {
    // What a candidate does without a share is not judged.
    let is_asked = spec.is_some_and(|spec| spec.analysis.is_some()) && canary.step > 0;
    let is_same = before.is_some_and(|before| before.revision == canary.revision);
    let analysis = match analysed.filter(|_| is_same) {
        Some(analysed) => Some(analysed.status()),
        None => canary.analysis,
    };
    let analysis = analysis.filter(|_| is_asked);
    // What is said of a step must not stand beside the number of the next one. Its counts are in the record.
    let is_next = before.is_some_and(|before| before.step != canary.step);
    let analysis = analysis.map(|analysis| match is_next {
        true => AnalysisStatus {
            verdict: String::new(),
            reason: String::new(),
            metrics: Vec::new(),
            tokens: None,
            ..analysis
        },
        false => analysis,
    });
    CanaryStatus { analysis, ..canary }
}

/// Whether this status decides something that the next reconcile has to do.
pub(super) fn moves(observed: &Observed, status: &AIInferenceStatus) -> bool {
    let before = observed.inference.status.as_ref();
    // Numbers decide nothing; a verdict does.
    let of_canary = |canary: &CanaryStatus| {
        let analysis = canary.analysis.as_ref().map(|analysis| AnalysisStatus {
            verdict: analysis.verdict.clone(),
            ..AnalysisStatus::default()
        });
        CanaryStatus { replicas: 0, ready_replicas: 0, analysis, ..canary.clone() }
    };
    before.and_then(|before| before.canary.as_ref()).map(of_canary) != status.canary.as_ref().map(of_canary)
        || before.and_then(|before| before.promoted_revision.as_ref()) != status.promoted_revision.as_ref()
}

/// What has become of the canary, for the plan after a refusal.
pub(super) fn notes(observed: &Observed, status: &AIInferenceStatus) -> Vec<Note> {
    let before = observed.inference.status.as_ref().and_then(|status| status.canary.as_ref());
    report::notes(before, status.canary.as_ref(), observed.inference.spec.canary.as_ref(), None)
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
        Aborted, Analysing, AwaitingApproval, AwaitingEvaluation, Dark, Held, Promoted, Promoting,
        RolledBack, RollingBack, Starting,
    };
    match canary.phase {
        // An evaluation may take days. Stable may be scaled down meanwhile.
        Some(AwaitingEvaluation) => canary.step > 0,
        Some(Starting | Dark | Analysing | AwaitingApproval | Held | Promoting | RollingBack) | None => true,
        Some(Promoted | RolledBack | Aborted) => false,
    }
}

fn rendered(observed: &Observed, share: Share) -> Option<HttpRoute> {
    let inference = &observed.inference;
    let gateway = inference.spec.gateway.as_ref().filter(|_| !observed.has_no_routes)?;
    let metadata = metadata_of_route(observed, observed.route.is_some(), names::route)?;
    let name = inference.metadata.name.as_deref()?;
    let stored = route::seen(name, observed.route.as_ref()).share;
    let backends = pool::backends(observed, stored, share);
    Some(route::route(inference, gateway, (share, backends), metadata))
}

fn rendered_grpc(observed: &Observed, share: Share) -> Option<GrpcRoute> {
    let inference = &observed.inference;
    let grpc = grpc_of(inference).filter(|_| !observed.has_no_grpc_routes)?;
    let metadata = metadata_of_route(observed, observed.grpc_route.is_some(), names::grpc_route)?;
    Some(grpc::route(inference, (inference.spec.gateway.as_ref()?, grpc), share, metadata))
}

/// A new route needs the Service of stable, of which one of the same name may belong to another owner.
fn metadata_of_route(observed: &Observed, exists: bool, route: fn(&str) -> String) -> Option<ObjectMeta> {
    let inference = &observed.inference;
    observed.service.as_ref().map(drop).or(exists.then_some(()))?;
    let (namespace, name) = (inference.metadata.namespace.as_deref()?, inference.metadata.name.as_deref()?);
    Some(metadata_of(namespace, name, owner(inference).ok()?, route(name)))
}

/// `None` without `spec.gateway` and `spec.routeRef`.
fn seen_routes(observed: &Observed) -> Option<Routes> {
    let inference = &observed.inference;
    if let Some(reference) = &inference.spec.route_ref {
        let http = referred::seen(inference, reference, observed.referred.as_ref());
        return Some(Routes { http, grpc: None });
    }
    let has_gateway = inference.spec.gateway.is_some();
    if !has_gateway && observed.route.is_none() && observed.grpc_route.is_none() {
        return None;
    }
    let name = inference.metadata.name.as_deref().unwrap_or_default();
    // A route that is not wanted any more sends requests until it is gone.
    let left = |route: Route, is_wanted: bool| Route { is_accepted: route.is_accepted && is_wanted, ..route };
    let wants_grpc = grpc_of(inference).is_some();
    let has_grpc = (wants_grpc && !observed.has_no_grpc_routes) || observed.grpc_route.is_some();
    let grpc = has_grpc.then(|| left(grpc::seen(name, observed.grpc_route.as_ref()), wants_grpc));
    let http = left(route::seen(name, observed.route.as_ref()), has_gateway);
    // Requests of the candidate end with its weight, whatever a gateway has against its pool.
    let is_unresolved = http.is_unresolved || pool::refused(observed).is_some();
    Some(Routes { http: Route { is_unresolved, ..http }, grpc })
}

/// What the gateways say about the routes that have the shares. `None`: there is no HTTPRoute.
fn answer_of(observed: &Observed) -> Option<Answer> {
    let stored = stored(observed)?;
    let http = answer(stored, asked(observed, stored));
    let pools = pool::refused(observed).unwrap_or(Answer::Accepted);
    let http = if http == Answer::Accepted { pools } else { http };
    let grpc = grpc_of(&observed.inference).filter(|_| !observed.has_no_grpc_routes);
    let grpc = grpc.map(|_| observed.grpc_route.as_ref().map_or(Answer::Missing, grpc::answer));
    Some(if http == Answer::Accepted { grpc.unwrap_or(http) } else { http })
}

/// Of a route of the user, `ResolvedRefs` may speak of other rules.
fn asked(observed: &Observed, stored: &HttpRoute) -> Asked {
    match observed.inference.spec.route_ref {
        Some(_) => referred::asked(stored),
        None => Asked::All,
    }
}

/// The gateways have accepted the HTTPRoute, and one of them has not answered for the GRPCRoute.
fn waits_for_grpc(observed: &Observed) -> bool {
    let http = observed.route.as_ref().map(|route| answer(route, Asked::All));
    http == Some(Answer::Accepted) && answer_of(observed) == Some(Answer::Missing)
}

/// Why requests of the candidate do not end. `None`: they do.
fn keeps_requests(observed: &Observed) -> Option<&'static str> {
    let route = seen_routes(observed)?.as_one();
    let serves = |version: &Observed| version.pods().any(|pod| pod.is_ready);
    let is_needed = route.share.has_requests()
        && !serves(observed)
        && observed.candidate.as_deref().is_some_and(serves)
        && observed.inference.spec.replicas > 0;
    let has_gateway =
        observed.inference.spec.gateway.is_some() || observed.inference.spec.route_ref.is_some();
    match (is_needed, has_gateway) {
        (true, _) => Some("the candidate keeps its requests until a pod of stable is ready; see Ready"),
        (false, false) => {
            Some("the route has to be deleted first; its deletion may be refused, or it has a finalizer")
        }
        (false, true) if !route.is_accepted => {
            Some("all gateways have to accept that the candidate gets no requests; see TrafficReady")
        }
        (false, true) => None,
    }
}

/// The HTTPRoute that has the shares, of whichever owner.
fn stored(observed: &Observed) -> Option<&HttpRoute> {
    match observed.inference.spec.route_ref {
        Some(_) => observed.referred.as_ref(),
        None => observed.route.as_ref(),
    }
}

/// Without a canary, the weights are the user's alone.
fn weights(observed: &Observed, share: Share) -> Option<Weights> {
    let inference = &observed.inference;
    let (reference, route) = inference.spec.route_ref.as_ref().zip(observed.referred.as_ref())?;
    observed.candidate.as_ref()?;
    let values = referred::weights(inference, reference, route, share)?;
    Some(Weights { route: route.clone(), values })
}

/// Nothing that is watched changes when the kind is installed.
fn looks_again(observed: &Observed) -> Option<Duration> {
    let spec = &observed.inference.spec;
    let waits = (spec.gateway.is_some() || spec.route_ref.is_some()) && observed.has_no_routes;
    let waits_for_grpc = grpc_of(&observed.inference).is_some() && observed.has_no_grpc_routes;
    let waits_for_pools = pool_of(&observed.inference).is_some() && observed.has_no_pools;
    (waits || waits_for_grpc || waits_for_pools || observed.has_no_evaluations).then_some(LOOKS_AGAIN)
}

fn superfluous_routes(observed: &Observed) -> Vec<Superfluous> {
    let inference = &observed.inference;
    let is_left = |metadata: &&ObjectMeta| metadata.deletion_timestamp.is_none();
    let http = observed.route.as_ref().filter(|_| inference.spec.gateway.is_none());
    let http = http.map(|route| &route.metadata).filter(is_left).map(|metadata| {
        Superfluous::Route(Box::new(HttpRoute { metadata: metadata.clone(), ..HttpRoute::default() }))
    });
    let grpc = observed.grpc_route.as_ref().filter(|_| grpc_of(inference).is_none());
    let grpc = grpc.map(|route| &route.metadata).filter(is_left).map(|metadata| {
        Superfluous::GrpcRoute(Box::new(GrpcRoute { metadata: metadata.clone(), ..GrpcRoute::default() }))
    });
    http.into_iter().chain(grpc).collect()
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
    let pool = version.pool.as_ref().and_then(pool::identity);
    let pool = pool.map(|pool| Superfluous::InferencePool(Box::new(pool)));
    [deployment, service, budget, config_map, pool].into_iter().flatten().collect()
}
