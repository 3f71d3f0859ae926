//! From nothing to Ready: build, start, install, and show how the samples come up.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use api::controllers::{CONTROLLERS, Kind};
use clap::Args;
use kube::Client;
use local_cluster::{
    Cluster, ClusterSpec, Controller, NodeClock, NodePool, RealNodes, Service, api_server::install,
    tools::GatewayTools,
};
use tokio::{runtime::Runtime, time::timeout};

use super::{agents, free_address, gateway, status, table};
use crate::{
    dev_cluster::NAME,
    images,
    steps::{build_programs, workspace},
};

/// The program with the load of the sample AIScaler.
pub(crate) const LOAD: &str = "fake-prometheus";
/// Answers for simulated workers.
pub(crate) const MONITORS: &str = "fake-monitors";

/// Product of the GPUs of real nodes; simulated ones have others, so that pods can choose.
const REAL_PRODUCT: &str = "T4";

/// A sample that is meant to fail, so that one sees how: its training does not fit into simulated GPUs either.
const FAILING_SAMPLE: &str = "trainingjob-too-large.yaml";
/// Its runs need no GPU, so on a cluster with real nodes they could start there, and their image does not exist.
const SIMULATED_SAMPLE: &str = "modelevaluation-pipeline.yaml";
/// Of a simulated trainer: progress is written once in ten seconds, so that each training of the samples has some.
const TRAINING_TIME: Duration = Duration::from_secs(12);

/// A sample takes seconds; a run without a terminal must not wait without end.
const SAMPLES_READY_WITHIN: Duration = Duration::from_secs(300);

/// Said before minutes pass.
const FIRST_START: &str = "the first start builds the controllers and Kubernetes from source: about fifteen minutes on \
                           two cores; later starts take half a minute";

#[derive(Args)]
pub(crate) struct UpArgs {
    /// Simulated nodes, at least 3
    #[arg(long, default_value_t = 4)]
    nodes: u32,
    /// GPUs of each node
    #[arg(long, default_value_t = 8)]
    gpus: u32,
    /// GPU products, given to the nodes in turn
    #[arg(long, value_delimiter = ',', default_value = "A100,NVIDIA-H100-80GB-HBM3")]
    products: Vec<String>,
    /// Nodes that run containers, beside the simulated ones; then the controllers run in them as Pods (Linux, as root)
    #[arg(long, default_value_t = 0)]
    real_nodes: u32,
    /// A Gateway of the Gateway API (Contour), and a sample with two versions behind it. With real nodes also Envoy and
    /// engines that answer requests; simulated pods answer none
    #[arg(long)]
    gateway: bool,
    /// Start without the samples
    #[arg(long)]
    no_samples: bool,
    /// Folder with etcd, kube-apiserver, kubectl and others of the wanted version; what it lacks is built
    #[arg(long, value_name = "DIR", env = "KUBEBUILDER_ASSETS")]
    kubernetes: Option<PathBuf>,
    /// Installs into the cluster of this kubeconfig instead of starting one, and runs the controllers on this machine;
    /// `down` ends them and leaves that cluster as it is. No samples are applied
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["nodes", "gpus", "products", "real_nodes", "gateway", "no_samples"]
    )]
    kubeconfig: Option<PathBuf>,
}

pub(super) fn run(args: &UpArgs, runtime: &Runtime) -> anyhow::Result<()> {
    if let Some(cluster) = local_cluster::running(NAME)? {
        let nodes = cluster.real_nodes().len();
        if args.real_nodes > 0 && nodes != args.real_nodes as usize {
            bail!("the cluster is running with {nodes} real nodes: stop it first with `cargo xtask down`");
        }
        if args.gateway && !gateway::is_there(&cluster) {
            bail!("the cluster is running without a Gateway: stop it first with `cargo xtask down`");
        }
        if let Some(kubeconfig) = &args.kubeconfig {
            let kubeconfig = kubeconfig.display();
            bail!("a cluster is running: stop it with `cargo xtask down` before --kubeconfig {kubeconfig}");
        }
        println!("already running:\n");
        runtime.block_on(status::print(&cluster))?;
        next_steps(&cluster);
        return Ok(());
    }
    if let Some(kubeconfig) = &args.kubeconfig {
        return join(kubeconfig, args.kubernetes.as_deref(), runtime);
    }
    let began = Instant::now();
    // Before minutes are spent on builds.
    if args.real_nodes > 0 {
        local_cluster::real::check()?;
    }
    if args.kubernetes.is_none() && !local_cluster::tools::are_there() {
        local_cluster::tools::check()?;
        println!("{FIRST_START}");
    }
    build_programs()?;
    let tools = match &args.kubernetes {
        Some(given) => local_cluster::tools::ensure_with(given)?,
        None => local_cluster::tools::ensure()?,
    };
    let nodes =
        NodePool { count: args.nodes, gpus: args.gpus, products: args.products.clone(), without_gpus: 1 };
    let mut spec = ClusterSpec::simulated(NAME, tools, nodes)
        .with_clock(NodeClock::REAL)
        .with_training_time(TRAINING_TIME);
    let mut images = None;
    if args.real_nodes > 0 {
        let built = images::build_dev()?;
        spec = spec.with_real_nodes(RealNodes {
            count: args.real_nodes,
            gpus: args.gpus,
            product: REAL_PRODUCT.to_owned(),
            tools: local_cluster::tools::ensure_nodes()?,
            pause: built.path.join("pause"),
        });
        images = Some(built);
    }
    let gateway_tools = args.gateway.then(local_cluster::tools::ensure_gateway).transpose()?;
    let options =
        Options { images: images.as_ref(), gateway: gateway_tools.as_ref(), samples: !args.no_samples };
    let up = async {
        tokio::select! {
            up = bring_up(spec, options) => up.map(Some),
            interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| None).context("failed to wait for Ctrl-C"),
        }
    };
    // When it is interrupted, the cluster is dropped half-way, and with its owner it ends.
    let Some((cluster, outcome)) = runtime.block_on(up)? else {
        bail!("interrupted: stopped what was started");
    };
    next_steps(&cluster);
    let resident = runtime.block_on(cluster.status())?.resident_bytes();
    println!("\n{:.1} s in all, {} resident", began.elapsed().as_secs_f32(), status::mebibytes(resident));
    outcome
}

/// Installs into a cluster that exists, and leaves the controllers running on this machine.
fn join(kubeconfig: &Path, kubernetes: Option<&Path>, runtime: &Runtime) -> anyhow::Result<()> {
    let kubeconfig = kubeconfig
        .canonicalize()
        .with_context(|| format!("failed to read kubeconfig {}", kubeconfig.display()))?;
    build_programs()?;
    let spec = ClusterSpec::existing(NAME, &kubeconfig, local_cluster::tools::ensure_kubectl(kubernetes)?);
    let deploy = workspace().join("deploy");
    let joined = async {
        let mut cluster = Cluster::start(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
        println!("installs into the cluster of {}", kubeconfig.display());
        cluster.install_shared(&deploy).await?;
        println!("  CRDs and the namespace ai-system");
        for controller in CONTROLLERS {
            cluster.start_controller(&Controller::new(controller.name, &deploy)?).await?;
            println!("  {}: account, rights and policies; it runs on this machine", controller.name);
        }
        cluster.detach().await?;
        anyhow::Ok(cluster)
    };
    let joined = async {
        tokio::select! {
            joined = joined => joined.map(Some),
            interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| None).context("failed to wait for Ctrl-C"),
        }
    };
    let Some(cluster) = runtime.block_on(joined)? else {
        bail!("interrupted: the controllers are stopped, and what was installed is left in the cluster");
    };
    println!("\nnext:");
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!(
        "  kubectl apply -f deploy/samples/aiinference.yaml   # its pods pull images and request GPUs of product A100"
    );
    println!("  cargo xtask status         # the controllers, and the folder of their logs");
    println!("  cargo xtask down           # stops them; the cluster keeps what was installed");
    drop(cluster);
    Ok(())
}

/// What is started beside Kubernetes and the controllers.
#[derive(Clone, Copy)]
struct Options<'a> {
    /// Then the controllers run as Pods.
    images: Option<&'a images::Folder>,
    gateway: Option<&'a GatewayTools>,
    samples: bool,
}

/// Starts everything. The cluster is kept even if samples do not become Ready, so that one can see why.
async fn bring_up(spec: ClusterSpec, options: Options<'_>) -> anyhow::Result<(Cluster, anyhow::Result<()>)> {
    let Options { images, gateway, samples } = options;
    let began = Instant::now();
    let workspace = workspace();
    let mut cluster = Cluster::begin(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
    let client = cluster.client().await?;
    let controllers = async {
        let deploy = workspace.join("deploy");
        cluster.install_shared(&deploy).await?;
        if let Some(tools) = gateway {
            // Before the controllers, which look for a kind that is missing once a minute.
            gateway::start(&cluster, tools).await?;
        }
        if let Some(images) = images {
            cluster.ready().await?;
            for image in &images.images {
                cluster.load_image(&images.path.join(&image.layout), &image.reference)?;
            }
        }
        // Where the loads of the sample AIScalers come from.
        let (mut load, mut agent_options) = (None, Vec::new());
        if let (None, Some(nodes)) = (images, cluster.spec().nodes.clone()) {
            load = Some(start_load(&cluster).await?);
            start_monitors(&cluster).await?;
            agent_options = agents::start(&cluster, nodes.count, nodes.gpus).await?;
        }
        for controller in CONTROLLERS {
            match images {
                None => {
                    let mut process = Controller::new(controller.name, &deploy)?;
                    if controller.reads_agents {
                        process = process.with_args(agent_options.clone());
                    }
                    if let Some(load) = load.filter(|_| !controller.scales.is_empty()) {
                        process = process.with_args([format!("--prometheus-url=http://{load}")]);
                    }
                    cluster.start_controller(&process).await?;
                }
                Some(_) => cluster.deploy(&deploy.join(controller.name).join("overlays/dev")).await?,
            }
        }
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(cluster.ready().await?) }, controllers)?;
    let ready_after = began.elapsed();
    println!("all components ready after {:.1} s\n", ready_after.as_secs_f32());
    let mut outcome = Ok(());
    if samples {
        let kinds: Vec<&Kind> = kinds(images.is_some()).collect();
        let folder = workspace.join("deploy/samples");
        for sample in kinds.iter().flat_map(|kind| kind.samples) {
            apply_sample(&client, &folder, sample).await?;
        }
        let mut failing = Vec::new();
        if images.is_none() {
            apply_sample(&client, &folder, SIMULATED_SAMPLE).await?;
            failing = apply_sample(&client, &folder, FAILING_SAMPLE).await?;
        }
        if gateway.is_some() {
            gateway::apply_sample(&cluster, &client, &folder).await?;
        }
        outcome = match timeout(SAMPLES_READY_WITHIN, table::until_all_done(&client, &kinds, &failing)).await
        {
            Ok(done) => done,
            Err(_) => Err(anyhow::anyhow!(
                "not every sample is Ready after {} s; the cluster is left running, stop it with `cargo xtask down`",
                SAMPLES_READY_WITHIN.as_secs()
            )),
        };
    }
    cluster.detach().await?;
    Ok((cluster, outcome))
}

/// Starts the server of a load that goes up and down, and returns its address.
async fn start_load(cluster: &Cluster) -> anyhow::Result<SocketAddr> {
    let address = free_address()?;
    let service = Service {
        name: "load".to_owned(),
        program: local_cluster::sibling_binary(LOAD)?,
        args: vec![format!("--listen={address}")],
        env: BTreeMap::new(),
    };
    cluster.start_service(service).await?;
    Ok(address)
}

/// Starts what answers for the workers of the sample AIDispatcher, with a queue that goes up and down.
async fn start_monitors(cluster: &Cluster) -> anyhow::Result<()> {
    let service = Service {
        name: "monitors".to_owned(),
        program: local_cluster::sibling_binary(MONITORS)?,
        args: vec![format!("--kubeconfig={}", cluster.folder().kubeconfig().display())],
        env: BTreeMap::new(),
    };
    cluster.start_service(service).await?;
    Ok(())
}

/// Returns the names of its objects.
async fn apply_sample(client: &Client, folder: &Path, sample: &str) -> anyhow::Result<Vec<String>> {
    let file = folder.join(sample);
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let objects = install::apply(client, install::DEFAULT_NAMESPACE, &text).await?;
    Ok(objects.into_iter().filter_map(|object| object.metadata.name).collect())
}

/// The kinds with samples that can become ready. Pods on real nodes do not reach the load on this machine, so there is
/// nothing to scale by.
fn kinds(on_real_nodes: bool) -> impl Iterator<Item = &'static Kind> {
    let scales = |controller: &&api::controllers::Controller| !controller.scales.is_empty();
    let controllers = CONTROLLERS.iter().filter(move |controller| !(on_real_nodes && scales(controller)));
    controllers.flat_map(|controller| controller.kinds)
}

fn next_steps(cluster: &Cluster) {
    println!("\nnext:");
    println!("  export KUBECONFIG={}", cluster.folder().kubeconfig().display());
    println!("  kubectl get ai             # this cluster's own kubectl: {}", cluster.kubectl().display());
    if cluster.real_nodes().is_empty() {
        println!("  kubectl get ais --watch    # replicas follow a load that goes up and down");
        println!("  kubectl get ad --watch     # workers follow a queue that goes up and down");
        println!("  kubectl get tj -o wide     # the trainings, and why one of them has failed");
        println!("  kubectl get me -o wide     # whether the trained model is worse than its base");
        println!(
            "  kubectl apply -f deploy/samples/aiscaler-gpu.yaml   # the vision model follows the load of its GPUs"
        );
    }
    println!("  cargo xtask status         # processes, memory, folder of the logs");
    println!("  cargo xtask down           # stop and remove everything");
    gateway::next_steps(cluster);
}
