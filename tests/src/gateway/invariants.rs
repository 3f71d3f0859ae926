//! What holds for every canary with steps, whatever happens to its controller, checked on all that was stored:
//!
//! - I1: a Service gets a share only while it has a ready endpoint, and after the gateways have resolved the rules before.
//! - I2: the rule names both Services from the start of a canary to its end, and the weights add up to 100.
//! - I3: a share rises only after all gateways have accepted the version before.
//! - I4: pods of the candidate end only after the gateways have accepted its weight 0, and the drain is over. Pods of stable
//!   stay.
//! - I5: a share rises by one step, and falls to 0 at once.
//! - I6: routes of other owners stay as they are, and their fields have no entry of the controller.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::DynamicObject;
use serde_json::Value;

use super::{
    Version, order,
    record::{Record, Stored},
};

/// Which canaries there were.
#[derive(Clone, Copy, Debug)]
pub struct Canaries<'a> {
    /// Names of the AIInferences; all other routes have other owners.
    pub names: &'a [&'a str],
    /// Percents of the steps, in their order.
    pub steps: &'a [i64],
    pub drain: Duration,
    /// The name with which the controller writes.
    pub writer: &'a str,
}

/// Statuses have whole seconds, so a drain may seem shorter by one.
const ROUNDED: Duration = Duration::from_secs(1);

/// The first breach.
pub fn problem(record: &Record, canaries: Canaries<'_>) -> Option<String> {
    let of_each = canaries.names.iter().find_map(|name| {
        let routes: Vec<&Stored<DynamicObject>> =
            record.routes.iter().filter(|route| route.name() == *name && !route.is_deleted).collect();
        let breach = without_endpoint(record, name, &routes)
            .or_else(|| names_too_little(&routes))
            .or_else(|| order::problem(&versions(&routes)).map(|why| format!("I2, I3: {why}")))
            .or_else(|| ends_too_soon(record, name, &routes, canaries.drain))
            .or_else(|| leaps(&routes, canaries.steps));
        breach.map(|breach| format!("{name}: {breach}"))
    });
    of_each.or_else(|| touches(record, canaries))
}

/// The percents of the candidate, each as long as it lasted. `None`: the rule does not name it.
pub fn shares(record: &Record, name: &str) -> Vec<Option<i64>> {
    let routes = record.routes.iter().filter(|route| route.name() == name && !route.is_deleted);
    let mut shares: Vec<Option<i64>> = routes.map(|route| weights(&route.object).1).collect();
    shares.dedup();
    shares
}

/// I1.
fn without_endpoint(record: &Record, name: &str, routes: &[&Stored<DynamicObject>]) -> Option<String> {
    let candidate = format!("{name}-canary");
    let mut before = None;
    for route in routes {
        let (stable, share) = weights(&route.object);
        let has_lost = share > Some(0) && ready(record, &candidate, route.version) == 0;
        let rises = before.is_some_and(|(before, _)| stable > 0 && before == 0);
        let is_back_without = rises && ready(record, name, route.version) == 0;
        if has_lost || is_back_without {
            let version = route.version;
            return Some(format!("I1: a share of {stable} and {share:?} without an endpoint, in {version}"));
        }
        before = Some((stable, share));
    }
    // And endpoints that went while there was a share.
    let of_candidate = record.slices.iter().filter(|slice| service(slice) == candidate);
    let mut lost = of_candidate.filter(|slice| ready(record, &candidate, slice.version + 1) == 0);
    let lost = lost.find(|slice| {
        let in_force = routes.iter().rev().find(|route| route.version < slice.version);
        in_force.is_some_and(|route| weights(&route.object).1 > Some(0))
    });
    lost.map(|slice| format!("I1: the last endpoint goes in {} while it has a share", slice.version))
}

/// Ready endpoints of a Service just before a version.
fn ready(record: &Record, of: &str, version: u64) -> usize {
    let mut slices = BTreeMap::new();
    for slice in record.slices.iter().filter(|slice| service(slice) == of && slice.version < version) {
        let is_ready = |known: &&Endpoint| {
            known.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(true))
        };
        let ready = slice.object.endpoints.iter().filter(is_ready).count();
        slices.insert(slice.uid(), if slice.is_deleted { 0 } else { ready });
    }
    slices.values().sum()
}

fn service(slice: &Stored<EndpointSlice>) -> &str {
    let labels = slice.object.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get("kubernetes.io/service-name")).map_or("", String::as_str)
}

/// I2: stable alone, or stable and then the candidate.
fn names_too_little(routes: &[&Stored<DynamicObject>]) -> Option<String> {
    routes.iter().find_map(|route| {
        let names: Vec<String> = refs(&route.object)
            .iter()
            .map(|known| known["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        let (name, candidate) = (route.name().to_owned(), format!("{}-canary", route.name()));
        let is_right = names == [name.clone()] || names == [name, candidate];
        (!is_right).then(|| format!("I2: the rule leads to {names:?}"))
    })
}

/// I4.
fn ends_too_soon(
    record: &Record,
    name: &str,
    routes: &[&Stored<DynamicObject>],
    drain: Duration,
) -> Option<String> {
    let candidate = format!("{name}-canary");
    let mut wanted = BTreeMap::new();
    for deployment in record.deployments.iter().filter(|known| [name, &*candidate].contains(&known.name())) {
        let spec = deployment.object.spec.as_ref().filter(|_| !deployment.is_deleted);
        let pods = spec.and_then(|spec| spec.replicas).unwrap_or_default();
        let template = spec.map(|spec| &spec.template);
        let Some((before, template_before)) = wanted.insert(deployment.uid(), (pods, template)) else {
            continue;
        };
        if deployment.name() == name && pods < before {
            return Some(format!("I4: stable has {pods} of {before} pods in {}", deployment.version));
        }
        // Another template replaces the pods, which stable does while others serve.
        if deployment.name() == name || pods >= before && template == template_before {
            continue;
        }
        let earlier = routes.iter().take_while(|route| route.version < deployment.version);
        let earlier: Vec<_> = earlier.collect();
        let Some(last) = earlier.iter().rposition(|route| weights(&route.object).1 > Some(0)) else {
            continue;
        };
        let free = earlier[last..]
            .iter()
            .find(|route| weights(&route.object).1 <= Some(0) && is_accepted(&route.object));
        let since = free.map(|free| deployment.at.saturating_duration_since(free.at));
        if since.is_none_or(|since| since + ROUNDED < drain) {
            return Some(format!(
                "I4: pods of the candidate end in {}, {since:?} after it has lost its share",
                deployment.version
            ));
        }
    }
    None
}

/// I5.
fn leaps(routes: &[&Stored<DynamicObject>], steps: &[i64]) -> Option<String> {
    let shares: Vec<i64> = routes.iter().map(|route| weights(&route.object).1.unwrap_or_default()).collect();
    let is_step = |was: i64, is: i64| {
        let next = steps.iter().find(|step| **step > was).copied();
        is == was || is == 0 || Some(is) == next
    };
    let leap = shares.windows(2).find(|pair| !is_step(pair[0], pair[1]));
    leap.map(|pair| format!("I5: from {} % to {} %", pair[0], pair[1]))
}

/// I6.
fn touches(record: &Record, Canaries { names, writer, .. }: Canaries<'_>) -> Option<String> {
    let mut first = BTreeMap::new();
    for route in record.routes.iter().filter(|route| !names.contains(&route.name())) {
        let spec = route.object.data["spec"].to_string();
        let was = first.entry(route.uid()).or_insert_with(|| spec.clone());
        if *was != spec {
            return Some(format!("I6: HTTPRoute {} was {was}, and is {spec}", route.name()));
        }
        let mut managers = route.object.metadata.managed_fields.iter().flatten();
        if managers.any(|entry| entry.manager.as_deref() == Some(writer)) {
            return Some(format!("I6: {writer} has written HTTPRoute {}", route.name()));
        }
    }
    None
}

fn versions(routes: &[&Stored<DynamicObject>]) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    for route in routes {
        let version = Version::of(&route.object);
        let is_known = versions.iter().any(|known| known.is_same_as(&version));
        versions.extend((!is_known).then_some(version));
    }
    versions
}

fn refs(route: &DynamicObject) -> Vec<Value> {
    let rules = route.data["spec"]["rules"].as_array().cloned().unwrap_or_default();
    rules.last().and_then(|rule| rule["backendRefs"].as_array()).cloned().unwrap_or_default()
}

fn weights(route: &DynamicObject) -> (i64, Option<i64>) {
    Version::of(route).weights
}

fn is_accepted(route: &DynamicObject) -> bool {
    order::is_accepted(route, route.metadata.generation.unwrap_or_default())
}

#[cfg(test)]
mod tests;
