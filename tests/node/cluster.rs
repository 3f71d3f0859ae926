//! The real nodes themselves: what other tests rely on, and that nothing of them is left.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use local_cluster::{Cluster, ComponentState};
use serde_json::{Value, json};
use tests::{Scene, real, real_spec, start, wait_for, within};

use crate::pods::{container, container_status, create, engine, load, pod, report, until_ready};

#[tokio::test]
async fn a_service_reaches_pods_on_every_node_by_name() {
    let scene = real().await;
    for (index, node) in scene.real_nodes().into_iter().enumerate() {
        let mut pod =
            pod(&format!("web-{index}"), json!({ "nodeName": node, "containers": [engine("web", 8000)] }));
        pod.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "web".to_owned())]));
        create(&scene, &pod).await;
    }
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8000}]}}";
    scene.apply(service).await.unwrap();
    for index in 0..2 {
        until_ready(&scene, &format!("web-{index}")).await;
    }
    let url = format!("http://web.{}.svc.cluster.local/v1/completions", scene.namespace());
    create(&scene, &pod("load", json!({ "restartPolicy": "Never", "containers": [load(&url)] }))).await;
    let report = report(&scene, "load").await;
    assert_eq!(report["succeeded"], 40, "{report}");
    let by_pod = report["by_pod"].as_object().map(|pods| pods.keys().cloned().collect::<Vec<_>>());
    assert_eq!(by_pod, Some(vec!["web-0".to_owned(), "web-1".to_owned()]), "{report}");
}

#[tokio::test]
async fn a_pod_has_logs_and_can_be_entered() {
    let scene = real().await;
    create(&scene, &pod("web", json!({ "containers": [engine("web", 8000)] }))).await;
    until_ready(&scene, "web").await;
    assert!(!scene.kubectl(&["logs", "web"]).is_empty());
    let said = scene.kubectl(&[
        "exec",
        "web",
        "--",
        "/test-engine",
        "load",
        "--url",
        "http://127.0.0.1:8000/v1/completions",
        "--rate",
        "5",
        "--seconds",
        "1",
    ]);
    let report: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).expect("a report");
    assert_eq!(report["succeeded"], 5, "{report}");
}

#[tokio::test]
async fn a_sidecar_starts_first_and_ends_with_its_pod() {
    let scene = real().await;
    let mut sidecar = engine("sidecar", 8001);
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = sidecar["readinessProbe"].clone();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar],
        "containers": [load("http://127.0.0.1:8001/v1/completions")],
    });
    create(&scene, &pod("served", spec)).await;
    let report = report(&scene, "served").await;
    assert_eq!(report["succeeded"], 40, "{report}");
}

#[tokio::test]
async fn a_container_that_takes_more_memory_than_its_limit_is_killed() {
    let scene = real().await;
    let greedy = container(
        "greedy",
        &["/etc", "--port=8000"],
        json!({
            "env": [{ "name": "ENGINE_FAULT", "value": "allocate:256" }],
            "resources": { "limits": { "memory": "64Mi" } },
        }),
    );
    create(&scene, &pod("greedy", json!({ "restartPolicy": "Never", "containers": [greedy] }))).await;
    let ended = wait_for(&scene.api::<Pod>(), "greedy", "ended", within(), |pod: &Pod| {
        container_status(pod, "greedy")
            .and_then(|status| status.state.as_ref()?.terminated.as_ref())
            .is_some()
    })
    .await;
    let state =
        container_status(&ended, "greedy").and_then(|status| status.state.clone()?.terminated).unwrap();
    assert_eq!((state.reason.as_deref(), state.exit_code), (Some("OOMKilled"), 137), "{state:?}");
}

#[tokio::test]
async fn a_node_offers_gpus() {
    let scene = real().await;
    for name in scene.real_nodes() {
        let node = scene.cluster_api::<Node>().get(&name).await.unwrap();
        let offered = node.status.unwrap().allocatable.unwrap().remove("nvidia.com/gpu");
        assert_eq!(offered.map(|gpus| gpus.0), Some("4".to_owned()), "{name}");
    }
}

/// Links, addresses and routes of the machine's own network, mounts, control groups and clusters of ours.
#[derive(Debug, PartialEq)]
struct Machine {
    network: Vec<String>,
    mounts: Vec<String>,
}

impl Machine {
    fn now() -> Self {
        let ip = |what: &str| {
            let output = Command::new("ip").args(["-oneline", what]).output().expect("ip starts");
            assert!(output.status.success());
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts of the machine");
        Self {
            network: ["link", "address", "route"].map(ip).into(),
            mounts: mounts.lines().map(str::to_owned).collect(),
        }
    }
}

/// The control groups of a cluster, in any hierarchy.
fn control_groups(cluster: &Cluster) -> usize {
    let name = Path::new("local-cluster").join(&cluster.spec().name);
    let machine = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(machine).expect("control groups").flatten().map(|entry| entry.path());
    hierarchies.chain([machine.to_owned()]).filter(|hierarchy| hierarchy.join(&name).is_dir()).count()
}

/// Processes whose command line names the cluster's folder, or whose root of mounts is not ours.
fn processes(cluster: &Cluster) -> Vec<String> {
    let root = cluster.folder().root().display().to_string();
    let own = fs::read_link("/proc/self/ns/mnt").expect("our own namespace");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let path = entry.path();
        let line =
            fs::read(path.join("cmdline")).map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        let line = line.unwrap_or_default();
        let is_elsewhere = fs::read_link(path.join("ns/mnt")).is_ok_and(|namespace| namespace != own);
        if line.contains(&root) || (is_elsewhere && line.contains(&cluster.spec().name)) {
            found.push(line);
        }
    }
    found
}

#[tokio::test]
async fn nothing_of_a_cluster_is_left_when_its_supervisor_is_killed() {
    let before = Machine::now();
    let cluster = start(real_spec(1)).await;
    let scene = Scene::new(&cluster).await;
    create(&scene, &pod("web", json!({ "containers": [engine("web", 8000)] }))).await;
    // The images are not in this cluster: the pod has its network and volumes all the same.
    wait_for(&scene.api::<Pod>(), "web", "in a network", within(), |pod: &Pod| {
        pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).is_some()
            || container_status(pod, "web").is_some()
    })
    .await;
    assert_eq!(Machine::now(), before, "the machine is not to see a running cluster");
    assert!(control_groups(&cluster) > 0 && processes(&cluster).len() > 5);

    let supervisor =
        scene.status().await.unwrap().components.into_iter().find(|part| part.name == "supervisor");
    let pid = supervisor.and_then(|part| part.pid).expect("a supervisor").to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("kill starts").success());
    let deadline = std::time::Instant::now() + within();
    while !processes(&cluster).is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}", processes(&cluster));
        // The end of processes that are not ours cannot be watched.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    local_cluster::remove(&cluster.spec().name).await.unwrap();
    assert_eq!((control_groups(&cluster), cluster.folder().root().exists()), (0, false));
    assert_eq!(Machine::now(), before);
}

#[tokio::test]
async fn a_killed_node_comes_back_and_its_pods_run_again() {
    let cluster = tests::start_real(real_spec(1)).await;
    let scene = Scene::new(&cluster).await;
    let mut web = pod("web", json!({ "containers": [engine("web", 8000)] }));
    web.spec.as_mut().unwrap().restart_policy = Some("Always".to_owned());
    create(&scene, &web).await;
    until_ready(&scene, "web").await;
    cluster.kill_component("real-0").await.unwrap();
    wait_for(&scene.api::<Pod>(), "web", "started again", within(), |pod: &Pod| {
        container_status(pod, "web").is_some_and(|status| status.restart_count > 0 && status.ready)
    })
    .await;
    let node =
        scene.status().await.unwrap().components.into_iter().find(|part| part.name == "real-0").unwrap();
    assert_eq!((node.state, node.restarts), (ComponentState::Running, 1));
}
