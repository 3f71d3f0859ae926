//! Clusters with real nodes, images, and the controllers as Pods.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use api::controllers::CONTROLLERS;
use local_cluster::{Cluster, ClusterSpec, NodePool, RealNodes, explained};
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::{Scene, fresh_name, start, tools, workspace};

/// The GPU product of real nodes; simulated nodes have others.
pub const PRODUCT: &str = "T4";
/// Image of the agent that follows the contract of workers; see `tests/agent`.
pub const AGENT_IMAGE: &str = "local.test/test-agent:1";
/// Image of the test engine; see `tests/engine`.
pub const ENGINE_IMAGE: &str = "local.test/test-engine:1";
/// The version of vLLM whose flags it knows. The tag does not tell it.
pub const ENGINE_VERSION: &str = "0.28.0";
/// Image of the stand-in for EvalScope; see `tests/fake-evalscope`.
pub const HARNESS_IMAGE: &str = "local.test/fake-evalscope:1";
/// Image of the stand-in for ms-swift; see `tests/trainer`.
pub const TRAINER_IMAGE: &str = "local.test/fake-swift:1";
/// The overlay from which the controllers are deployed.
pub const DEPLOYED: &str = "overlays/dev";
/// GPUs of each real node.
const GPUS: u32 = 4;

/// A namespace in this binary's cluster with two real nodes, in which Pod Security `restricted` is enforced; the
/// controllers run as Pods.
pub async fn real() -> Scene<'static> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_init(async || start_real(real_spec(2)).await).await;
    Scene::restricted(cluster).await
}

/// `count` real nodes and three simulated ones.
pub fn real_spec(count: u32) -> ClusterSpec {
    // Checked first, because builds take minutes.
    local_cluster::real::check().unwrap_or_else(|error| panic!("{}", explained(&error)));
    let tools_of_nodes =
        local_cluster::tools::ensure_nodes().unwrap_or_else(|error| panic!("{}", explained(&error)));
    let real = RealNodes {
        count,
        gpus: GPUS,
        product: PRODUCT.to_owned(),
        tools: tools_of_nodes,
        pause: layout("local.test/pause:1"),
    };
    let simulated = NodePool { count: 3, ..NodePool::default() };
    ClusterSpec::simulated(fresh_name(), tools(), simulated).with_real_nodes(real)
}

/// A separate cluster with every image, the CRDs, and the controllers as Pods.
pub async fn start_real(spec: ClusterSpec) -> Cluster {
    let cluster = start(spec).await;
    let deployed = async {
        load_images(&cluster)?;
        for known in CONTROLLERS {
            cluster.deploy(&workspace().join("deploy").join(known.name).join(DEPLOYED)).await?;
        }
        Ok(())
    };
    deployed.await.unwrap_or_else(|error: local_cluster::Error| panic!("{}", explained(&error)));
    cluster
}

/// Puts every image into the registry of the cluster, which forgets them when it is stopped.
pub fn load_images(cluster: &Cluster) -> local_cluster::Result<()> {
    images().iter().try_for_each(|Image { reference, .. }| cluster.load_image(&layout(reference), reference))
}

/// An image that `cargo xtask images --dev --with-tests` has built.
#[derive(Debug, Deserialize)]
struct Image {
    reference: String,
    layout: PathBuf,
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let list = folder().join("images.json");
        let text = fs::read(&list).unwrap_or_else(|error| {
            panic!("{}: {error}: run `cargo xtask images --dev --with-tests` first", list.display())
        });
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", list.display()))
    })
}

/// The folder of an image, in OCI image layout.
pub fn layout(reference: &str) -> PathBuf {
    let image = images().iter().find(|image| image.reference == reference);
    let image = image.unwrap_or_else(|| panic!("there is no image {reference} in {}", folder().display()));
    folder().join(&image.layout)
}

/// The target folder, found from the path of the test binary.
fn folder() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_else(|error| panic!("our own program: {error}"));
    own.ancestors().nth(3).unwrap_or(Path::new("/")).join("images/dev")
}
