//! `Ready` reports faults of pods within five seconds, and within `REPORTED_WITHIN` on a busy machine.

use std::time::Duration;

use api::{
    aiinference::{AIInference, Phase},
    conditions, reasons,
};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ContainerStateTerminated, ContainerStatus, Node, Pod, PodStatus},
        events::v1::Event,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use local_cluster::{ClusterSpec, NodeClock, NodePool, simulation::nodes};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until, controller, follow, fresh_name,
    inference::{live_pods, name, node_of},
    is_ready as is_pod_ready, simulated, start, tools, wait_for, within,
};

use super::{
    REPORTED_WITHIN, Report, change, condition, create, pods_of, reported_in_time, until_not_ready,
    until_ready, until_renewed,
};

#[tokio::test]
async fn a_crash_loop_is_reported_and_heals() {
    let scene = simulated().await;
    let spec = script(&[("SIM_CRASH_REASON", "Error"), ("SIM_CRASH_AFTER", "50ms")]);
    let report =
        Report { condition: conditions::PROGRESSING, reason: "CrashLoop", message: "engine of pod chat-" };
    let inference = reported_in_time(&scene, "chat", report, has_crashed, create(&scene, "chat", spec)).await;
    assert_eq!(inference.status.unwrap().phase, Some(Phase::Failed));
    change(&scene, "chat", json!({"env": null})).await;
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn an_oom_kill_is_reported() {
    let scene = simulated().await;
    let spec = script(&[("SIM_CRASH_REASON", "OOMKilled"), ("SIM_CRASH_AFTER", "50ms")]);
    let message = "used more memory than its limit";
    let report = Report { condition: conditions::PROGRESSING, reason: "OutOfMemory", message };
    reported_in_time(&scene, "chat", report, has_crashed, create(&scene, "chat", spec)).await;
}

#[tokio::test]
async fn a_crash_after_it_was_ready_is_reported() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    let crash = annotate_pods(&scene, json!({"sim.ai.infra.example.com/crash-reason": "Error"}));
    let report =
        Report { condition: conditions::PROGRESSING, reason: "CrashLoop", message: "ended with code 1" };
    let inference = reported_in_time(&scene, "chat", report, has_crashed, crash).await;
    assert_eq!(condition(&inference, conditions::AVAILABLE).unwrap().status, "False");
    assert!(!inference.status.unwrap().model_loaded);
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_reported_and_the_old_revision_keeps_serving() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    let cannot_pull = |pod: &Pod| {
        let status = status(pod);
        let containers = status.container_statuses.iter().flatten();
        let mut waiting = containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref());
        waiting.any(|waiting| waiting.reason.as_deref().is_some_and(|reason| reason.contains("ImagePull")))
    };
    let message = "; 1 pod of an older revision still ready";
    let report = Report { condition: conditions::PROGRESSING, reason: "ImagePullFailed", message };
    let spoil = change(&scene, "chat", script(&[("SIM_IMAGE_PULL", "fail")]));
    let inference = reported_in_time(&scene, "chat", report, cannot_pull, spoil).await;
    assert_eq!(condition(&inference, conditions::AVAILABLE).unwrap().status, "True");
}

#[tokio::test]
async fn a_loader_that_fails_is_reported_with_its_reason() {
    let scene = simulated().await;
    let fates = [
        ("unauthorized", 10, "SourceUnauthorized", "the store refused the credentials"),
        ("notfound", 11, "SourceNotFound", "the store has no such bucket or prefix"),
        ("unreachable", 12, "SourceUnreachable", "the store did not answer"),
        ("checksum", 13, "ChecksumMismatch", "a file differs from its checksum"),
        ("outofspace", 14, "OutOfSpace", "no space left in the model volume"),
    ];
    join_all(fates.map(async |(bucket, code, reason, message)| {
        let has_failed = |pod: &Pod| {
            ends(status(pod).init_container_statuses.iter().flatten(), |end| end.exit_code == code)
        };
        let report = Report { condition: conditions::MODEL_LOADED, reason, message };
        let spec = json!({"modelSource": format!("s3://sim-{bucket}/chat")});
        let inference =
            reported_in_time(&scene, bucket, report, has_failed, create(&scene, bucket, spec)).await;
        assert_eq!(inference.status.unwrap().phase, Some(Phase::Failed));
    }))
    .await;
    annotate_pods(&scene, json!({"sim.ai.infra.example.com/load-exit-code": "0"})).await;
    for (bucket, ..) in fates {
        until_ready(&scene, bucket).await;
    }
}

#[tokio::test]
async fn more_gpus_than_a_node_has_and_a_product_that_no_node_has_are_reported_with_different_reasons() {
    let scene = simulated().await;
    let gpus = |count: u8, product: &str| json!({"gpu": {"count": count, "productLabel": product}});
    let large = Report {
        condition: conditions::SCHEDULED,
        reason: "InsufficientGPU",
        message: "needs 16 nvidia.com/gpu on A100; free: ",
    };
    let exotic = Report {
        condition: conditions::SCHEDULED,
        reason: "NoSuchProduct",
        message: "no node has nvidia.com/gpu.product=B9000; found: A100, H100",
    };
    let create = |name: &'static str, spec: Value| create(&scene, name, spec);
    let (_, exotic) = futures::join!(
        reported_in_time(&scene, "large", large, finds_no_node, create("large", gpus(16, "A100"))),
        reported_in_time(&scene, "exotic", exotic, finds_no_node, create("exotic", gpus(1, "B9000"))),
    );
    assert_eq!(exotic.status.unwrap().phase, Some(Phase::Pending));
}

#[tokio::test]
async fn a_missing_claim_is_named() {
    let scene = simulated().await;
    create(&scene, "vision", json!({"modelSource": "pvc://models/vision", "engine": "triton"})).await;
    let inference = until_not_ready(&scene, "vision", "ClaimNotFound").await;
    assert!(condition(&inference, conditions::READY).unwrap().message.contains("/models does not exist"));
}

#[tokio::test]
async fn a_claim_that_is_created_later_ends_the_wait_for_it() {
    let scene = simulated().await;
    create(&scene, "vision", json!({"modelSource": "pvc://models/vision", "engine": "triton"})).await;
    until_not_ready(&scene, "vision", "ClaimNotFound").await;
    waiting_claim(&scene, "ReadWriteMany").await;
    until_ready(&scene, "vision").await;
}

#[tokio::test]
async fn a_read_write_once_pod_claim_does_not_support_two_replicas() {
    let scene = simulated().await;
    waiting_claim(&scene, "ReadWriteOncePod").await;
    let spec = json!({"modelSource": "pvc://models/vision", "engine": "triton", "replicas": 2});
    create(&scene, "vision", spec).await;
    let inference = until_not_ready(&scene, "vision", "ClaimNotShareable").await;
    let message = &condition(&inference, conditions::READY).unwrap().message;
    let expected = format!(
        "PersistentVolumeClaim {}/models is ReadWriteOncePod; 2 replicas need ReadOnlyMany or ReadWriteMany: set \
         replicas to 1, or use such a claim",
        scene.namespace()
    );
    assert_eq!(*message, expected);
    change(&scene, "vision", json!({"replicas": 1})).await;
    until_ready(&scene, "vision").await;
}

#[tokio::test]
async fn a_pending_claim_is_no_fault() {
    let scene = simulated().await;
    waiting_claim(&scene, "ReadWriteMany").await;
    create(&scene, "vision", json!({"modelSource": "pvc://models/vision", "engine": "triton"})).await;
    until_ready(&scene, "vision").await;
    let events = scene.api::<Event>();
    // An event is written after the status that it reports.
    let reasons = ask_until("the event about the ready model", within(), async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        let by_controller =
            |event: &Event| event.reporting_controller.as_deref() == Some("inference-controller");
        let reasons: Vec<String> =
            events.into_iter().filter(by_controller).filter_map(|event| event.reason).collect();
        let is_reported = reasons.iter().any(|reason| reason == reasons::READY);
        if is_reported { Ok(reasons) } else { Err(format!("{reasons:?}")) }
    })
    .await;
    assert!(reasons.iter().all(|reason| !reason.starts_with("Claim")), "{reasons:?}");
}

#[tokio::test]
async fn a_volume_in_use_by_an_old_pod_is_reported_and_auto_replaces_that_pod() {
    let pool = NodePool { count: 3, gpus: 1, products: vec!["A100".to_owned()], without_gpus: 0 };
    // A node that stands still counts as one that lives for 15 s or more: long enough for a busy machine to schedule the pod.
    let clock =
        NodeClock { grace: Duration::from_secs(20), lease: Duration::from_secs(20), ..NodeClock::SHORT };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool).with_clock(clock)).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    let scene = Scene::new(&cluster).await;
    waiting_claim(&scene, "ReadWriteOnce").await;
    let spec = json!({"modelSource": "pvc://models/vision", "engine": "triton", "surgeTimeoutSeconds": 30, "nodeFailureSeconds": 3600});
    create(&scene, "vision", spec).await;
    until_ready(&scene, "vision").await;
    let (pods, deployments) = (scene.api::<Pod>(), scene.api::<Deployment>());
    let old = pods.list(&ListParams::default()).await.unwrap().items.remove(0);
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    // The new pod is scheduled to a node without a kubelet, so it does not start.
    let free: Vec<&str> =
        ["gpu-0", "gpu-1", "gpu-2"].into_iter().filter(|one| node(&old).as_deref() != Some(*one)).collect();
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let all_nodes = scene.cluster_api::<Node>();
    all_nodes.patch(free[0], &PatchParams::default(), &cordon).await.unwrap();
    nodes::stop_heartbeat(&scene.client(), free[1]).await.unwrap();
    change(&scene, "vision", json!({"args": ["--log-verbose=1"]})).await;
    let labels = pods_of("vision");
    let new = follow(&pods, &labels, |all| {
        all.values().find(|pod| node(pod).is_some() && pod.metadata.name != old.metadata.name).cloned()
    });
    let new = tokio::time::timeout(within(), new).await.expect("a new pod with a node");
    let (other, new) = (node(&new).unwrap(), new.metadata);
    let (old, name) = (old.metadata.name.unwrap(), new.name.unwrap());
    // The pod has waited for long.
    let since = Timestamp::now() - SignedDuration::from_mins(2);
    let placed = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": since.to_string()});
    let patch = Patch::Strategic(json!({"status": {"conditions": [placed]}}));
    pods.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    // Only the event starts the next reconcile: the loss of the node is known already.
    wait_for(&all_nodes, &other, "lost", within(), |node| !nodes::is_ready(node)).await;
    until_renewed(&scene, 4).await;
    let text = format!("Multi-Attach error for volume \"models\" Volume is already used by pod(s) {old}");
    let event = json!({"apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "not-attached", "namespace": scene.namespace()},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": scene.namespace(), "name": name, "uid": new.uid},
        "reason": "FailedAttachVolume", "type": "Warning", "message": text, "count": 1,
        "source": {"component": "attachdetach-controller"},
        "firstTimestamp": Timestamp::now().to_string(), "lastTimestamp": Timestamp::now().to_string()});
    scene.apply(&event.to_string()).await.unwrap();
    let report = until_not_ready(&scene, "vision", "VolumeNotAttached");
    let inference = tokio::time::timeout(REPORTED_WITHIN, report).await.expect("a report in time");
    let message = &condition(&inference, conditions::READY).unwrap().message;
    assert!(
        message.starts_with(&format!("pod {name} on node {other} waits for its volume: {text}")),
        "{message}"
    );
    wait_for(&deployments, "vision", "replaced", within(), |deployment: &Deployment| {
        let strategy =
            deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref()?.rolling_update.clone());
        strategy.is_some_and(|rolling| rolling.max_surge == Some(IntOrString::Int(0)))
    })
    .await;
}

#[tokio::test]
async fn a_warm_up_timeout_is_reported() {
    let scene = simulated().await;
    let mut slow = script(&[("SIM_NEVER_READY", "true")]);
    slow["warmupTimeoutSeconds"] = json!(10);
    create(&scene, "chat", slow).await;
    let inference = until_not_ready(&scene, "chat", "WarmupTimeout").await;
    let report = Timestamp::now();
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
    let engine = status(&pods.items[0]).container_statuses.unwrap().remove(0);
    let timed_out =
        engine.state.unwrap().running.unwrap().started_at.unwrap().0 + SignedDuration::from_secs(10);
    let late = report.duration_since(timed_out);
    // The start time has whole seconds.
    assert!(!late.is_negative() && late <= SignedDuration::try_from(REPORTED_WITHIN).unwrap(), "{late:?}");
    assert_eq!(inference.status.unwrap().phase, Some(Phase::Failed));
    annotate_pods(&scene, json!({"sim.ai.infra.example.com/never-ready": "false"})).await;
    until_ready(&scene, "chat").await;
}

/// A claim `models` that is bound when the first pod with it is scheduled.
async fn waiting_claim(scene: &Scene<'_>, mode: &str) {
    let unique = scene.namespace();
    let spec = json!({
        "accessModes": [mode],
        "storageClassName": unique,
        "resources": {"requests": {"storage": "1Gi"}},
    });
    for object in [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": unique},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}),
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": unique}, "spec": {
            "accessModes": [mode],
            "storageClassName": unique,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/models"},
        }}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": unique}, "spec": spec}),
    ] {
        scene.apply(&object.to_string()).await.unwrap();
    }
}

fn has_crashed(pod: &Pod) -> bool {
    ends(status(pod).container_statuses.iter().flatten(), |end| end.exit_code != 0)
}

fn finds_no_node(pod: &Pod) -> bool {
    let conditions = status(pod).conditions.unwrap_or_default();
    conditions.iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

/// Whether the latest end of one of the containers was like this.
fn ends<'a>(
    mut containers: impl Iterator<Item = &'a ContainerStatus>,
    so: impl Fn(&ContainerStateTerminated) -> bool,
) -> bool {
    containers.any(|container| {
        let states = [&container.state, &container.last_state];
        states.into_iter().flatten().filter_map(|state| state.terminated.as_ref()).any(&so)
    })
}

fn status(pod: &Pod) -> PodStatus {
    pod.status.clone().unwrap_or_default()
}

fn script(settings: &[(&str, &str)]) -> Value {
    let env: Vec<Value> =
        settings.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"env": env})
}

/// Annotates every live pod of the test with a fault script.
async fn annotate_pods(scene: &Scene<'_>, annotations: Value) {
    let pods = scene.api::<Pod>();
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        pods.patch(&pod.metadata.name.unwrap(), &PatchParams::default(), &patch).await.unwrap();
    }
}

#[tokio::test]
async fn gates_and_schedulers_that_do_not_look_are_named() {
    let scene = simulated().await;
    create(&scene, "alone", json!({"scheduling": {"schedulerName": "volcano"}})).await;
    let inference = until_not_ready(&scene, "alone", reasons::NO_SCHEDULER).await;
    let message = &condition(&inference, conditions::SCHEDULED).unwrap().message;
    assert!(message.contains("the scheduler volcano"), "{message}");

    gate_pods(&scene, "kueue.x-k8s.io/admission").await;
    create(&scene, "gated", json!({})).await;
    let inference = until_not_ready(&scene, "gated", reasons::SCHEDULING_GATED).await;
    let message = &condition(&inference, conditions::SCHEDULED).unwrap().message;
    assert!(
        message.contains("kueue.x-k8s.io/admission") && message.contains("kubectl get workloads"),
        "{message}"
    );
}

/// As a queue does with the pods that it holds back.
async fn gate_pods(scene: &Scene<'_>, gate: &str) {
    let name = scene.namespace();
    let gates = format!(
        "Object{{spec: Object.spec{{schedulingGates: [Object.spec.schedulingGates{{name: '{gate}'}}]}}}}"
    );
    let of = |kind: &str, spec: Value| {
        let (api_version, metadata) = ("admissionregistration.k8s.io/v1", json!({"name": name}));
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}).to_string()
    };
    let pods =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let policy = json!({
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
            "resourceRules": [pods],
        },
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": gates}}],
    });
    scene.apply(&of("MutatingAdmissionPolicy", policy)).await.unwrap();
    scene.apply(&of("MutatingAdmissionPolicyBinding", json!({"policyName": name}))).await.unwrap();
    // Policies take effect a moment after they are written.
    ask_until("a pod gets the gate", within(), async || {
        let probe =
            json!({"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}});
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let pod: Pod = serde_json::from_value(probe).unwrap();
        let made = scene.api::<Pod>().create(&dry_run, &pod).await.unwrap();
        made.spec.unwrap().scheduling_gates.map(|_| ()).ok_or("not yet")
    })
    .await;
}

/// As a kubelet leaves a pod that it refuses: no container has run.
#[tokio::test]
async fn pods_that_a_kubelet_refuses_are_named_while_another_one_serves() {
    let scene = simulated().await;
    let slow = json!([{"name": "SIM_READY_DELAY", "value": "20s"}]);
    create(&scene, "pair", json!({"replicas": 2, "env": slow})).await;
    until_ready(&scene, "pair").await;
    let refused = Patch::Merge(json!({"status": {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed: no healthy devices present for nvidia.com/gpu",
        "containerStatuses": [],
        "initContainerStatuses": [],
    }}));
    let pods = scene.api::<Pod>();
    ask_until("three refusals are named", within(), async || {
        let mut live: Vec<Pod> = live_pods(&scene).await;
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let (failed, mut others): (Vec<Pod>, Vec<Pod>) =
            live.drain(..).partition(|pod| phase(pod).as_deref() == Some("Failed"));
        others.sort_by_key(is_pod_ready);
        if let [first, _] = others.as_slice()
            && failed.len() < 3
            && node_of(first).is_some()
        {
            // The simulated kubelet may write its own status afterwards: then another pod is refused.
            pods.patch_status(&name(first), &PatchParams::default(), &refused).await.unwrap();
        }
        let status = scene.api::<AIInference>().get("pair").await.unwrap();
        let ready = condition(&status, conditions::READY).cloned().ok_or("no condition")?;
        let is_named = ready.status == "False"
            && ["kubelets have refused 3 pods", "no healthy devices", " on node gpu-"]
                .iter()
                .all(|part| ready.message.contains(part));
        if is_named { Ok(()) } else { Err(format!("{} failed; {ready:?}", failed.len())) }
    })
    .await;
    assert_ne!(
        scene.api::<AIInference>().get("pair").await.unwrap().status.unwrap().phase,
        Some(Phase::Failed),
        "one serves, and another one starts"
    );
}
