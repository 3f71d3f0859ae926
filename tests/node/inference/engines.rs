//! Behaviour of engines that the controller must compensate: open interfaces, signals ignored while loading, and remaining
//! worker processes.

use std::{
    fs,
    time::{Duration, Instant},
};

use api::aiinference::AIInference;
use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::{api::DeleteParams, client::Body};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until, follow,
    inference::{self, change, create, until_ready},
    real, wait_for, wait_until_gone, within,
};

use crate::{
    claims,
    pods::container_status,
    store::{Model, on_real_nodes, pod_of, settings, with},
};

/// Paths of interfaces that load code, read memory or change the logging.
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
async fn triton_restricts_all_interfaces_except_inference() {
    let scene = real().await;
    models_in_a_claim(&scene).await;
    create(&scene, "vision", triton()).await;
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

/// The status code of a request, with or without a key. One that did not reach the engine is sent again: the API server says
/// 503 by itself where a connection ends under it.
async fn status_of(
    scene: &Scene<'_>,
    pod: &Pod,
    method: Method,
    path: &str,
    key: Option<&str>,
) -> StatusCode {
    let name = pod.metadata.name.as_deref().expect("a name");
    let uri = format!("/api/v1/namespaces/{}/pods/{name}:8000/proxy/{path}", scene.namespace());
    ask_until("an answer of the engine", within(), async || {
        let request = Request::builder().method(method.clone()).uri(&uri);
        let request = key.into_iter().fold(request, |request, key| request.header("x-closed", key));
        let request = request.body(Body::from(b"{}".to_vec())).expect("a request");
        let answer = scene.client().send(request).await.expect("an answer");
        if answer.status() == StatusCode::SERVICE_UNAVAILABLE { Err("503") } else { Ok(answer.status()) }
    })
    .await
}

fn key_of(pod: &Pod) -> String {
    let engine = pod.spec.iter().flat_map(|spec| &spec.containers).find(|one| one.name == "engine");
    let args = engine.and_then(|engine| engine.args.as_deref()).unwrap_or_default();
    let restricted = args.iter().find(|arg| arg.starts_with("--http-restricted-api=")).expect("restrictions");
    let (_, key) = restricted.rsplit_once("x-closed=").expect("a key");
    assert!(key.len() >= 32, "the key is too short: {key}");
    key.to_owned()
}

/// Time to stop a pod whose engine does not drain, on a loaded machine; less than the grace period.
const GONE_WITHIN: Duration = Duration::from_secs(45);
/// terminationGracePeriodSeconds: preStop wait, drain and margin.
const GRACE_SECONDS: i64 = 80;

#[tokio::test]
async fn a_pod_that_is_deleted_while_loading_ends_soon() {
    let scene = real().await;
    models_in_a_claim(&scene).await;
    for (name, spec) in [("chat", vllm()), ("vision", triton())] {
        create(&scene, name, with(spec, settings([LOADS_LONG, HAS_A_WORKER]))).await;
    }
    futures::future::join_all(["chat", "vision"].map(async |name| {
        let pod = loading(&scene, name, None).await;
        let workers = workers_of(&pod, 1).await;
        let deleted = scene.api::<Pod>().delete(&pod, &DeleteParams::default()).await.expect("it is deleted");
        let grace = deleted.left().and_then(|pod| pod.metadata.deletion_grace_period_seconds);
        assert_eq!(grace, Some(GRACE_SECONDS));
        gone_soon(&scene, &pod).await;
        assert_eq!((workers, workers_now(&pod)), (1, 0));
    }))
    .await;
}

#[tokio::test]
async fn an_object_that_is_deleted_while_loading_releases_its_gpus_soon() {
    let scene = real().await;
    models_in_a_claim(&scene).await;
    create(&scene, "chat", with(vllm(), settings([LOADS_LONG]))).await;
    let pod = loading(&scene, "chat", None).await;
    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.expect("it is deleted");
    // The garbage collector discovers new kinds every 30 s.
    wait_for(&scene.api::<Pod>(), &pod, "being deleted", within(), |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    gone_soon(&scene, &pod).await;
}

#[tokio::test]
async fn a_change_that_is_reverted_while_loading_releases_its_gpus_soon() {
    let scene = real().await;
    models_in_a_claim(&scene).await;
    create(&scene, "chat", with(vllm(), settings([LOADS_AT_ONCE]))).await;
    until_ready(&scene, "chat").await;
    let serving = pod_of(&scene, "chat").await;
    change(&scene, "chat", settings([LOADS_LONG])).await;
    let pod = loading(&scene, "chat", serving.metadata.name.as_deref()).await;
    change(&scene, "chat", settings([LOADS_AT_ONCE])).await;
    gone_soon(&scene, &pod).await;
    until_ready(&scene, "chat").await;
    assert_eq!(pod_of(&scene, "chat").await.metadata.uid, serving.metadata.uid);
}

/// The time of the spec, six probes, the preStop hook, the drain, and the start of the next engine.
const STALLS_WITHIN: Duration = Duration::from_secs(240);

/// Its health is good, and it never answers.
#[tokio::test]
async fn an_engine_that_is_healthy_and_answers_nothing_is_restarted_and_named() {
    let scene = real().await;
    models_in_a_claim(&scene).await;
    let stalls = [("ENGINE_ANSWER_MILLISECONDS", "3600000"), ("ENGINE_LOAD_SECONDS", "15")];
    let settings = with(settings(stalls), json!({ "stallSeconds": 60, "drainSeconds": 5 }));
    create(&scene, "chat", with(vllm(), settings)).await;
    until_ready(&scene, "chat").await;
    let pod = pod_of(&scene, "chat").await.metadata.name.expect("a name");
    let request = async {
        let place = format!("/api/v1/namespaces/{}/pods/{pod}:8000/proxy/v1/completions", scene.namespace());
        let request = Request::post(place).body(b"{}".to_vec()).expect("a request");
        // It ends with the engine.
        let _ = scene.client().request_text(request).await;
        std::future::pending::<()>().await;
    };
    let named = async {
        let is_named = |chat: &AIInference| {
            let known = inference::condition(chat, api::conditions::PROGRESSING);
            known.is_some_and(|known| known.reason == api::reasons::ENGINE_STALLED)
        };
        let inferences = scene.api::<AIInference>();
        let named = wait_for(&inferences, "chat", "its reason", STALLS_WITHIN, is_named).await;
        let message = &inference::condition(&named, api::conditions::PROGRESSING).expect("it").message;
        assert!(message.contains("requests run (1)") && message.contains("spec.stallSeconds"), "{message}");
    };
    tokio::select! {
        () = request => unreachable!(),
        () = named => {}
    }
    until_ready(&scene, "chat").await;
}

/// With a shared process namespace, the container runtime ends the remaining processes of a container.
#[tokio::test]
async fn a_worker_does_not_outlive_an_engine_that_crashes() {
    let scene = real().await;
    models_in_a_claim(&scene).await;
    let settings = settings([HAS_A_WORKER, ("ENGINE_FAULT", "crash-after:5")]);
    create(&scene, "chat", with(vllm(), settings)).await;
    let pod = loading(&scene, "chat", None).await;
    workers_of(&pod, 1).await;
    wait_for(&scene.api::<Pod>(), &pod, "started again", within(), |pod: &Pod| {
        container_status(pod, "engine")
            .is_some_and(|engine| engine.restart_count > 0 && engine.state.as_ref().is_some_and(is_running))
    })
    .await;
    // The worker of the second engine. A remaining worker of the first one would run as long as the pod.
    workers_of(&pod, 1).await;
    workers_of(&pod, 0).await;
}

const LOADS_LONG: (&str, &str) = ("ENGINE_LOAD_SECONDS", "300");
const LOADS_AT_ONCE: (&str, &str) = ("ENGINE_LOAD_SECONDS", "0");
const HAS_A_WORKER: (&str, &str) = ("ENGINE_WORKER", "true");

/// Waits until `count` workers of a pod run on this machine.
async fn workers_of(pod: &str, count: usize) -> usize {
    ask_until("workers of the engine", within(), async || match workers_now(pod) {
        found if found == count => Ok(found),
        found => Err(format!("{found} instead of {count}")),
    })
    .await
}

fn workers_now(pod: &str) -> usize {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let commands = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let wanted = format!("\0worker\0{pod}\0");
    commands.filter(|command| command.ends_with(wanted.as_bytes())).count()
}

async fn gone_soon(scene: &Scene<'_>, pod: &str) {
    let began = Instant::now();
    wait_until_gone(&scene.api::<Pod>(), pod, GONE_WITHIN).await;
    println!("{pod} was gone after {:.1} s", began.elapsed().as_secs_f64());
}

/// The name of a pod other than `other_than`, as soon as its engine runs.
async fn loading(scene: &Scene<'_>, inference: &str, other_than: Option<&str>) -> String {
    let runs = |pod: &Pod| {
        container_status(pod, "engine").and_then(|engine| engine.state.as_ref()).is_some_and(is_running)
    };
    let (api, labels) = (scene.api::<Pod>(), inference::pods_of(inference));
    let loading = follow(&api, &labels, |pods| {
        let mut pods = pods.values().filter(|pod| pod.metadata.name.as_deref() != other_than);
        pods.find(|pod| runs(pod)).and_then(|pod| pod.metadata.name.clone())
    });
    tokio::time::timeout(within(), loading).await.expect("an engine that loads")
}

fn is_running(state: &ContainerState) -> bool {
    state.running.is_some()
}

/// A claim with a model for each engine.
async fn models_in_a_claim(scene: &Scene<'_>) {
    let folder = claims::folder(scene);
    Model::small().write_to(&folder.join("vllm"));
    let repository =
        Model::new([("classifier/config.pbtxt", Vec::new()), ("classifier/1/model.onnx", b"weights".into())]);
    repository.write_to(&folder.join("triton"));
    claims::claim(scene, &folder).await;
}

fn vllm() -> Value {
    on_real_nodes("pvc://models/vllm")
}

fn triton() -> Value {
    with(on_real_nodes("pvc://models/triton"), json!({ "engine": "triton" }))
}
