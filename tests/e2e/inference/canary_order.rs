//! The controller is killed at any moment of canaries, and their order holds: a share only for what is ready and known to the
//! gateway, one step at a time, and no pod of a candidate ends before its requests can have ended.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use api::aiinference::{AIInference, traffic::CanaryPhase};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, discovery::v1::EndpointSlice};
use kube::{
    Api, Resource,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller, follow, fresh_name,
    gateway::{Gateway, order, routes},
    start, tools, until_renewed, wait_for, wait_until_gone, within,
};

use super::{change, create, until_ready};

const KILLS: usize = 30;
/// The shortest that there is. Simulated engines do not say whether requests run.
const DRAIN: Duration = Duration::from_secs(30);

/// What was stored, in the order of the API server: it counts the versions of all kinds together.
#[derive(Default)]
struct Recorded {
    /// Version, percent of the candidate, and whether the gateway has accepted this.
    routes: Vec<(u64, i64, bool, Instant)>,
    /// Version, and ready endpoints of the candidate's Service.
    endpoints: Vec<(u64, usize)>,
    /// Pods that the candidate's Deployment wants.
    pods: Vec<(i32, Instant)>,
}

fn version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().unwrap_or_default().parse().expect("a version of the store")
}

fn of_route(route: &DynamicObject) -> (u64, i64, bool, Instant) {
    let refs = &route.data["spec"]["rules"][0]["backendRefs"];
    let generation = json!(route.metadata.generation);
    let parents = route.data["status"]["parents"].as_array();
    let mut conditions =
        parents.into_iter().flatten().flat_map(|parent| parent["conditions"].as_array()).flatten();
    let is_true = |known: &Value| known["status"] == "True" && known["observedGeneration"] == generation;
    let is_accepted = parents.is_some_and(|parents| !parents.is_empty()) && conditions.all(is_true);
    (version(route), refs[1]["weight"].as_i64().unwrap_or_default(), is_accepted, Instant::now())
}

fn ready_endpoints(slice: &EndpointSlice) -> usize {
    let ready = slice.endpoints.iter().filter(|endpoint| {
        endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(true))
    });
    ready.count()
}

/// Records all changes until the script ends.
async fn recorded(scene: &Scene<'_>, script: impl Future<Output = ()>) -> Recorded {
    let recorded = RefCell::new(Recorded::default());
    let (all_routes, slices, deployments) =
        (routes(scene), scene.api::<EndpointSlice>(), scene.api::<Deployment>());
    let of_routes = follow(&all_routes, "", |all| {
        recorded.borrow_mut().routes.extend(all.values().max_by_key(|route| version(*route)).map(of_route));
        None::<()>
    });
    let of_slices = follow(&slices, "kubernetes.io/service-name=chat-canary", |all| {
        let newest = all.values().map(version).max();
        let ready = all.values().map(ready_endpoints).sum();
        recorded.borrow_mut().endpoints.extend(newest.map(|newest| (newest, ready)));
        None::<()>
    });
    let of_pods = follow(&deployments, "", |all| {
        let candidate = all.values().find(|known| known.metadata.name.as_deref() == Some("chat-canary"));
        let wanted = candidate.and_then(|known| known.spec.as_ref()?.replicas).unwrap_or_default();
        let mut recorded = recorded.borrow_mut();
        if recorded.pods.last().map(|(last, _)| *last) != Some(wanted) {
            recorded.pods.push((wanted, Instant::now()));
        }
        None::<()>
    });
    tokio::select! {
        () = of_routes => {}
        () = of_slices => {}
        () = of_pods => {}
        () = script => {}
    }
    recorded.into_inner()
}

async fn until(scene: &Scene<'_>, what: &str, holds: impl Fn(&AIInference) -> bool) {
    wait_for(&scene.api::<AIInference>(), "chat", what, within(), holds).await;
}

async fn until_phase(scene: &Scene<'_>, phase: CanaryPhase) {
    until(scene, &format!("{phase:?}"), |inference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.phase == Some(phase))
    })
    .await;
}

async fn until_weight(scene: &Scene<'_>, weight: i32) {
    until(scene, &format!("{weight} %"), |inference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.weight_percent == weight)
    })
    .await;
}

async fn without_canary(scene: &Scene<'_>, image: &str) {
    let patch = Patch::Merge(json!({"spec": {"image": image, "canary": null}}));
    scene.api::<AIInference>().patch("chat", &PatchParams::default(), &patch).await.unwrap();
    wait_until_gone(&scene.api::<Deployment>(), "chat-canary", within()).await;
    until(scene, "no canary", |inference| {
        inference.status.as_ref().is_some_and(|status| status.canary.is_none())
    })
    .await;
}

/// Canaries one after the other, until there were enough kills: one is promoted, others are aborted at each of their shares.
async fn canaries(scene: &Scene<'_>, are_done: impl Fn() -> bool) {
    let steps = json!([{"weightPercent": 10, "minSeconds": 5}, {"weightPercent": 50, "minSeconds": 5, "approval": true}]);
    let canary = |image: &str| json!({"canary": {"image": image, "steps": steps, "approvedSteps": null, "abort": null}});
    change(scene, "chat", canary("engine:2")).await;
    until_phase(scene, CanaryPhase::AwaitingApproval).await;
    change(scene, "chat", json!({"canary": {"approvedSteps": 3}})).await;
    until_phase(scene, CanaryPhase::Promoted).await;
    without_canary(scene, "engine:2").await;
    for round in 0_usize.. {
        change(scene, "chat", canary(&format!("engine:{}", 3 + round))).await;
        if round % 2 == 0 {
            until_weight(scene, 10).await;
        } else {
            until_phase(scene, CanaryPhase::AwaitingApproval).await;
            change(scene, "chat", json!({"canary": {"approvedSteps": 2}})).await;
            until_weight(scene, 50).await;
        }
        change(scene, "chat", json!({"canary": {"abort": true}})).await;
        until_phase(scene, CanaryPhase::Aborted).await;
        without_canary(scene, "engine:2").await;
        if round > 0 && are_done() {
            return;
        }
    }
}

fn has_order(Recorded { routes, endpoints, pods }: &Recorded) {
    let mut before = 0;
    for (version, weight, ..) in routes {
        if *weight > before {
            let ready = endpoints.iter().rev().find(|(known, _)| known < version).map(|(_, ready)| *ready);
            assert!(ready.is_some_and(|ready| ready > 0), "{weight} % without an endpoint: {ready:?}");
            assert!([(0, 10), (10, 50)].contains(&(before, *weight)), "from {before} % to {weight} %");
        }
        before = *weight;
    }
    let ends: Vec<Instant> =
        pods.windows(2).filter(|pair| pair[1].0 < pair[0].0).map(|pair| pair[1].1).collect();
    assert!(ends.len() >= 3, "each candidate ends: {pods:?}");
    for end in ends {
        let earlier: Vec<_> = routes.iter().filter(|(.., at)| *at < end).collect();
        let last_share = earlier.iter().rposition(|(_, weight, ..)| *weight > 0);
        let last_share = last_share.expect("each of these candidates had a share");
        // When the gateway had taken it away.
        let free =
            earlier[last_share..].iter().find(|(_, weight, is_accepted, _)| *weight == 0 && *is_accepted);
        let since = free.map(|(.., at)| end - *at);
        // The status has whole seconds.
        let is_late = |since: Duration| since + Duration::from_secs(1) >= DRAIN;
        assert!(since.is_some_and(is_late), "pods end {since:?} after their last share");
    }
}

#[tokio::test]
async fn the_order_of_a_canary_holds_whenever_the_controller_is_killed() {
    const NAME: &str = "inference-controller";
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let quick = ["--lease-duration=2", "--lease-renew-deadline=1.5", "--lease-retry-period=0.2"];
    cluster.start_controller(&controller(NAME).with_args(quick)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let stand_in = Gateway::start(&scene).await;
    let gateway = json!({"name": "public", "namespace": "gateways", "hostnames": ["chat.example.com"]});
    let spec = json!({"image": "engine:1", "drainSeconds": DRAIN.as_secs(), "gateway": gateway});
    create(&scene, "chat", spec).await;
    until_ready(&scene, "chat").await;
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    let done = Cell::new(0);
    let killing = async {
        for number in 0_u64.. {
            // A fixed sequence that hits other moments each time.
            tokio::time::sleep(Duration::from_millis(100 + number * 37 % 61 * 25)).await;
            done.set(done.get() + usize::from(cluster.kill_component(NAME).await.is_ok()));
            // The next process waits neither for its turn nor for the end of the Lease.
            let _ = leases.delete(NAME, &DeleteParams::default()).await;
            cluster.start_component(NAME).await.unwrap();
            until_renewed(&scene, NAME, 1).await;
        }
    };
    let script = async {
        tokio::select! {
            () = canaries(&scene, || done.get() >= KILLS) => {}
            () = killing => {}
        }
    };
    let recorded = recorded(&scene, Box::pin(script)).await;
    assert!(done.get() >= KILLS, "{} times killed", done.get());
    has_order(&recorded);
    assert_eq!(order::problem(&stand_in.versions()), None);
}
