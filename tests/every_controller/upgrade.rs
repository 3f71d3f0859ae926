//! Upgrades and rollbacks of a controller restart no pods: the present release adopts the children of recorded ones
//! (`tests/fixtures/released`) and of a hypothetical later release.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use api::{
    conditions,
    controllers::{CONTROLLERS, Controller},
    labels,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use local_cluster::{ClusterSpec, NodePool, api_server::install::yaml_files};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until, controller, fresh_name, lives::Life, start, table::life_of, tools, until_renewed,
    wait_for, within, workspace,
};

use crate::{cluster_of, for_every_controller_with_children};

const RELEASED: &str = "tests/fixtures/released";

/// Also where a mistake in a spec is made after the upgrade, and taken back.
#[tokio::test]
async fn todays_controller_restarts_no_pod_that_a_released_one_made() {
    for_every_controller_with_children(async |controller| {
        let releases = releases_of(controller);
        assert!(!releases.is_empty(), "nothing of {} is tested", controller.name);
        for release in releases {
            restarts_no_pod_of(&release, controller).await;
        }
    })
    .await;
}

async fn restarts_no_pod_of(release: &Path, released: &Controller) {
    let life = life_of(released);
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let scene = Scene::new(&cluster).await;
    let objects = recreate_all(&scene, &life, release).await;
    let (before, served) = (templates(&scene, &life).await, uids(&pods(&scene).await));
    cluster.start_controller(&controller(released.name)).await.unwrap();
    until_renewed(&scene, released.name, 2).await;
    let mut are_outdated = Vec::new();
    for object in &objects {
        let object = wait_for(&life.objects(&scene), object, life.kind.done, within(), |object| {
            life.kind.is_done(object)
        })
        .await;
        // Nothing is outdated before the first change of what is rendered.
        let outdated = outdated(&object);
        assert!(matches!(outdated, None | Some(("True", "NewerTemplate"))), "{outdated:?}");
        are_outdated.push(outdated.is_some());
    }
    assert_eq!(templates(&scene, &life).await, before);
    assert_eq!(uids(&pods(&scene).await), served);

    for object in &objects {
        makes_and_takes_back_a_mistake(&scene, &life, object, served.len()).await;
    }
    assert_eq!(templates(&scene, &life).await, before);
    assert_eq!(uids(&pods(&scene).await), served, "after a mistake");

    // Drift is repaired to the pinned template, not to the one that the present release renders.
    let object = &objects[0];
    life.edit(&scene, object).await;
    assert_eq!(templates(&scene, &life).await, before);

    // A change that does not affect pods keeps the template.
    life.change(&scene, object, &life.scaled).await;
    life.until_done(&scene, object).await;
    assert_eq!(templates(&scene, &life).await, before);

    let refresh = Patch::Merge(json!({"metadata": {"annotations": {labels::REFRESH: "1"}}}));
    life.objects(&scene).patch(object, &PatchParams::default(), &refresh).await.unwrap();
    wait_for(&life.objects(&scene), object, "done with the newer template", within(), |object| {
        life.kind.is_done(object) && outdated(object).is_none()
    })
    .await;
    // Also a template that is not outdated has been looked at by then.
    until_renewed(&scene, released.name, 2).await;
    let after = templates(&scene, &life).await;
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert_eq!(changed, usize::from(are_outdated[0]), "only that of {object}");
}

async fn makes_and_takes_back_a_mistake(scene: &Scene<'_>, life: &Life, object: &str, served: usize) {
    let (mistake, correction) = &life.children.as_ref().expect("children").mistake;
    life.change(scene, object, mistake).await;
    ask_until(&format!("a pod of the mistake in {object}"), within(), async || {
        let found = uids(&pods(scene).await);
        if found.len() > served { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    life.change(scene, object, correction).await;
    life.until_done(scene, object).await;
    until_rolled_out(scene, life, object).await;
}

#[tokio::test]
async fn todays_controller_restarts_no_pod_that_a_later_release_made() {
    for_every_controller_with_children(async |controller| {
        let (name, life) = (controller.name, life_of(controller));
        let cluster = cluster_of(controller).await;
        let scene = Scene::new(&cluster).await;
        life.begin(&scene, "life").await;
        cluster.stop_component(name).await.unwrap();
        let child = child_of(&life, "life");
        let mut later = template(&children(&scene, &life).get(&child).await.unwrap());
        later["spec"]["containers"][0]["env"] = json!([{"name": "OF_THE_FUTURE", "value": "1"}]);
        let patch = json!({
            "metadata": {"annotations": {
                labels::TEMPLATE: later.to_string(),
                labels::RESOLVED: "{\"format\": 9, \"template\": {\"digest\": \"x\"}}",
                labels::APPLIED: "of the future",
            }},
            "spec": {"template": later},
        });
        let children = children(&scene, &life);
        children.patch(&child, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        until_rolled_out(&scene, &life, "life").await;
        let (before, pods) = (templates(&scene, &life).await, pods(&scene).await);
        assert!(pods.iter().all(|pod| has_variable(pod, "OF_THE_FUTURE")));
        cluster.start_component(name).await.unwrap();
        wait_for(&life.objects(&scene), "life", "done, and its template outdated", within(), |object| {
            life.kind.is_done(object) && outdated(object).is_some()
        })
        .await;
        life.change(&scene, "life", &life.scaled).await;
        life.until_done(&scene, "life").await;
        assert_eq!(templates(&scene, &life).await, before);
        let scaled = self::pods(&scene).await;
        assert!(scaled.len() > pods.len() && uids(&scaled).is_superset(&uids(&pods)));
        assert!(scaled.iter().all(|pod| has_variable(pod, "OF_THE_FUTURE")), "one revision runs");
    })
    .await;
}

/// A user with the right to edit Deployments has mounted the token of the Kubernetes API. The admission policy lets pods keep
/// the token and gives none back, so going back to their template must not ask for it.
#[tokio::test]
async fn a_mistake_that_is_taken_back_is_not_refused_where_a_token_was_mounted_by_hand() {
    let released = &CONTROLLERS[0];
    let (name, life) = (released.name, life_of(released));
    let cluster = cluster_of(released).await;
    let scene = Scene::new(&cluster).await;
    scene.kubectl(&["create", "serviceaccount", "reader"]);
    life.create(&scene, "life").await;
    life.change(&scene, "life", &json!({"serviceAccountName": "reader"})).await;
    life.until_done(&scene, "life").await;
    until_rolled_out(&scene, &life, "life").await;
    cluster.stop_component(name).await.unwrap();
    let (children, child) = (children(&scene, &life), child_of(&life, "life"));
    let recorded = children.get(&child).await.unwrap().annotations()[labels::TEMPLATE].clone();
    let field = "\"automountServiceAccountToken\":";
    let patch = json!({
        "metadata": {"annotations": {
            labels::TEMPLATE: recorded.replace(&format!("{field}false"), &format!("{field}true")),
            labels::APPLIED: "by hand",
        }},
        "spec": {"template": {"spec": {"automountServiceAccountToken": true}}},
    });
    children.patch(&child, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    until_rolled_out(&scene, &life, "life").await;
    let (before, served) = (templates(&scene, &life).await, uids(&pods(&scene).await));
    cluster.start_component(name).await.unwrap();
    wait_for(&life.objects(&scene), "life", "done, and its template outdated", within(), |object| {
        life.kind.is_done(object) && outdated(object).is_some()
    })
    .await;
    assert_eq!(templates(&scene, &life).await, before, "what serves keeps the token");

    makes_and_takes_back_a_mistake(&scene, &life, "life", served.len()).await;
    let pod = &templates(&scene, &life).await[0]["spec"];
    assert_eq!(
        (&pod["serviceAccountName"], &pod["automountServiceAccountToken"]),
        (&json!("reader"), &json!(false))
    );
}

/// The fixture folders of this controller's releases; empty before its first release.
fn releases_of(controller: &Controller) -> Vec<PathBuf> {
    let versions = fs::read_dir(workspace().join(RELEASED)).unwrap().map(|version| version.unwrap());
    let versions = versions.filter(|version| version.file_name() != "given");
    let mut releases: Vec<PathBuf> = versions
        .map(|version| version.path().join(controller.name))
        .filter(|folder| folder.is_dir())
        .collect();
    releases.sort();
    releases
}

/// Creates the fixtures of a release, with owner references to objects of this cluster, and waits until their pods are
/// ready. Returns the names of the root objects.
async fn recreate_all(scene: &Scene<'_>, life: &Life, release: &Path) -> Vec<String> {
    let kind = life.kind.resource().kind;
    let given = yaml_files(&workspace().join(RELEASED).join("given").join(life.controller)).unwrap();
    for given in &given {
        let yaml = fs::read_to_string(given).unwrap();
        let yaml = yaml.replace("namespace: default", &format!("namespace: {}", scene.namespace()));
        for part in yaml.split("\n---").filter(|part| !part.contains(&format!("kind: {kind}"))) {
            scene.apply(part).await.unwrap();
        }
    }
    let mut roots = Vec::new();
    for file in yaml_files(release).unwrap() {
        let text = fs::read_to_string(&file).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let mut uids: Vec<(String, String)> = Vec::new();
        for mut object in objects {
            let old = object["metadata"]["uid"].as_str().unwrap().to_owned();
            for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
                let known = uids.iter().find(|(old, _)| owner["uid"] == **old);
                owner["uid"] = json!(known.expect("owners come first").1);
            }
            if object["kind"] == *kind {
                roots.push(object["metadata"]["name"].as_str().unwrap().to_owned());
            }
            uids.push((old, recreate(scene, life, &mut object).await));
        }
    }
    assert!(!roots.is_empty() && roots.len() <= given.len(), "{roots:?} of {given:?}");
    for root in &roots {
        until_pods_are_ready(scene, life, root).await;
    }
    roots
}

/// Creates the object, with its status, and returns its uid.
async fn recreate(scene: &Scene<'_>, life: &Life, object: &mut Value) -> String {
    let mut status = object.as_object_mut().unwrap().remove("status");
    // With conditions it would look as if the present release had reconciled it.
    if let Some(status) = status.as_mut().and_then(Value::as_object_mut) {
        status.remove("conditions");
    }
    let metadata = object["metadata"].as_object_mut().unwrap();
    for assigned in ["uid", "resourceVersion", "creationTimestamp", "generation", "namespace"] {
        metadata.remove(assigned);
    }
    if object["kind"] == "Service" {
        let spec = object["spec"].as_object_mut().unwrap();
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    // The fixtures are applied with the release's field manager, so that the present release can remove obsolete fields.
    let manager = format!("--field-manager={}", life.controller);
    let apply = ["apply", "--server-side", &manager, "--output=json", "--filename=-"];
    let applied = scene.kubectl_with_input(&apply, &object.to_string());
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let created: DynamicObject = serde_json::from_slice(&applied.stdout).unwrap();
    if object["kind"] == *life.kind.resource().kind {
        let status = json!({
            "apiVersion": object["apiVersion"],
            "kind": object["kind"],
            "metadata": {"name": created.name_any()},
            "status": status,
        });
        let params = PatchParams::apply(life.controller);
        life.objects(scene).patch_status(&created.name_any(), &params, &Patch::Apply(status)).await.unwrap();
    }
    created.metadata.uid.unwrap()
}

/// Status and reason of the condition TemplateOutdated.
fn outdated(object: &DynamicObject) -> Option<(&str, &str)> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let outdated = conditions.iter().find(|condition| condition["type"] == conditions::TEMPLATE_OUTDATED)?;
    Some((outdated["status"].as_str()?, outdated["reason"].as_str()?))
}

/// The children with the pod template.
fn children(scene: &Scene<'_>, life: &Life) -> Api<DynamicObject> {
    Api::namespaced_with(scene.client(), scene.namespace(), &life.edited.resource)
}

fn child_of(life: &Life, object: &str) -> String {
    format!("{object}{}", life.edited.suffix)
}

async fn until_pods_are_ready(scene: &Scene<'_>, life: &Life, object: &str) {
    let child = child_of(life, object);
    wait_for(&children(scene, life), &child, "its pods are ready", within(), |child: &DynamicObject| {
        child.data["status"]["readyReplicas"] == child.data["spec"]["replicas"]
    })
    .await;
}

async fn until_rolled_out(scene: &Scene<'_>, life: &Life, object: &str) {
    let child = child_of(life, object);
    wait_for(&children(scene, life), &child, "the rollout ends", within(), |child: &DynamicObject| {
        let (status, replicas) = (&child.data["status"], &child.data["spec"]["replicas"]);
        status["observedGeneration"].as_i64() == child.metadata.generation
            && ["replicas", "updatedReplicas", "readyReplicas"].iter().all(|field| status[field] == *replicas)
    })
    .await;
}

/// The pod templates of all children, in the order of their names.
async fn templates(scene: &Scene<'_>, life: &Life) -> Vec<Value> {
    let children = children(scene, life).list(&ListParams::default()).await.unwrap();
    children.iter().map(template).collect()
}

fn template(child: &DynamicObject) -> Value {
    child.data["spec"]["template"].clone()
}

/// The pods that are not being deleted.
async fn pods(scene: &Scene<'_>) -> Vec<Pod> {
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
    pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
}

fn has_variable(pod: &Pod, name: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|one| one.env.iter().flatten()).any(|env| env.name == name)
}
