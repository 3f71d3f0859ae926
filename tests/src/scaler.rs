//! AIScaler in tests: a target, its load, waits; and the script for the tests of every controller.

use std::sync::OnceLock;

use api::{
    aidispatcher::AIDispatcher, aiinference::AIInference, aiscaler::AIScaler, conditions,
    controllers::CONTROLLERS,
};
use fake_prometheus::{Answer, Prometheus};
use k8s_openapi::{
    api::apps::v1::{Deployment, StatefulSet},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    Scene, ask_until,
    lives::{Edited, Life},
    wait_for, within,
};

pub const CONTROLLER: &str = "scaler-controller";
/// The sample asks for two replicas with it, and stays.
const DEFAULT_LOAD: f64 = 10.0;

/// The server that the controllers of this process ask. Every query without a known series has the same value.
pub fn prometheus() -> &'static Prometheus {
    static SERVER: OnceLock<Prometheus> = OnceLock::new();
    SERVER.get_or_init(|| Prometheus::start(DEFAULT_LOAD).expect("a server on loopback"))
}

/// Of the controller in tests: its server, and periods that tests can wait for.
pub fn args() -> Vec<String> {
    vec![
        format!("--prometheus-url={}", prometheus().url()),
        "--period=1".to_owned(),
        "--sample-period=0.5".to_owned(),
    ]
}

/// The script for an AIScaler of a Deployment.
pub(crate) fn life() -> Life {
    Life {
        controller: CONTROLLER,
        kind: CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0],
        samples_of: &["inference-controller"],
        args,
        given: |name| vec![deployment(name, 1)],
        leaves: |_| Vec::new(),
        spec: |name| spec(name, "vector(15)"),
        scaled: json!({"source": {"prometheus": {"query": "vector(25)"}}}),
        changed: json!({"maxReplicas": 8}),
        edited: Edited {
            resource: ApiResource::erase::<Deployment>(&()),
            suffix: "",
            edit: json!({"replicas": 6}),
        },
        children: None,
        // A process that is killed between its two writes leaves a decision unrecorded.
        further: Vec::new(),
        needs_gateway: false,
        measured: &["coldStart", "decisions", "history", "lastScaleTime"],
        counted: &["aiscaler_phase{phase=\"active\"} 1"],
        beyond_a_namespace: &[],
        use_every_right: |scene| Box::pin(use_every_right(scene)),
        settle: |scene| Box::pin(settle(scene)),
    }
}

/// Five per replica of a Deployment, at once in both directions.
pub fn spec(target: &str, query: &str) -> Value {
    json!({
        "deploymentName": target,
        "metricType": "custom",
        "targetValue": 5,
        "maxReplicas": 6,
        "source": {"prometheus": {"query": query}},
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    })
}

/// A Deployment whose pods are ready soon after they are scheduled.
pub fn deployment(name: &str, replicas: i32) -> Value {
    workload("Deployment", name, replicas)
}

fn workload(kind: &str, name: &str, replicas: i32) -> Value {
    let labels = json!({"app": name});
    // GPU nodes keep other pods away.
    let pod = json!({
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "image"}],
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

/// Creates an AIScaler, with the changes in its spec.
pub async fn create(scene: &Scene<'_>, name: &str, mut spec: Value, changes: Value) {
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    spec.as_object_mut().expect("a spec").retain(|_, value| !value.is_null());
    let scaler = json!({
        "apiVersion": "ai.infra.example.com/v1",
        "kind": "AIScaler",
        "metadata": {"name": name},
        "spec": spec,
    });
    scene.apply(&scaler.to_string()).await.expect("it is accepted");
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene
        .api::<AIScaler>()
        .patch(name, &PatchParams::default(), &patch)
        .await
        .expect("the change is accepted");
}

/// Waits until the Deployment is to have so many replicas.
pub async fn until_replicas(scene: &Scene<'_>, name: &str, replicas: i32) -> Deployment {
    wait_for(&scene.api::<Deployment>(), name, &format!("{replicas} replicas"), within(), |target| {
        target.spec.as_ref().is_some_and(|spec| spec.replicas == Some(replicas))
    })
    .await
}

/// Waits until a condition has this status and reason for the present generation.
pub async fn until_condition(
    scene: &Scene<'_>,
    name: &str,
    type_: &str,
    (status, reason): (&str, &str),
) -> AIScaler {
    let what = format!("{type_} is {status} because of {reason}");
    wait_for(&scene.api::<AIScaler>(), name, &what, within(), |scaler: &AIScaler| {
        condition(scaler, type_).is_some_and(|found| {
            found.status == status
                && found.reason == reason
                && found.observed_generation == scaler.metadata.generation
        })
    })
    .await
}

pub async fn until_active(scene: &Scene<'_>, name: &str) -> AIScaler {
    until_condition(scene, name, conditions::SCALING_ACTIVE, ("True", "ValidMetricFound")).await
}

pub async fn until_inactive(scene: &Scene<'_>, name: &str, reason: &str) -> AIScaler {
    until_condition(scene, name, conditions::SCALING_ACTIVE, ("False", reason)).await
}

pub fn condition<'a>(scaler: &'a AIScaler, type_: &str) -> Option<&'a Condition> {
    scaler.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

pub fn message<'a>(scaler: &'a AIScaler, type_: &str) -> &'a str {
    condition(scaler, type_).map_or("", |condition| &condition.message)
}

/// An autoscaler of Kubernetes for a Deployment.
pub fn hpa(name: &str, target: &str) -> Value {
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
            }}],
        },
    })
}

/// Creates an AIScaler in each state that lasts.
async fn settle(scene: &Scene<'_>) {
    let apply = async |object: Value| drop(scene.apply(&object.to_string()).await.expect("it is accepted"));
    for name in ["trial", "paused", "contended", "blind"] {
        apply(deployment(name, 1)).await;
    }
    apply(hpa("contended", "contended")).await;
    prometheus().set("nothing_serves_this", Answer::Empty);
    create(scene, "trial", spec("trial", "vector(15)"), json!({"mode": "DryRun"})).await;
    create(scene, "paused", spec("paused", "vector(15)"), json!({"paused": true})).await;
    create(scene, "contended", spec("contended", "vector(15)"), json!({})).await;
    create(scene, "blind", spec("blind", "sum(nothing_serves_this)"), json!({})).await;
    create(scene, "untargeted", spec("absent", "vector(15)"), json!({})).await;
    until_active(scene, "trial").await;
    until_inactive(scene, "paused", "Paused").await;
    until_inactive(scene, "contended", "TargetManagedByOther").await;
    until_inactive(scene, "blind", "MetricMissing").await;
    until_inactive(scene, "untargeted", "FailedGetScale").await;
}

/// The kind of KEDA's that names a target, without KEDA.
async fn install_keda_kind(scene: &Scene<'_>) {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "scaledobjects.keda.sh"},
        "spec": {
            "group": "keda.sh",
            "names": {"kind": "ScaledObject", "listKind": "ScaledObjectList", "plural": "scaledobjects", "singular": "scaledobject"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    });
    install_kind(scene, &crd).await;
}

/// Installs a kind, and returns when it is served.
pub async fn install_kind(scene: &Scene<'_>, crd: &Value) {
    scene.apply(&crd.to_string()).await.expect("it is accepted");
    let crds = scene.cluster_api::<CustomResourceDefinition>();
    let name = crd["metadata"]["name"].as_str().expect("a name");
    wait_for(&crds, name, "served", within(), |crd: &CustomResourceDefinition| {
        let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|known| known.type_ == "Established" && known.status == "True")
    })
    .await;
    // Its discovery, by which kinds are found, follows later.
    let group = crd["spec"]["group"].as_str().expect("a group");
    let version = crd["spec"]["versions"][0]["name"].as_str().expect("a version");
    let client = scene.client();
    ask_until("the discovery of the kind", within(), async || {
        client.list_api_group_resources(&format!("{group}/{version}")).await.map(drop)
    })
    .await;
}

/// Creates a ScaledObject for the target of an AIScaler of the same name, a StatefulSet, and waits for its effect.
async fn until_yielding_to_keda(scene: &Scene<'_>, name: &str) {
    let object = json!({
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "queue"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}},
    });
    scene.apply(&object.to_string()).await.expect("it is accepted");
    let scaler = until_inactive(scene, name, "TargetManagedByOther").await;
    let text = message(&scaler, conditions::SCALING_ACTIVE);
    assert!(text.contains("ScaledObject queue"), "{text}");
}

/// Causes every other kind of request of the controller.
async fn use_every_right(scene: &Scene<'_>) {
    let selector = json!({"status": {"selector": "app=none"}});
    let targets = [
        (ApiResource::erase::<StatefulSet>(&()), workload("StatefulSet", "set", 1)),
        (
            ApiResource::erase::<AIInference>(&()),
            json!({
                "apiVersion": "ai.infra.example.com/v1alpha1",
                "kind": "AIInference",
                "metadata": {"name": "model"},
                "spec": {"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}},
            }),
        ),
        (
            ApiResource::erase::<AIDispatcher>(&()),
            json!({
                "apiVersion": ApiResource::erase::<AIDispatcher>(&()).api_version,
                "kind": "AIDispatcher",
                "metadata": {"name": "pool"},
                "spec": {"role": "coder"},
            }),
        ),
    ];
    for (resource, object) in targets {
        scene.apply(&object.to_string()).await.expect("it is accepted");
        let name = object["metadata"]["name"].as_str().expect("a name");
        let objects: Api<DynamicObject> = Api::namespaced_with(scene.client(), scene.namespace(), &resource);
        if resource.kind != "StatefulSet" {
            // No controller of the kind runs here to write the status.
            let patch = Patch::Merge(&selector);
            objects.patch_status(name, &PatchParams::default(), &patch).await.expect("it is accepted");
        }
        let target = json!({"apiVersion": resource.api_version, "kind": resource.kind, "name": name});
        let changes = json!({"deploymentName": null, "targetRef": target});
        create(scene, name, spec(name, "vector(15)"), changes).await;
        wait_for(&objects, name, "3 replicas", within(), |object: &DynamicObject| {
            object.data["spec"]["replicas"] == 3
        })
        .await;
    }
    // As an administrator grants it.
    let grant = ["create", "rolebinding", "secrets", "--clusterrole=scaler-controller-secrets"];
    scene.kubectl(&[&grant[..], &["--serviceaccount=ai-system:scaler-controller"]].concat());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "prometheus"},
        "stringData": {"token": "of-a-test"},
    });
    scene.apply(&secret.to_string()).await.expect("it is accepted");
    scene.apply(&deployment("asks", 1).to_string()).await.expect("it is accepted");
    prometheus().set("load_of_rights", Answer::Value(15.0));
    let source = json!({"source": {"prometheus": {"query": "load_of_rights", "secretName": "prometheus"}}});
    create(scene, "asks", spec("asks", "vector(15)"), source).await;
    until_replicas(scene, "asks", 3).await;
    until_active(scene, "asks").await;
    // A new process reads the AIScaler before its first write for it.
    scene.kill_component(CONTROLLER).await.expect("it is killed");
    prometheus().set("load_of_rights", Answer::Value(25.0));
    until_replicas(scene, "asks", 5).await;
    install_keda_kind(scene).await;
    until_yielding_to_keda(scene, "set").await;
    scene.kubectl(&["delete", "scaledobjects.keda.sh", "queue"]);
    until_active(scene, "set").await;
}
