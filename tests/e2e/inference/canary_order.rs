//! The controller is killed at random moments of canaries side by side, and their order holds: I1 to I6 of
//! `tests::gateway::invariants`, on every version that was stored. One canary is promoted, and one is aborted at each of its
//! steps.
//!
//! What was stored comes from watches, which deliver each version of each object. The audit log of these clusters has no
//! objects, and no writes of Kubernetes' own controllers. It shows who wrote the route of another owner.

use std::{
    cell::Cell,
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::aiinference::{AIInference, traffic::CanaryPhase};
use futures::future::join_all;
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use local_cluster::{Cluster, ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller, fresh_name,
    gateway::{
        Gateway,
        invariants::{self, Canaries, shares},
        record::{Record, recorded},
        routes,
    },
    inference::CONTROLLER,
    start, tools, until_renewed, wait_for, wait_until_gone, within,
};

use super::{change, create, traffic::of_somebody_else, until_ready};

const KILLS: usize = 30;
/// After a process has become the leader, it lives at most so long.
const LIVES_AT_MOST: Duration = Duration::from_millis(2_500);
/// Set it to what a failed run has printed, and the moments are those of that run.
const SEED: &str = "CANARY_ORDER_SEED";
/// The shortest that there is. Simulated engines do not say whether requests run.
const DRAIN: Duration = Duration::from_secs(30);
/// Percents. A candidate that is aborted in one of them has its name.
const STEPS: [i64; 3] = [10, 50, 100];
const PROMOTED: &str = "promoted";
const ABORTED: [&str; 3] = ["aborted-at-10", "aborted-at-50", "aborted-at-100"];

async fn until(scene: &Scene<'_>, name: &str, what: &str, holds: impl Fn(&AIInference) -> bool) {
    wait_for(&scene.api::<AIInference>(), name, what, within(), holds).await;
}

async fn until_phase(scene: &Scene<'_>, name: &str, phase: CanaryPhase) {
    until(scene, name, &format!("{phase:?}"), |inference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.phase == Some(phase))
    })
    .await;
}

async fn until_weight(scene: &Scene<'_>, name: &str, weight: i64) {
    until(scene, name, &format!("{weight} %"), |inference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| i64::from(canary.weight_percent) == weight)
    })
    .await;
}

/// Steps as short as the API server accepts them. `gated`: the number of the step that waits for an approval.
fn canary(round: usize, gated: Option<usize>) -> Value {
    let step = |(number, weight): (usize, &i64)| json!({"weightPercent": weight, "minSeconds": 5, "approval": gated == Some(number)});
    let steps: Vec<Value> = STEPS.iter().enumerate().map(step).collect();
    json!({"canary": {"image": format!("engine:{}", 2 + round), "steps": steps}})
}

async fn without_canary(scene: &Scene<'_>, name: &str, image: Value) {
    let mut spec = json!({"canary": null});
    if !image.is_null() {
        spec["image"] = image;
    }
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api::<AIInference>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    wait_until_gone(&scene.api::<Deployment>(), &format!("{name}-canary"), within()).await;
    until(scene, name, "no canary", |inference| {
        inference.status.as_ref().is_some_and(|status| status.canary.is_none())
    })
    .await;
}

/// Returns how many canaries there were.
async fn promoted(scene: &Scene<'_>, is_enough: impl Fn() -> bool) -> usize {
    for round in 0.. {
        change(scene, PROMOTED, canary(round, None)).await;
        until_phase(scene, PROMOTED, CanaryPhase::AwaitingApproval).await;
        change(scene, PROMOTED, json!({"canary": {"approvedSteps": STEPS.len() + 1}})).await;
        until_phase(scene, PROMOTED, CanaryPhase::Promoted).await;
        without_canary(scene, PROMOTED, json!(format!("engine:{}", 2 + round))).await;
        if is_enough() {
            return round + 1;
        }
    }
    unreachable!("rounds do not end")
}

async fn aborted(scene: &Scene<'_>, step: usize, is_enough: impl Fn() -> bool) -> usize {
    let name = ABORTED[step];
    for round in 0.. {
        // The next step must not begin before the abort.
        change(scene, name, canary(round, Some(step + 1))).await;
        until_weight(scene, name, STEPS[step]).await;
        change(scene, name, json!({"canary": {"abort": true}})).await;
        until_phase(scene, name, CanaryPhase::Aborted).await;
        without_canary(scene, name, Value::Null).await;
        if is_enough() {
            return round + 1;
        }
    }
    unreachable!("rounds do not end")
}

/// Does not end.
async fn killing(cluster: &Cluster, scene: &Scene<'_>, mut random: fastrand::Rng, done: &Cell<usize>) {
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    loop {
        let lives = LIVES_AT_MOST.mul_f64(random.f64());
        tokio::time::sleep(lives).await;
        done.set(done.get() + usize::from(cluster.kill_component(CONTROLLER).await.is_ok()));
        // The next process waits neither for its turn nor for the end of the Lease.
        let _ = leases.delete(CONTROLLER, &DeleteParams::default()).await;
        cluster.start_component(CONTROLLER).await.unwrap();
        until_renewed(scene, CONTROLLER, 1).await;
    }
}

/// The shares of so many canaries, one after the other.
fn expected(canaries: usize, steps: &[i64]) -> Vec<Option<i64>> {
    let of_steps = steps.iter().copied().map(Some);
    let one: Vec<Option<i64>> = [Some(0)].into_iter().chain(of_steps).chain([Some(0), None]).collect();
    [None].into_iter().chain(one.repeat(canaries)).collect()
}

/// Its own routes show that this is the controller's name.
fn writes_as(record: &Record, name: &str, writer: &str) -> bool {
    let mut own = record.routes.iter().filter(|route| route.name() == name);
    own.any(|route| {
        let mut entries = route.object.metadata.managed_fields.iter().flatten();
        entries.any(|entry| entry.manager.as_deref() == Some(writer))
    })
}

#[tokio::test]
async fn the_order_of_canaries_holds_whenever_the_controller_is_killed() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let given = env::var(SEED).ok().map(|seed| seed.parse().expect("a number"));
    let seed: u64 = given.unwrap_or(u64::from(now.subsec_nanos()));
    // Shown if the test fails.
    println!("{SEED}={seed}");
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let quick = ["--lease-duration=2", "--lease-renew-deadline=1.5", "--lease-retry-period=0.2"];
    cluster.start_controller(&controller(CONTROLLER).with_args(quick)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let _stand_in = Gateway::start(&scene).await;
    routes(&scene).create(&PostParams::default(), &of_somebody_else()).await.unwrap();
    let names = [PROMOTED, ABORTED[0], ABORTED[1], ABORTED[2]];
    for name in names {
        let gateway = json!({
            "name": "public", "namespace": "gateways", "hostnames": [format!("{name}.example.com")],
            "more": [{"name": "inside"}],
        });
        create(&scene, name, json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway})).await;
    }
    for name in names {
        until_ready(&scene, name).await;
    }
    let done = Cell::new(0);
    let rounds = Cell::new(Vec::new());
    let script = async {
        let is_enough = || done.get() >= KILLS;
        let of_aborts = join_all((0..STEPS.len()).map(|step| aborted(&scene, step, is_enough)));
        let canaries = futures::future::join(promoted(&scene, is_enough), of_aborts);
        tokio::select! {
            (promoted, aborted) = canaries => rounds.set([vec![promoted], aborted].concat()),
            () = killing(&cluster, &scene, fastrand::Rng::with_seed(seed), &done) => {}
        }
    };
    let record = recorded(&scene, Box::pin(script)).await;
    assert!(done.get() >= KILLS, "{} times killed", done.get());
    let rounds = rounds.take();
    for (name, rounds) in names.into_iter().zip(rounds) {
        let last = ABORTED.iter().position(|known| *known == name).unwrap_or(STEPS.len() - 1);
        assert_eq!(shares(&record, name), expected(rounds, &STEPS[..=last]), "{name}");
        assert!(writes_as(&record, name, CONTROLLER), "{name}");
    }
    let canaries = Canaries { names: &names, steps: &STEPS, drain: DRAIN, writer: CONTROLLER };
    assert_eq!(invariants::problem(&record, canaries), None);
    let audit = cluster.audit_events().unwrap();
    let writes = audit.iter().filter(|event| {
        let reads = ["get", "list", "watch"].contains(&&*event.verb);
        event.resource == "httproutes" && !reads && event.user.ends_with(CONTROLLER)
    });
    let written: Vec<&str> = writes.map(|event| &*event.name).collect();
    assert!(written.contains(&PROMOTED) && !written.contains(&"web"), "{written:?}");
}
