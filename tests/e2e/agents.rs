//! The controllers and the metrics agents of nodes: a real agent for each simulated node.
//!
//! What is shown here of GPUs rests on an ABI fake of NVIDIA's library.

use std::{collections::BTreeMap, time::Duration};

use api::{aiinference::AIInference, aiscaler::AIScaler, conditions, controllers::CONTROLLERS, reasons};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use local_cluster::{Cluster, ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene,
    agent::{Agent, Event, GPU, Gpus, Machine, machine_of},
    ask_until, controller, fresh_name, inference, scaler, start, tools, training, wait_for, wait_until_gone,
    within,
};
use tokio::time::interval;

const NODES: u32 = 3;
const GPUS: u32 = 2;
/// Kubelets give GPUs to new pods as often.
const TICK: Duration = Duration::from_millis(100);
/// `nvmlEventTypeXidCriticalError`.
const XID_EVENT: u64 = 8;
/// The XID of a GPU that has fallen off the bus.
const OFF_THE_BUS: u64 = 79;

/// The agents and GPUs of all nodes, by name.
struct Nodes(BTreeMap<String, Node>);

struct Node {
    agent: Agent,
    machine: Machine,
    gpus: Gpus,
}

impl Nodes {
    fn start() -> Self {
        let node = |index| {
            let name = format!("gpu-{index}");
            let machine = machine_of(&name, GPUS as usize);
            let gpus = Gpus::of(&machine);
            (name.clone(), Node { agent: Agent::on(&name, &machine), machine, gpus })
        };
        Self((0..NODES).map(node).collect())
    }

    /// Every GPU works so much, in percent.
    fn work(&mut self, percent: u32) {
        for Node { agent, machine, .. } in self.0.values_mut() {
            machine.gpus.iter_mut().for_each(|gpu| gpu.utilization = percent);
            agent.machine_becomes(machine);
        }
    }

    /// The kubelets give GPUs to new pods of a namespace, and take them from those that are gone.
    async fn admit(&mut self, scene: &Scene<'_>) {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await.expect("the pods are listed");
        for (name, Node { agent, gpus, .. }) in &mut self.0 {
            gpus.follow(pods.iter().filter(|pod| node_of(pod) == Some(name)));
            agent.kubelet.set_pods(gpus.pods());
        }
    }

    /// Does `act`, while the kubelets do that again and again.
    async fn while_kubelets_run<T>(&mut self, scene: &Scene<'_>, act: impl Future<Output = T>) -> T {
        let run = async {
            let mut ticks = interval(TICK);
            loop {
                ticks.tick().await;
                self.admit(scene).await;
            }
        };
        tokio::select! {
            never = run => never,
            done = act => done,
        }
    }
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

/// A cluster whose controllers read these agents.
async fn cluster_with(nodes: &Nodes) -> Cluster {
    let pool = NodePool { count: NODES, gpus: GPUS, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool)).await;
    let addresses: Vec<&str> = nodes.0.values().map(|node| &*node.agent.grpc).collect();
    let agents =
        [format!("--metrics-agents={}", addresses.join(",")), "--metrics-agents-plaintext".to_owned()];
    for known in CONTROLLERS.iter().filter(|known| known.reads_agents) {
        cluster.start_controller(&controller(known.name).with_args(agents.clone())).await.unwrap();
    }
    cluster
}

#[tokio::test]
async fn replicas_follow_the_load_of_gpus_and_stay_when_the_agents_are_gone() {
    let mut nodes = Nodes::start();
    let cluster = cluster_with(&nodes).await;
    let scene = Scene::new(&cluster).await;
    let mut target = scaler::deployment("chat", 1);
    let pod = &mut target["spec"]["template"]["spec"];
    pod["containers"][0]["resources"] = json!({"limits": {GPU: 1}});
    scene.apply(&target.to_string()).await.unwrap();
    let spec = json!({
        "deploymentName": "chat",
        "metricType": "gpu_util",
        "targetValue": 50,
        "maxReplicas": 3,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    });
    scaler::create(&scene, "chat", spec, json!({})).await;
    nodes.work(45);
    nodes.while_kubelets_run(&scene, scaler::until_active(&scene, "chat")).await;
    for (percent, replicas) in [(95, 3), (10, 1), (60, 2)] {
        nodes.work(percent);
        nodes.while_kubelets_run(&scene, scaler::until_replicas(&scene, "chat", replicas)).await;
    }
    // Both pods are measured, at their target.
    nodes.work(50);
    let scalers = scene.api::<AIScaler>();
    let both = wait_for(&scalers, "chat", "2 replicas at 50 %", within(), |scaler| {
        let status = scaler.status.as_ref();
        status.is_some_and(|status| {
            let metric = status.metric.as_ref();
            status.current_replicas == 2 && metric.is_some_and(|metric| metric.display == "50/50")
        })
    });
    nodes.while_kubelets_run(&scene, both).await;
    nodes.0.clear();
    let blind = scaler::until_inactive(&scene, "chat", "MetricMissing").await;
    let text = scaler::message(&blind, conditions::SCALING_ACTIVE);
    assert!(text.starts_with("2 replicas stay without a metric: no readings of pods on node"), "{text}");
    scaler::until_replicas(&scene, "chat", 2).await;
}

#[tokio::test]
async fn a_pod_whose_gpu_has_a_fatal_error_is_replaced() {
    let mut nodes = Nodes::start();
    let cluster = cluster_with(&nodes).await;
    let scene = Scene::new(&cluster).await;
    inference::create(&scene, "chat", json!({"replicas": 2})).await;
    inference::until_ready(&scene, "chat").await;
    nodes.admit(&scene).await;
    let labels = ListParams::default().labels(&inference::pods_of("chat"));
    let pods = scene.api::<Pod>().list(&labels).await.unwrap();
    let victim = pods.items.into_iter().next().expect("a pod");
    let (pod, node) = (victim.metadata.name.clone().unwrap(), node_of(&victim).unwrap().clone());

    let Node { agent, machine, gpus } = nodes.0.get_mut(&node).unwrap();
    let holder = gpus.pods().into_iter().find(|holder| holder.name == pod).expect("it holds a GPU");
    let held = &holder.containers[0].devices[0].device_ids[0];
    let gpu = machine.gpus.iter().position(|gpu| gpu.uuid == *held).expect("a GPU of the node");
    ask_until("the agent knows who holds the GPU", within(), async || {
        let page = agent.page().await;
        if page.contains(&format!("pod=\"{pod}\"")) { Ok(()) } else { Err(page) }
    })
    .await;
    agent.awaits_events().await;
    machine.events.push(Event { gpu, kind: XID_EVENT, data: OFF_THE_BUS });
    agent.machine_becomes(machine);

    wait_until_gone(&scene.api::<Pod>(), &pod, within()).await;
    let replaced =
        wait_for(&scene.api::<AIInference>(), "chat", "the error in the status", within(), |chat| {
            inference::is_ready(chat)
                && chat.status.as_ref().is_some_and(|status| !status.migrations.is_empty())
        })
        .await;
    let migration = replaced.status.unwrap().migrations.remove(0);
    assert_eq!((migration.pod, migration.from_node, &*migration.reason), (pod, node, reasons::GPU_FAULT));
    let message = migration.message.unwrap();
    assert!(message.contains("XID 79") && message.contains(held), "{message}");
}

#[tokio::test]
async fn gpus_that_do_nothing_while_a_job_trains_are_told() {
    let mut nodes = Nodes::start();
    nodes.work(0);
    let cluster = cluster_with(&nodes).await;
    let scene = Scene::new(&cluster).await;
    let mut endless = training::fate(&[("run-time", "24h")]);
    endless["noProgressSeconds"] = json!(60);
    training::create(&scene, "qwen", endless).await;
    let reported = training::until_reason(&scene, "qwen", conditions::NO_PROGRESS, reasons::GPU_IDLE);
    let job = nodes.while_kubelets_run(&scene, reported).await;
    let condition = training::condition(&job, conditions::NO_PROGRESS).unwrap();
    assert_eq!(condition.status, "True");
    assert!(
        condition.message.starts_with("the GPUs have done less than 1 % for 30 s"),
        "{}",
        condition.message
    );
}
