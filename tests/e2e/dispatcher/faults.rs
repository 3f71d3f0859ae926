//! Faults of pools: what the status reports, and what keeps running.

use api::{aidispatcher::Phase, conditions, reasons};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tests::{
    dispatcher::{
        Load, Monitors, change, condition, create, is_observed, selector, until, until_ready, until_reason,
        workers,
    },
    follow, is_ready, simulated, wait_for, within,
};

use super::tokens::until_tokens;

fn memory() -> Value {
    json!({"collection": "code", "dim": 3, "endpoint": "http://chroma:8000"})
}

/// Annotations that decide the fate of simulated pods.
fn fate(settings: &[(&str, &str)]) -> Value {
    settings
        .iter()
        .map(|(name, value)| (format!("sim.ai.infra.example.com/{name}"), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test]
async fn a_collection_dimension_or_bucket_typed_wrong_is_a_failure_with_its_reason_and_can_be_corrected() {
    let scene = simulated().await;
    let (of_memory, of_process) = (conditions::MEMORY_READY, conditions::PROGRESSING);
    for (name, code, reason, concerns) in [
        ("missing", "20", reasons::COLLECTION_NOT_FOUND, of_memory),
        ("other-dim", "21", reasons::DIM_MISMATCH, of_memory),
        ("away", "22", reasons::STORE_UNREACHABLE, of_memory),
        ("refused", "23", reasons::STORE_UNAUTHORIZED, of_memory),
        ("no-bucket", "25", reasons::BUCKET_NOT_FOUND, of_process),
        ("bucket-away", "26", reasons::STORE_UNREACHABLE, of_process),
    ] {
        let annotations = fate(&[("load-exit-code", code), ("load-message", "the store said so")]);
        let checkpoint = json!({"uri": "s3://states"});
        let spec = json!({"memoryConfig": memory(), "checkpoint": checkpoint, "podAnnotations": annotations});
        create(&scene, name, spec).await;
        let failed = until_reason(&scene, name, concerns, reason).await;
        let status = failed.status.as_ref().unwrap();
        assert_eq!((status.current_phase, status.available_replicas), (Some(Phase::Failed), 0));
        for type_ in [conditions::READY, conditions::STALLED] {
            assert_eq!(condition(&failed, type_).unwrap().reason, reason, "{type_}");
        }
        assert!(condition(&failed, conditions::READY).unwrap().message.contains("the store said so"));
    }
    change(&scene, "other-dim", json!({"podAnnotations": null})).await;
    until_ready(&scene, "other-dim").await;
}

#[tokio::test]
async fn a_worker_that_crashes_again_and_again_is_a_crash_loop() {
    let scene = simulated().await;
    let annotations = fate(&[("crash-reason", "Error"), ("backoff", "100ms")]);
    create(&scene, "coders", json!({"podAnnotations": annotations})).await;
    let failed = until_reason(&scene, "coders", conditions::PROGRESSING, reasons::CRASH_LOOP).await;
    assert_eq!(failed.status.unwrap().current_phase, Some(Phase::Failed));
}

#[tokio::test]
async fn a_claim_that_does_not_exist_is_named() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"checkpoint": {"claimName": "states"}})).await;
    let failed = until_reason(&scene, "coders", conditions::READY, reasons::CLAIM_NOT_FOUND).await;
    assert!(condition(&failed, conditions::READY).unwrap().message.contains("states"));
}

/// Simulated kubelets do not look for Secrets, so the test reports what a real one does of a pod that waits for one.
#[tokio::test]
async fn a_secret_that_does_not_exist_is_named() {
    let scene = simulated().await;
    let uri = json!({"uri": "s3://states", "secretName": "absent"});
    let mut with_secret = memory();
    with_secret["secretName"] = json!("absent");
    for (name, spec, container) in [
        ("credentials", json!({"credentials": {"secretName": "absent"}}), "worker"),
        ("memory", json!({"memoryConfig": with_secret}), "memory-loader"),
        ("checkpoint", json!({"checkpoint": uri}), "memory-loader"),
    ] {
        let mut spec = spec;
        // It stays before its first container while the test speaks for the kubelet.
        spec["podAnnotations"] = fate(&[("load-time", "1h"), ("start-delay", "1h")]);
        create(&scene, name, spec).await;
        let pods = scene.api::<Pod>();
        let labels = selector(name);
        let held = follow(&pods, &labels, |pods| {
            pods.values().find(|pod| statuses_if_held(pod, container).is_some()).cloned()
        });
        let pod = tokio::time::timeout(within(), held).await.expect("a pod that has begun");
        let spec = pod.spec.as_ref().unwrap();
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let asks = all.find(|one| one.name == container).map(|one| serde_json::to_string(one).unwrap());
        assert!(asks.is_some_and(|asks| asks.contains("absent")), "{name}: {container} needs no Secret");
        let (list, mut statuses) = statuses_if_held(&pod, container).unwrap();
        let missing =
            json!({"reason": "CreateContainerConfigError", "message": "secret \"absent\" not found"});
        let found = statuses.iter_mut().find(|status| status["name"] == container).unwrap();
        found["state"] = json!({"waiting": missing});
        let patch = Patch::Merge(json!({"status": {list: statuses}}));
        let pod = pod.metadata.name.unwrap();
        pods.patch_status(&pod, &PatchParams::default(), &patch).await.unwrap();
        let failed = until_reason(&scene, name, conditions::READY, reasons::SECRET_NOT_FOUND).await;
        assert!(condition(&failed, conditions::READY).unwrap().message.contains("absent"), "{name}");
        assert_eq!(failed.status.unwrap().current_phase, Some(Phase::Failed), "{name}");
    }
}

/// The field of the pod's status with this container, and its content, once the container is where the simulation holds it:
/// an init container while it runs, another one while it is created.
fn statuses_if_held(pod: &Pod, container: &str) -> Option<(&'static str, Vec<Value>)> {
    let status = serde_json::to_value(pod.status.as_ref()?).ok()?;
    [("initContainerStatuses", "running"), ("containerStatuses", "waiting")].into_iter().find_map(
        |(list, state)| {
            let statuses = status[list].as_array()?;
            let held = statuses.iter().find(|one| one["name"] == container)?["state"][state].as_object()?;
            let initializes = held.get("reason").is_some_and(|reason| reason == "PodInitializing");
            (!initializes).then(|| (list, statuses.clone()))
        },
    )
}

/// As when the kubelet of a node under pressure evicts it.
#[tokio::test]
async fn a_worker_that_is_evicted_is_replaced_and_its_tokens_stay_counted() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    let first: Vec<String> =
        workers(&scene, "coders").await.into_iter().filter_map(|pod| pod.metadata.name).collect();
    let used = |tokens| Load { tokens, ..Load::default() };
    monitors.one(&first[0], used(100));
    monitors.one(&first[1], used(20));
    until_tokens(&scene, "coders", 120).await;
    let evicted = Patch::Merge(json!({"metadata": {"annotations": fate(&[("fail-reason", "Evicted")])}}));
    let pods = scene.api::<Pod>();
    pods.patch(&first[0], &PatchParams::default(), &evicted).await.unwrap();
    let labels = selector("coders");
    let replaced = follow(&pods, &labels, |pods| {
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let has_failed = pods.values().any(|pod| phase(pod).as_deref() == Some("Failed"));
        let mut ready = pods.values().filter(|pod| is_ready(pod)).filter_map(|pod| pod.metadata.name.clone());
        ready.find(|name| !first.contains(name)).filter(|_| has_failed)
    });
    let new = tokio::time::timeout(within(), replaced).await.expect("another worker");
    monitors.one(&new, used(3));
    let counted = until_tokens(&scene, "coders", 123).await;
    assert_eq!(counted.status.unwrap().desired_replicas, 2);
    assert_eq!(until_ready(&scene, "coders").await.status.unwrap().available_replicas, 2);
}

#[tokio::test]
async fn a_full_cluster_is_waited_for_and_passes_by_itself() {
    let scene = simulated().await;
    // A resource of this test alone, because other tests share the nodes.
    let resource = format!("example.com/{}", scene.namespace());
    let amounts = json!({resource.as_str(): "1"});
    let nodes = scene.cluster_api::<Node>();
    let node = nodes.list(&ListParams::default()).await.unwrap().items.remove(0).metadata.name.unwrap();
    let status = Patch::Merge(json!({"status": {"capacity": amounts, "allocatable": amounts}}));
    nodes.patch_status(&node, &PatchParams::default(), &status).await.unwrap();
    let spec = json!({"resources": {"limits": amounts}});
    create(&scene, "others", spec.clone()).await;
    until_ready(&scene, "others").await;

    create(&scene, "coders", spec).await;
    let waiting = until_reason(&scene, "coders", conditions::READY, reasons::UNSCHEDULABLE).await;
    assert_eq!(waiting.status.as_ref().unwrap().current_phase, Some(Phase::Initializing));
    assert!(condition(&waiting, conditions::STALLED).is_none(), "it passes by itself");
    scene.kubectl(&["delete", "aidispatcher", "others"]);
    until_ready(&scene, "coders").await;
}

#[tokio::test]
async fn a_quota_is_told() {
    let scene = simulated().await;
    scene.kubectl(&["create", "quota", "few", "--hard=pods=1"]);
    create(&scene, "coders", json!({"replicas": 2})).await;
    let short = until(&scene, "coders", "short of a worker", |dispatcher| {
        is_observed(dispatcher)
            && condition(dispatcher, conditions::PROGRESSING)
                .is_some_and(|known| known.reason == reasons::UNSCHEDULABLE && known.message.contains("few"))
    })
    .await;
    assert!(short.status.unwrap().available_replicas <= 1);
}

/// What a spec asks of variables that the controller sets is refused with a condition, and what runs stays.
#[tokio::test]
async fn an_invalid_spec_leaves_the_workers_as_they_are() {
    let scene = simulated().await;
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let before = workers(&scene, "coders").await;
    change(&scene, "coders", json!({"image": "agent:2", "env": [{"name": "STATE_DIR", "value": "/tmp"}]}))
        .await;
    let rejected = until_reason(&scene, "coders", conditions::ACCEPTED, reasons::INVALID_SPEC).await;
    assert!(condition(&rejected, conditions::ACCEPTED).unwrap().message.contains("STATE_DIR"));
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&workers(&scene, "coders").await), uids(&before));
}

/// A namespace that enforces Pod Security `restricted` accepts the pods.
#[tokio::test]
async fn the_pods_pass_pod_security_restricted() {
    let scene = simulated().await;
    let label = "pod-security.kubernetes.io/enforce=restricted";
    scene.kubectl(&["label", "namespace", scene.namespace(), label]);
    scene.kubectl(&["create", "secret", "generic", "key", "--from-literal=api-key=x"]);
    let all = json!({
        "memoryConfig": memory(),
        "credentials": {"secretName": "key"},
        "checkpoint": {"uri": "s3://states", "endpoint": "http://store:9000", "secretName": "key"},
    });
    create(&scene, "coders", all).await;
    let name = "coders-workers";
    wait_for(&scene.api::<k8s_openapi::api::apps::v1::Deployment>(), name, "there", within(), |_: &_| true)
        .await;
    until_ready(&scene, "coders").await;
}
