//! The fields that all kinds with pods share, tested on one kind.

use api::{
    aidispatcher::AIDispatcher,
    aiinference::{AIInference, endpoint::InferenceEndpoint, evaluation::ModelEvaluation},
    aiscaler::AIScaler,
    trainingjob::TrainingJob,
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
            case(
                "securityContext.ids",
                "Unsupported value",
                json!({"securityContext": {"ids": "Mine"}}),
                json!({"securityContext": {"ids": "Platform"}}),
            ),
            case("sharedMemory", "above zero", json!({"sharedMemory": "0"}), json!({"sharedMemory": "8Gi"})),
            case(
                "helperResources.limits[cpu]",
                "must be a quantity",
                json!({"helperResources": {"limits": {"cpu": "x"}}}),
                json!({"helperResources": {"limits": {"cpu": "1"}}}),
            ),
            case("resources.requests[cpu]", "must be a quantity", cpu(json!("four")), cpu(json!(4))),
            case("resources.requests[cpu]", "that is not negative", cpu(json!("-1")), cpu(json!("500m"))),
            case("paused", "must be of type boolean", json!({"paused": "yes"}), json!({"paused": true})),
        ],
    )
    .await;
}

#[tokio::test]
async fn volumes_and_variables_of_the_user_are_validated() {
    let volume = |more: Value| {
        let mut volume = json!({"name": "a", "mountPath": "/templates"});
        volume.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"volumes": [volume]})
    };
    let at = |path: &str| volume(json!({"mountPath": path, "claimName": "c"}));
    let below = |path: &str| volume(json!({"subPath": path, "claimName": "c"}));
    let from = |more: Value| json!({"envFrom": [more]});
    let one_source = "must have exactly one of configMapName, secretName, claimName and emptyDir";
    let path = "must be an absolute path such as /templates";
    check::<AIDispatcher>(
        json!({"role": "coder"}),
        vec![
            case("volumes[0]", one_source, volume(json!({})), volume(json!({"emptyDir": {}}))),
            case(
                "volumes[0]",
                one_source,
                volume(json!({"secretName": "a", "claimName": "c"})),
                volume(json!({"secretName": "a"})),
            ),
            case("volumes[0].mountPath", path, at("templates"), at("/etc/templates")),
            case("volumes[0].mountPath", path, at("/usr"), at("/usr/share/templates")),
            case("volumes[0].mountPath", path, at("/dev/shm"), at("/device")),
            case("volumes[0].mountPath", path, at("/a/../b"), at("/a/b")),
            case("volumes[0].subPath", "must be a relative path", below("../up"), below("down/deeper")),
            case("volumes[0].subPath", "must be a relative path", below("/root"), below(".hidden")),
            case(
                "volumes[0].name",
                "must consist of lower case",
                volume(json!({"name": "A", "claimName": "c"})),
                volume(json!({"name": "a-1", "claimName": "c", "readOnly": false})),
            ),
            case(
                "volumes[0].emptyDir.sizeLimit",
                "above zero",
                volume(json!({"emptyDir": {"sizeLimit": 0}})),
                volume(json!({"emptyDir": {"sizeLimit": "1Gi"}})),
            ),
            case(
                "envFrom[0]",
                "must have exactly one of configMapName and secretName",
                from(json!({"prefix": "A_"})),
                from(json!({"configMapName": "a", "prefix": "A_", "optional": true})),
            ),
            case(
                "envFrom[0].prefix",
                "must be the name of a variable",
                from(json!({"secretName": "a", "prefix": "1"})),
                from(json!({"secretName": "a", "prefix": "ONE_"})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn rules_about_nodes_and_siblings_are_validated() {
    let scheduling = |scheduling: Value| json!({"scheduling": scheduling});
    let rule = |operator: &str, values: Value| {
        scheduling(json!({"nodeExpressions": [{"key": "a", "operator": operator, "values": values}]}))
    };
    let values = "must have at least one value for In and NotIn";
    let at = "scheduling.nodeExpressions[0].values";
    check::<AIDispatcher>(
        json!({"role": "coder"}),
        vec![
            case(at, values, rule("In", json!([])), rule("In", json!(["a", "b"]))),
            case(at, values, rule("Exists", json!(["a"])), rule("Exists", json!([]))),
            case(at, values, rule("Gt", json!(["1", "2"])), rule("Gt", json!(["1"]))),
            case(at, "must be a whole number", rule("Lt", json!(["x"])), rule("Lt", json!(["-3"]))),
            case(
                "scheduling.nodeExpressions[0].key",
                "must be the key of a label",
                scheduling(json!({"nodeExpressions": [{"key": "a b", "operator": "Exists"}]})),
                scheduling(
                    json!({"nodeExpressions": [{"key": "example.com/a", "operator": "DoesNotExist"}]}),
                ),
            ),
            case(
                "scheduling.topologySpread[0].maxSkew",
                "greater than or equal to 1",
                scheduling(json!({"topologySpread": [{"topologyKey": "a", "maxSkew": 0}]})),
                scheduling(
                    json!({"topologySpread": [{"topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"}]}),
                ),
            ),
            case(
                "scheduling.podAntiAffinity",
                "Unsupported value",
                scheduling(json!({"podAntiAffinity": "Sometimes"})),
                scheduling(json!({"podAntiAffinity": "Required"})),
            ),
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
    refuses_long_names::<InferenceEndpoint>(json!({"model": "a/b", "accelerator": "h100"})).await;
    refuses_long_names::<ModelEvaluation>(
        json!({"baselineModel": "a/b", "candidateModel": "a/c", "testSet": "cmmlu"}),
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
