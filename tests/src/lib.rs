//! Shared by the test binaries: one cluster per binary, one namespace per test, waits by watching.
//!
//! Tests that only write and read objects use [`api_server`], [`simulated`] or [`real()`]: the cluster starts with the
//! first such test of the binary and ends with the process. Tests that count requests, stop a component or kill a node
//! start their own with [`start`]. Tests that wait for the loss of a node use `NodeClock::SHORT`.
//!
//! Every wait has a deadline, and a failed wait shows the object.
//!
//! Test binaries:
//!
//! - `admit`: what the API server refuses and accepts.
//! - `e2e`: the controllers on simulated nodes.
//! - `every_controller`: what each controller must do, written once.
//! - `chaos`: API server, etcd's history, certificates and tokens fail under the real controller.
//! - `node`: real nodes: the images, the loader, probes, signals, requests under load.
//! - `monitoring`: rules and dashboards of `deploy/monitoring`; it needs no cluster.
//!
//! Files:
//!
//! - `scene.rs`: the namespace of a test, and its client.
//! - `wait.rs`: waits by watching, with deadlines.
//! - `wait/kstatus.rs`: a port of kstatus.
//! - `lives.rs`: what the scripted life of an object is; `table.rs`: which controller has which.
//! - `inference.rs`, `training.rs`, `dispatcher.rs`, `scaler.rs`, `inference/endpoint.rs`: the kinds in tests.
//! - `inference/engines.rs`: stand-ins for the metrics of engines of simulated pods.
//! - `gateway.rs`: a stand-in for the controller of a Gateway.
//! - `gateway/record.rs`, `gateway/invariants.rs`: what was stored of canaries, and what must hold for it.
//! - `drains.rs`: what a drain of a node does.
//! - `agent.rs`: a real metrics-agent on loopback.
//! - `real.rs`: clusters with real nodes.
//! - `monitoring.rs`: what kustomize builds from `deploy/monitoring`.
//! - `monitoring/prometheus.rs`: a real Prometheus on loopback.
//! - `sweep.rs`: lets each write of a controller's script fail in every way (`cargo xtask sweep`).
//!
//! Programs beside this crate:
//!
//! - `tests/engine`: an engine and its load, at least as strict as vLLM and Triton were observed to be.
//! - `tests/trainer`: a stand-in for ms-swift with its flags, logs, checkpoints and signals.
//! - `tests/agent`: the worker of an AIDispatcher.
//! - `tests/fake-monitors`: the monitors of simulated workers, each on a loopback address.
//! - `tests/fake-nvml`: an ABI fake of NVIDIA's library.
//! - `tests/fake-kubelet`: the kubelet's pod-resources API.
//! - `tests/hub-server`: Hugging Face and ModelScope.
//! - `tests/fake-prometheus`: a Prometheus-compatible server with set answers.
//! - `tests/fake-api`: the API server of the runtime's tests and of benches.
//! - `tests/scripted-server`: a server that answers with the bytes of a script, right or wrong.
//! - `tests/s3-server`: a real S3 server over a folder.
//! - `tests/pause`: holds the namespaces of a pod.
//! - `tests/bench`: measures.
//! - `tests/demo`: lets a node die or a load rise, and draws what follows.
//! - `tests/manual`: checks and builds the manuals.

pub mod agent;
pub mod dispatcher;
pub mod drains;
pub mod gateway;
pub mod inference;
pub mod lives;
pub mod monitoring;
mod real;
pub mod scaler;
mod scene;
pub mod sweep;
pub mod table;
pub mod training;
mod wait;

use std::{
    path::{Path, PathBuf},
    sync::{
        Once, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use api::controllers::CONTROLLERS;
use local_cluster::{Cluster, ClusterSpec, Controller, NodePool, explained, own_network};
use tokio::sync::{OnceCell, Semaphore};

pub use local_cluster;
pub use real::{
    AGENT_IMAGE, DEPLOYED, ENGINE_IMAGE, ENGINE_VERSION, HARNESS_IMAGE, PRODUCT, TRAINER_IMAGE, layout,
    load_images, real, real_spec, start_real,
};
pub use scene::{Scene, until_renewed};
pub use wait::{ask_until, follow, is_ready, until_component, wait_for, wait_until_gone, within};

/// A namespace in this binary's API server, with CRDs but without controllers, so that objects do not change.
pub async fn api_server() -> Scene<'static> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    Scene::new(CLUSTER.get_or_init(|| start(ClusterSpec::api_only(fresh_name(), tools()))).await).await
}

/// A namespace in this binary's whole cluster: simulated nodes, and the controllers of this workspace running.
pub async fn simulated() -> Scene<'static> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_init(async || {
        let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
        for known in CONTROLLERS {
            // Shorter than the default of a minute.
            let quick = controller(known.name).with_args(["--refusal-retry-period=2"]);
            cluster.start_controller(&quick).await.unwrap_or_else(|error| {
                panic!("{}", explained(&error));
            });
        }
        cluster
    });
    Scene::new(cluster.await).await
}

/// Whether the calling test is in a network that has the addresses of all simulated pods. Otherwise this runs the test there,
/// in a process of its own, and the caller has nothing left to do. `test`: a part of its name that no other test has.
pub fn in_own_network(test: &str) -> bool {
    const IS_THERE: &str = "TESTS_IN_OWN_NETWORK";
    if std::env::var_os(IS_THERE).is_some() {
        own_network::take_addresses_of_pods().unwrap_or_else(|error| panic!("{}", explained(&error)));
        return true;
    }
    // What Kubernetes needs is built before: nothing can be fetched from there.
    tools();
    let program = std::env::current_exe().expect("the path of this program");
    let ran = own_network::command(&program).args([test, "--nocapture"]).env(IS_THERE, "1").output();
    let ran = ran.expect("unshare, of util-linux");
    let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(ran.status.success() && said.contains("ok. 1 passed;"), "{said}");
    false
}

/// A separate cluster with the CRDs and the controllers' namespace; it ends when the value is dropped.
pub async fn start(spec: ClusterSpec) -> Cluster {
    static SWEEP: Once = Once::new();
    /// Limits the number of control planes that start at the same time: each start needs a core for seconds.
    static STARTS: Semaphore = Semaphore::const_new(2);
    local_cluster::install_crypto_provider();
    // Removes the clusters of killed earlier runs, to free disk and memory.
    SWEEP.call_once(|| drop(local_cluster::sweep()));
    let started = async {
        let _turn = STARTS.acquire().await.expect("it is never closed");
        let cluster = Cluster::start(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
        cluster.install_shared(&workspace().join("deploy")).await?;
        Ok(cluster)
    };
    started.await.unwrap_or_else(|error: local_cluster::Error| panic!("{}", explained(&error)))
}

/// A controller of this workspace, to be started with [`Cluster::start_controller`].
pub fn controller(name: &str) -> Controller {
    let controller = Controller::new(name, &workspace().join("deploy"));
    let controller = controller.unwrap_or_else(|error| panic!("{}", explained(&error)));
    let known = CONTROLLERS.iter().find(|known| known.name == name).expect("a controller of this workspace");
    controller.with_args((table::life_of(known).args)())
}

/// The folder with the programs of a cluster; builds missing ones.
pub fn tools() -> PathBuf {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    TOOLS
        .get_or_init(|| {
            local_cluster::tools::ensure().unwrap_or_else(|error| panic!("{}", explained(&error)))
        })
        .clone()
}

/// A cluster name that is unique across processes and tests.
pub fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The folder of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}
