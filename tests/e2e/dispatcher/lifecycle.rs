//! From creation to deletion: columns, replicas, drift, rollouts, and a name that is used again.

use std::time::Duration;

use api::{
    aidispatcher::{AIDispatcher, Phase, State},
    conditions,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tests::{
    dispatcher::{
        Load, Monitors, change, condition, create, deployment, is_observed, is_ready, selector, until,
        until_ready, workers,
    },
    simulated, wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn kubectl_shows_a_pool_with_exactly_the_columns_of_the_contract() {
    let scene = simulated().await;
    create(&scene, "planners", json!({"role": "planner", "modelRef": "gpt-4", "replicas": 2})).await;
    let ready = until_ready(&scene, "planners").await;
    let table = scene.kubectl(&["get", "ad"]);
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["NAME", "ROLE", "REPLICAS", "PHASE", "AGE"]);
    assert_eq!(lines.next().unwrap()[..4], ["planners", "planner", "2", "Ready"]);
    let wide = scene.kubectl(&["get", "ad", "-o", "wide"]);
    let header: Vec<&str> = wide.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header[5..], ["ACTIVE", "QUEUE", "TOKENS", "MODEL"]);
    let status = ready.status.unwrap();
    assert_eq!((status.available_replicas, status.replicas, status.desired_replicas), (2, 2, 2));
    assert_eq!(status.resolved.unwrap().image, "agent:1");
}

#[tokio::test]
async fn the_pod_of_a_worker_has_loader_monitor_and_worker_with_the_environment_of_the_contract() {
    let scene = simulated().await;
    let memory = json!({"collection": "code", "dim": 3, "endpoint": "http://chroma:8000"});
    create(&scene, "coders", json!({"memoryConfig": memory, "modelEndpoint": "http://chat"})).await;
    until_ready(&scene, "coders").await;
    let pod = workers(&scene, "coders").await.remove(0).spec.unwrap();
    let names: Vec<&str> =
        pod.init_containers.iter().flatten().chain(&pod.containers).map(|one| &*one.name).collect();
    assert_eq!(names, ["memory-loader", "monitor", "worker"]);
    let restart = pod.init_containers.as_ref().unwrap()[1].restart_policy.as_deref();
    assert_eq!(restart, Some("Always"), "a native sidecar ends after the worker");
    let environment: Vec<(String, String)> = pod.containers[0]
        .env
        .iter()
        .flatten()
        .map(|variable| (variable.name.clone(), variable.value.clone().unwrap_or_default()))
        .collect();
    let expected = [
        ("AGENT_ROLE", "coder"),
        ("MODEL_ENDPOINT", "http://chat"),
        ("MEMORY_ENDPOINT", "http://chroma:8000"),
        ("MEMORY_COLLECTION", "code"),
        ("MEMORY_DIM", "3"),
        ("MEMORY_DIR", "/var/lib/agent/memory"),
        ("STATE_DIR", "/var/lib/agent/state"),
        ("AGENT_METRICS_PORT", "9100"),
    ];
    for (name, value) in expected {
        assert!(environment.contains(&(name.to_owned(), value.to_owned())), "{name}: {environment:?}");
    }
}

#[tokio::test]
async fn a_new_number_of_workers_restarts_none_that_stays() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    let before: Vec<_> =
        workers(&scene, "coders").await.into_iter().map(|pod| pod.metadata.uid.unwrap()).collect();
    change(&scene, "coders", json!({"replicas": 5})).await;
    let ready = until_ready(&scene, "coders").await;
    assert_eq!(ready.status.unwrap().available_replicas, 5);
    let after: Vec<_> =
        workers(&scene, "coders").await.into_iter().map(|pod| pod.metadata.uid.unwrap()).collect();
    assert!(before.iter().all(|uid| after.contains(uid)));
}

#[tokio::test]
async fn a_hundred_workers_become_one_and_a_hundred_again_within_seconds() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"replicas": 100})).await;
    change(&scene, "coders", json!({"replicas": 1})).await;
    change(&scene, "coders", json!({"replicas": 100})).await;
    let all_are_ready = async || {
        let ready = until_ready(&scene, "coders").await;
        assert_eq!(ready.status.unwrap().available_replicas, 100);
    };
    all_are_ready().await;
    // Now ninety-nine of them end at the same time as others begin.
    change(&scene, "coders", json!({"replicas": 1})).await;
    let (pods, labels) = (scene.api::<Pod>(), selector("coders"));
    let ending = tests::follow(&pods, &labels, |pods| {
        let is_ending = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        (pods.len() < 100 || pods.values().any(is_ending)).then_some(())
    });
    tokio::time::timeout(within(), ending).await.expect("workers that end");
    change(&scene, "coders", json!({"replicas": 100})).await;
    all_are_ready().await;
    change(&scene, "coders", json!({"replicas": 1})).await;
    let one = until(&scene, "coders", "one worker", |dispatcher| {
        is_ready(dispatcher) && dispatcher.status.as_ref().is_some_and(|status| status.replicas == 1)
    })
    .await;
    assert_eq!(one.status.unwrap().available_replicas, 1);
}

#[tokio::test]
async fn a_monitor_that_somebody_removes_is_put_back() {
    let scene = simulated().await;
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let before = deployment(&scene, "coders").await.spec;
    let patch = Patch::Merge(json!({"spec": {"template": {"spec": {"initContainers": null}}}}));
    let deployments = scene.api::<Deployment>();
    deployments.patch("coders-workers", &PatchParams::default(), &patch).await.unwrap();
    wait_for(&deployments, "coders-workers", "as before", within(), |found: &Deployment| {
        found.spec == before
    })
    .await;
    until_ready(&scene, "coders").await;
}

#[tokio::test]
async fn a_worker_that_is_deleted_is_replaced() {
    let scene = simulated().await;
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await.remove(0);
    let name = worker.metadata.name.unwrap();
    scene.api::<Pod>().delete(&name, &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<Pod>(), &name, within()).await;
    until_ready(&scene, "coders").await;
    assert_ne!(workers(&scene, "coders").await[0].metadata.name.as_deref(), Some(&*name));
}

/// Workers of the first one still end, and say what they have used, while those of the second one begin.
#[tokio::test]
async fn a_pool_that_is_deleted_while_it_scales_and_made_again_at_once_has_workers_and_tokens_of_its_own() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    let spec = json!({"autoscaling": {"maxReplicas": 10}});
    let first = create(&scene, "coders", spec.clone()).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await.remove(0).metadata.name.unwrap();
    monitors.one(&worker, Load { queued: 14, in_flight: 1, tokens: 40 });
    until(&scene, "coders", "four workers, and its tokens", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.replicas == 4 && status.token_usage == 40)
    })
    .await;
    monitors.one(&worker, Load { queued: 44, in_flight: 1, tokens: 41 });
    let deployments = scene.api::<Deployment>();
    wait_for(&deployments, "coders-workers", "it scales", within(), |found: &Deployment| {
        found.spec.as_ref().and_then(|spec| spec.replicas) == Some(10)
    })
    .await;
    let dispatchers = scene.api::<AIDispatcher>();
    dispatchers.delete("coders", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&dispatchers, "coders", within()).await;
    let second = create(&scene, "coders", spec).await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    let ready = until(&scene, "coders", "ready without a token of the first one", |dispatcher| {
        let usage = dispatcher.status.as_ref().map_or(0, |status| status.token_usage);
        assert_eq!(usage, 0);
        is_ready(dispatcher)
    })
    .await;
    assert_eq!(ready.status.unwrap().desired_replicas, 1, "nor a task");
    let owner = deployment(&scene, "coders").await.metadata.owner_references.unwrap().remove(0);
    assert_eq!(Some(owner.uid), second.metadata.uid);
}

#[tokio::test]
async fn the_status_says_what_the_workers_do() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    let names: Vec<String> =
        workers(&scene, "coders").await.into_iter().map(|pod| pod.metadata.name.unwrap()).collect();
    monitors.one(&names[0], Load { queued: 3, in_flight: 1, tokens: 40 });
    let working = until(&scene, "coders", "working", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.state == Some(State::Working))
    })
    .await;
    let status = working.status.unwrap();
    assert_eq!(status.current_phase, Some(Phase::Processing));
    assert_eq!((status.active_workers, status.queue_depth, status.token_usage), (1, Some(3), 40));
    monitors.one(&names[1], Load { queued: 1, in_flight: 2, tokens: 2 });
    let saturated = until(&scene, "coders", "saturated", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.state == Some(State::Saturated))
    })
    .await;
    assert_eq!(saturated.status.unwrap().token_usage, 42);
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_takes_no_worker_down() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    let bad =
        json!({"image": "agent:typo", "podAnnotations": {"sim.ai.infra.example.com/image-pull": "fail"}});
    change(&scene, "coders", bad).await;
    let stalled = until(&scene, "coders", "stalled", |dispatcher| {
        is_observed(dispatcher)
            && condition(dispatcher, conditions::STALLED)
                .is_some_and(|known| known.reason == "ImagePullFailed")
    })
    .await;
    assert_eq!(stalled.status.unwrap().available_replicas, 2);
    change(&scene, "coders", json!({"image": "agent:1", "podAnnotations": null})).await;
    until_ready(&scene, "coders").await;
}

/// The update in the API server, the decision, the Deployment, the ReplicaSet and its pods.
#[tokio::test]
async fn workers_are_created_soon_after_the_number_was_changed() {
    let scene = simulated().await;
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let labels = selector("coders");
    let created = async {
        tests::follow(&scene.api::<Pod>(), &labels, |pods| (pods.len() >= 4).then_some(())).await;
    };
    let limit = Duration::from_secs(3);
    tokio::time::timeout(limit, async {
        futures::join!(created, change(&scene, "coders", json!({"replicas": 4})));
    })
    .await
    .expect("three more pods");
}
