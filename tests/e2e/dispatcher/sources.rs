//! Where the load comes from: through a restart of the controller under load, and from Prometheus instead of the monitors;
//! and defaults from the command line.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    thread,
};

use api::{aidispatcher::AIDispatcher, conditions, controllers::AGENT, labels, reasons};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::{Patch, PatchParams};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller,
    dispatcher::{
        CONTROLLER, Load, Monitors, condition, create, deployment, is_ready, until, until_ready,
        until_reason, workers,
    },
    follow, fresh_name, start, tools, until_renewed, workspace,
};

/// Of the Lease, after the restart.
const RENEWALS: usize = 4;
/// The process of the newer release.
const NEWER: &str = "dispatcher-controller-newer";

async fn uids(scene: &Scene<'_>) -> BTreeSet<String> {
    workers(scene, "coders").await.into_iter().filter_map(|pod| pod.metadata.uid).collect()
}

/// As an upgrade does: another process begins with nothing in memory, and renders other pods.
#[tokio::test]
async fn an_upgrade_of_the_controller_under_load_keeps_every_worker_and_their_number() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER).with_args(["--monitor-image=monitor:1"])).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let monitors = Monitors::of(&scene);
    // At once in both directions: a load that is taken for zero would remove workers.
    let quick = json!({"maxReplicas": 10, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    create(&scene, "coders", json!({"autoscaling": quick})).await;
    until_ready(&scene, "coders").await;
    let first = workers(&scene, "coders").await.remove(0).metadata.name.unwrap();
    monitors.one(&first, Load { queued: 25, in_flight: 1, tokens: 10 });
    until(&scene, "coders", "six workers", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.available_replicas == 6)
    })
    .await;
    let (before, template) = (uids(&scene).await, template(&scene).await);
    cluster.stop_component(CONTROLLER).await.unwrap();
    let newer = controller(CONTROLLER).with_args(["--monitor-image=monitor:2"]).replica(NEWER);
    cluster.start_controller(&newer).await.unwrap();
    let (pods, labels) = (scene.api::<Pod>(), tests::dispatcher::selector("coders"));
    let changed = follow(&pods, &labels, |pods| {
        let now: BTreeSet<String> = pods
            .values()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| pod.metadata.uid.clone())
            .collect();
        (now != before).then_some(now)
    });
    tokio::select! {
        biased;
        now = changed => panic!("{before:?} became {now:?}"),
        () = until_renewed(&scene, CONTROLLER, RENEWALS) => {}
    }
    until(&scene, "coders", "a template that is outdated", |dispatcher| {
        condition(dispatcher, conditions::TEMPLATE_OUTDATED).is_some_and(|known| known.status == "True")
    })
    .await;
    // It follows the queue again, with the pods of before.
    monitors.one(&first, Load { queued: 40, in_flight: 1, tokens: 10 });
    until(&scene, "coders", "nine workers", |dispatcher| {
        dispatcher
            .status
            .as_ref()
            .is_some_and(|status| status.desired_replicas == 9 && status.available_replicas == 9)
    })
    .await;
    assert_eq!(self::template(&scene).await, template);
    assert!(uids(&scene).await.is_superset(&before));

    let refresh = Patch::Merge(json!({"metadata": {"annotations": {labels::REFRESH: "1"}}}));
    let dispatchers = scene.api::<AIDispatcher>();
    dispatchers.patch("coders", &PatchParams::default(), &refresh).await.unwrap();
    until(&scene, "coders", "the template of the newer release", |dispatcher| {
        is_ready(dispatcher) && condition(dispatcher, conditions::TEMPLATE_OUTDATED).is_none()
    })
    .await;
    let refreshed = self::template(&scene).await;
    assert_ne!(refreshed, template);
    let pod = refreshed.spec.unwrap();
    let images: Vec<String> = pod.init_containers.into_iter().flatten().filter_map(|one| one.image).collect();
    assert!(!images.is_empty() && images.iter().all(|image| image == "monitor:2"), "{images:?}");
}

async fn template(scene: &Scene<'_>) -> PodTemplateSpec {
    deployment(scene, "coders").await.spec.unwrap().template
}

/// With the vector store of `overlays/dev`, as the manifests of the product's brief expect it.
#[tokio::test]
async fn the_manifests_of_the_brief_need_no_image_and_no_store() {
    let nodes = NodePool { without_gpus: 1, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), nodes)).await;
    let flags = ["--memory-endpoint=http://vector-store:8000"];
    cluster.start_controller(&controller(CONTROLLER).with_args(flags)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    for (file, role, replicas) in [("aidispatcher", "coder", 3), ("aidispatcher-memory", "planner", 2)] {
        let manifest = workspace().join("tests/fixtures").join(file).with_extension("yaml");
        scene.apply(&std::fs::read_to_string(manifest).unwrap()).await.unwrap();
        let name = format!("{role}-agent-pool");
        let status = until_ready(&scene, &name).await.status.unwrap();
        let agent = AGENT.image(env!("CARGO_PKG_VERSION"));
        assert_eq!((status.available_replicas, status.resolved.unwrap().image), (replicas, agent));
    }
    let planner = workers(&scene, "planner-agent-pool").await.remove(0).spec.unwrap();
    let mut variables = planner.containers.iter().flat_map(|one| one.env.iter().flatten());
    let endpoint = variables.find(|variable| variable.name == "MEMORY_ENDPOINT").unwrap();
    assert_eq!(endpoint.value.as_deref(), Some("http://vector-store:8000"));
}

/// Answers every query with what was set last.
struct Prometheus {
    address: SocketAddr,
    body: Arc<Mutex<String>>,
}

impl Prometheus {
    /// Ends with the test process.
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let prometheus = Self { address: listener.local_addr().unwrap(), body: Arc::default() };
        let body = Arc::clone(&prometheus.body);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let body = body.lock().unwrap().clone();
                // The query is in one packet, and which one does not matter.
                let _ = stream.read(&mut [0; 4096]);
                let head =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        prometheus
    }

    fn set(&self, answer: &Value) {
        *self.body.lock().unwrap() = answer.to_string();
    }
}

fn vector(worker: &str, queued: u64) -> Value {
    let series = |name: &str, value: u64| json!({"metric": {"__name__": name, "worker": worker}, "value": [1_767_268_800, value.to_string()]});
    json!({"status": "success", "data": {
        "resultType": "vector",
        "result": [series("agent_queue_depth", queued), series("agent_tasks_in_flight", 1)],
    }})
}

#[tokio::test]
async fn the_number_follows_the_queue_that_prometheus_has_and_stays_without_an_answer() {
    let prometheus = Prometheus::start();
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let url = format!("--prometheus-url=http://{}", prometheus.address);
    cluster.start_controller(&controller(CONTROLLER).with_args([url])).await.unwrap();
    let scene = Scene::new(&cluster).await;
    create(&scene, "coders", json!({"autoscaling": {"maxReplicas": 10}})).await;
    until_reason(&scene, "coders", conditions::SCALING_ACTIVE, reasons::METRIC_MISSING).await;
    let held = until(&scene, "coders", "the server is named", |dispatcher| {
        condition(dispatcher, conditions::SCALING_ACTIVE)
            .is_some_and(|active| active.message.contains(&prometheus.address.to_string()))
    })
    .await;
    assert_eq!(held.status.unwrap().desired_replicas, 1);
    let worker = workers(&scene, "coders").await.remove(0).metadata.name.unwrap();
    prometheus.set(&vector(&worker, 14));
    until(&scene, "coders", "four workers", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.desired_replicas == 4)
    })
    .await;
}
