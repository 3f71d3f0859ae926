//! The HTTPRoute of `spec.routeRef`, which its user has written: two of its weights are those of the versions. Pure.

use api::aiinference::{AIInference, traffic::RouteRef};
use runtime::write::children::Values;
use serde_json::json;

use super::{
    route::{Answer, Asked, answer},
    state::{Route, Share},
};
use crate::{
    engine::HTTP_PORT,
    names::{self, Track},
    objects::gateway_api::http_route::{BackendRef, HttpRoute, Rule},
};

/// Where the two versions are in the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Backends {
    rule: usize,
    stable: Backend,
    candidate: Backend,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Backend {
    index: usize,
    weight: i32,
}

/// What the rule gives to the candidate. One that does not fit may still send it requests, which nothing here can take back.
pub(super) fn seen(inference: &AIInference, reference: &RouteRef, stored: Option<&HttpRoute>) -> Route {
    let share = |weight, is_known| Share { weight, is_known, ..Share::default() };
    let Some(stored) = stored else {
        // Without it, the gateways send nothing.
        return Route { share: share(0, false), is_accepted: true, is_unresolved: false, is_foreign: true };
    };
    let share = match backends(inference, reference, stored) {
        Ok(backends) => share(backends.percent(), true),
        Err(_) => {
            let (_, candidate) = names_of(inference);
            let weights = stored.spec.rules.iter().map(|rule| percent_of(rule, &candidate));
            share(weights.max().unwrap_or_default(), false)
        }
    };
    let is_accepted = answer(stored, Asked::Accepted) == Answer::Accepted;
    let is_unresolved = answer(stored, asked(stored)) != Answer::Accepted;
    Route { share, is_accepted, is_unresolved, is_foreign: true }
}

/// Whether all Services are found is one condition for all rules. Rules of others may name Services that are missing.
pub(super) fn asked(stored: &HttpRoute) -> Asked {
    if stored.spec.rules.len() == 1 { Asked::All } else { Asked::Accepted }
}

/// What has to be changed in the HTTPRoute before the two versions can share it.
pub(super) fn unfit(inference: &AIInference, reference: &RouteRef, stored: &HttpRoute) -> Option<String> {
    backends(inference, reference, stored).err()
}

/// The write that gives the candidate its share; empty if it has that share. `None`: the HTTPRoute does not fit.
pub(super) fn weights(
    inference: &AIInference,
    reference: &RouteRef,
    stored: &HttpRoute,
    share: Share,
) -> Option<Values> {
    let known = backends(inference, reference, stored).ok()?;
    let wanted = (100 - share.weight, share.weight);
    // As long as the candidate has none, stable's number is the user's.
    let is_same =
        known.candidate.weight == share.weight && (share.weight == 0 || known.stable.weight == wanted.0);
    if is_same {
        return Some(Values::default());
    }
    let (stable, candidate) = names_of(inference);
    let of_rule = format!("/spec/rules/{}", known.rule);
    let at = |backend: Backend, field: &str| format!("{of_rule}/backendRefs/{}/{field}", backend.index);
    let of_name = stored.spec.rules.get(known.rule).and_then(|rule| rule.name.as_ref());
    let mut expected: Vec<_> =
        of_name.map(|name| (format!("{of_rule}/name"), json!(name))).into_iter().collect();
    expected.extend([
        (at(known.stable, "name"), json!(stable)),
        (at(known.candidate, "name"), json!(candidate)),
        (at(known.stable, "weight"), json!(known.stable.weight)),
        (at(known.candidate, "weight"), json!(known.candidate.weight)),
    ]);
    let replaced =
        vec![(at(known.stable, "weight"), json!(wanted.0)), (at(known.candidate, "weight"), json!(wanted.1))];
    Some(Values { expected, replaced })
}

impl Backends {
    /// Rounded up: a candidate with any share has requests.
    fn percent(self) -> i32 {
        percent(self.candidate.weight, i64::from(self.stable.weight) + i64::from(self.candidate.weight))
    }
}

fn percent(weight: i32, all: i64) -> i32 {
    let hundredfold = i64::from(weight) * 100;
    let percent = hundredfold.checked_div(all).unwrap_or_default();
    i32::try_from(percent + i64::from(percent * all != hundredfold)).unwrap_or(100).clamp(0, 100)
}

/// The share of a Service in a rule, with all of its backends.
fn percent_of(rule: &Rule, service: &str) -> i32 {
    let all: i64 = rule.backend_refs.iter().map(|backend| i64::from(backend.weight)).sum();
    let of_service = rule.backend_refs.iter().filter(|backend| backend.name == service);
    of_service.map(|backend| percent(backend.weight, all)).max().unwrap_or_default()
}

fn names_of(inference: &AIInference) -> (String, String) {
    let name = inference.metadata.name.as_deref().unwrap_or_default();
    (names::service(name, Track::Stable), names::service(name, Track::Canary))
}

fn backends(inference: &AIInference, reference: &RouteRef, stored: &HttpRoute) -> Result<Backends, String> {
    let rules = &stored.spec.rules;
    let of = &reference.name;
    let rule = match &reference.rule {
        None if rules.len() == 1 => 0,
        None => {
            return Err(format!(
                "HTTPRoute {of} has {} rules; name one in spec.routeRef.rule, or give its number from 0",
                rules.len()
            ));
        }
        Some(wanted) => rules
            .iter()
            .position(|rule| rule.name.as_ref() == Some(wanted))
            .or_else(|| wanted.parse().ok().filter(|number| *number < rules.len()))
            .ok_or_else(|| format!("HTTPRoute {of} has no rule {wanted:?}; correct spec.routeRef.rule"))?,
    };
    let refs = rules.get(rule).map(|rule| &*rule.backend_refs).unwrap_or_default();
    let namespace = inference.metadata.namespace.as_deref();
    let (stable, candidate) = names_of(inference);
    let is_service = |backend: &BackendRef| {
        backend.group.is_empty()
            && backend.kind == "Service"
            && backend.port == HTTP_PORT
            && backend.namespace.as_deref().is_none_or(|known| Some(known) == namespace)
    };
    let others = rules.iter().enumerate().filter(|(index, _)| *index != rule);
    if let Some((other, _)) = others.into_iter().find(|(_, other)| percent_of(other, &candidate) > 0) {
        return Err(format!(
            "rule {other} of HTTPRoute {of} sends requests to Service {candidate}, too; only rule {rule} of spec.routeRef may"
        ));
    }
    let found = |name: &str| {
        let index = refs.iter().position(|backend| backend.name == name && is_service(backend))?;
        refs.get(index).map(|backend| Backend { index, weight: backend.weight })
    };
    match (found(&stable), found(&candidate), refs.len()) {
        (Some(stable), Some(candidate), 2) => Ok(Backends { rule, stable, candidate }),
        _ => Err(format!(
            "rule {rule} of HTTPRoute {of} must have two backendRefs, the Services {stable} and {candidate} with port \
             {HTTP_PORT}; the candidate now has {} % of its requests",
            rules.get(rule).map_or(0, |rule| percent_of(rule, &candidate))
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::tests::inference;

    const SPEC: &str = "{modelSource: s3://m, engine: vllm, gpu: {count: 1}, canary: {image: 'e:2'}}";

    /// With these rules, each with its backends and their weights.
    fn stored(rules: &[(&str, &[(&str, i32)])]) -> HttpRoute {
        let backend = |(name, weight): &(&str, i32)| json!({"group": "", "kind": "Service", "name": name, "port": HTTP_PORT, "weight": weight});
        let rules: Vec<Value> = rules
            .iter()
            .map(|(name, refs)| json!({"name": name, "backendRefs": refs.iter().map(backend).collect::<Vec<_>>()}))
            .collect();
        let parents = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public"}]);
        let object = json!({"metadata": {"name": "web", "namespace": "demo"}, "spec": {"parentRefs": parents, "rules": rules}});
        serde_json::from_value(object).unwrap()
    }

    fn reference(rule: Option<&str>) -> RouteRef {
        RouteRef { name: "web".into(), rule: rule.map(Into::into) }
    }

    fn weight(rule: Option<&str>, stored: &HttpRoute) -> Result<i32, String> {
        let (inference, reference) = (inference(SPEC), reference(rule));
        match unfit(&inference, &reference, stored) {
            None => Ok(seen(&inference, &reference, Some(stored)).share.weight),
            Some(message) => Err(message),
        }
    }

    #[test]
    fn the_share_is_that_of_the_rule_that_is_named_or_numbered() {
        let other: &[(&str, i32)] = &[("shop", 1)];
        let two = stored(&[("shop", other), ("models", &[("chat-canary", 1), ("chat", 3)])]);
        assert_eq!(weight(Some("models"), &two), Ok(25));
        assert_eq!(weight(Some("1"), &two), Ok(25));
        assert!(weight(None, &two).unwrap_err().contains("has 2 rules"));
        assert!(weight(Some("2"), &two).unwrap_err().contains("has no rule \"2\""));
        assert!(weight(Some("shop"), &two).unwrap_err().contains("only rule 0 of spec.routeRef may"));
        let none = stored(&[("shop", other)]);
        assert!(weight(None, &none).unwrap_err().contains("must have two backendRefs"));
        assert_eq!(weight(None, &stored(&[("a", &[("chat", 2), ("chat-canary", 1)])])), Ok(34), "rounded up");
        assert_eq!(weight(None, &stored(&[("a", &[("chat", 0), ("chat-canary", 0)])])), Ok(0));
        let third = stored(&[("a", &[("chat", 1), ("chat-canary", 0), ("shop", 1)])]);
        assert!(weight(None, &third).is_err(), "shares of three would not be those of the steps");
    }

    /// Its owner may edit it in the middle of a canary. Pods that have requests must not end then.
    #[test]
    fn a_rule_that_does_not_fit_any_more_still_sends_what_it_sends() {
        let (inference, reference) = (inference(SPEC), reference(Some("models")));
        let share = |route: &HttpRoute| seen(&inference, &reference, Some(route)).share;
        let both: &[(&str, i32)] = &[("chat", 60), ("chat-canary", 40)];
        let renamed = stored(&[("new", both)]);
        assert_eq!((share(&renamed).weight, share(&renamed).is_known), (40, false));
        assert_eq!(weights(&inference, &reference, &renamed, Share::default()), None);
        let third = stored(&[("models", &[("chat", 60), ("chat-canary", 30), ("shop", 10)])]);
        assert_eq!(share(&third).weight, 30);
        let other = stored(&[("models", &[("chat", 100), ("chat-canary", 0)]), ("b", &[("chat-canary", 1)])]);
        assert_eq!(share(&other).weight, 100);
        assert!(
            unfit(&inference, &reference, &other).unwrap().contains("rule 1 of HTTPRoute web sends requests")
        );
        let mut port = stored(&[("models", &[("chat", 100), ("chat-canary", 0)])]);
        port.spec.rules[0].backend_refs[1].port = 80;
        assert!(unfit(&inference, &reference, &port).unwrap().contains("with port 8000"));
        assert!(!share(&port).is_known, "nothing to take back");
    }

    #[test]
    fn of_a_single_rule_the_gateways_must_have_found_the_services() {
        let both: &[(&str, i32)] = &[("chat", 100), ("chat-canary", 0)];
        let (inference, reference) = (inference(SPEC), reference(Some("a")));
        let is_unresolved = |rules: &[(&str, &[(&str, i32)])]| {
            let mut route = stored(rules);
            let condition = |type_: &str, status: &str| {
                json!({"type": type_, "status": status, "reason": "R", "message": "m", "observedGeneration": 1,
                    "lastTransitionTime": "2026-01-01T12:00:00Z"})
            };
            let conditions = [condition("Accepted", "True"), condition("ResolvedRefs", "False")];
            let parents = json!([{"parentRef": {"name": "public"}, "conditions": conditions}]);
            route.metadata.generation = Some(1);
            route.status = serde_json::from_value(json!({ "parents": parents })).unwrap();
            let seen = seen(&inference, &reference, Some(&route));
            assert!(seen.is_accepted);
            seen.is_unresolved
        };
        assert!(is_unresolved(&[("a", both)]));
        assert!(
            !is_unresolved(&[("a", both), ("b", &[("shop", 1)])]),
            "it may be the shop that is not found"
        );
    }

    #[test]
    fn a_service_of_another_namespace_is_no_version() {
        let mut route = stored(&[("a", &[("chat", 100), ("chat-canary", 0)])]);
        route.spec.rules[0].backend_refs[1].namespace = Some("demo".into());
        assert_eq!(weight(None, &route), Ok(0));
        route.spec.rules[0].backend_refs[1].namespace = Some("other".into());
        assert!(weight(None, &route).is_err());
    }

    #[test]
    fn a_write_names_what_must_be_there_and_changes_two_numbers() {
        let (inference, reference) = (inference(SPEC), reference(None));
        let route = stored(&[("models", &[("chat-canary", 0), ("chat", 1)])]);
        let share = |weight| Share { weight, is_known: true, ..Share::default() };
        assert_eq!(
            weights(&inference, &reference, &route, share(0)),
            Some(Values::default()),
            "the user's own number stays"
        );
        let values = weights(&inference, &reference, &route, share(10)).unwrap();
        let at = |path: &str, value: Value| (format!("/spec/rules/0/{path}"), value);
        assert_eq!(
            values.replaced,
            [at("backendRefs/1/weight", json!(90)), at("backendRefs/0/weight", json!(10))]
        );
        assert_eq!(
            values.expected,
            [
                at("name", json!("models")),
                at("backendRefs/1/name", json!("chat")),
                at("backendRefs/0/name", json!("chat-canary")),
                at("backendRefs/1/weight", json!(1)),
                at("backendRefs/0/weight", json!(0)),
            ]
        );
        let route = stored(&[("models", &[("chat-canary", 10), ("chat", 90)])]);
        assert_eq!(weights(&inference, &reference, &route, share(10)), Some(Values::default()));
        let back = weights(&inference, &reference, &route, share(0)).unwrap();
        assert_eq!(back.replaced[0].1, json!(100));
    }
}
