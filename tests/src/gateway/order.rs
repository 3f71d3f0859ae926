//! Whether the versions of a route follow each other as a canary's must: weights that add up, a share that rises only after the
//! gateway has accepted the version before, and a Service that is named before it has a share and after it has lost it.

use kube::api::DynamicObject;
use serde_json::Value;

use super::Version;

/// What is wrong with these versions of one namespace, in the order in which they were stored.
pub fn problem(versions: &[Version]) -> Option<String> {
    versions.iter().enumerate().find_map(|(index, version)| {
        let uid = &version.route.metadata.uid;
        let mut earlier = versions[..index].iter().rev();
        let before = earlier.find(|known| known.route.metadata.uid == *uid);
        let why = of_one(before, version)?;
        let (was, is) = (before.map(|before| before.weights), version.weights);
        Some(format!(
            "version {} of HTTPRoute {}: {why}: {was:?} and then {is:?}",
            version.generation, version.name
        ))
    })
}

fn of_one(before: Option<&Version>, version: &Version) -> Option<&'static str> {
    let (stable, candidate) = version.weights;
    let share = candidate.unwrap_or_default();
    if stable + share != 100 {
        return Some("the weights do not add up to 100");
    }
    let known = before.and_then(|before| before.weights.1);
    if share > known.unwrap_or_default() {
        if known.is_none() {
            return Some("a share for a Service that the gateway did not know before");
        }
        if before.is_some_and(|before| !is_accepted(&version.route, before.generation)) {
            return Some("the share rises before the gateway has accepted the version before");
        }
    }
    let is_lost = candidate.is_none() && known.is_some_and(|weight| weight > 0);
    is_lost.then_some("the route forgets a Service that had a share")
}

/// Whether all gateways have accepted this generation. A version is stored with the status of the one before.
pub(super) fn is_accepted(route: &DynamicObject, generation: i64) -> bool {
    let parents = route.data["status"]["parents"].as_array();
    let mut conditions =
        parents.into_iter().flatten().flat_map(|parent| parent["conditions"].as_array()).flatten();
    let is_true =
        |condition: &Value| condition["status"] == "True" && condition["observedGeneration"] == generation;
    parents.is_some_and(|parents| !parents.is_empty()) && conditions.all(is_true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A version with the generation that the gateway had accepted when it was stored.
    fn version(generation: i64, weights: (i64, Option<i64>), accepted: i64) -> Version {
        let condition = json!({"type": "Accepted", "status": "True", "observedGeneration": accepted});
        let route: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "chat", "uid": "one"},
            "status": {"parents": [{"conditions": [condition]}]},
        }))
        .expect("a route");
        Version { name: "chat".to_owned(), generation, weights, route }
    }

    #[test]
    fn a_canary_that_keeps_the_order_has_no_problem_and_each_breach_has_its_name() {
        let good = [
            version(1, (100, None), 0),
            version(2, (100, Some(0)), 1),
            version(3, (50, Some(50)), 2),
            version(4, (100, Some(0)), 2),
            version(5, (100, None), 4),
        ];
        assert_eq!(problem(&good), None);
        let with = |index: usize, version: Version| {
            let mut versions = good.to_vec();
            versions[index] = version;
            problem(&versions).unwrap_or_default()
        };
        assert!(with(2, version(3, (50, Some(40)), 2)).contains("add up"));
        assert!(with(2, version(3, (50, Some(50)), 1)).contains("before the gateway has accepted"));
        assert!(with(1, version(2, (50, Some(50)), 1)).contains("did not know"));
        assert!(with(3, version(4, (100, None), 3)).contains("forgets"));
    }
}
