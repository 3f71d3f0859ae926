//! An upgrade of the definitions: objects that an earlier release accepted can still be changed. The test starts its own API
//! server, because definitions are cluster-wide.

use api::{
    aiinference::{AIInference, evaluation::ModelEvaluation},
    trainingjob::TrainingJob,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Resource,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use local_cluster::ClusterSpec;
use serde_json::{Value, json};
use tests::{Scene, ask_until, fresh_name, start, tools, within};

use crate::table::{api, attempt, create, message};

#[tokio::test]
async fn an_object_with_a_flag_that_a_later_release_refuses_can_be_changed_except_its_flags() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let scene = Scene::new(&cluster).await;
    let inference = json!({
        "modelSource": "s3://models/qwen",
        "engine": "vllm",
        "gpu": {"count": 1},
        "args": ["--shutdown-timeout=5"],
    });
    let other = json!({"args": ["--shutdown-timeout=6"]});
    let flags = "must not set a flag that the controller sets";
    assert_ratchets::<AIInference>(&scene, &inference, &json!({"replicas": 2}), &other, flags).await;
    let training = json!({
        "model": "qwen/Qwen-7B",
        "dataset": "my_alpaca_zh",
        "method": "lora",
        "extraArgs": ["--save_steps", "5"],
    });
    let other = json!({"extraArgs": ["--save_steps", "6"]});
    assert_ratchets::<TrainingJob>(&scene, &training, &json!({"suspend": true}), &other, flags).await;
}

/// It may run, and it has to be possible to suspend or to pause it.
#[tokio::test]
async fn an_evaluation_with_requests_that_a_later_release_refuses_can_be_suspended() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let scene = Scene::new(&cluster).await;
    let evaluation = json!({"baselineModel": "a/b", "candidateModel": "a/c", "testSet": "cmmlu",
        "requests": "Completions"});
    let (suspend, other) = (json!({"suspend": true}), json!({"requests": "Chat"}));
    assert_ratchets::<ModelEvaluation>(&scene, &evaluation, &suspend, &other, "must not be changed").await;
}

/// `stored` has a value, such as a flag, that was accepted when the object was created and is refused now.
async fn assert_ratchets<K: Resource<DynamicType = ()>>(
    scene: &Scene<'_>,
    stored: &Value,
    elsewhere: &Value,
    in_its_value: &Value,
    words: &str,
) {
    let definitions: Api<DynamicObject> =
        Api::all_with(scene.client(), &ApiResource::erase::<CustomResourceDefinition>(&()));
    let name = format!("{}.{}", K::plural(&()), K::group(&()));
    let mut earlier = definitions.get(&name).await.unwrap();
    let today = earlier.data["spec"].clone();
    for version in earlier.data["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let rules = spec["x-kubernetes-validations"].as_array_mut().unwrap();
        let before = rules.len();
        rules.retain(|rule| rule["optionalOldSelf"] != true);
        assert!(rules.len() < before, "{name} has no rule that accepts an unchanged value");
    }
    let mut replaced = definitions.replace(&name, &PostParams::default(), &earlier).await.unwrap();
    let no_change = json!({});
    ask_until("the earlier definition accepts the value", within(), async || {
        attempt::<K>(scene, stored, &no_change).await
    })
    .await;
    create::<K>(scene, "stored", stored.clone()).await;

    replaced.data["spec"] = today;
    definitions.replace(&name, &PostParams::default(), &replaced).await.unwrap();
    ask_until("today's definition refuses the value in a new object", within(), async || match attempt::<K>(
        scene, stored, &no_change,
    )
    .await
    {
        Ok(_) => Err("it is accepted"),
        Err(_) => Ok(()),
    })
    .await;
    let objects = api::<K>(scene.client(), scene.namespace());
    let change = async |spec: &Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        objects.patch("stored", &PatchParams::default(), &patch).await.map_err(message)
    };
    let changed = change(elsewhere).await.unwrap_or_else(|refused| panic!("{name}: {refused}"));
    for (field, value) in elsewhere.as_object().unwrap() {
        assert_eq!(changed.data["spec"][field], *value);
    }
    let refused = change(in_its_value).await.expect_err("a changed value is a new one");
    assert!(refused.contains(words), "{refused}");
}
