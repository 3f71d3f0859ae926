//! The GRPCRoute of `gateway.grpc`: the rules of the HTTPRoute for calls of Triton's gRPC API. Pure.
//!
//! It has no paths and no time limits, because the kind has neither.

use api::aiinference::{
    AIInference,
    traffic::{Gateway, GrpcGateway},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    route::{Answer, Asked, accepted, answered, given, header, is_refused_by_all, mirror, parents},
    state::{Route, Share},
};
use crate::{
    engine::GRPC_PORT,
    names::{self, Track},
    objects::gateway_api::{
        grpc_route::{GrpcMatch, GrpcMethod, GrpcRoute, GrpcRouteSpec, GrpcRule},
        http_route::{BackendRef, Header, RouteState},
    },
};

/// Triton's gRPC API.
const SERVICE: &str = "inference.GRPCInferenceService";
/// Its methods for requests, and what clients of Triton ask before them. They change nothing in the server. Each match names one of them: gateways have to
/// support matches with a service and a method, and Contour refuses others.
const METHODS: [&str; 9] = [
    "ModelInfer",
    "ModelStreamInfer",
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
];
/// Of a rule, in version 1.2 of the Gateway API.
const MOST_MATCHES: usize = 8;

/// `metadata`: of a child.
pub(super) fn route(
    inference: &AIInference,
    (gateway, grpc): (&Gateway, &GrpcGateway),
    share: Share,
    metadata: ObjectMeta,
) -> GrpcRoute {
    let name = inference.metadata.name.as_deref().unwrap_or_default();
    let backend = |track, weight| BackendRef {
        group: String::new(),
        kind: "Service".to_owned(),
        name: names::service(name, track),
        namespace: None,
        port: GRPC_PORT,
        weight,
        filters: Vec::new(),
    };
    let matching = |method: &str, headers: &[Header]| GrpcMatch {
        method: GrpcMethod {
            type_: "Exact".to_owned(),
            service: SERVICE.to_owned(),
            method: method.to_owned(),
        },
        headers: headers.to_owned(),
    };
    let rule = |methods: &[&str], headers: &[Header], mirrors: bool, backend_refs: &[BackendRef]| GrpcRule {
        matches: methods.iter().map(|method| matching(method, headers)).collect(),
        filters: mirrors.then(|| mirror(name, GRPC_PORT)).into_iter().collect(),
        backend_refs: backend_refs.to_owned(),
    };
    let mut rules = Vec::new();
    let mut add = |headers: &[Header], mirrors: bool, backend_refs: &[BackendRef]| {
        let parts = METHODS.chunks(MOST_MATCHES);
        rules.extend(parts.map(|methods| rule(methods, headers, mirrors, backend_refs)));
    };
    let matches = inference.spec.canary.iter().filter(|_| share.matches).flat_map(|canary| &canary.matches);
    matches.for_each(|known| add(&[header(known)], false, &[backend(Track::Canary, 100)]));
    let mut shared = vec![backend(Track::Stable, 100 - share.weight)];
    shared.extend(share.is_known.then(|| backend(Track::Canary, share.weight)));
    add(&[], share.mirrors, &shared);
    let hostnames = if grpc.hostnames.is_empty() { &gateway.hostnames } else { &grpc.hostnames };
    let spec = GrpcRouteSpec { parent_refs: parents(gateway), hostnames: hostnames.clone(), rules };
    GrpcRoute { metadata, spec, status: RouteState::default() }
}

/// What the stored rules give to the candidate, and whether all gateways have accepted them.
pub(super) fn seen(name: &str, stored: Option<&GrpcRoute>) -> Route {
    let Some(stored) = stored else { return Route::default() };
    let candidate = names::service(name, Track::Canary);
    let rules = stored.spec.rules.iter().map(|rule| {
        let is_of_header = rule.matches.iter().any(|known| !known.headers.is_empty());
        given(&candidate, is_of_header, &rule.filters, &rule.backend_refs)
    });
    let share = rules.fold(Share::default(), Share::or);
    let GrpcRoute { metadata, spec, status } = stored;
    let seen = accepted(share, |asked| answered(metadata, &spec.parent_refs, status, asked));
    // A gateway that has not answered may serve by the rules of before. One that refuses the route serves none of it.
    let is_refused = is_refused_by_all(metadata, &spec.parent_refs, status);
    Route { is_accepted: seen.is_accepted || is_refused && !share.has_requests(), ..seen }
}

/// What all gateways say about its present generation.
pub(super) fn answer(stored: &GrpcRoute) -> Answer {
    let GrpcRoute { metadata, spec, status } = stored;
    match answered(metadata, &spec.parent_refs, status, Asked::All) {
        Answer::Refused { reason, message } => {
            Answer::Refused { reason, message: format!("GRPCRoute: {message}") }
        }
        answer @ (Answer::Accepted | Answer::Missing) => answer,
    }
}
