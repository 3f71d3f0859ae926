//! The sample agent in Python (`deploy/samples/agent`) as the worker of a pool. Its image has the interpreter of this machine,
//! and of the standard library and the shared libraries what the agent loads.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tests::{
    Scene, ask_until,
    dispatcher::{create, until, until_ready, workers},
    real, within, workspace,
};

use super::{agents, names, until_ended};
use crate::store::Store;

const IMAGE: &str = "local.test/sample-agent:1";
const POOL: &str = "coders";

#[tokio::test]
async fn a_pool_of_the_sample_in_python_keeps_its_tokens_and_its_state_over_a_restart() {
    let scene = real().await;
    let layout = scene.folder().root().join("sample-agent");
    write_image(&layout);
    scene.load_image(&layout, IMAGE).unwrap();
    let store = Store::start(&scene).await;
    create(&scene, POOL, agents(json!({"image": IMAGE, "checkpoint": store.checkpoint("pools")}))).await;
    until_ready(&scene, POOL).await;
    let worker = names(&workers(&scene, POOL).await).remove(0);
    for (text, seconds) in [("one two", 0), ("three", 0), ("is in hand", 600), ("waits", 0)] {
        give(&scene, &worker, &json!({"session": "a", "text": text, "seconds": seconds})).await;
    }
    until_tokens(&scene, 3).await;
    until_held(&scene, &worker).await;

    scene.api::<Pod>().delete(&worker, &DeleteParams::default()).await.unwrap();
    until_ended(&scene, POOL, 1).await;
    until_ready(&scene, POOL).await;
    let next = names(&workers(&scene, POOL).await).remove(0);
    assert_ne!(next, worker);
    until_held(&scene, &next).await;
    until_tokens(&scene, 3).await;
}

/// Through the API server, because the image has no client.
async fn give(scene: &Scene<'_>, worker: &str, task: &Value) {
    let given = ask_until("the task is taken", within(), async || {
        let request = http::Request::post(format!("{}tasks", place(scene, worker)));
        let request = request.body(task.to_string().into_bytes()).expect("a request");
        scene.client().request_text(request).await
    });
    given.await;
}

fn place(scene: &Scene<'_>, worker: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{worker}:8000/proxy/", scene.namespace())
}

/// Two tasks are done, one is in hand and one waits.
async fn until_held(scene: &Scene<'_>, worker: &str) {
    ask_until("the sessions", within(), async || {
        let request = http::Request::get(place(scene, worker)).body(Vec::new()).expect("a request");
        let held = scene.client().request_text(request).await.map_err(|error| error.to_string())?;
        let held: Value = serde_json::from_str(&held).map_err(|error| format!("{error}: {held}"))?;
        let waiting = held["waiting"].as_array().into_iter().flatten();
        let waiting: Vec<&str> = waiting.filter_map(|task| task["text"].as_str()).collect();
        let is_it =
            held["sessions"] == json!({"a": ["one two", "three"]}) && waiting == ["is in hand", "waits"];
        if is_it { Ok(()) } else { Err(held.to_string()) }
    })
    .await;
}

async fn until_tokens(scene: &Scene<'_>, tokens: i64) {
    until(scene, POOL, &format!("{tokens} tokens"), |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.token_usage == tokens)
    })
    .await;
}

/// In OCI image layout.
fn write_image(layout: &Path) {
    let agent = workspace().join("deploy/samples/agent");
    let script = workspace().join("tests/node/dispatcher/python_files.py");
    let listed = Command::new("python3").args(["-I", "-S"]).arg(script).output().expect("python3 starts");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).expect("paths");
    let (program, files) = listed.split_once('\n').expect("the program and its files");
    let mut tar = Command::new("tar")
        .args(["--create", "--dereference", "--absolute-names", "--transform=s,^/,,"])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--mode=a+rX"])
        .args(["--verbatim-files-from", "--files-from=-"])
        .arg("--directory")
        .arg(&agent)
        .arg("agent.py")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("tar starts");
    // The names fit into a pipe.
    tar.stdin.take().expect("a pipe").write_all(files.as_bytes()).expect("tar reads");
    let layer = tar.wait_with_output().expect("tar ends");
    assert!(layer.status.success(), "tar: {}", layer.status);
    let layer = layer.stdout;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let configuration = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [program, "-I", "-S", "/agent.py"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    });
    let configuration = serde_json::to_vec(&configuration).expect("JSON");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &configuration),
        "layers": [descriptor("layer.v1.tar", &layer)],
    });
    let manifest = serde_json::to_vec(&manifest).expect("JSON");
    let index = json!({"schemaVersion": 2, "manifests": [descriptor("manifest.v1+json", &manifest)]});
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("a folder");
    for blob in [&layer, &configuration, &manifest] {
        fs::write(blobs.join(digest(blob).trim_start_matches("sha256:")), blob).expect("a blob");
    }
    fs::write(layout.join("index.json"), index.to_string()).expect("an index");
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a layout");
}

fn descriptor(kind: &str, blob: &[u8]) -> Value {
    let media_type = format!("application/vnd.oci.image.{kind}");
    json!({"mediaType": media_type, "digest": digest(blob), "size": blob.len()})
}

fn digest(blob: &[u8]) -> String {
    let hex: String = Sha256::digest(blob).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
