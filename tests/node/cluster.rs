//! The real nodes: features that other tests rely on, and cleanup.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    discovery::v1::EndpointSlice,
};
use local_cluster::ComponentState;
use serde_json::{Value, json};
use tests::{Scene, follow, real, real_spec, start, wait_for, within};

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
    // Until then, all requests go to one of them.
    let (slices, of_service) = (scene.api::<EndpointSlice>(), "kubernetes.io/service-name=web");
    let have_two = follow(&slices, of_service, |slices| {
        let endpoints = slices.values().flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter_map(|endpoint| endpoint.conditions.as_ref()?.ready);
        (ready.filter(|ready| *ready).count() == 2).then_some(())
    });
    tokio::time::timeout(within(), have_two).await.expect("two ready endpoints");
    let url = format!("http://web.{}.svc.cluster.local/v1/chat/completions", scene.namespace());
    create(&scene, &pod("load", json!({ "restartPolicy": "Never", "containers": [load(&url)] }))).await;
    let report = report(&scene, "load").await;
    assert_eq!(report["succeeded"], 40, "{report}");
    let by_pod = report["by_pod"].as_object().map(|pods| pods.keys().cloned().collect::<Vec<_>>());
    assert_eq!(by_pod, Some(vec!["web-0".to_owned(), "web-1".to_owned()]), "{report}");
}

#[tokio::test]
async fn logs_and_exec_work() {
    let scene = real().await;
    create(&scene, &pod("web", json!({ "containers": [engine("web", 8000)] }))).await;
    until_ready(&scene, "web").await;
    assert!(!scene.kubectl(&["logs", "web"]).is_empty());
    let output = scene.kubectl(&[
        "exec",
        "web",
        "--",
        "/test-engine",
        "load",
        "--url",
        "http://127.0.0.1:8000/v1/chat/completions",
        "--rate",
        "5",
        "--seconds",
        "1",
        "--timeout-seconds",
        "20",
    ]);
    let report: Value = serde_json::from_str(output.lines().last().unwrap_or_default()).expect("a report");
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
        "containers": [load("http://127.0.0.1:8001/v1/chat/completions")],
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
        &["--model-id=/etc", "--port=8000"],
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

/// Traces of a cluster in the machine's network, mounts and control groups.
fn traces(root: &Path) -> Vec<String> {
    let ip = |what: &str| {
        let output = Command::new("ip").args(["-oneline", what]).output().expect("ip starts");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts of the machine");
    let all = ["link", "address", "route"].map(ip).join("\n") + &mounts;
    let root = root.display().to_string();
    let marks = ["10.77.", "10.78.", "real-", &root];
    all.lines().filter(|line| marks.iter().any(|mark| line.contains(mark))).map(str::to_owned).collect()
}

/// The control groups of a cluster, one per hierarchy.
fn control_groups(cluster: &str) -> Vec<PathBuf> {
    let prefix = format!("{cluster}-");
    let machine = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(machine).expect("control groups").flatten().map(|entry| entry.path());
    let parents = hierarchies.chain([machine.to_owned()]).map(|hierarchy| hierarchy.join("local-cluster"));
    let groups =
        parents.filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten().map(|entry| entry.path());
    groups
        .filter(|group| group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .collect()
}

/// All processes in these groups.
fn processes(groups: &[PathBuf]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for group in groups {
        let own = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        found.extend(own.lines().map(str::to_owned));
        let below = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
        found.extend(processes(&below.filter(|path| path.is_dir()).collect::<Vec<_>>()));
    }
    found
}

#[tokio::test]
async fn a_killed_cluster_does_not_affect_the_next_one() {
    let spec = real_spec(2);
    let cluster = start(spec.clone()).await;
    let (name, root) = (spec.name.clone(), cluster.folder().root().to_owned());
    let scene = Scene::new(&cluster).await;
    // The images are not in this cluster, but the pod gets its network and volumes.
    create(&scene, &pod("web", json!({ "containers": [engine("web", 8000)] }))).await;
    let has_place = |pod: &Pod| container_status(pod, "web").is_some();
    wait_for(&scene.api::<Pod>(), "web", "on a node", within(), has_place).await;
    assert_eq!(traces(&root), Vec::<String>::new(), "a running cluster is isolated from the machine");
    // init, containerd, kubelet and kube-proxy on two nodes.
    let running = processes(&control_groups(&name));
    assert!(running.len() >= 8, "{running:?}");

    let supervisor =
        scene.status().await.unwrap().components.into_iter().find(|part| part.name == "supervisor");
    let pid = supervisor.and_then(|part| part.pid).expect("a supervisor").to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("kill starts").success());
    drop(scene);
    // It waits only for the end of the supervisor.
    drop(cluster);
    let next = start(spec).await;
    assert_eq!(traces(&root), Vec::<String>::new());
    drop(next);
    assert_eq!((control_groups(&name), root.exists()), (Vec::new(), false));
    assert_eq!(traces(&root), Vec::<String>::new());
}

#[tokio::test]
async fn a_restarted_node_runs_its_pods_again() {
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
