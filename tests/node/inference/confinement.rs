//! Rights of the pods of an AIInference, and their termination.

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tests::{
    Scene, ask_until,
    inference::{create, until_ready},
    real, wait_until_gone, within,
};

use crate::{
    claims::model_in_a_claim,
    pods::{self, container, pod},
    store::{Model, Store, asked, on_real_nodes, pod_of, pods_of, settings, with},
};

#[tokio::test]
async fn pods_pass_pod_security_restricted_and_have_no_token() {
    let scene = real().await;
    let free = pod("free", json!({ "hostNetwork": true, "containers": [container("free", &[], json!({}))] }));
    let refused = scene.api::<Pod>().create(&PostParams::default(), &free).await.unwrap_err();
    assert!(refused.to_string().contains("PodSecurity"), "{refused}");

    let store = Store::start(&scene).await;
    store.put_model("qwen", &Model::small());
    create(&scene, "store", store.spec("qwen")).await;
    let claim = on_real_nodes(&model_in_a_claim(&scene).await);
    create(&scene, "claim", claim.clone()).await;
    create(&scene, "account", with(claim, json!({ "serviceAccountName": "default" }))).await;
    for name in ["store", "claim", "account"] {
        until_ready(&scene, name).await;
        // The admitted pod, to which a token would have been added.
        let spec = pod_of(&scene, name).await.spec.expect("a spec");
        let volumes = spec.volumes.unwrap_or_default();
        let projected: Vec<&str> =
            volumes.iter().filter(|one| one.projected.is_some()).map(|one| one.name.as_str()).collect();
        assert!(projected.is_empty(), "{name}: {projected:?}");
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let mounts: Vec<&str> = containers.flat_map(mount_paths).collect();
        assert!(mounts.contains(&"/models"), "{name}: {mounts:?}");
        assert!(!mounts.iter().any(|path| path.contains("secrets")), "{name}: {mounts:?}");
    }
}

fn mount_paths(container: &Container) -> impl Iterator<Item = &str> {
    container.volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str())
}

/// Requests take longer than the preStop wait, so some are in flight at SIGTERM.
#[tokio::test]
async fn a_deleted_pod_completes_its_requests() {
    let scene = real().await;
    let engine = settings([("ENGINE_ANSWER_MILLISECONDS", "14000")]);
    let spec = with(on_real_nodes(&model_in_a_claim(&scene).await), engine);
    create(&scene, "chat", with(spec, json!({ "replicas": 2 }))).await;
    let url = until_ready(&scene, "chat").await.status.and_then(|status| status.url).expect("a URL");

    let url = format!("{url}/v1/completions");
    let body = json!({ "model": "chat", "prompt": "test" }).to_string();
    let args = [
        "load",
        "--url",
        &url,
        "--body",
        &body,
        "--rate=10",
        "--seconds=12",
        "--timeout-seconds=30",
        "--first-answer-seconds=30",
    ];
    let load =
        pod("load", json!({ "restartPolicy": "Never", "containers": [container("load", &args, json!({}))] }));
    pods::create(&scene, &load).await;
    let deleted_pod = pods_of(&scene, "chat").await.remove(0);
    until_busy(&scene, &deleted_pod).await;
    let name = deleted_pod.metadata.name.as_deref().expect("a name");
    scene.api::<Pod>().delete(name, &DeleteParams::default()).await.expect("it is deleted");

    let report = pods::report_within(&scene, "load", within() * 2).await;
    assert_eq!((&report["sent"], &report["succeeded"]), (&json!(120), &json!(120)), "{report}");
    assert!(report["by_pod"][name].as_u64() > Some(0), "{report}");
    wait_until_gone(&scene.api::<Pod>(), name, within()).await;
}

/// More than the single request by which the load checks that the engine is ready.
const IN_FLIGHT: f64 = 5.0;

/// Polls the engine's metrics until requests are in flight.
async fn until_busy(scene: &Scene<'_>, pod: &Pod) {
    ask_until("requests in flight", within(), async || {
        let metrics = asked(scene, pod, "metrics");
        let line = metrics.lines().find(|line| line.starts_with("vllm:num_requests_running"));
        let running = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        if running.is_some_and(|running| running >= IN_FLIGHT) { Ok(()) } else { Err(metrics) }
    })
    .await;
}
