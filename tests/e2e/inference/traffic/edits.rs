//! One of both versions is edited while the candidate has half of the requests: it loses them, and begins again with its first
//! step.

use std::time::Duration;

use api::aiinference::traffic::CanaryPhase;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tests::{
    gateway::{
        Gateway,
        invariants::{self, Canaries, shares},
        record::{Record, Stored, recorded},
    },
    inference::CONTROLLER,
    simulated,
};

use super::{
    super::{change, create, until_ready},
    gateway, until_phase, until_weight,
};

/// The shortest that there is. Simulated engines do not say whether requests run.
const DRAIN: Duration = Duration::from_secs(30);

/// Starts a canary, edits the spec while the candidate has half of the requests, and waits until it has the share of its first
/// step again.
async fn edited(edit: Value) -> Record {
    let scene = simulated().await;
    let _stand_in = Gateway::start(&scene).await;
    let script = async {
        create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway()})).await;
        until_ready(&scene, "chat").await;
        let steps = json!([{"weightPercent": 10, "minSeconds": 5}, {"weightPercent": 50, "minSeconds": 5}]);
        change(&scene, "chat", json!({"canary": {"image": "engine:2", "steps": steps}})).await;
        until_phase(&scene, CanaryPhase::AwaitingApproval).await;
        change(&scene, "chat", edit).await;
        until_weight(&scene, 0).await;
        until_weight(&scene, 10).await;
    };
    let record = recorded(&scene, Box::pin(script)).await;
    let canaries = Canaries { names: &["chat"], steps: &[10, 50], drain: DRAIN, writer: CONTROLLER };
    assert_eq!(invariants::problem(&record, canaries), None);
    record
}

fn image(deployment: &Stored<Deployment>) -> &str {
    let pod = deployment.object.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let engine = pod.and_then(|pod| pod.containers.iter().find(|container| container.name == "engine"));
    engine.and_then(|engine| engine.image.as_deref()).unwrap_or_default()
}

/// The version in which the candidate got its first share for the second time.
fn begun_again(record: &Record) -> &Stored<DynamicObject> {
    let weight = |route: &Stored<DynamicObject>| {
        let refs = &route.object.data["spec"]["rules"][0]["backendRefs"];
        refs[1]["weight"].as_i64()
    };
    let half =
        record.routes.iter().rposition(|route| weight(route) == Some(50)).expect("half of the requests");
    record.routes[half..].iter().find(|route| weight(route) == Some(10)).expect("the first step again")
}

#[tokio::test]
async fn a_candidate_that_is_edited_drains_before_its_new_version_gets_the_first_share() {
    let record = edited(json!({"canary": {"image": "engine:3"}})).await;
    let shares = shares(&record, "chat");
    let [first, again] = [&shares[..5], &shares[5..]];
    assert_eq!(first, [None, Some(0), Some(10), Some(50), Some(0)]);
    assert!([&[None, Some(0), Some(10)][..], &[Some(10)]].contains(&again), "{again:?}");
    let begins = begun_again(&record).version;
    let mut candidates = record.deployments.iter().filter(|known| known.name() == "chat-canary");
    let newest = candidates.rfind(|known| known.version < begins).expect("a candidate");
    assert_eq!(image(newest), "engine:3");
}

#[tokio::test]
async fn a_candidate_waits_without_requests_while_stable_gets_an_edited_version() {
    let record = edited(json!({"image": "engine:4"})).await;
    assert_eq!(
        shares(&record, "chat"),
        [None, Some(0), Some(10), Some(50), Some(0), Some(10)],
        "the route knows the candidate all along"
    );
    let begins = begun_again(&record).version;
    let mut of_stable = record.deployments.iter().filter(|known| known.name() == "chat");
    let newest = of_stable.rfind(|known| known.version < begins).expect("stable");
    let status = newest.object.status.as_ref().expect("a status");
    assert_eq!(image(newest), "engine:4");
    assert_eq!(
        (status.replicas, status.updated_replicas, status.ready_replicas),
        (Some(1), Some(1), Some(1))
    );
    let candidates: Vec<_> =
        record.deployments.iter().filter(|known| known.name() == "chat-canary").collect();
    let is_kept = candidates
        .iter()
        .all(|known| !known.is_deleted && known.uid() == candidates[0].uid() && image(known) == "engine:2");
    assert!(is_kept, "the candidate keeps its pods");
}
