//! AIInference in tests: create, change, wait; and the script for the tests of every controller.

use std::{collections::BTreeSet, time::Duration};

use api::{
    aiinference::{AIInference, Migration, Phase},
    conditions,
    controllers::CONTROLLERS,
    labels, reasons,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Node, Pod, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use local_cluster::simulation::nodes;
use serde_json::{Value, json};

use crate::{
    Scene,
    drains::cordon,
    gateway::{Gateway, grpc_routes, install_pools, pools, routes},
    lives::{Children, Edited, Further, Life},
    wait_for, wait_until_gone, within,
};

pub mod endpoint;
pub mod engines;
pub mod evaluation;

pub const CONTROLLER: &str = "inference-controller";

/// The script for an AIInference with vLLM on one GPU.
pub(crate) fn life() -> Life {
    Life {
        controller: CONTROLLER,
        kind: CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0],
        samples_of: &[],
        args: || vec![format!("--prometheus-url={}", crate::scaler::prometheus().url())],
        given: |_| Vec::new(),
        leaves: |_| Vec::new(),
        spec: |_| json!({"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}}),
        scaled: json!({"replicas": 2}),
        changed: json!({"image": "engine:2"}),
        edited: Edited {
            resource: ApiResource::erase::<Deployment>(&()),
            suffix: "",
            edit: json!({"template": {"spec": {"terminationGracePeriodSeconds": 700}}}),
        },
        children: Some(Children {
            podless: Some(Edited {
                resource: ApiResource::erase::<Service>(&()),
                suffix: "",
                edit: json!({"selector": {labels::NAME: "another"}}),
            }),
            mistake: (json!({"scheduling": {"nodeSelector": {"disk": "typo"}}}), json!({"scheduling": null})),
        }),
        further: further(),
        needs_gateway: true,
        measured: &["lastColdStart"],
        counted: &["aiinference_phase{phase=\"ready\"} 1", "aiinference_warmup_seconds_count 1"],
        // Rights for the replacement of pods on lost nodes, and on nodes that are emptied.
        beyond_a_namespace: &[
            ("", "nodes", "list"),
            ("", "nodes", "watch"),
            ("", "pods", "delete"),
            ("", "pods", "patch"),
        ],
        use_every_right: |scene| Box::pin(use_every_right(scene)),
        settle: |scene| Box::pin(settle(scene)),
    }
}

/// A candidate without requests and one with two steps become stable and are folded. Another one gets a share, is aborted, and
/// is removed. The last one is left when the object is deleted.
fn further() -> Vec<Further> {
    let steps = json!([
        {"weightPercent": 10, "minSeconds": 5},
        {"weightPercent": 50, "minSeconds": 5, "approval": true},
    ]);
    vec![
        Further::once_done(json!({"canary": {"image": "engine:3"}})),
        Further::once_done(json!({"canary": {"approvedSteps": 1}})),
        Further::once_done(json!({"image": "engine:3", "canary": null})),
        Further {
            spec: json!({
                "drainSeconds": 5,
                "gateway": {"name": "public", "hostnames": ["chat.example.com"]},
                "canary": {"image": "engine:4", "steps": steps},
            }),
            is_over: |status| has_canary(status, "AwaitingApproval", 10),
        },
        Further {
            spec: json!({"canary": {"approvedSteps": 2}}),
            is_over: |status| has_canary(status, "AwaitingApproval", 50),
        },
        Further {
            spec: json!({"canary": {"approvedSteps": 3}}),
            is_over: |status| has_canary(status, "Promoted", 0) && status["canary"]["replicas"] == 0,
        },
        Further::once_done(json!({"image": "engine:4", "canary": null})),
        Further {
            spec: json!({
                "canary": {"image": "engine:5", "steps": [{"weightPercent": 50, "minSeconds": 3_600}]},
            }),
            is_over: |status| has_canary(status, "Analysing", 50),
        },
        Further {
            spec: json!({"canary": {"abort": true}}),
            is_over: |status| has_canary(status, "Aborted", 0),
        },
        Further { spec: json!({"canary": null}), is_over: |status| status["canary"].is_null() },
        // The next object finds its children.
        Further::once_done(json!({"canary": {"image": "engine:6"}})),
    ]
}

fn has_canary(status: &Value, phase: &str, weight: i32) -> bool {
    let canary = &status["canary"];
    canary["phase"] == phase && canary["weightPercent"] == weight
}

/// A spec with vLLM on one GPU, merged with `changes`.
pub async fn create(scene: &Scene<'_>, name: &str, changes: Value) -> AIInference {
    let mut spec = json!({
        "modelSource": "s3://models/qwen",
        "engine": "vllm",
        "gpu": {"count": 1},
    });
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    let object = serde_json::from_value(json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": spec,
    }))
    .expect("an AIInference");
    scene.api().create(&PostParams::default(), &object).await.expect("it is accepted")
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> AIInference {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

/// Waits until all replicas of the current spec are ready.
pub async fn until_ready(scene: &Scene<'_>, name: &str) -> AIInference {
    wait_for(&scene.api::<AIInference>(), name, "ready", within(), is_ready).await
}

/// Waits until `Ready` is false for this reason.
pub async fn until_not_ready(scene: &Scene<'_>, name: &str, reason: &str) -> AIInference {
    until_not_ready_within(scene, name, reason, within()).await
}

pub async fn until_not_ready_within(
    scene: &Scene<'_>,
    name: &str,
    reason: &str,
    within: Duration,
) -> AIInference {
    let what = format!("not ready because of {reason}");
    wait_for(&scene.api::<AIInference>(), name, &what, within, |inference: &AIInference| {
        is_observed(inference)
            && condition(inference, conditions::READY)
                .is_some_and(|ready| ready.status == "False" && ready.reason == reason)
    })
    .await
}

/// The label selector of the pods of a model.
pub fn pods_of(inference: &str) -> String {
    format!("{}=aiinference,{}={inference}", labels::NAME, labels::INSTANCE)
}

pub fn is_ready(inference: &AIInference) -> bool {
    is_observed(inference)
        && condition(inference, conditions::READY).is_some_and(|ready| ready.status == "True")
        && inference.status.as_ref().is_some_and(|status| {
            status.phase == Some(Phase::Ready) && status.updated_ready_replicas >= inference.spec.replicas
        })
}

/// Whether the status is of the current generation.
pub fn is_observed(inference: &AIInference) -> bool {
    let observed = inference.status.as_ref().map(|status| status.observed_generation);
    observed.is_some() && observed == inference.metadata.generation
}

pub fn condition<'a>(inference: &'a AIInference, type_: &str) -> Option<&'a Condition> {
    inference.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// A node that was stopped.
pub struct LostNode {
    pub node: String,
    /// When its Ready condition left True.
    pub since: Timestamp,
    pub pods_before: BTreeSet<String>,
}

/// Stops the node of one of the object's pods, and waits until the replacement is scheduled.
pub async fn lose_a_node_under(scene: &Scene<'_>, inference: &str) -> (Migration, LostNode) {
    let pods = live_pods(scene).await;
    let node = node_of(pods.first().expect("a pod")).expect("a node").to_owned();
    nodes::stop_heartbeat(&scene.client(), &node).await.unwrap();
    let migration = until_migrated(scene, inference).await;
    let seen = scene.cluster_api::<Node>().get(&node).await.unwrap();
    let conditions = seen.status.unwrap().conditions.unwrap();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap();
    let since = ready.last_transition_time.unwrap().0;
    (migration, LostNode { node, since, pods_before: names(&pods) })
}

pub async fn until_migrated(scene: &Scene<'_>, inference: &str) -> Migration {
    let newest = |inference: &AIInference| inference.status.as_ref()?.migrations.first().cloned();
    let inference =
        wait_for(&scene.api::<AIInference>(), inference, "a pod has moved", within(), |inference| {
            newest(inference).is_some_and(|migration| migration.to_node.is_some())
        })
        .await;
    newest(&inference).expect("a migration")
}

pub async fn live_pods(scene: &Scene<'_>) -> Vec<Pod> {
    let pods: Api<Pod> = scene.api();
    let all = pods.list(&ListParams::default()).await.unwrap();
    all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

pub fn names(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(name).collect()
}

pub fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap()
}

pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Cordons the node of the only pod, and waits until another pod has taken its place.
async fn empty_the_node_of(scene: &Scene<'_>, inference: &str) {
    let pods: Api<Pod> = scene.api();
    let all = pods.list(&ListParams::default().labels(&pods_of(inference))).await.unwrap();
    // That of a lost node is being deleted for as long as the node is away.
    let is_live = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none() && crate::is_ready(pod);
    let only = all.items.iter().find(is_live).expect("a ready pod");
    let node = node_of(only).expect("a node");
    cordon(&scene.cluster_api(), node, true).await;
    wait_until_gone(&pods, &name(only), within()).await;
    cordon(&scene.cluster_api(), node, false).await;
}

/// A version that gets a share of the requests for good.
async fn share(scene: &Scene<'_>, name: &str) {
    let gateway = json!({"name": "public", "hostnames": ["chat.example.com"]});
    share_with(scene, name, json!({"gateway": gateway})).await;
}

async fn share_with(scene: &Scene<'_>, name: &str, mut changes: Value) {
    changes["canary"] = json!({"image": "engine:2", "weightPercent": 30});
    changes["drainSeconds"] = json!(5);
    create(scene, name, changes).await;
    wait_for(&scene.api::<AIInference>(), name, "a share", within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.weight_percent == 30) && is_ready(inference)
    })
    .await;
}

/// A candidate that waits for an evaluation which does not exist.
async fn ask_for_an_evaluation(scene: &Scene<'_>, name: &str) {
    create(scene, name, json!({"canary": {"image": "engine:2", "evaluationName": "none"}})).await;
    wait_for(
        &scene.api::<AIInference>(),
        name,
        "an evaluation is awaited",
        within(),
        |inference: &AIInference| {
            let progressing = condition(inference, conditions::CANARY_PROGRESSING);
            progressing.is_some_and(|known| known.reason == reasons::EVALUATION_NOT_FOUND)
                && is_ready(inference)
        },
    )
    .await;
}

/// Causes the requests for routes and a candidate.
async fn share_and_end(scene: &Scene<'_>) {
    let _gateways = (Gateway::start(scene).await, Gateway::of_calls(scene).await);
    install_pools(scene).await;
    let picker = json!({"endpointPicker": {"name": "picker", "port": 9002}});
    let pool = json!({"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "other", "port": {"number": 9002}}});
    for (name, group, kind, spec) in [
        ("foreign", "gateway", "HTTPRoute", json!({})),
        ("foreign-calls-grpc", "gateway", "GRPCRoute", json!({})),
        ("foreign-pool", "inference", "InferencePool", pool),
    ] {
        let foreign = json!({
            "apiVersion": format!("{group}.networking.k8s.io/v1"), "kind": kind,
            "metadata": {"name": name, "namespace": scene.namespace()}, "spec": spec,
        });
        scene.apply(&foreign.to_string()).await.unwrap();
        let gateway =
            json!({"name": "public", "hostnames": ["a.example.com"], "grpc": {}, "inferencePool": picker});
        let name = name.trim_end_matches("-grpc");
        create(scene, name, json!({"engine": "triton", "gateway": gateway})).await;
        until_not_ready(scene, name, "OwnershipConflict").await;
    }
    let gateway =
        json!({"name": "public", "hostnames": ["chat.example.com"], "grpc": {}, "inferencePool": picker});
    share_with(scene, "shared", json!({"engine": "triton", "gateway": gateway})).await;
    ask_with_a_secret(scene, "shared").await;
    let inferences = scene.api::<AIInference>();
    let without = |field: &str| Patch::Merge(json!({"spec": {field: null}}));
    inferences.patch("shared", &PatchParams::default(), &without("canary")).await.unwrap();
    wait_until_gone(&scene.api::<Deployment>(), "shared-canary", within()).await;
    wait_until_gone(&scene.api::<ConfigMap>(), "shared-canary-model", within()).await;
    wait_until_gone(&pools(scene), "shared-canary", within()).await;
    inferences.patch("shared", &PatchParams::default(), &without("gateway")).await.unwrap();
    wait_until_gone(&routes(scene), "shared", within()).await;
    wait_until_gone(&grpc_routes(scene), "shared-grpc", within()).await;
}

/// Has the requests of a candidate counted by a server whose authority is in a Secret.
async fn ask_with_a_secret(scene: &Scene<'_>, name: &str) {
    // As an administrator grants it.
    let grant = ["create", "rolebinding", "secrets", "--clusterrole=inference-controller-secrets"];
    scene.kubectl(&[&grant[..], &["--serviceaccount=ai-system:inference-controller"]].concat());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "prometheus"},
        "stringData": {"ca.crt": "of a test"},
    });
    scene.apply(&secret.to_string()).await.expect("it is accepted");
    let queries = json!({
        "requestsQuery": r#"a{service="$name"}"#,
        "badRequestsQuery": r#"b{service="$name"} or vector(0)"#,
        "caSecretName": "prometheus",
    });
    let analysis = json!({"intervalSeconds": 5, "metrics": [{"name": "custom"}], "prometheus": queries});
    change(scene, name, json!({"canary": {"analysis": analysis}})).await;
    wait_for(
        &scene.api::<AIInference>(),
        name,
        "the Secret is refused",
        within(),
        |inference: &AIInference| {
            condition(inference, conditions::CANARY_HEALTHY)
                .is_some_and(|known| known.message.contains("the key ca.crt of Secret"))
        },
    )
    .await;
}

/// Creates an AIInference in each stable state.
async fn settle(scene: &Scene<'_>) {
    let gateway = Gateway::start(scene).await;
    share(scene, "shared").await;
    drop(gateway);
    ask_for_an_evaluation(scene, "gated").await;
    create(scene, "paused", json!({})).await;
    until_ready(scene, "paused").await;
    change(scene, "paused", json!({"paused": true})).await;
    create(scene, "stopped", json!({"replicas": 0})).await;
    create(scene, "unmounted", json!({"modelSource": "pvc://nothing", "engine": "triton"})).await;
    // After one more crash the kubelet's back-off is longer than any test.
    let crash = json!([
        {"name": "SIM_CRASH_REASON", "value": "Error"},
        {"name": "SIM_CRASH_AFTER", "value": "50ms"},
        {"name": "SIM_BACKOFF", "value": "24h"},
    ]);
    create(scene, "crashing", json!({"env": crash})).await;
    until_not_ready(scene, "crashing", "CrashLoop").await;
    until_not_ready(scene, "stopped", "Stopped").await;
    until_not_ready(scene, "unmounted", "ClaimNotFound").await;
    // Last, because it counts the free GPUs.
    create(scene, "nowhere", json!({"gpu": {"count": 16}})).await;
    until_not_ready(scene, "nowhere", "InsufficientGPU").await;
}

/// Causes every other kind of request of the controller.
async fn use_every_right(scene: &Scene<'_>) {
    // A name conflict makes the controller read the existing object.
    let meta = |name: &str| json!({"name": name, "namespace": scene.namespace()});
    for (name, foreign) in [
        (
            "config-map",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("config-map-model")}),
        ),
        (
            "deployment",
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("deployment"), "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "foreign"}},
                "template": {
                    "metadata": {"labels": {"app": "foreign"}},
                    "spec": {"containers": [{"name": "foreign", "image": "foreign:1"}]},
                },
            }}),
        ),
        (
            "service",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("service"), "spec": {"ports": [{"port": 1}]}}),
        ),
        (
            "budget",
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta("budget"),
                "spec": {"maxUnavailable": 1}}),
        ),
    ] {
        scene.apply(&foreign.to_string()).await.unwrap();
        create(scene, name, json!({"replicas": 2})).await;
        until_not_ready(scene, name, "OwnershipConflict").await;
    }
    create(scene, "chat", json!({"replicas": 2, "nodeFailureSeconds": 0})).await;
    until_ready(scene, "chat").await;
    let crash =
        json!([{"name": "SIM_CRASH_REASON", "value": "Error"}, {"name": "SIM_CRASH_AFTER", "value": "50ms"}]);
    create(scene, "crash", json!({"env": crash})).await;
    until_not_ready(scene, "crash", "CrashLoop").await;
    // Before a deleted child is created again, the controller reads its owner.
    let services = scene.api::<Service>();
    let service = services.get("chat").await.unwrap().metadata.uid;
    services.delete("chat", &DeleteParams::default()).await.unwrap();
    wait_for(&services, "chat", "made anew", within(), |new: &Service| new.metadata.uid != service).await;
    change(scene, "chat", json!({"service": {"headless": true}})).await;
    wait_for(&services, "chat-pods", "the headless Service", within(), |_| true).await;
    change(scene, "chat", json!({"service": null})).await;
    wait_until_gone(&services, "chat-pods", within()).await;
    share_and_end(scene).await;
    ask_for_an_evaluation(scene, "gated").await;
    lose_a_node_under(scene, "chat").await;
    change(scene, "chat", json!({"replicas": 1})).await;
    until_ready(scene, "chat").await;
    empty_the_node_of(scene, "chat").await;
    change(scene, "chat", json!({"replicas": 0})).await;
    wait_until_gone(&scene.api::<PodDisruptionBudget>(), "chat", within()).await;
    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<AIInference>(), "chat", within()).await;
}
