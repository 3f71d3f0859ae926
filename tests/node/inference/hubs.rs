//! Models by their names on a hub.

use api::{aiinference::AIInference, conditions, reasons};
use hub_server::commit_of;
use serde_json::json;
use tests::{
    inference::{change, condition, create, until_not_ready_within, until_ready},
    is_ready, real, wait_for, within,
};

use crate::{
    hub::Hub,
    store::{MIB, Model, Read, noise, pod_of, pods_of, read_by},
};

/// A file in the format of safetensors, with one tensor of so many bytes.
fn weights(seed: u64, bytes: usize) -> Vec<u8> {
    let header = json!({"weight": {"dtype": "U8", "shape": [bytes], "data_offsets": [0, bytes]}}).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &noise(seed, bytes)].concat()
}

#[tokio::test]
async fn pods_load_a_model_by_its_name_and_later_ones_the_same_commit() {
    let scene = real().await;
    let hub = Hub::prepared(&scene);
    let model = |seed: u64| {
        Model::of([
            ("config.json", b"{}".into()),
            ("model-00001-of-00002.safetensors", weights(seed, 5 * MIB)),
            ("model-00002-of-00002.safetensors", weights(seed + 1, MIB)),
            ("tokenizer.json", b"{}".into()),
        ])
    };
    let first = model(1);
    hub.put("qwen/tiny", 0, &first);
    hub.start().await;
    create(&scene, "chat", hub.spec("hf://qwen/tiny")).await;
    let ready = until_ready(&scene, "chat").await;
    let loaded = ready.status.and_then(|status| status.model).expect("a model");
    let commit = commit_of("qwen/tiny", 0);
    assert_eq!((loaded.revision.as_deref(), loaded.files), (Some(&*commit), 4));
    let expected = Read { digests: first.digests(), writable: false };
    assert_eq!(read_by(&scene, &pod_of(&scene, "chat").await), expected);

    hub.put("qwen/tiny", 1, &model(3));
    hub.start_again().await;
    change(&scene, "chat", json!({ "replicas": 2 })).await;
    wait_for(&scene.api::<AIInference>(), "chat", "two ready pods", within(), |seen: &AIInference| {
        seen.status.as_ref().is_some_and(|status| status.updated_ready_replicas == 2)
    })
    .await;
    for pod in pods_of(&scene, "chat").await {
        assert_eq!(read_by(&scene, &pod), expected, "the branch has another commit");
    }
}

#[tokio::test]
async fn a_private_model_needs_a_token_which_is_in_no_log_of_its_pod() {
    const TOKEN: &str = "hf_token-that-must-not-be-logged";
    let scene = real().await;
    let hub = Hub::prepared(&scene);
    let model = Model::of([("config.json", b"{}".into()), ("model.safetensors", weights(1, 2 * MIB))]);
    hub.put("team/secret", 0, &model);
    hub.make_private("team/secret", TOKEN);
    hub.start().await;
    let spec = hub.spec("hf://team/secret");
    create(&scene, "chat", spec.clone()).await;
    let refused = until_not_ready_within(&scene, "chat", reasons::SOURCE_NOT_FOUND, within()).await;
    let said = condition(&refused, conditions::MODEL_LOADED).expect("a condition");
    assert!(said.message.contains("team/secret"), "{}", said.message);

    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": TOKEN}});
    scene.apply(&secret.to_string()).await.expect("a Secret");
    let mut store = spec["modelStore"].clone();
    store["secretName"] = json!("hub");
    change(&scene, "chat", json!({ "modelStore": store })).await;
    until_ready(&scene, "chat").await;
    // The pod without a model may still end.
    let pod = pods_of(&scene, "chat").await.into_iter().find(is_ready).expect("a ready pod");
    assert_eq!(read_by(&scene, &pod), Read { digests: model.digests(), writable: false });
    let name = pod.metadata.name.as_deref().expect("a name");
    let log = scene.kubectl(&["logs", name, "--all-containers"]);
    assert!(log.contains("team/secret") && !log.contains(TOKEN), "{log}");
}
