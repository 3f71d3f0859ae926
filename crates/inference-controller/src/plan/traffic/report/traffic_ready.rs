//! What `TrafficReady` says about the routes. Pure.

use std::time::Duration;

use api::{
    aiinference::traffic::{CanaryPhase, CanaryStatus, RouteRef},
    conditions,
    labels::MANAGED_BY,
    reasons,
};
use jiff::Timestamp;
use runtime::write::conditions::Verdict;
use workload::time::remaining;

use super::{
    super::{analysis::Analysed, answer_of, referred::unfit, route::Answer, stored, waits_for_grpc},
    GRPC_ROUTE, POOLS, ROUTE, WEIGHTS, verdict,
};
use crate::{
    objects::gateway_api::http_route::HttpRoute,
    observe::{Observed, grpc_of, pool_of},
};

/// A gateway needs some time for each change of its rules, and serves by the last ones meanwhile.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
pub(in crate::plan::traffic) const UNANSWERED: &str = "the present rules of the route are not answered";

/// A fact while the route may still be answered, and for how long.
pub(super) fn unanswered(
    verdict: &Verdict,
    observed: &Observed,
    now: Timestamp,
) -> Option<(String, Duration)> {
    let status = observed.inference.status.as_ref()?;
    let mut known = status.conditions.iter().filter(|known| known.type_ == conditions::TRAFFIC_READY);
    let was_accepted = known.any(|known| known.status == "True");
    let is_missing = verdict.reason == reasons::ROUTE_NOT_OBSERVED && stored(observed).is_some();
    let since = observed.facts.get(UNANSWERED).copied().unwrap_or(now);
    let wait = remaining(ANSWERED_WITHIN, since, now).filter(|_| was_accepted && is_missing)?;
    Some((UNANSWERED.to_owned(), wait))
}

/// A condition of Envoy Gateway.
const OVERLAP: &str = "RouteRulesOverlap";
/// Of a gateway, in bytes.
const LONGEST_WORDS: usize = 512;

const NO_GRPC_ROUTES: &str =
    "; gRPC has no route until the cluster serves GRPCRoutes (gateway.networking.k8s.io/v1)";

/// Why a route or its shares could not be written.
fn refusal(observed: &Observed) -> Option<&(&'static str, String)> {
    refusals(observed).next()
}

/// Of the routes that the object should have. What was said about others stays known, and means nothing.
pub(super) fn refusals(observed: &Observed) -> impl Iterator<Item = &(&'static str, String)> {
    // Of a kind that was removed, nothing is written that could heal a refusal.
    let has_grpc = grpc_of(&observed.inference).is_some() && !observed.has_no_grpc_routes;
    let has_pools = pool_of(&observed.inference).is_some();
    let has_route = observed.inference.spec.gateway.is_some();
    let written = [
        has_route.then_some(ROUTE),
        has_pools.then_some(POOLS),
        has_grpc.then_some(GRPC_ROUTE),
        (!has_route).then_some(WEIGHTS),
    ];
    written.into_iter().flatten().filter_map(|what| observed.apart.get(what))
}

pub(super) fn traffic_ready(
    observed: &Observed,
    canary: Option<&CanaryStatus>,
    analysed: Option<&Analysed>,
) -> Verdict {
    let fails = |reason, message| verdict(conditions::TRAFFIC_READY, false, reason, message);
    let inference = &observed.inference;
    let reference = inference.spec.route_ref.as_ref();
    if observed.has_no_routes {
        let field = if reference.is_some() { "routeRef" } else { "gateway" };
        let message = format!(
            "the cluster does not serve HTTPRoutes (gateway.networking.k8s.io/v1); install the Gateway API, or remove \
             spec.{field}"
        );
        return fails(reasons::GATEWAY_API_NOT_INSTALLED, message);
    }
    if pool_of(inference).is_some() && observed.has_no_pools {
        let message = "the cluster does not serve InferencePools (inference.networking.k8s.io/v1), and the route leads to \
                       the Services; install the Gateway API Inference Extension, or remove spec.gateway.inferencePool";
        return fails(reasons::INFERENCE_POOL_NOT_INSTALLED, message.to_owned());
    }
    if let Some((reason, message)) = refusal(observed) {
        return fails(reason, message.clone());
    }
    let Some(stored) = stored(observed) else {
        let message = match reference {
            Some(RouteRef { name, .. }) => {
                format!(
                    "HTTPRoute {name} of spec.routeRef does not exist in this namespace, or has the label \
                     {MANAGED_BY} of this controller; create it, or remove the label"
                )
            }
            None => "the HTTPRoute is being created".to_owned(),
        };
        return fails(reasons::ROUTE_NOT_OBSERVED, message);
    };
    if let Some(message) = reference.and_then(|reference| unfit(inference, reference, stored)) {
        return fails(reasons::BACKEND_NOT_RESOLVED, message);
    }
    let gateways: Vec<&str> = stored.spec.parent_refs.iter().map(|parent| &*parent.name).collect();
    let gateways = gateways.join(", ");
    match answer_of(observed).unwrap_or(Answer::Missing) {
        Answer::Accepted => {
            let without = match grpc_of(inference).is_some() {
                true if observed.has_no_grpc_routes => NO_GRPC_ROUTES,
                true | false => "",
            };
            let overlap = overlap(stored);
            let silence = canary.zip(analysed).and_then(|(canary, analysed)| silence(canary, analysed));
            let silence = silence.unwrap_or_default();
            let message = format!("accepted by Gateway {gateways}{without}{overlap}{silence}");
            verdict(conditions::TRAFFIC_READY, true, reasons::ROUTE_ACCEPTED, message)
        }
        Answer::Missing if waits_for_grpc(observed) => fails(
            reasons::ROUTE_NOT_OBSERVED,
            format!(
                "not all gateways ({gateways}) have answered for the GRPCRoute; check that they serve the kind, or remove \
                 spec.gateway.grpc"
            ),
        ),
        Answer::Missing => fails(
            reasons::ROUTE_NOT_OBSERVED,
            format!(
                "not all gateways ({gateways}) have answered for the present rules; check that they exist, and that a \
                 controller serves their class"
            ),
        ),
        Answer::Refused { reason, message } => fails(reason, message),
    }
}

/// A gateway may say that another route has the same rules. Requests then reach the older one.
fn overlap(stored: &HttpRoute) -> String {
    let said = stored.status.parents.iter().flat_map(|said| &said.conditions);
    let mut overlaps = said.filter(|known| {
        known.type_ == OVERLAP
            && known.status == "True"
            && known.observed_generation >= stored.metadata.generation
    });
    let words = overlaps.next().map(|known| format!("; {OVERLAP}: {}", known.message));
    text::cut(words.unwrap_or_default(), LONGEST_WORDS)
}

/// A step in which no request has ended for so long.
const SILENT_SECONDS: i64 = 300;

/// An older route with the same host names and paths gets all requests, and not every gateway says so.
fn silence(canary: &CanaryStatus, analysed: &Analysed) -> Option<String> {
    let is_judged = [CanaryPhase::Analysing, CanaryPhase::AwaitingApproval, CanaryPhase::Held].map(Some);
    let since = canary.step_started_at.as_ref().filter(|_| is_judged.contains(&canary.phase))?;
    analysed.has_seen_no_request(SILENT_SECONDS).then(|| {
        format!(
            "; the engines of both versions have ended no request since {}: check that clients use the Gateway, and that no \
             older route has the same host names and paths",
            since.0
        )
    })
}
