//! The HTTPRoute: which requests reach which version, and what the gateways say about it. Pure.
//!
//! The whole route is this controller's, because `rules` is one list with one owner.

use std::slice;

use api::{
    aiinference::{
        AIInference, Engine,
        traffic::{Gateway, HeaderMatch, ParentGateway, Pin, RouteParentStatus},
    },
    reasons,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

use super::state::{Route, Share};
use crate::{
    engine::HTTP_PORT,
    names::{self, Track},
    objects::gateway_api::http_route::{
        AddedHeader, BackendRef, Filter, Header, HeaderModifier, HttpRoute, Match, MirrorRef, ParentRef,
        Path, RequestMirror, Rewrite, RouteParent, RouteSpec, RouteState, Rule, Timeouts, UrlRewrite,
    },
    objects::gateway_api::{GROUP, inference_pool},
};

/// Reasons of the Gateway API for `Accepted: False` that are about the rules of a route.
const OF_RULES: [&str; 2] = ["UnsupportedValue", "IncompatibleFilters"];

/// What the gateways say about the stored rules.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Accepted,
    /// One of them has not looked at the present rules.
    Missing,
    /// One of them does not accept them: reason and message of the condition.
    Refused {
        reason: &'static str,
        message: String,
    },
}

/// What a version is in the HTTPRoute. Copies of requests go to the Service in any case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Backends {
    Services,
    Pools,
}

/// The route of an AIInference with `spec.gateway`. `metadata`: of a child.
pub(super) fn route(
    inference: &AIInference,
    gateway: &Gateway,
    (share, backends): (Share, Backends),
    metadata: ObjectMeta,
) -> HttpRoute {
    let name = metadata.name.as_deref().unwrap_or_default();
    let backend = |track, weight| match backends {
        Backends::Services => BackendRef {
            group: String::new(),
            kind: "Service".to_owned(),
            name: names::service(name, track),
            namespace: None,
            port: HTTP_PORT,
            weight,
            filters: Vec::new(),
        },
        Backends::Pools => BackendRef {
            group: inference_pool::GROUP.to_owned(),
            kind: inference_pool::KIND.to_owned(),
            name: names::pool(name, track),
            namespace: None,
            port: 0,
            weight,
            filters: Vec::new(),
        },
    };
    let timeouts = Timeouts { request: format!("{}s", gateway.request_timeout_seconds) };
    let pin = pin(inference, share);
    let drawn = |track, weight| BackendRef {
        filters: pin.iter().map(|pin| pin.set_cookie(name, track)).collect(),
        ..backend(track, weight)
    };
    let shared: Vec<BackendRef> = match share.is_known {
        true => vec![drawn(Track::Stable, 100 - share.weight), drawn(Track::Canary, share.weight)],
        false => vec![backend(Track::Stable, 100)],
    };
    let headers = inference.spec.canary.iter().filter(|_| share.matches).flat_map(|canary| &canary.matches);
    let headers = headers.map(|known| (header(known), Track::Canary));
    let pinned = [Track::Canary, Track::Stable]
        .into_iter()
        .filter_map(|track| Some((pin.as_ref()?.header(name, track), track)));
    let headers: Vec<(Header, Track)> = headers.chain(pinned).collect();
    // Only of the requests that the versions share.
    let copies =
        |header: Option<&Header>| (share.mirrors && header.is_none()).then(|| mirror(name, HTTP_PORT));
    let rule = |prefix: &str, header: Option<&Header>, backend_refs: &[BackendRef]| Rule {
        name: None,
        matches: vec![Match {
            path: Path { type_: "PathPrefix".to_owned(), value: prefix.to_owned() },
            headers: header.into_iter().cloned().collect(),
        }],
        filters: rewrite(prefix).into_iter().chain(copies(header)).collect(),
        backend_refs: backend_refs.to_vec(),
        timeouts: timeouts.clone(),
    };
    let mut rules = Vec::new();
    for prefix in prefixes(inference.spec.engine, gateway) {
        let of_headers =
            headers.iter().map(|(header, track)| rule(&prefix, Some(header), &[backend(*track, 100)]));
        rules.extend(of_headers);
        rules.push(rule(&prefix, None, &shared));
    }
    let spec = RouteSpec { parent_refs: parents(gateway), hostnames: gateway.hostnames.clone(), rules };
    HttpRoute { metadata, spec, status: RouteState::default() }
}

/// Callers come back to the version that has answered them, within a step. The next step draws them anew: otherwise those who
/// call often would all end at the candidate.
struct Pinned {
    /// A cookie of another version or of another share leads nowhere.
    draw: String,
}

fn pin(inference: &AIInference, share: Share) -> Option<Pinned> {
    inference.spec.canary.as_ref().filter(|canary| canary.pin == Pin::Cookie)?;
    let status = inference.status.as_ref()?.canary.as_ref()?;
    let is_drawn = share.weight > 0 && !status.revision.is_empty();
    is_drawn.then(|| Pinned { draw: format!("{}-{}", status.revision, share.weight) })
}

/// Of the header by which pinned requests are known.
const COOKIE: &str = "Cookie";

impl Pinned {
    fn cookie(&self, name: &str, track: Track) -> String {
        let version = match track {
            Track::Stable => "stable",
            Track::Canary => "candidate",
        };
        format!("ai-canary-{name}={}-{version}", self.draw)
    }

    /// It ends with the browser's session.
    fn set_cookie(&self, name: &str, track: Track) -> Filter {
        let value = format!("{}; Path=/; HttpOnly; SameSite=Lax", self.cookie(name, track));
        let added = AddedHeader { name: "Set-Cookie".to_owned(), value };
        Filter {
            type_: "ResponseHeaderModifier".to_owned(),
            response_header_modifier: Some(HeaderModifier { add: vec![added] }),
            ..Filter::default()
        }
    }

    fn header(&self, name: &str, track: Track) -> Header {
        let value = format!("^(.*; ?)?{}(;.*)?$", self.cookie(name, track).replace('.', "[.]"));
        Header { type_: "RegularExpression".to_owned(), name: COOKIE.to_owned(), value }
    }
}

fn is_of_pin(header: &Header) -> bool {
    header.name == COOKIE && header.type_ == "RegularExpression"
}

pub(super) fn header(known: &HeaderMatch) -> Header {
    Header { type_: "Exact".to_owned(), name: known.header.clone(), value: known.value.clone() }
}

/// The roots of the engines' APIs.
const ROOTS: [&str; 2] = ["/v1", "/v2"];

fn prefixes(engine: Engine, gateway: &Gateway) -> Vec<String> {
    match (gateway.path_prefixes.is_empty(), engine) {
        (false, _) => gateway.path_prefixes.clone(),
        (true, Engine::Triton) => vec!["/v2".to_owned()],
        (true, Engine::Vllm | Engine::Tgi) => vec!["/v1".to_owned()],
    }
}

/// Removes what is before the root of the engine's API.
fn rewrite(prefix: &str) -> Option<Filter> {
    let root = ROOTS.into_iter().find(|root| prefix.ends_with(root) && prefix != *root)?;
    let path = Rewrite { type_: "ReplacePrefixMatch".to_owned(), replace_prefix_match: root.to_owned() };
    let url_rewrite = Some(UrlRewrite { path });
    Some(Filter { type_: "URLRewrite".to_owned(), url_rewrite, ..Filter::default() })
}

/// Without a percentage, which not every gateway keeps to.
pub(super) fn mirror(name: &str, port: i32) -> Filter {
    let backend_ref = MirrorRef {
        group: String::new(),
        kind: "Service".to_owned(),
        name: names::service(name, Track::Canary),
        port,
    };
    let request_mirror = Some(RequestMirror { backend_ref });
    Filter { type_: "RequestMirror".to_owned(), request_mirror, ..Filter::default() }
}

pub(super) fn parents(gateway: &Gateway) -> Vec<ParentRef> {
    let first = ParentGateway {
        name: gateway.name.clone(),
        namespace: gateway.namespace.clone(),
        section_name: gateway.section_name.clone(),
    };
    let parent = |known: &ParentGateway| ParentRef {
        group: GROUP.to_owned(),
        kind: "Gateway".to_owned(),
        name: known.name.clone(),
        namespace: known.namespace.clone(),
        section_name: known.section_name.clone(),
        port: None,
    };
    [&first].into_iter().chain(&gateway.more).map(parent).collect()
}

/// What the stored rules give to the candidate, and whether all gateways have accepted them.
pub(super) fn seen(name: &str, stored: Option<&HttpRoute>) -> Route {
    let Some(stored) = stored else { return Route::default() };
    let candidate = names::service(name, Track::Canary);
    let rules = stored.spec.rules.iter().map(|rule| {
        let mut headers = rule.matches.iter().flat_map(|known| &known.headers);
        let is_of_header = headers.clone().next().is_some();
        let given = given(&candidate, is_of_header, &rule.filters, &rule.backend_refs);
        match headers.any(is_of_pin) {
            // A part of the share, and there is one as long as this rule is there.
            true => Share { weight: i32::from(given.matches), matches: false, ..given },
            false => given,
        }
    });
    let share = rules.fold(Share::default(), Share::or);
    accepted(share, |asked| answer(stored, asked))
}

/// Requests end with the weight, whether the gateways find the candidate's Service or not. Before they come, it must be found.
pub(super) fn accepted(share: Share, answer: impl Fn(Asked) -> Answer) -> Route {
    let asked = if share.has_requests() { Asked::All } else { Asked::Accepted };
    Route {
        share,
        is_accepted: answer(asked) == Answer::Accepted,
        is_unresolved: answer(Asked::All) != Answer::Accepted,
        is_foreign: false,
    }
}

/// No gateway serves the route: each has refused its present rules.
pub(super) fn is_refused_by_all(metadata: &ObjectMeta, parents: &[ParentRef], status: &RouteState) -> bool {
    let namespace = metadata.namespace.as_deref();
    let refuses = |said: &RouteParent| {
        said.conditions.iter().any(|known| {
            known.type_ == "Accepted"
                && known.status == "False"
                && known.observed_generation >= metadata.generation
        })
    };
    let is_refused = |parent: &ParentRef| {
        status.parents.iter().any(|said| is_same(&said.parent_ref, parent, namespace) && refuses(said))
    };
    !parents.is_empty() && parents.iter().all(is_refused)
}

/// What one rule gives to the candidate.
pub(super) fn given(candidate: &str, is_of_header: bool, filters: &[Filter], refs: &[BackendRef]) -> Share {
    let mut mirrors = filters.iter().filter_map(|filter| filter.request_mirror.as_ref());
    let mirrors = mirrors.any(|mirror| mirror.backend_ref.name == candidate);
    let weights = refs.iter().filter(|backend| backend.name == candidate).map(|backend| backend.weight);
    let Some(weight) = weights.max() else { return Share { mirrors, ..Share::default() } };
    match is_of_header {
        true => Share { matches: weight > 0, mirrors, ..Share::default() },
        false => Share { weight: weight.clamp(0, 100), mirrors, is_known: true, ..Share::default() },
    }
}

/// Which conditions count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    All,
    /// `ResolvedRefs` is one for all rules of the route, also for those of others, whose Services may be missing.
    Accepted,
}

/// What all gateways of the stored route say about its present generation.
pub(super) fn answer(stored: &HttpRoute, asked: Asked) -> Answer {
    answered(&stored.metadata, &stored.spec.parent_refs, &stored.status, asked)
}

/// What each gateway of the stored route says.
pub(super) fn of_parents(stored: &HttpRoute, asked: Asked) -> Vec<RouteParentStatus> {
    let HttpRoute { metadata, spec, status } = stored;
    let of = |parent: &ParentRef| RouteParentStatus {
        name: parent.name.clone(),
        namespace: parent.namespace.clone().or_else(|| metadata.namespace.clone()).unwrap_or_default(),
        section_name: parent.section_name.clone(),
        accepted: answered(metadata, slice::from_ref(parent), status, asked) == Answer::Accepted,
    };
    spec.parent_refs.iter().map(of).collect()
}

/// As `answer`, of a route of either kind.
pub(super) fn answered(
    metadata: &ObjectMeta,
    parents: &[ParentRef],
    status: &RouteState,
    asked: Asked,
) -> Answer {
    let generation = metadata.generation;
    let namespace = metadata.namespace.as_deref();
    let mut is_missing = parents.is_empty();
    for parent in parents {
        let said: Vec<&RouteParent> =
            status.parents.iter().filter(|said| is_same(&said.parent_ref, parent, namespace)).collect();
        let conditions =
            [("Accepted", reasons::ROUTE_REJECTED), ("ResolvedRefs", reasons::BACKEND_NOT_RESOLVED)];
        let conditions =
            conditions.into_iter().filter(|(type_, _)| asked == Asked::All || *type_ == "Accepted");
        for (type_, refused) in conditions {
            let now = |condition: &&Condition| {
                condition.type_ == type_ && condition.observed_generation >= generation
            };
            let found: Vec<&Condition> = said.iter().flat_map(|said| &said.conditions).filter(now).collect();
            if let Some(no) = found.iter().find(|condition| condition.status == "False") {
                let message = format!("Gateway {}: {} ({})", parent.name, no.message, no.reason);
                return Answer::Refused { reason: refused, message };
            }
            is_missing |= found.iter().all(|condition| condition.status != "True");
        }
        let partly = said.iter().flat_map(|said| &said.conditions).find(|condition| {
            condition.type_ == "PartiallyInvalid"
                && condition.status == "True"
                && condition.observed_generation >= generation
        });
        if let Some(partly) = partly {
            let message = format!("Gateway {}: {} ({})", parent.name, partly.message, partly.reason);
            return Answer::Refused { reason: reasons::ROUTE_REJECTED, message };
        }
    }
    if is_missing { Answer::Missing } else { Answer::Accepted }
}

/// What a gateway has against what the present rules ask for. Who may use the gateway, and with which host name, is not of the rules.
pub(super) fn rules_refused(metadata: &ObjectMeta, status: &RouteState) -> Option<String> {
    let said = status.parents.iter().flat_map(|said| said.conditions.iter().map(move |known| (said, known)));
    let mut refused = said.filter(|(_, known)| {
        let is_refused = match &*known.type_ {
            "Accepted" => known.status == "False" && OF_RULES.contains(&&*known.reason),
            "PartiallyInvalid" => known.status == "True",
            _ => false,
        };
        is_refused && known.observed_generation >= metadata.generation
    });
    let (said, known) = refused.next()?;
    Some(format!("Gateway {}: {} ({})", said.parent_ref.name, known.message, known.reason))
}

/// What any gateway has against an InferencePool.
pub(super) fn refusal(pool: &str, generation: Option<i64>, status: &RouteState) -> Option<Answer> {
    let said = status.parents.iter().flat_map(|said| said.conditions.iter().map(move |known| (said, known)));
    let mut refused = said.filter(|(_, known)| {
        ["Accepted", "ResolvedRefs"].contains(&&*known.type_)
            && known.status == "False"
            && known.observed_generation >= generation
    });
    let (said, no) = refused.next()?;
    let gateway = &said.parent_ref.name;
    let message = format!("InferencePool {pool}: Gateway {gateway}: {} ({})", no.message, no.reason);
    Some(Answer::Refused { reason: reasons::BACKEND_NOT_RESOLVED, message })
}

/// A gateway repeats the reference as it was written, or with defaults.
fn is_same(said: &ParentRef, parent: &ParentRef, namespace: Option<&str>) -> bool {
    let namespace_of = |known: &ParentRef| known.namespace.as_deref().or(namespace).map(str::to_owned);
    said.name == parent.name
        && said.section_name == parent.section_name
        && said.port == parent.port
        && namespace_of(said) == namespace_of(parent)
}

/// Host and path for clients, if one host name is known. The listener of the gateway decides whether it speaks TLS.
pub(super) fn address(inference: &AIInference, gateway: &Gateway) -> Option<String> {
    let host = gateway.hostnames.iter().find(|host| !host.starts_with('*'))?;
    let prefix = prefixes(inference.spec.engine, gateway).into_iter().next()?;
    Some(format!("{host}{prefix}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::inference;

    fn rendered(gateway: &str, canary: &str, share: Share) -> HttpRoute {
        let spec = format!(
            "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, gateway: {gateway}, canary: {canary}}}"
        );
        let inference = inference(&spec);
        let metadata = ObjectMeta {
            name: Some("chat".into()),
            namespace: Some("demo".into()),
            generation: Some(3),
            ..ObjectMeta::default()
        };
        route(&inference, inference.spec.gateway.as_ref().unwrap(), (share, Backends::Services), metadata)
    }

    const GATEWAY: &str = "{name: public, hostnames: [chat.example.com]}";

    fn weights(rule: &Rule) -> Vec<(&str, i32)> {
        rule.backend_refs.iter().map(|backend| (&*backend.name, backend.weight)).collect()
    }

    #[test]
    fn a_path_before_the_root_of_the_api_is_taken_off() {
        let gateway = "{name: public, pathPrefixes: [/chat/v1, /v1/models], hostnames: [a]}";
        let route = rendered(gateway, "{image: 'e:2'}", Share::default());
        let replaced = |rule: &Rule| {
            let rewrite = rule.filters.first().and_then(|filter| filter.url_rewrite.clone());
            rewrite.map(|rewrite| rewrite.path.replace_prefix_match)
        };
        let paths: Vec<_> =
            route.spec.rules.iter().map(|rule| (&*rule.matches[0].path.value, replaced(rule))).collect();
        assert_eq!(paths, [("/chat/v1", Some("/v1".to_owned())), ("/v1/models", None)]);
    }

    #[test]
    fn headers_lead_to_the_candidate_before_the_share_is_drawn() {
        let share = Share { weight: 30, matches: true, is_known: true, ..Share::default() };
        let route = rendered(GATEWAY, "{image: 'e:2', match: [{header: x-beta, value: '1'}]}", share);
        let [of_header, shared] = &route.spec.rules[..] else { panic!("{route:?}") };
        assert_eq!(of_header.matches[0].headers[0].name, "x-beta");
        assert_eq!(weights(of_header), [("chat-canary", 100)]);
        assert_eq!(weights(shared), [("chat", 70), ("chat-canary", 30)]);
        assert!(shared.matches[0].headers.is_empty() && shared.timeouts.request == "0s");
        assert_eq!(seen("chat", Some(&route)).share, share, "what is written is what is read");
        let without = rendered(GATEWAY, "{image: 'e:2'}", Share::default());
        assert_eq!(weights(&without.spec.rules[0]), [("chat", 100)]);
        assert_eq!(seen("chat", Some(&without)).share, Share::default());
    }

    fn pinned(revision: &str, share: Share) -> HttpRoute {
        let canary = "{image: 'e:2', pin: Cookie, weightPercent: 30}";
        let spec = format!(
            "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, gateway: {GATEWAY}, canary: {canary}}}"
        );
        let mut inference = inference(&spec);
        let status = json!({"canary": {"phase": "Analysing", "revision": revision}});
        inference.status = Some(serde_json::from_value(status).unwrap());
        let metadata = ObjectMeta { name: Some("chat".into()), ..ObjectMeta::default() };
        route(&inference, inference.spec.gateway.as_ref().unwrap(), (share, Backends::Services), metadata)
    }

    /// The rules go in the same write as the share.
    #[test]
    fn a_caller_comes_back_to_the_version_that_has_answered_while_there_is_a_share() {
        let share = Share { weight: 30, is_known: true, ..Share::default() };
        let route = pinned("5d4f", share);
        let [of_candidate, of_stable, shared] = &route.spec.rules[..] else { panic!("{route:?}") };
        for (rule, version, backend) in
            [(of_candidate, "candidate", "chat-canary"), (of_stable, "stable", "chat")]
        {
            let header = &rule.matches[0].headers[0];
            assert_eq!((&*header.type_, &*header.name), ("RegularExpression", "Cookie"));
            assert_eq!(header.value, format!("^(.*; ?)?ai-canary-chat=5d4f-30-{version}(;.*)?$"));
            assert_eq!(weights(rule), [(backend, 100)]);
            let mut drawn = shared.backend_refs.iter().filter(|drawn| drawn.name == backend);
            let filters = &drawn.next().unwrap().filters;
            let added = &filters[0].response_header_modifier.as_ref().unwrap().add[0];
            assert_eq!(added.name, "Set-Cookie");
            assert_eq!(
                added.value,
                format!("ai-canary-chat=5d4f-30-{version}; Path=/; HttpOnly; SameSite=Lax")
            );
        }
        assert_eq!(weights(shared), [("chat", 70), ("chat-canary", 30)]);
        assert_eq!(seen("chat", Some(&route)).share, share, "what is written is what is read");
        let known = Share { weight: 0, ..share };
        let without = pinned("5d4f", known);
        assert_eq!(without.spec.rules.len(), 1, "{without:?}");
        assert!(without.spec.rules[0].backend_refs.iter().all(|backend| backend.filters.is_empty()));
        assert_eq!(pinned("", share).spec.rules.len(), 1, "the version is not known yet");
        let mut left = route;
        left.spec.rules[2].backend_refs[1].weight = 0;
        assert!(seen("chat", Some(&left)).share.weight > 0, "callers still come by the cookie");
    }

    #[test]
    fn copies_go_to_the_candidate_beside_what_the_path_needs() {
        let gateway = "{name: public, hostnames: [a], pathPrefixes: [/chat/v1]}";
        let share = Share { mirrors: true, is_known: true, ..Share::default() };
        let route = rendered(gateway, "{image: 'e:2', mirror: true}", share);
        let filters = serde_json::to_value(&route.spec.rules[0].filters).unwrap();
        let path = json!({"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1"}});
        let backend = json!({"group": "", "kind": "Service", "name": "chat-canary", "port": HTTP_PORT});
        assert_eq!(
            filters,
            json!([
                {"type": "URLRewrite", "urlRewrite": path},
                {"type": "RequestMirror", "requestMirror": {"backendRef": backend}},
            ])
        );
        assert_eq!(seen("chat", Some(&route)).share, share, "what is written is what is read");
    }

    /// Name and namespace of the reference, generation, and conditions.
    type Said<'a> = (&'a str, Option<&'a str>, i64, &'a [(&'a str, &'a str)]);

    /// The route with what gateways say.
    fn answered(gateway: &str, said: &[Said<'_>]) -> Answer {
        let mut route = rendered(gateway, "{image: 'e:2'}", Share::default());
        let condition = |generation: i64, (type_, status): &(&str, &str)| {
            json!({"type": type_, "status": status, "reason": "R", "message": "m", "observedGeneration": generation,
                "lastTransitionTime": "2026-01-01T12:00:00Z"})
        };
        let parents: Vec<Value> = said
            .iter()
            .map(|(name, namespace, generation, conditions)| {
                let conditions: Vec<Value> =
                    conditions.iter().map(|known| condition(*generation, known)).collect();
                json!({"parentRef": {"name": name, "namespace": namespace}, "conditions": conditions})
            })
            .collect();
        route.status = serde_json::from_value(json!({"parents": parents})).unwrap();
        answer(&route, Asked::All)
    }

    const GOOD: &[(&str, &str)] = &[("Accepted", "True"), ("ResolvedRefs", "True")];

    #[test]
    fn a_route_is_accepted_when_each_gateway_says_so_of_its_present_rules() {
        let two = "{name: public, hostnames: [a], more: [{name: inside, namespace: net}]}";
        let inside = ("inside", Some("net"), 3, GOOD);
        assert_eq!(answered(two, &[("public", None, 3, GOOD), inside]), Answer::Accepted);
        assert_eq!(
            answered(two, &[("public", Some("demo"), 3, GOOD), inside]),
            Answer::Accepted,
            "a default"
        );
        assert_eq!(answered(two, &[inside]), Answer::Missing, "one has not answered");
        assert_eq!(answered(two, &[("public", None, 2, GOOD), inside]), Answer::Missing, "of older rules");
        assert_eq!(
            answered(two, &[("public", Some("other"), 3, GOOD), inside]),
            Answer::Missing,
            "another Gateway"
        );
        assert_eq!(answered(GATEWAY, &[]), Answer::Missing);
        assert_eq!(answered(GATEWAY, &[("public", None, 3, &[("Accepted", "True")])]), Answer::Missing);
    }

    #[test]
    fn only_what_a_gateway_has_against_the_rules_is_of_the_rules() {
        let refused = |generation: i64, type_: &str, status: &str, reason: &str| {
            let mut route = rendered(GATEWAY, "{image: 'e:2'}", Share::default());
            let condition = json!({"type": type_, "status": status, "reason": reason, "message": "m",
                "observedGeneration": generation, "lastTransitionTime": "2026-01-01T12:00:00Z"});
            let parents = json!([{"parentRef": {"name": "public"}, "conditions": [condition]}]);
            route.status = serde_json::from_value(json!({"parents": parents})).unwrap();
            rules_refused(&route.metadata, &route.status)
        };
        let words = refused(3, "Accepted", "False", "UnsupportedValue");
        assert_eq!(words.as_deref(), Some("Gateway public: m (UnsupportedValue)"));
        assert!(refused(3, "Accepted", "False", "IncompatibleFilters").is_some());
        assert!(refused(3, "PartiallyInvalid", "True", "UnsupportedValue").is_some());
        for reason in ["NotAllowedByListeners", "NoMatchingListenerHostname", "NoReadyListeners", "Pending"] {
            assert_eq!(refused(3, "Accepted", "False", reason), None, "{reason}");
        }
        assert_eq!(refused(2, "Accepted", "False", "UnsupportedValue"), None, "of older rules");
        assert_eq!(refused(3, "Accepted", "True", "UnsupportedValue"), None);
    }

    #[test]
    fn what_one_gateway_refuses_is_refused_with_its_words() {
        let refused =
            |conditions: &[(&str, &str)]| match answered(GATEWAY, &[("public", None, 3, conditions)]) {
                Answer::Refused { reason, message } => (reason, message),
                other => panic!("{other:?}"),
            };
        let words = "Gateway public: m (R)".to_owned();
        assert_eq!(
            refused(&[("Accepted", "False"), ("ResolvedRefs", "True")]),
            ("RouteRejected", words.clone())
        );
        assert_eq!(
            refused(&[("Accepted", "True"), ("ResolvedRefs", "False")]),
            ("BackendNotResolved", words.clone())
        );
        let partly = [("Accepted", "True"), ("ResolvedRefs", "True"), ("PartiallyInvalid", "True")];
        assert_eq!(refused(&partly), ("RouteRejected", words));
    }
}
