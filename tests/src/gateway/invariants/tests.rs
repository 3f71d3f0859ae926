use std::time::Instant;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodSpec};
use serde_json::json;

use super::*;

const CANARIES: Canaries<'_> =
    Canaries { names: &["chat"], steps: &[10, 50], drain: Duration::from_secs(30), writer: "controller" };

/// A canary that is promoted, beside a route of another owner.
struct World {
    began: Instant,
    record: Record,
}

impl World {
    fn good() -> Self {
        let mut world = Self { began: Instant::now(), record: Record::default() };
        world.foreign(1, "shop", "user");
        world.slice(2, "chat", 1);
        world.route(3, (100, None), 1, 1);
        world.deployment(4, "chat", 2);
        world.deployment(5, "chat-canary", 1);
        world.slice(6, "chat-canary", 1);
        world.route(7, (100, Some(0)), 2, 1);
        world.route(8, (100, Some(0)), 2, 2);
        world.route(9, (90, Some(10)), 3, 2);
        world.route(10, (90, Some(10)), 3, 3);
        world.route(11, (50, Some(50)), 4, 3);
        world.route(12, (100, Some(0)), 5, 3);
        world.route(13, (100, Some(0)), 5, 5);
        world.route(50, (100, None), 6, 5);
        world.deployment(51, "chat-canary", 0);
        world.slice(52, "chat-canary", 0);
        world.foreign(53, "shop", "gateway");
        world
    }

    /// One second passes from version to version.
    fn stored<K: serde::de::DeserializeOwned>(&self, version: u64, object: Value) -> Stored<K> {
        let at = self.began + Duration::from_secs(version);
        Stored { version, at, is_deleted: false, object: serde_json::from_value(object).unwrap() }
    }

    fn route(&mut self, version: u64, weights: (i64, Option<i64>), generation: i64, accepted: i64) {
        let backend = |name: &str, weight: i64| json!({"name": name, "weight": weight});
        let stable = backend("chat", weights.0);
        let candidate = weights.1.map(|weight| backend("chat-canary", weight));
        let refs: Vec<Value> = [stable].into_iter().chain(candidate).collect();
        let condition = json!({"type": "Accepted", "status": "True", "observedGeneration": accepted});
        let route = self.stored(
            version,
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {"name": "chat", "uid": "chat", "generation": generation},
                "spec": {"rules": [{"backendRefs": refs}]},
                "status": {"parents": [{"conditions": [condition]}]},
            }),
        );
        self.record.routes.retain(|known| known.version != version);
        self.record.routes.push(route);
        self.record.routes.sort_by_key(|known| known.version);
    }

    fn foreign(&mut self, version: u64, service: &str, manager: &str) {
        let route = self.stored(
            version,
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {"name": "web", "uid": "web", "managedFields": [{"manager": manager}]},
                "spec": {"rules": [{"backendRefs": [{"name": service}]}]},
            }),
        );
        self.record.routes.push(route);
    }

    fn slice(&mut self, version: u64, service: &str, ready: usize) {
        let endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true}});
        let slice = self.stored(
            version,
            json!({
                "metadata": {"name": service, "uid": service, "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4",
                "endpoints": vec![endpoint; ready],
            }),
        );
        self.record.slices.push(slice);
        self.record.slices.sort_by_key(|known| known.version);
    }

    fn deployment(&mut self, version: u64, name: &str, replicas: i32) {
        let spec = json!({"replicas": replicas, "selector": {}, "template": {}});
        let deployment: Stored<Deployment> =
            self.stored(version, json!({"metadata": {"name": name, "uid": name}, "spec": spec}));
        self.record.deployments.push(deployment);
        self.record.deployments.sort_by_key(|known| known.version);
    }
}

/// What differs from the good canary.
type Change = dyn Fn(&mut World);

/// The breach after a change of the good canary.
fn with(change: impl FnOnce(&mut World)) -> String {
    let mut world = World::good();
    change(&mut world);
    problem(&world.record, CANARIES).unwrap_or_default()
}

#[test]
fn a_good_canary_breaches_nothing() {
    let world = World::good();
    assert_eq!(problem(&world.record, CANARIES), None);
    assert_eq!(
        shares(&world.record, "chat"),
        [None, Some(0), Some(10), Some(50), Some(0), None],
        "statuses change no share"
    );
}

#[test]
fn each_breach_has_its_invariant() {
    let breaches: [(&str, &Change); 11] = [
        ("chat: I1: a share of 90", &|world| world.record.slices.retain(|slice| slice.version != 6)),
        ("chat: I1: a share of 90", &|world| world.slice(8, "chat-canary", 0)),
        ("chat: I1: the last endpoint goes in 12", &|world| {
            world.record.routes.retain(|route| route.version != 12);
            world.slice(12, "chat-canary", 0);
        }),
        ("chat: I2: the rule leads to", &|world| {
            world.record.routes[2].object.data["spec"]["rules"][0]["backendRefs"][0]["name"] = json!("other");
        }),
        ("chat: I2, I3: ", &|world| world.route(9, (80, Some(10)), 3, 2)),
        ("chat: I2, I3: ", &|world| world.route(11, (50, Some(50)), 4, 2)),
        ("chat: I4: pods of the candidate end in 41", &|world| world.deployment(41, "chat-canary", 0)),
        ("chat: I4: pods of the candidate end in 51, None", &|world| {
            world.record.routes.retain(|route| ![13, 50].contains(&route.version));
        }),
        ("chat: I4: stable has 1 of 2 pods", &|world| world.deployment(30, "chat", 1)),
        ("chat: I5: from 0 % to 50 %", &|world| {
            world.record.routes.retain(|route| ![9, 10].contains(&route.version));
            world.route(11, (50, Some(50)), 4, 2);
        }),
        ("I6: HTTPRoute web was", &|world| world.foreign(54, "chat", "user")),
    ];
    for (breach, change) in breaches {
        let found = with(change);
        assert!(found.starts_with(breach), "{breach}: {found}");
    }
    let touched = with(|world| world.foreign(54, "shop", "controller"));
    assert_eq!(touched, "I6: controller has written HTTPRoute web");
    let replaced = with(|world| {
        let mut last = world.record.deployments.last().cloned().unwrap();
        (last.version, last.at) = (20, world.began + Duration::from_secs(20));
        let spec = last.object.spec.as_mut().unwrap();
        spec.replicas = Some(1);
        spec.template.spec = Some(PodSpec::default());
        world.record.deployments.insert(2, last);
    });
    assert!(replaced.starts_with("chat: I4: pods of the candidate end in 20"), "{replaced}");
    let deleted = with(|world| {
        let mut last = world.record.deployments.last().cloned().unwrap();
        last.is_deleted = true;
        last.version = 20;
        last.at = world.began + Duration::from_secs(20);
        last.object.spec.as_mut().unwrap().replicas = Some(1);
        world.record.deployments.insert(2, last);
    });
    assert!(deleted.starts_with("chat: I4: pods of the candidate end in 20"), "{deleted}");
}
