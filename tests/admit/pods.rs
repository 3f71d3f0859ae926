//! The fields that all kinds with pods share, tested on one kind.

use api::{
    aidispatcher::AIDispatcher, aiinference::AIInference, aiscaler::AIScaler, trainingjob::TrainingJob,
};
use kube::{
    Resource,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::table::{api, case, check, message};

#[tokio::test]
async fn pod_options_are_validated() {
    let scheduling = |scheduling: Value| json!({"scheduling": scheduling});
    let tolerations = |tolerations: Value| json!({"scheduling": {"tolerations": tolerations}});
    let labels = |key: &str| json!({"podLabels": {key: "x"}});
    let profile = |profile: &str| json!({"podAnnotations": {"container.apparmor.security.beta.kubernetes.io/worker": profile}});
    let own_label = "must not set app, app.kubernetes.io/name";
    let name = "must be the name of an object";
    let cpu = |quantity: Value| json!({"resources": {"requests": {"cpu": quantity}}});
    check::<AIDispatcher>(
        json!({"role": "coder"}),
        vec![
            case("podLabels", own_label, labels("app"), labels("application")),
            case(
                "podLabels",
                own_label,
                labels("app.kubernetes.io/name"),
                labels("app.kubernetes.io/part-of"),
            ),
            case("podLabels", own_label, labels("app.kubernetes.io/instance"), labels("team")),
            case("podLabels", own_label, labels("app.kubernetes.io/managed-by"), labels("example.com/team")),
            case(
                "podLabels",
                own_label,
                labels("ai.infra.example.com/track"),
                labels("infra.example.com/track"),
            ),
            case(
                "podAnnotations",
                "must not set a key below ai.infra.example.com/",
                json!({"podAnnotations": {"ai.infra.example.com/resolved": "{}"}}),
                json!({"podAnnotations": {"sidecar.example/inject": "false"}}),
            ),
            case(
                "podAnnotations",
                "must not set an AppArmor profile unconfined",
                profile("unconfined"),
                profile("runtime/default"),
            ),
            case(
                "scheduling.priorityClassName",
                name,
                scheduling(json!({"priorityClassName": "High"})),
                scheduling(json!({"priorityClassName": "high"})),
            ),
            case(
                "scheduling.runtimeClassName",
                name,
                scheduling(json!({"runtimeClassName": "nv idia"})),
                scheduling(json!({"runtimeClassName": "nvidia"})),
            ),
            case(
                "scheduling.schedulerName",
                name,
                scheduling(json!({"schedulerName": ""})),
                scheduling(json!({"schedulerName": "kai"})),
            ),
            case(
                "scheduling.nodeSelector.zone",
                "may not be more than 63",
                scheduling(json!({"nodeSelector": {"zone": "z".repeat(64)}})),
                scheduling(json!({"nodeSelector": {"zone": "z".repeat(63)}})),
            ),
            case(
                "scheduling.tolerations[0].operator",
                "operator must be Exists when key is not set",
                tolerations(json!([{"effect": "NoSchedule"}])),
                tolerations(json!([{"operator": "Exists", "effect": "NoSchedule"}])),
            ),
            case(
                "scheduling.tolerations[0].value",
                "must not be set with operator Exists",
                tolerations(json!([{"key": "gpu", "operator": "Exists", "value": "a"}])),
                tolerations(json!([{"key": "gpu", "value": "a"}])),
            ),
            case(
                "scheduling.tolerations[0].effect",
                "Unsupported value",
                tolerations(json!([{"key": "gpu", "effect": "Never"}])),
                tolerations(json!([{"key": "gpu", "effect": "NoExecute", "tolerationSeconds": 5}])),
            ),
            case(
                "scheduling.tolerations",
                "at most 16 items",
                tolerations(vec![json!({"key": "gpu"}); 17].into()),
                tolerations(vec![json!({"key": "gpu"}); 16].into()),
            ),
            case(
                "imagePullSecrets[0].name",
                name,
                json!({"imagePullSecrets": [{"name": "My"}]}),
                json!({"imagePullSecrets": [{"name": "my"}]}),
            ),
            case(
                "serviceAccountName",
                name,
                json!({"serviceAccountName": "-"}),
                json!({"serviceAccountName": "me"}),
            ),
            case(
                "securityContext.runAsUser",
                "greater than or equal to 0",
                json!({"securityContext": {"runAsUser": -1}}),
                json!({"securityContext": {"runAsUser": 0}}),
            ),
            case("resources.requests[cpu]", "must be a quantity", cpu(json!("four")), cpu(json!(4))),
            case("resources.requests[cpu]", "that is not negative", cpu(json!("-1")), cpu(json!("500m"))),
            case("paused", "must be of type boolean", json!({"paused": "yes"}), json!({"paused": true})),
        ],
    )
    .await;
}

#[tokio::test]
async fn every_kind_refuses_names_longer_than_a_label() {
    refuses_long_names::<AIInference>(
        json!({"modelSource": "s3://models", "engine": "vllm", "gpu": {"count": 1}}),
    )
    .await;
    refuses_long_names::<TrainingJob>(json!({"model": "a/b", "dataset": "c", "method": "lora"})).await;
    refuses_long_names::<AIDispatcher>(json!({"role": "coder"})).await;
    refuses_long_names::<AIScaler>(
        json!({"deploymentName": "web", "metricType": "latency", "targetValue": 1, "maxReplicas": 2}),
    )
    .await;
}

async fn refuses_long_names<K: Resource<DynamicType = ()>>(spec: Value) {
    let scene = tests::api_server().await;
    let objects = api::<K>(scene.client(), scene.namespace());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let named = |length: usize| {
        DynamicObject::new(&"n".repeat(length), &ApiResource::erase::<K>(&())).data(json!({"spec": spec}))
    };
    let refused = objects.create(&dry_run, &named(64)).await.map_err(message).unwrap_err();
    assert!(refused.contains("metadata.name must not be longer than 63"), "{refused}");
    objects.create(&dry_run, &named(63)).await.unwrap();
}
