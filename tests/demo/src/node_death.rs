//! A node dies under one of two replicas: what the API shows until two replicas serve again.
//!
//! It uses the cluster that `cargo xtask up` started, in a namespace of its own and with the node brought back at the
//! end; or a cluster of its own that ends with the command.

mod observation;
mod picture;
mod record;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::DeleteParams};
use local_cluster::{
    Cluster, ClusterSpec, Controller, NodeClock, NodePool, api_server::install, simulation::nodes, tools,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::{
    observation::{Observer, PodState, Snapshot, events_between},
    record::{Event, EventKind, Record, Workload, line},
};
use crate::files;

/// The cluster that `cargo xtask up` starts.
const DEVELOPMENT: &str = "dev";
/// The one that this command starts if there is none.
const OWN: &str = "demo";
const MODEL: &str = "chat";
const DEPLOYMENT: &str = "plain";
const DEPLOYMENT_LABEL: &str = "demo/deployment";
const CONTROLLER: &str = "inference-controller";
const REPLICAS: usize = 2;

/// The default of an AIInference, written out so that the picture can name it.
const NODE_FAILURE_SECONDS: i32 = 30;
/// How long the simulated engines load and warm up; long enough to be seen.
const LOADS: &str = "5s";
const WARMS_UP: &str = "5s";

/// Interval between two snapshots, and the precision of the observed times.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pods that load and warm up for 10 s.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// 40 s until the node is not Ready, 30 s more, 10 s for the new pod; and a machine that is busy.
const REPLACED_WITHIN: Duration = Duration::from_secs(240);
/// As before, with 300 s of toleration.
const TOLERATED_WITHIN: Duration = Duration::from_secs(540);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Beside the AIInference a Deployment of the same pods, which waits for Kubernetes' own 300 s: six minutes in all
    #[arg(long)]
    beside_deployment: bool,
    /// Folder for the record (node-death.json) and its picture (node-death.svg)
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
    /// Draws a record again, beside it, instead of making a node die
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["beside_deployment", "out"])]
    draw: Option<PathBuf>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.draw {
        return files::draw(file, picture::svg);
    }
    let cluster = cluster().await?;
    let client = cluster.client().await?;
    // A second run need not wait for the end of the first one's namespace.
    let namespace = format!("demo-{}", std::process::id());
    let observer = Observer::new(&client, &namespace, MODEL, DEPLOYMENT_LABEL);
    let record = tokio::select! {
        record = observe(&cluster, &client, &observer, args.beside_deployment) => record,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("failed to wait for Ctrl-C")?;
            Err(anyhow::anyhow!("interrupted"))
        }
    };
    let cleared = clear(&client, &observer).await;
    let record = record?;
    cleared?;
    files::write(&args.out, "node-death", &record, picture::svg)
}

/// The cluster of `up` if nodes can die in it, or one with the same clock that lives as long as the value.
async fn cluster() -> anyhow::Result<Cluster> {
    if let Some(running) = local_cluster::running(DEVELOPMENT)?
        && running.spec().nodes.is_some()
        && running.spec().clock == NodeClock::REAL
    {
        println!("uses the cluster of `cargo xtask up`, in a namespace of its own");
        return Ok(running);
    }
    println!("starts a cluster of its own, which ends with the demo");
    let deploy = Path::new("deploy");
    let spec = ClusterSpec::simulated(OWN, tools::ensure()?, NodePool::default()).with_clock(NodeClock::REAL);
    let cluster = Cluster::start(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
    cluster.install_shared(deploy).await?;
    cluster.start_controller(&Controller::new(CONTROLLER, deploy)?).await?;
    Ok(cluster)
}

async fn observe(
    cluster: &Cluster,
    client: &Client,
    observer: &Observer,
    beside_deployment: bool,
) -> anyhow::Result<Record> {
    let namespace = observer.namespace();
    apply(client, namespace, &namespace_object(namespace)).await?;
    apply(client, namespace, &inference()).await?;
    until_ready(observer, Workload::Inference).await?;
    let pods = observer.pods().await?;
    let node = pods.into_values().find_map(|pod| pod.node).context("no pod has a node")?;
    if beside_deployment {
        apply(client, namespace, &deployment(&node)).await?;
        until_ready(observer, Workload::Deployment).await?;
    }
    let mut before = observer.observe(&node).await?;
    let lost = |workload| before.pods.values().any(|pod| pod.workload == workload && pod.is_on(&node));
    ensure!(
        lost(Workload::Inference) && (!beside_deployment || lost(Workload::Deployment)),
        "the scheduler put no pod of the Deployment on {node}: try again"
    );

    println!("\n{REPLICAS} replicas of {MODEL} are Ready, one of them on {node}");
    let mut record = Record {
        kubernetes: tools::KUBERNETES_VERSION.to_owned(),
        node: node.clone(),
        node_failure_seconds: NODE_FAILURE_SECONDS,
        toleration_seconds: cluster.spec().clock.toleration.as_secs(),
        events: Vec::new(),
    };
    let mut keep = |second, what| {
        let event = Event { second, what };
        println!("{}", line(&event, &node));
        record.events.push(event);
    };
    nodes::stop_heartbeat(client, &node).await?;
    let died = Instant::now();
    keep(0.0, EventKind::NodeDies);
    let within = if beside_deployment { TOLERATED_WITHIN } else { REPLACED_WITHIN };
    while died.elapsed() < within {
        sleep(LOOK_EVERY).await;
        let now = observer.observe(&node).await?;
        let second = (died.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        for what in events_between(&before, &now) {
            keep(second, what);
        }
        before = now;
        let serves = |workload| serving(&before, workload, &node) >= REPLICAS;
        let inference = before.unready.is_none() && serves(Workload::Inference);
        if inference && (!beside_deployment || serves(Workload::Deployment)) {
            println!();
            return Ok(record);
        }
    }
    bail!("{REPLICAS} replicas do not serve again {} s after the death of {node}", within.as_secs())
}

/// How many pods of the workload serve, on nodes that live.
fn serving(snapshot: &Snapshot, workload: Workload, dead: &str) -> usize {
    let serves =
        |pod: &&PodState| pod.workload == workload && pod.is_ready && !pod.is_deleted && !pod.is_on(dead);
    snapshot.pods.values().filter(serves).count()
}

async fn until_ready(observer: &Observer, workload: Workload) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < READY_WITHIN {
        let pods = observer.pods().await?;
        let ready = pods.values().filter(|pod| pod.workload == workload && pod.is_ready).count();
        if ready >= REPLICAS && observer.unready().await?.is_none() {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    bail!("the pods of the {workload} are not Ready after {} s", READY_WITHIN.as_secs())
}

/// Brings the node back, and deletes the namespace.
async fn clear(client: &Client, observer: &Observer) -> anyhow::Result<()> {
    // A node that has not died is not changed by this.
    for node in observer.pods().await?.into_values().filter_map(|pod| pod.node) {
        nodes::start_heartbeat(client, &node).await?;
    }
    let (namespaces, name): (Api<Namespace>, _) = (Api::all(client.clone()), observer.namespace());
    let deleted = namespaces.delete(name, &DeleteParams::default()).await;
    deleted.with_context(|| format!("failed to delete namespace {name}"))?;
    Ok(())
}

async fn apply(client: &Client, namespace: &str, object: &Value) -> anyhow::Result<()> {
    // JSON is YAML.
    install::apply(client, namespace, &object.to_string()).await?;
    Ok(())
}

fn namespace_object(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

fn inference() -> Value {
    json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": { "name": MODEL },
        "spec": {
            "modelSource": "s3://models/qwen/Qwen-7B-Chat",
            "engine": "vllm",
            "gpu": { "count": 1 },
            "replicas": REPLICAS,
            "nodeFailureSeconds": NODE_FAILURE_SECONDS,
            "env": fate(),
            // Not on a real node, which pulls images.
            "scheduling": { "nodeSelector": simulated() },
        },
    })
}

/// Pods of the same shape, one of them on this node.
fn deployment(node: &str) -> Value {
    let labels = json!({ DEPLOYMENT_LABEL: DEPLOYMENT });
    let on_this_node = json!({
        "weight": 100,
        "preference": {
            "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }],
        },
    });
    let one_per_node =
        json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": labels } });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": DEPLOYMENT },
        "spec": {
            "replicas": REPLICAS,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeSelector": simulated(),
                    "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
                    "affinity": {
                        "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [on_this_node] },
                        "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [one_per_node] },
                    },
                    "initContainers": [{ "name": "model-loader", "image": "loader:1" }],
                    "containers": [{
                        "name": "engine",
                        "image": "engine:1",
                        "env": fate(),
                        "resources": { "limits": { "nvidia.com/gpu": "1" } },
                    }],
                },
            },
        },
    })
}

/// How the simulation plays each pod.
fn fate() -> Value {
    json!([{ "name": "SIM_LOAD_TIME", "value": LOADS }, { "name": "SIM_READY_DELAY", "value": WARMS_UP }])
}

fn simulated() -> Value {
    json!({ "node.kubernetes.io/instance-type": "simulated" })
}
