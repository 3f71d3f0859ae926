//! A fresh cluster for one arm, warmed up in the same way for both: one AIInference was created, became Ready
//! and was deleted.
//!
//! That proves that the controller works, that the garbage collector knows the kind, and shows what children look like.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use api::aiinference::AIInference;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Service},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, PostParams},
};
use local_cluster::{Cluster, ClusterSpec, Controller, Detail, NodeClock, NodePool, watch::wait_for};
use serde_json::json;

use super::CONTROLLER;
use crate::{
    children::{Children, NullWriter, OWNER_NAME, children_of},
    machine::{Processes, Used},
    programs::workspace,
};

/// Half a second for each object, which is ten times what it takes, and a minute for a machine that stalls.
pub(super) fn patience(count: u32) -> Duration {
    Duration::from_secs(60) + Duration::from_millis(500) * count
}

/// What is run.
#[derive(Clone)]
pub(super) struct Programs {
    /// The folder with all of it.
    pub(super) kubernetes: PathBuf,
    pub(super) controller: PathBuf,
    pub(super) supervisor: PathBuf,
}

pub(super) struct Plane {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    pub(super) children: Children,
    /// Of the AIInference that the children are copied from.
    warm_up_uid: String,
}

/// What a burst took.
pub(super) struct Burst {
    /// From the first create until the last object was seen to be as it should.
    pub(super) seconds: f64,
    /// Until what follows the last object had ended as well.
    pub(super) used: Used,
}

pub(super) const NAMESPACE: &str = "bench";
const PRODUCT: &str = "A100";
const WARM_UP: &str = "model-00000";
/// Nodes hold at most 110 pods.
const PODS_PER_NODE: u32 = 100;
/// Kubernetes moves no pod while a cluster of fewer looks dead.
const FEWEST_NODES: u32 = 3;
/// The garbage collector asks every 30 s which kinds there are.
const WARM_WITHIN: Duration = Duration::from_secs(120);
/// What is not awaited, such as the last events, ends within this time after the last object.
const SETTLE: Duration = Duration::from_secs(3);

impl Plane {
    /// `pods` is how many there will be at most. The control plane spends as little as possible besides its work, because
    /// what it spends hides what the controller makes it do.
    pub(super) async fn start(programs: &Programs, arm: &str, pods: u32) -> anyhow::Result<Self> {
        // One more for the warm-up.
        let count = (pods + 1).div_ceil(PODS_PER_NODE).max(FEWEST_NODES);
        let nodes =
            NodePool { count, gpus: PODS_PER_NODE, products: vec![PRODUCT.to_owned()], without_gpus: 0 };
        let name = format!("bench-{}-{arm}", std::process::id());
        let spec = ClusterSpec::simulated(name, &programs.kubernetes, nodes)
            .with_clock(NodeClock::REAL)
            .with_detail(Detail::Lean);
        let cluster = Cluster::start(spec, &programs.supervisor).await?;
        let client = cluster.client().await?;
        cluster.install_shared(&workspace().join("deploy")).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await
            .with_context(|| format!("failed to create namespace {NAMESPACE}"))?;
        let controller = Controller {
            name: CONTROLLER.to_owned(),
            program: programs.controller.clone(),
            base: workspace().join("deploy").join(CONTROLLER).join("base"),
            args: Vec::new(),
            env: Default::default(),
        };
        cluster.start_controller(&controller).await?;
        let (warm_up_uid, children) = warm_up(&client).await?;
        Ok(Self { cluster, client, children, warm_up_uid })
    }

    /// Makes those of this AIInference, one after the other, as the controller does.
    pub(super) async fn create_children(&self, owner: &AIInference, how: NullWriter) -> anyhow::Result<()> {
        let (name, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
        self.children
            .create(&self.client, &[(WARM_UP, &name), (OWNER_NAME, &name), (&self.warm_up_uid, &uid)], how)
            .await
    }

    pub(super) fn inferences(&self) -> Api<AIInference> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Who is measured. A controller that was stopped is not.
    pub(super) async fn processes(&self) -> anyhow::Result<Processes> {
        let components = self.cluster.status().await?.components;
        let (controllers, plane): (Vec<_>, Vec<_>) =
            components.into_iter().partition(|component| component.name == CONTROLLER);
        Ok(Processes {
            plane: plane.into_iter().filter_map(|component| Some((component.name, component.pid?))).collect(),
            controller: controllers.iter().find_map(|component| component.pid),
        })
    }
}

/// Waits for what the plane still writes after the last object, such as events, so that its CPU time is complete.
pub(super) async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

/// The names of the n models after the first `skipped`; all are of one length.
pub(super) fn names(skipped: u32, count: u32) -> Vec<String> {
    (skipped + 1..=skipped + count).map(|number| format!("model-{number:05}")).collect()
}

/// The model of this name: one replica with one GPU, and a source that is copied into the pod.
pub(super) fn inference(name: &str) -> anyhow::Result<AIInference> {
    let inference = json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "modelSource": "s3://models/qwen/Qwen-7B-Chat",
            "engine": "vllm",
            "gpu": {"productLabel": PRODUCT, "count": 1},
            "replicas": 1,
        },
    });
    serde_json::from_value(inference).context("failed to write an AIInference")
}

pub(super) fn is_ready(inference: &AIInference) -> bool {
    let conditions = inference.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == api::conditions::READY && condition.status == "True")
}

async fn warm_up(client: &Client) -> anyhow::Result<(String, Children)> {
    let inferences: Api<AIInference> = Api::namespaced(client.clone(), NAMESPACE);
    let created = inferences
        .create(&PostParams::default(), &inference(WARM_UP)?)
        .await
        .context("failed to create the first AIInference")?;
    wait_for(&inferences, WARM_UP, WARM_WITHIN, |inference| inference.is_some_and(is_ready))
        .await
        .context("the first AIInference did not become Ready")?;
    let kinds = [
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<Service>(&()),
    ];
    let children = children_of(client, NAMESPACE, WARM_UP, CONTROLLER, &kinds).await?;
    inferences
        .delete(WARM_UP, &DeleteParams::background())
        .await
        .context("failed to delete the first AIInference")?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    wait_for(&deployments, WARM_UP, WARM_WITHIN, |deployment| deployment.is_none())
        .await
        .context("the garbage collector left the first Deployment")?;
    Ok((created.uid().unwrap_or_default(), children))
}
