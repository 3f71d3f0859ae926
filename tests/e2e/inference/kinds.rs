//! Kinds of the Gateway API that are removed and come back, or are those of an older release. Each test has a cluster of its own,
//! because all tests of a cluster share its kinds.

use api::{
    aiinference::{AIInference, traffic::CanaryPhase},
    conditions,
};
use k8s_openapi::{
    api::core::v1::Pod, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller, fresh_name,
    gateway::{Gateway, order, pools, routes},
    inference::CONTROLLER,
    scaler::install_kind,
    start, tools, wait_for, wait_until_gone, within,
};

use super::{
    change, condition, create, is_ready,
    traffic::{backends, canary, gateway, until_phase, weights},
    until_ready, until_renewed,
};

/// The kind of an early release: it has no `appProtocol`, and allows one port.
const OLDER_POOLS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations: {api-approved.kubernetes.io: 'https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1173'}
  name: inferencepools.inference.networking.k8s.io
spec:
  group: inference.networking.k8s.io
  names: {kind: InferencePool, listKind: InferencePoolList, plural: inferencepools, singular: inferencepool}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [endpointPickerRef, selector, targetPorts]
            properties:
              endpointPickerRef:
                type: object
                required: [name]
                properties:
                  failureMode: {type: string, default: FailClose, enum: [FailOpen, FailClose]}
                  group: {type: string, default: ''}
                  kind: {type: string, default: Service}
                  name: {type: string}
                  port: {type: object, required: [number], properties: {number: {type: integer, format: int32}}}
              selector:
                type: object
                required: [matchLabels]
                properties:
                  matchLabels: {type: object, additionalProperties: {type: string}}
              targetPorts:
                type: array
                minItems: 1
                maxItems: 1
                x-kubernetes-list-type: atomic
                items: {type: object, required: [number], properties: {number: {type: integer, format: int32}}}
          status:
            type: object
            properties:
              parents:
                type: array
                x-kubernetes-list-type: atomic
                items: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

/// The CRDs of both kinds of routes are removed under a canary, which deletes all routes, and are installed again.
#[tokio::test]
async fn kinds_of_routes_that_are_removed_and_come_back_restart_nothing() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let (requests, calls) = (Gateway::start(&scene).await, Gateway::of_calls(&scene).await);
    let mut gateway = gateway();
    gateway["grpc"] = json!({"hostnames": ["grpc.chat.example.com"]});
    let spec = json!({"engine": "triton", "image": "engine:1", "drainSeconds": 5, "gateway": gateway});
    create(&scene, "chat", spec).await;
    until_ready(&scene, "chat").await;
    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    until_phase(&scene, CanaryPhase::AwaitingApproval).await;
    let before = all_pods(&scene).await;
    assert_eq!(before.len(), 2);

    drop(calls);
    remove_kind(&scene, "grpcroutes.gateway.networking.k8s.io").await;
    let inferences = scene.api::<AIInference>();
    let without = wait_for(&inferences, "chat", "no calls", 2 * within(), |inference: &AIInference| {
        let traffic = condition(inference, conditions::TRAFFIC_READY);
        traffic.is_some_and(|traffic| {
            traffic.status == "True" && traffic.message.contains("gRPC has no route until the cluster serves")
        })
    })
    .await;
    assert!(is_ready(&without), "{without:?}");
    assert_eq!(weights(&requests.versions()).last(), Some(&(90, Some(10))), "the other route stays as it is");

    drop(requests);
    remove_kind(&scene, "httproutes.gateway.networking.k8s.io").await;
    wait_for(&inferences, "chat", "no routes", 2 * within(), |inference: &AIInference| {
        let traffic = condition(inference, conditions::TRAFFIC_READY);
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        traffic.is_some_and(|traffic| traffic.reason == "GatewayAPINotInstalled")
            && canary.is_some_and(|canary| canary.weight_percent == 0 && canary.ready_replicas == 1)
    })
    .await;
    until_renewed(&scene, 1).await;
    assert_eq!(all_pods(&scene).await, before, "no pod restarts");

    let (requests, calls) = (Gateway::start(&scene).await, Gateway::of_calls(&scene).await);
    wait_for(&inferences, "chat", "its share again", 2 * within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        let traffic = condition(inference, conditions::TRAFFIC_READY);
        canary.is_some_and(|canary| {
            canary.weight_percent == 10 && canary.phase == Some(CanaryPhase::AwaitingApproval)
        }) && traffic.is_some_and(|traffic| traffic.status == "True" && !traffic.message.contains("gRPC"))
    })
    .await;
    assert_eq!(all_pods(&scene).await, before, "no pod restarts");
    for stand_in in [&requests, &calls] {
        assert_eq!(weights(&stand_in.versions()).last(), Some(&(90, Some(10))));
        assert_eq!(order::problem(&stand_in.versions()), None);
    }
}

/// Uids of the pods of both versions.
async fn all_pods(scene: &Scene<'_>) -> Vec<String> {
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
    let mut uids: Vec<String> = pods.items.into_iter().filter_map(|pod| pod.metadata.uid).collect();
    uids.sort();
    uids
}

/// Its objects go first.
async fn remove_kind(scene: &Scene<'_>, name: &str) {
    let kinds = scene.cluster_api::<CustomResourceDefinition>();
    kinds.delete(name, &DeleteParams::default()).await.unwrap();
    wait_until_gone(&kinds, name, within()).await;
}

#[tokio::test]
async fn pools_of_an_older_release_of_their_kind_are_written_and_accepted() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let stand_in = Gateway::start(&scene).await;
    let kind: Value = serde_saphyr::from_str(OLDER_POOLS).unwrap();
    install_kind(&scene, &kind).await;
    let mut gateway = gateway();
    gateway["inferencePool"] = json!({"endpointPicker": {"name": "picker", "port": 9002}});
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway})).await;
    wait_for(&routes(&scene), "chat", "the pool", 2 * within(), |route: &DynamicObject| {
        route.data["spec"]["rules"][0]["backendRefs"][0]["kind"] == "InferencePool"
    })
    .await;
    until_ready(&scene, "chat").await;
    let pool = pools(&scene).get("chat").await.unwrap();
    assert_eq!(pool.data["spec"]["targetPorts"], json!([{"number": 8000}]));
    assert_eq!(pool.data["spec"]["appProtocol"], Value::Null);

    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    until_phase(&scene, CanaryPhase::AwaitingApproval).await;
    let names: Vec<(String, i64)> = backends(stand_in.versions().last().unwrap())
        .into_iter()
        .filter(|(kind, ..)| kind == "InferencePool")
        .map(|(_, name, weight)| (name, weight))
        .collect();
    assert_eq!(names, [("chat".to_owned(), 90), ("chat-canary".to_owned(), 10)]);
    // What a gateway says about a pool is read as that of a newer release.
    let parent = json!({"parentRef": {"name": "public", "namespace": "gateways"}, "conditions": [{
        "type": "ResolvedRefs", "status": "False", "reason": "InvalidExtensionRef", "message": "no picker",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    let patch = Patch::Merge(json!({"status": {"parents": [parent]}}));
    pools(&scene).patch_status("chat", &PatchParams::default(), &patch).await.unwrap();
    let inferences = scene.api::<AIInference>();
    wait_for(&inferences, "chat", "a pool is refused", within(), |inference: &AIInference| {
        condition(inference, conditions::TRAFFIC_READY).is_some_and(|traffic| {
            traffic.reason == "BackendNotResolved" && traffic.message.contains("no picker")
        })
    })
    .await;
    let versions = async || {
        let all = pools(&scene).list(&ListParams::default()).await.unwrap().items;
        all.into_iter().map(|pool| pool.metadata.resource_version).collect::<Vec<_>>()
    };
    let before = versions().await;
    assert_eq!(before.len(), 2);
    until_renewed(&scene, 2).await;
    assert_eq!(versions().await, before, "nothing is written at rest");

    // Of the kind HTTPRoute, too, an older release: without `timeouts` a gateway with Envoy ends answers after 15 s.
    let kinds = scene.cluster_api::<CustomResourceDefinition>();
    let path = |version: usize| {
        format!(
            "/spec/versions/{version}/schema/openAPIV3Schema/properties/spec/properties/rules/items/properties/timeouts"
        )
    };
    let name = "httproutes.gateway.networking.k8s.io";
    let served = kinds.get(name).await.unwrap().spec.versions.len();
    let older: Vec<Value> =
        (0..served).map(|version| json!({"op": "remove", "path": path(version)})).collect();
    let older = Patch::Json::<()>(serde_json::from_value(Value::Array(older)).unwrap());
    kinds.patch(name, &PatchParams::default(), &older).await.unwrap();
    change(&scene, "chat", json!({"gateway": {"hostnames": ["other.example.com"]}})).await;
    wait_for(&inferences, "chat", "a field is refused", within(), |inference: &AIInference| {
        condition(inference, conditions::TRAFFIC_READY).is_some_and(|traffic| {
            traffic.reason == "ExperimentalFieldRefused"
                && traffic.message.contains("timeouts")
                && traffic.message.ends_with("install version 1.2 or later of the Gateway API")
        })
    })
    .await;
    let asked = || {
        let events = scene.cluster().audit_events().unwrap().into_iter();
        events.filter(|event| (&*event.verb, &*event.resource) == ("patch", "httproutes")).count()
    };
    let before = asked();
    until_renewed(&scene, 2).await;
    assert!(asked() <= before + 1, "what is refused is asked for again after a while");
}
