//! The number of workers follows the queue, and idle workers go first.

use std::{collections::BTreeSet, time::Duration};

use api::{
    aidispatcher::{AIDispatcher, AIDispatcherStatus},
    aiscaler::AIScaler,
    conditions, reasons,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::json;
use tests::{
    Scene, ask_until,
    dispatcher::{
        Load, Monitors, change, condition, create, deployment, is_ready, until, until_ready, until_reason,
        workers,
    },
    follow, simulated, wait_for, within,
};

const BUSY: Load = Load { queued: 0, in_flight: 1, tokens: 0 };

async fn until_replicas(scene: &Scene<'_>, name: &str, replicas: i32) -> AIDispatcher {
    until(scene, name, &format!("{replicas} workers"), |dispatcher| {
        let status = dispatcher.status.as_ref();
        status.is_some_and(|status| status.desired_replicas == replicas && status.replicas == replicas)
    })
    .await
}

#[tokio::test]
async fn a_queue_adds_workers_at_once() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"autoscaling": {"maxReplicas": 10}})).await;
    until_ready(&scene, "coders").await;
    until_reason(&scene, "coders", conditions::SCALING_ACTIVE, reasons::VALID_METRIC_FOUND).await;
    let worker = workers(&scene, "coders").await[0].metadata.name.clone().unwrap();
    monitors.one(&worker, Load { queued: 14, in_flight: 1, tokens: 0 });
    let scaled = until_replicas(&scene, "coders", 4).await;
    assert!(scaled.status.unwrap().last_scale_time.is_some());
    assert_eq!(scaled.spec.replicas, 1, "the spec stays as the user wrote it");
}

#[tokio::test]
async fn an_idle_pool_shrinks_after_its_window_and_a_busy_one_does_not() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    let quick = json!({"maxReplicas": 10, "minReplicas": 1, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 2}}});
    create(&scene, "coders", json!({"replicas": 4})).await;
    until_ready(&scene, "coders").await;
    monitors.all(BUSY);
    change(&scene, "coders", json!({"autoscaling": quick})).await;
    until_reason(&scene, "coders", conditions::SCALING_ACTIVE, reasons::VALID_METRIC_FOUND).await;
    assert_eq!(deployment(&scene, "coders").await.spec.unwrap().replicas, Some(4), "each is busy");
    monitors.all(Load::default());
    until_replicas(&scene, "coders", 1).await;
}

/// Of a pool that gets fewer workers again and again.
const WORKERS: usize = 20;
const FEWER: i32 = 10;
const BUSY_WORKERS: usize = 8;
/// Side by side, so that one round of each takes no longer than that of one.
const POOLS: usize = 5;
const ROUNDS: usize = 10;

/// Twenty workers of which eight are busy become ten, fifty times: none of the eight is ever deleted.
#[tokio::test]
async fn no_busy_worker_is_deleted_while_idle_ones_are_left() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    let (scene, monitors) = (&scene, &monitors);
    let pools = (0..POOLS).map(|pool| async move {
        let name = format!("coders-{pool}");
        create(scene, &name, json!({"replicas": WORKERS})).await;
        let mut tokens_of_others = 0;
        for round in 0..ROUNDS {
            let names = all_workers(scene, &name).await;
            // Others each time: old and new ones, on whichever node.
            let busy: BTreeSet<&String> = names.iter().skip((pool + round) % 12).take(BUSY_WORKERS).collect();
            // With their sum the controller has read the load of each, and not only as many busy workers as before.
            let tokens = round as u64 + 1;
            let load = |name| if busy.contains(name) { BUSY } else { Load::default() };
            names.iter().for_each(|name| monitors.one(name, load(name).with_tokens(tokens)));
            let tokens = tokens as i64;
            until_busy(scene, &name, BUSY_WORKERS, tokens_of_others + tokens * WORKERS as i64).await;
            change(scene, &name, json!({"replicas": FEWER})).await;
            until_replicas(scene, &name, FEWER).await;
            assert_left(scene, &name, &busy).await;
            tokens_of_others += tokens * (WORKERS as i64 - i64::from(FEWER));
            change(scene, &name, json!({"replicas": WORKERS})).await;
        }
    });
    futures::future::join_all(pools).await;
}

/// The other twelve have a task in turn while there are to be fewer, so that their deletion costs change all the time.
#[tokio::test]
async fn no_busy_worker_is_deleted_while_the_load_of_the_others_changes() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": WORKERS})).await;
    for round in 0..3 {
        let names = all_workers(&scene, "coders").await;
        let busy: BTreeSet<&String> = names.iter().skip(4 * round).take(BUSY_WORKERS).collect();
        let others: Vec<&String> = names.iter().filter(|name| !busy.contains(name)).collect();
        for name in &names {
            monitors.one(name, if busy.contains(name) { BUSY } else { Load::default() });
        }
        let in_turn = async {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            for turn in 0.. {
                ticks.tick().await;
                monitors.one(others[turn % others.len()], Load::default());
                monitors.one(others[(turn + 1) % others.len()], BUSY);
            }
        };
        let shrinks = async {
            until_busy(&scene, "coders", BUSY_WORKERS + 1, 0).await;
            change(&scene, "coders", json!({"replicas": FEWER})).await;
            until_replicas(&scene, "coders", FEWER).await;
        };
        tokio::select! {
            () = in_turn => {}
            () = shrinks => {}
        }
        assert_left(&scene, "coders", &busy).await;
        change(&scene, "coders", json!({"replicas": WORKERS})).await;
    }
}

/// The names of all workers, once they are created. The counts of the Deployment may still be those of an earlier number.
async fn all_workers(scene: &Scene<'_>, name: &str) -> Vec<String> {
    ask_until("all workers are created", within(), async || {
        let workers = workers(scene, name).await;
        let live = workers.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let names: Vec<String> = live.filter_map(|pod| pod.metadata.name).collect();
        if names.len() == WORKERS { Ok(names) } else { Err(names.len()) }
    })
    .await
}

/// Waits until all workers are there, so many of them are busy, and all that ever were have used so many tokens.
async fn until_busy(scene: &Scene<'_>, name: &str, count: usize, tokens: i64) {
    until(scene, name, &format!("{count} busy workers and {tokens} tokens"), |dispatcher| {
        is_ready(dispatcher)
            && dispatcher.status.as_ref().is_some_and(|status| {
                status.available_replicas as usize == WORKERS
                    && status.active_workers as usize == count
                    && status.token_usage == tokens
            })
    })
    .await;
}

async fn assert_left(scene: &Scene<'_>, name: &str, busy: &BTreeSet<&String>) {
    let left: BTreeSet<String> =
        workers(scene, name).await.into_iter().filter_map(|pod| pod.metadata.name).collect();
    let lost: Vec<&&String> = busy.iter().filter(|name| !left.contains(**name)).collect();
    assert!(lost.is_empty(), "{name}: {lost:?}");
}

#[tokio::test]
async fn a_pool_of_busy_workers_shrinks_to_the_number_that_the_user_wants() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": 6})).await;
    until_ready(&scene, "coders").await;
    monitors.all(BUSY);
    until(&scene, "coders", "six busy workers", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.active_workers == 6)
    })
    .await;
    change(&scene, "coders", json!({"replicas": 2})).await;
    until(&scene, "coders", "two workers, both ready", |dispatcher| {
        let is_small = |status: &AIDispatcherStatus| (status.replicas, status.available_replicas) == (2, 2);
        is_ready(dispatcher) && dispatcher.status.as_ref().is_some_and(is_small)
    })
    .await;
}

#[tokio::test]
async fn workers_without_metrics_work_and_the_number_stays() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"autoscaling": {"minReplicas": 2, "maxReplicas": 5}})).await;
    let ready = until_ready(&scene, "coders").await;
    assert_eq!(ready.status.unwrap().available_replicas, 2);
    let held = until_reason(&scene, "coders", conditions::SCALING_ACTIVE, reasons::METRIC_MISSING).await;
    let active = condition(&held, conditions::SCALING_ACTIVE).unwrap();
    assert_eq!(active.status, "False");
    let named = until(&scene, "coders", "the cause is in the message", |dispatcher| {
        condition(dispatcher, conditions::SCALING_ACTIVE)
            .is_some_and(|active| active.message.contains("monitor cannot be reached"))
    });
    named.await;
}

#[tokio::test]
async fn queue_only_follows_the_queue_in_both_directions_at_once() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"autoscaling": {"rule": "QueueOnly", "maxReplicas": 10}})).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await[0].metadata.name.clone().unwrap();
    monitors.one(&worker, Load { queued: 21, in_flight: 1, tokens: 0 });
    until_replicas(&scene, "coders", 5).await;
    monitors.one(&worker, Load { queued: 4, in_flight: 1, tokens: 0 });
    until_replicas(&scene, "coders", 1).await;
    assert_eq!(workers(&scene, "coders").await[0].metadata.name.as_deref(), Some(&*worker), "it is busy");
}

/// Tokens of the workers grow each second, and without a task that waits.
#[tokio::test]
async fn tokens_per_minute_add_workers_as_a_queue_does() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    let autoscaling = json!({"maxReplicas": 5, "tokensPerMinutePerWorker": 600});
    create(&scene, "coders", json!({"autoscaling": autoscaling})).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await[0].metadata.name.clone().unwrap();
    let uses_tokens = async {
        // 1800 a minute.
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        for second in 0.. {
            monitors.one(&worker, Load { tokens: 30 * second, ..BUSY });
            ticks.tick().await;
        }
    };
    let scaled = tokio::select! {
        () = uses_tokens => None,
        scaled = until(&scene, "coders", "more workers", |dispatcher| {
            dispatcher.status.as_ref().is_some_and(|status| status.desired_replicas >= 3)
        }) => Some(scaled),
    };
    let status = scaled.unwrap().status.unwrap();
    assert!(status.tokens_per_minute.is_some_and(|tokens| tokens > 1_200), "{:?}", status.tokens_per_minute);
    assert_eq!(status.queue_depth.unwrap_or_default(), 0);
}

fn scaler(name: &str, target: serde_json::Value) -> String {
    let mut spec = tests::scaler::spec(name, "vector(15)");
    spec.as_object_mut().unwrap().remove("deploymentName");
    spec["targetRef"] = target;
    json!({"apiVersion": "ai.infra.example.com/v1", "kind": "AIScaler", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

#[tokio::test]
async fn an_aiscaler_of_the_deployment_scales_the_pool() {
    let scene = simulated().await;
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "coders-workers"});
    scene.apply(&scaler("coders", target)).await.unwrap();
    until_replicas(&scene, "coders", 3).await;
    let pool = scene.api::<AIDispatcher>().get("coders").await.unwrap();
    assert_eq!(pool.spec.replicas, 3, "the owner is scaled");
}

#[tokio::test]
async fn an_aiscaler_leaves_a_pool_with_autoscaling_alone() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"autoscaling": {"minReplicas": 2, "maxReplicas": 3}})).await;
    until_ready(&scene, "coders").await;
    let scalers: Api<AIScaler> = scene.api();
    for (scaler_name, target) in [
        ("by-pool", json!({"apiVersion": "southwest.ai/v1alpha1", "kind": "AIDispatcher", "name": "coders"})),
        ("by-deployment", json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "coders-workers"})),
    ] {
        scene.apply(&scaler(scaler_name, target)).await.unwrap();
        wait_for(&scalers, scaler_name, "refused", within(), |scaler: &AIScaler| {
            let mut conditions = scaler.status.iter().flat_map(|status| &status.conditions);
            let active = conditions.find(|known| known.type_ == conditions::SCALING_ACTIVE);
            active.is_some_and(|active| {
                active.status == "False" && active.reason == reasons::TARGET_MANAGED_BY_OTHER
            })
        })
        .await;
        assert_eq!(scene.api::<AIDispatcher>().get("coders").await.unwrap().spec.replicas, 1);
        assert_eq!(deployment(&scene, "coders").await.spec.unwrap().replicas, Some(2));
    }
}

/// Pods of a queue that jumps are created soon: the first of many samples that `cargo xtask bench dispatcher` takes.
#[tokio::test]
async fn a_queue_that_jumps_has_its_workers_soon() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"autoscaling": {"maxReplicas": 10}})).await;
    until_ready(&scene, "coders").await;
    until_reason(&scene, "coders", conditions::SCALING_ACTIVE, reasons::VALID_METRIC_FOUND).await;
    let labels = tests::dispatcher::selector("coders");
    let pods = scene.api::<Pod>();
    let created = follow(&pods, &labels, |pods| (pods.len() >= 4).then_some(()));
    monitors.all(Load { queued: 14, in_flight: 1, tokens: 0 });
    tokio::time::timeout(Duration::from_secs(3), created).await.expect("three more pods");
    let events: Api<DynamicObject> = Api::namespaced_with(
        scene.client(),
        scene.namespace(),
        &kube::api::ApiResource::erase::<k8s_openapi::api::events::v1::Event>(&()),
    );
    tests::ask_until("an event", within(), async || {
        let published = events.list(&ListParams::default()).await.unwrap().items;
        let is_it = |event: &DynamicObject| event.data["reason"] == reasons::SUCCESSFUL_RESCALE;
        if published.iter().any(is_it) { Ok(()) } else { Err("no event of a rescale") }
    })
    .await;
}

/// As a policy engine does that denies changes of pods that it would not admit today.
#[tokio::test]
async fn a_policy_that_denies_marks_keeps_no_number() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": 4})).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await[0].metadata.name.clone().unwrap();
    monitors.all(Load::default());
    // Before the worker is busy: it is marked soon after, for node autoscalers.
    deny_updates_of_pods(&scene, &worker).await;
    monitors.one(&worker, BUSY);
    until(&scene, "coders", "one busy worker", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.active_workers == 1)
    })
    .await;
    change(&scene, "coders", json!({"replicas": 2, "image": "agent:2"})).await;
    let changed = until_replicas(&scene, "coders", 2).await;
    assert_eq!(changed.status.unwrap().observed_generation, 2);
    until_ready(&scene, "coders").await;
    // The event is written before the status.
    let described = scene.kubectl(&["describe", "aidispatcher", "coders"]);
    let warned = "the workers could not be marked, so a busy one may be removed while idle ones stay";
    assert!(described.contains(warned) && described.contains("pods stay as they are"), "{described}");
}

async fn deny_updates_of_pods(scene: &Scene<'_>, worker: &str) {
    let (name, namespace) = (format!("no-marks-{}", scene.namespace()), scene.namespace());
    let policy = json!({
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]},
            ],
        },
        // A dry run of the test shows that it is enforced.
        "validations": [{
            "expression": "!request.dryRun && !request.userInfo.username.endsWith(':dispatcher-controller')",
            "message": "pods stay as they are",
        }],
    });
    let binding = json!({"policyName": name, "validationActions": ["Deny"]});
    for (kind, spec) in [("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)]
    {
        let api_version = "admissionregistration.k8s.io/v1";
        let object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        scene.apply(&object.to_string()).await.unwrap();
    }
    ask_until("the policy is enforced", within(), async || {
        let args = ["annotate", "pod", worker, "tried=yes", "--overwrite", "--dry-run=server"];
        let output = scene.kubectl_with_input(&args, "");
        if output.status.success() { Err("a change is allowed") } else { Ok(()) }
    })
    .await;
}
