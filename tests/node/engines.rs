//! What engines leave open, and what the controller closes.

use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use serde_json::json;
use tests::{
    Scene,
    inference::{create, until_ready},
    real,
};

use crate::{
    claims,
    store::{Model, on_real_nodes, pod_of, with},
};

/// Paths of the interfaces that load code, read memory, or change what is logged.
const CLOSED: [(Method, &str); 6] = [
    (Method::POST, "v2/repository/index"),
    (Method::GET, "v2/systemsharedmemory/status"),
    (Method::POST, "v2/systemsharedmemory/region/stolen/register"),
    (Method::GET, "v2/cudasharedmemory/status"),
    (Method::POST, "v2/logging"),
    (Method::GET, "v2/trace/setting"),
];
const OPEN: [(Method, &str); 4] = [
    (Method::GET, "v2/health/ready"),
    (Method::GET, "v2/health/live"),
    (Method::GET, "v2/models/classifier/ready"),
    (Method::POST, "v2/models/classifier/infer"),
];

#[tokio::test]
async fn triton_is_open_for_inference_and_closed_for_everything_that_changes_it() {
    let scene = real().await;
    repository_in_a_claim(&scene).await;
    create(&scene, "vision", with(on_real_nodes("pvc://models"), json!({ "engine": "triton" }))).await;
    until_ready(&scene, "vision").await;
    let pod = pod_of(&scene, "vision").await;
    for (method, path) in OPEN {
        assert_eq!(status_of(&scene, &pod, method, path, None).await, StatusCode::OK, "{path}");
    }
    let key = key_of(&pod);
    for (method, path) in CLOSED {
        for other in [None, Some("x"), Some("")] {
            let status = status_of(&scene, &pod, method.clone(), path, other).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path} with the key {other:?}");
        }
        assert_eq!(status_of(&scene, &pod, method, path, Some(&key)).await, StatusCode::OK, "{path}");
    }
}

/// What the server answers to a request with a key in the header, or with none.
async fn status_of(
    scene: &Scene<'_>,
    pod: &Pod,
    method: Method,
    path: &str,
    key: Option<&str>,
) -> StatusCode {
    let name = pod.metadata.name.as_deref().expect("a name");
    let uri = format!("/api/v1/namespaces/{}/pods/{name}:8000/proxy/{path}", scene.namespace());
    let request = Request::builder().method(method).uri(uri);
    let request = key.into_iter().fold(request, |request, key| request.header("x-closed", key));
    let request = request.body(Body::from(b"{}".to_vec())).expect("a request");
    scene.client().send(request).await.expect("an answer").status()
}

fn key_of(pod: &Pod) -> String {
    let engine = pod.spec.iter().flat_map(|spec| &spec.containers).find(|one| one.name == "engine");
    let args = engine.and_then(|engine| engine.args.as_deref()).unwrap_or_default();
    let restricted = args.iter().find(|arg| arg.starts_with("--http-restricted-api=")).expect("restrictions");
    let (_, key) = restricted.rsplit_once("x-closed=").expect("a key");
    assert!(key.len() >= 32, "it must not be guessed: {key}");
    key.to_owned()
}

/// A claim with a repository of one model.
async fn repository_in_a_claim(scene: &Scene<'_>) {
    let folder = claims::folder(scene);
    let model =
        Model::new([("classifier/config.pbtxt", Vec::new()), ("classifier/1/model.onnx", b"weights".into())]);
    model.write_to(&folder);
    claims::claim(scene, &folder).await;
}
