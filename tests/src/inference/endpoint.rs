//! InferenceEndpoint in tests: create, change, wait; and the script for the tests of every controller.

use api::{
    aiinference::AIInference, aiinference::endpoint::InferenceEndpoint, aiscaler::AIScaler, conditions,
    controllers::CONTROLLERS,
};
use k8s_openapi::{
    api::{autoscaling::v2::HorizontalPodAutoscaler, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    Scene, ask_until,
    lives::{Edited, Further, Life},
    wait_for, wait_until_gone, within,
};

pub const CONTROLLER: &str = "endpoint-controller";

/// The script for an InferenceEndpoint on GPUs. No inference-controller has to run: the object is done when its spec is
/// accepted, and its AIInference is what it should be.
pub(crate) fn life() -> Life {
    let kind = CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0];
    Life {
        controller: CONTROLLER,
        kind: kind.done_with(conditions::ACCEPTED),
        samples_of: &["inference-controller"],
        args: Vec::new,
        given: |_| Vec::new(),
        leaves: |_| Vec::new(),
        // Other controllers may run beside it, and pods of its AIInference would count as theirs.
        spec: |_| json!({"model": "qwen/Qwen-7B-Chat", "accelerator": "H100", "replicas": 0}),
        scaled: json!({"replicas": 2}),
        changed: json!({"model": "s3://models/qwen"}),
        edited: Edited {
            resource: ApiResource::erase::<AIInference>(&()),
            suffix: "",
            edit: json!({"modelSource": "s3://models/another"}),
        },
        children: None,
        // The replicas go to each kind of autoscaler, from one to the other, and back.
        further: [
            json!({"autoscaling": by_cpu(), "replicas": 1}),
            json!({"autoscaling": {"metrics": null, "metricType": "queue_depth", "targetValue": 5}}),
            json!({"autoscaling": {"metrics": by_cpu()["metrics"], "metricType": null, "targetValue": null}}),
            json!({"autoscaling": null}),
        ]
        .map(Further::once_done)
        .into(),
        needs_gateway: false,
        // The status may say these up to ten seconds later.
        measured: &["children", "message", "ready", "readyReplicas"],
        counted: &["inferenceendpoint_phase{phase=\"stopped\"} 1"],
        beyond_a_namespace: &[
            ("", "nodes", "list"),
            ("", "nodes", "watch"),
            ("apiregistration.k8s.io", "apiservices", "list"),
            ("apiregistration.k8s.io", "apiservices", "watch"),
        ],
        use_every_right: |scene| Box::pin(use_every_right(scene)),
        settle: |scene| Box::pin(settle(scene)),
    }
}

/// The autoscaling of the seeds.
pub fn by_cpu() -> Value {
    json!({
        "minReplicas": 2,
        "maxReplicas": 10,
        "metrics": [{
            "type": "Resource",
            "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
        }],
    })
}

/// By the requests that wait.
pub fn by_queue() -> Value {
    json!({"minReplicas": 2, "maxReplicas": 10, "metricType": "queue_depth", "targetValue": 5})
}

/// A spec on nodes with the label `H100`, merged with `changes`.
pub async fn create(scene: &Scene<'_>, name: &str, changes: Value) -> InferenceEndpoint {
    let mut spec = json!({"model": "qwen/Qwen-7B-Chat", "accelerator": "H100"});
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    let object = serde_json::from_value(json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "InferenceEndpoint",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": spec,
    }))
    .expect("an InferenceEndpoint");
    scene.api().create(&PostParams::default(), &object).await.expect("it is accepted")
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> InferenceEndpoint {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

/// Waits until all pods of the current spec are ready.
pub async fn until_ready(scene: &Scene<'_>, name: &str) -> InferenceEndpoint {
    until_condition(scene, name, conditions::READY, ("True", "Ready")).await
}

/// Waits until a condition of the current spec has this status and this reason.
pub async fn until_condition(
    scene: &Scene<'_>,
    name: &str,
    type_: &str,
    (status, reason): (&str, &str),
) -> InferenceEndpoint {
    let what = format!("{type_} {status} because of {reason}");
    wait_for(&scene.api::<InferenceEndpoint>(), name, &what, within(), |endpoint: &InferenceEndpoint| {
        condition(endpoint, type_).is_some_and(|known| {
            known.status == status
                && known.reason == reason
                && known.observed_generation == endpoint.metadata.generation
        })
    })
    .await
}

pub fn condition<'e>(endpoint: &'e InferenceEndpoint, type_: &str) -> Option<&'e Condition> {
    let conditions = &endpoint.status.as_ref()?.conditions;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Waits until the AIInference is as this says.
pub async fn until_inference(
    scene: &Scene<'_>,
    name: &str,
    what: &str,
    is_so: impl Fn(&AIInference) -> bool,
) -> AIInference {
    wait_for(&scene.api::<AIInference>(), name, what, within(), is_so).await
}

async fn use_every_right(scene: &Scene<'_>) {
    create(scene, "rights", json!({"autoscaling": by_cpu()})).await;
    let hpas = scene.api::<HorizontalPodAutoscaler>();
    wait_for(&hpas, "rights", "there", within(), |_| true).await;
    contest::<AIInference>(scene, "rights", |number| json!({"modelSource": format!("s3://models/{number}")}))
        .await;
    contest::<HorizontalPodAutoscaler>(scene, "rights", |number| json!({"maxReplicas": 20 + number})).await;
    // The other autoscaler takes its place.
    let to_queue = json!({"autoscaling": {"metrics": null, "metricType": "queue_depth", "targetValue": 5}});
    change(scene, "rights", to_queue).await;
    wait_until_gone(&hpas, "rights", within()).await;
    let scalers = scene.api::<AIScaler>();
    wait_for(&scalers, "rights", "there", within(), |_: &AIScaler| true).await;
    contest::<AIScaler>(scene, "rights", |number| json!({"maxReplicas": 20 + number})).await;
    change(scene, "rights", json!({"autoscaling": null})).await;
    wait_until_gone(&scalers, "rights", within()).await;
    // A child that was deleted is made again, and its owner is read before that.
    let inferences = scene.api::<AIInference>();
    let uid = inferences.get("rights").await.expect("it is there").metadata.uid;
    inferences.delete("rights", &DeleteParams::default()).await.expect("it can be deleted");
    let is_another = |inference: &AIInference| inference.metadata.uid != uid;
    wait_for(&inferences, "rights", "made again", within(), is_another).await;
}

/// Changes a child by hand until the controller looks who does that, and says so.
pub(crate) async fn contest<K>(scene: &Scene<'_>, name: &str, edit: fn(i32) -> Value)
where
    K: kube::Resource<DynamicType = ()>,
{
    let resource = ApiResource::erase::<K>(&());
    let children: Api<DynamicObject> = Api::namespaced_with(scene.client(), scene.namespace(), &resource);
    let mut number = 0;
    ask_until("an event about the contest", within(), async || {
        number += 1;
        let patch = Patch::Merge(json!({"spec": edit(number)}));
        children.patch(name, &PatchParams::default(), &patch).await.map_err(|error| error.to_string())?;
        let events: Vec<Event> =
            scene.api::<Event>().list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let is_about = |event: &Event| {
            event.reason.as_deref() == Some("FieldConflict")
                && event.note.as_ref().is_some_and(|note| note.contains(&format!("{} ", resource.kind)))
        };
        if events.iter().any(is_about) { Ok(()) } else { Err(format!("{} edits", number)) }
    })
    .await;
}

/// One for each state that lasts: with both kinds of autoscalers, with a name that is taken, and with no such product.
async fn settle(scene: &Scene<'_>) {
    create(scene, "by-cpu", json!({"autoscaling": by_cpu()})).await;
    create(scene, "by-queue", json!({"autoscaling": by_queue()})).await;
    super::create(scene, "taken", json!({})).await;
    create(scene, "taken", json!({})).await;
    create(scene, "unknown", json!({"accelerator": "no-such-product"})).await;
    until_ready(scene, "by-cpu").await;
    until_ready(scene, "by-queue").await;
    until_condition(scene, "taken", conditions::READY, ("False", "OwnershipConflict")).await;
    until_condition(scene, "unknown", conditions::ACCELERATOR_RESOLVED, ("False", "NoSuchProduct")).await;
}
