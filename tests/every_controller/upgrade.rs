//! An upgrade of the controller, and its rollback, restart no pod: today's release takes over what released ones made,
//! and what a release made that it cannot know.

use api::{aiinference::AIInference, conditions, labels};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use local_cluster::{ClusterSpec, NodePool, install::yaml_files};
use serde_json::{Value, json};
use tests::{
    Scene, controller, fresh_name,
    inference::{change, condition, create, is_ready, until_ready},
    start, tools, until_renewed, wait_for, within,
};

const CONTROLLER: &str = "inference-controller";
const RELEASES: &str = "tests/fixtures/released";

#[tokio::test]
async fn todays_controller_restarts_no_pod_that_a_released_one_made() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let scene = Scene::new(&cluster).await;
    let models = as_released(&scene).await;
    assert!(models.len() >= 4, "{models:?}");
    for model in &models {
        until_pods_are_ready(&scene, model).await;
    }
    let before = templates(&scene).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    for model in &models {
        let outdated = wait_for(&scene.api::<AIInference>(), model, "it is known", within(), |model| {
            is_ready(model) && condition(model, conditions::TEMPLATE_OUTDATED).is_some()
        })
        .await;
        let outdated = condition(&outdated, conditions::TEMPLATE_OUTDATED).unwrap();
        assert_eq!((outdated.status.as_str(), outdated.reason.as_str()), ("True", "NewerTemplate"));
    }
    until_renewed(&scene, CONTROLLER, 2).await;
    assert_eq!(templates(&scene).await, before);

    // Drift is repaired to what was kept, not to what today's release would render.
    let model = &models[0];
    let drift = json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 70}}}});
    let deployments = scene.api::<Deployment>();
    deployments.patch(model, &PatchParams::default(), &Patch::Strategic(drift)).await.unwrap();
    wait_for(&deployments, model, "the kept template is back", within(), |deployment| {
        before.contains(&template(deployment))
    })
    .await;

    // A change of what is no part of a pod keeps the template, too.
    change(&scene, model, json!({"replicas": 3})).await;
    until_ready(&scene, model).await;
    assert_eq!(templates(&scene).await, before);

    let refresh = json!({"metadata": {"annotations": {labels::REFRESH: "1"}}});
    scene.api::<AIInference>().patch(model, &PatchParams::default(), &Patch::Merge(refresh)).await.unwrap();
    wait_for(&scene.api::<AIInference>(), model, "the newer template is taken", within(), |model| {
        is_ready(model) && condition(model, conditions::TEMPLATE_OUTDATED).is_none()
    })
    .await;
    let after = templates(&scene).await;
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert_eq!(changed, 1, "only that of {model}");
}

#[tokio::test]
async fn todays_controller_restarts_no_pod_that_a_later_release_made() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    cluster.stop_component(CONTROLLER).await.unwrap();
    let deployments = scene.api::<Deployment>();
    let mut later = template(&deployments.get("chat").await.unwrap());
    later["spec"]["containers"][0]["env"] = json!([{"name": "OF_THE_FUTURE", "value": "1"}]);
    let patch = json!({
        "metadata": {"annotations": {
            labels::TEMPLATE: later.to_string(),
            labels::RESOLVED: "{\"format\": 9, \"template\": {\"digest\": \"x\"}}",
            labels::APPLIED: "of the future",
        }},
        "spec": {"template": later},
    });
    deployments.patch("chat", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    until_pods_have(&scene, "OF_THE_FUTURE").await;
    let before = templates(&scene).await;
    cluster.start_component(CONTROLLER).await.unwrap();
    wait_for(&scene.api::<AIInference>(), "chat", "it is known", within(), |model| {
        is_ready(model) && condition(model, conditions::TEMPLATE_OUTDATED).is_some()
    })
    .await;
    change(&scene, "chat", json!({"replicas": 2})).await;
    until_ready(&scene, "chat").await;
    assert_eq!(templates(&scene).await, before);
    let revisions = scene.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap();
    let running =
        revisions.iter().filter(|one| one.spec.as_ref().is_some_and(|spec| spec.replicas == Some(2)));
    assert_eq!(running.count(), 1);
}

/// Creates what the newest recorded release made, with owner references to the objects of this cluster; returns the names
/// of the AIInferences.
async fn as_released(scene: &Scene<'_>) -> Vec<String> {
    let releases = tests::workspace().join(RELEASES);
    let mut names = Vec::new();
    for given in yaml_files(&releases.join("given")).unwrap() {
        let yaml = std::fs::read_to_string(&given).unwrap();
        let yaml = yaml.replace("namespace: default", &format!("namespace: {}", scene.namespace()));
        for part in yaml.split("\n---").filter(|part| !part.contains("kind: AIInference")) {
            scene.apply(part).await.unwrap();
        }
    }
    for file in yaml_files(&releases.join("0.1.0-c61d3b7")).unwrap() {
        let text = std::fs::read_to_string(&file).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let mut uids: Vec<(String, String)> = Vec::new();
        for mut object in objects {
            let old = object["metadata"]["uid"].as_str().unwrap().to_owned();
            for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
                let known = uids.iter().find(|(old, _)| owner["uid"] == **old);
                owner["uid"] = json!(known.expect("owners come first").1);
            }
            let new = recreate(scene, &mut object).await;
            if object["kind"] == "AIInference" {
                names.push(object["metadata"]["name"].as_str().unwrap().to_owned());
            }
            uids.push((old, new));
        }
    }
    names
}

/// Creates the object, with its status, and returns its uid.
async fn recreate(scene: &Scene<'_>, object: &mut Value) -> String {
    let status = object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for assigned in ["uid", "resourceVersion", "creationTimestamp", "generation", "namespace"] {
        metadata.remove(assigned);
    }
    if object["kind"] == "Service" {
        let spec = object["spec"].as_object_mut().unwrap();
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    let created: DynamicObject = scene.apply(&object.to_string()).await.unwrap().remove(0);
    if object["kind"] == "AIInference" {
        let models: Api<AIInference> = scene.api();
        let patch = Patch::Merge(json!({"status": status}));
        models.patch_status(&created.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
    created.metadata.uid.unwrap()
}

async fn until_pods_are_ready(scene: &Scene<'_>, name: &str) {
    wait_for(&scene.api::<Deployment>(), name, "its pods are ready", within(), |deployment| {
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        deployment.status.as_ref().is_some_and(|status| status.ready_replicas == wanted)
    })
    .await;
}

async fn until_pods_have(scene: &Scene<'_>, variable: &str) {
    wait_for(&scene.api::<Deployment>(), "chat", "the rollout ends", within(), |deployment| {
        let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else { return false };
        status.observed_generation == deployment.metadata.generation
            && status.replicas == spec.replicas
            && status.updated_replicas == spec.replicas
            && status.ready_replicas == spec.replicas
    })
    .await;
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
    let has = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        containers.flat_map(|one| one.env.iter().flatten()).any(|env| env.name == variable)
    };
    assert!(pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).all(has));
}

/// The pod templates of all Deployments, in the order of their names.
async fn templates(scene: &Scene<'_>) -> Vec<Value> {
    let deployments = scene.api::<Deployment>().list(&ListParams::default()).await.unwrap();
    deployments.iter().map(template).collect()
}

fn template(deployment: &Deployment) -> Value {
    serde_json::to_value(&deployment.spec.as_ref().unwrap().template).unwrap()
}
