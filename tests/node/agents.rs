//! The metrics-agent as a DaemonSet: each asks the kubelet of its node, and the controllers find them all.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use local_cluster::{api_server::install, real};
use serde_json::json;
use tests::{Scene, ask_until, is_ready, monitoring::built, real, wait_for, within};

const NAMESPACE: &str = "ai-metrics";
/// The kubelet's folder in the manifests; real nodes of the local cluster have `real::kubelet_folder` instead.
const KUBELET: &str = "/var/lib/kubelet";

/// The dispatcher-controller reads the monitors of its workers alone.
const READ_AGENTS: [&str; 3] = ["inference-controller", "scaler-controller", "training-controller"];

#[tokio::test]
async fn agents_read_their_kubelets_and_are_found_by_the_controllers() {
    let scene = real().await;
    install::apply_objects(&scene.client(), NAMESPACE, recorded()).await.unwrap();
    let nodes: BTreeSet<String> = scene.real_nodes().into_iter().collect();
    let agents = agents_on(&scene, &nodes).await;
    for agent in &agents {
        ask_until("the GPUs, and what the kubelet says, on the page", within(), async || {
            let page = page(&scene, NAMESPACE, agent, 9400).await?;
            let has_gpus = page.contains("\ngpu_utilization_ratio{") && page.contains("UUID=\"GPU-5ec0de00");
            let is_answered = page.contains("\nmetrics_agent_pod_resources_age_seconds ");
            if has_gpus && is_answered && !page.contains("no_kubelet") { Ok(()) } else { Err(page) }
        })
        .await;
    }
    for name in READ_AGENTS {
        ask_until("the leader has a stream to each agent", within(), async || {
            let live = format!("\nmetrics_sources{{health=\"live\"}} {}\n", agents.len());
            let mut pages = String::new();
            for pod in names_of_app(&scene, "ai-system", name).await {
                pages += &page(&scene, "ai-system", &pod, 8080).await?;
            }
            if pages.contains(&live) { Ok(()) } else { Err(format!("{name}: {pages}")) }
        })
        .await;
    }
}

/// `overlays/recorded` for the real nodes: the simulated ones have no kubelet that could be asked.
fn recorded() -> Vec<DynamicObject> {
    let mut objects = built("metrics-agent/overlays/recorded");
    let is_daemons =
        |object: &&mut DynamicObject| object.types.as_ref().is_some_and(|types| types.kind == "DaemonSet");
    let daemons = objects.iter_mut().find(is_daemons);
    let pod = &mut daemons.expect("a DaemonSet").data["spec"]["template"]["spec"];
    pod["nodeSelector"] = json!({ real::REAL_LABEL: "true" });
    let volumes = pod["volumes"].as_array_mut().expect("volumes");
    let mounted = volumes.iter_mut().filter_map(|volume| volume.pointer_mut("/hostPath/path"));
    for path in mounted {
        let below =
            path.as_str().and_then(|path| path.strip_prefix(KUBELET)).expect("a folder of the kubelet");
        *path = json!(format!("{}{below}", real::kubelet_folder().display()));
    }
    objects
}

/// The names of the agents, when there is a ready one on each of these nodes.
async fn agents_on(scene: &Scene<'_>, nodes: &BTreeSet<String>) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(scene.client(), NAMESPACE);
    let names = ask_until("a pod of the DaemonSet for each node", within(), async || {
        let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let on: BTreeSet<String> =
            all.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
        let names: Vec<String> = all.into_iter().filter_map(|pod| pod.metadata.name).collect();
        if on == *nodes && names.len() == nodes.len() { Ok(names) } else { Err(format!("on {on:?}")) }
    })
    .await;
    for name in &names {
        wait_for(&pods, name, "ready", within(), is_ready).await;
    }
    names
}

async fn names_of_app(scene: &Scene<'_>, namespace: &str, app: &str) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(scene.client(), namespace);
    let selector = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
    let pods = pods.list(&selector).await.expect("the pods are listed");
    pods.items.into_iter().filter_map(|pod| pod.metadata.name).collect()
}

/// The metrics of a pod, by way of the API server.
async fn page(scene: &Scene<'_>, namespace: &str, pod: &str, port: u16) -> Result<String, String> {
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics");
    let request = http::Request::get(uri).body(Vec::new()).map_err(|error| error.to_string())?;
    scene.client().request_text(request).await.map_err(|error| error.to_string())
}
