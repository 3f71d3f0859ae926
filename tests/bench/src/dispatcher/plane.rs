//! A fresh cluster for one arm, warmed up in the same way for both: one AIDispatcher was created, became Ready and was
//! deleted. That proves that the controller works, and shows what its Deployment looks like.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use api::aidispatcher::AIDispatcher;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, PostParams},
};
use local_cluster::{Cluster, ClusterSpec, Controller, Detail, NodeClock, NodePool, watch::wait_for};
use serde_json::{Value, json};

use super::CONTROLLER;
use crate::{
    children::{Children, NullWriter, OWNER_NAME, children_of},
    machine::Processes,
    programs::workspace,
};

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
    children: Children,
    /// Of the AIDispatcher that the children are copied from.
    warm_up_uid: String,
}

pub(super) const NAMESPACE: &str = "bench";
const WARM_UP: &str = "pool-00000";
/// Nodes hold at most 110 pods.
const PODS_PER_NODE: u32 = 100;
/// The garbage collector asks every 30 s which kinds there are.
const WARM_WITHIN: Duration = Duration::from_secs(120);
/// What is not awaited, such as the last events, ends within this time after the last object.
const SETTLE: Duration = Duration::from_secs(3);

impl Plane {
    /// `pods` is how many there will be at most.
    pub(super) async fn start(programs: &Programs, arm: &str, pods: u32) -> anyhow::Result<Self> {
        let without_gpus = (pods + 1).div_ceil(PODS_PER_NODE);
        let nodes = NodePool { without_gpus, ..NodePool::default() };
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

    /// Makes the Deployment of this AIDispatcher.
    pub(super) async fn create_children(&self, owner: &AIDispatcher, how: NullWriter) -> anyhow::Result<()> {
        let (name, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
        self.children
            .create(&self.client, &[(WARM_UP, &name), (OWNER_NAME, &name), (&self.warm_up_uid, &uid)], how)
            .await
    }

    pub(super) fn dispatchers(&self) -> Api<AIDispatcher> {
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

/// The names of n pools; all are of one length.
pub(super) fn names(count: u32) -> Vec<String> {
    (1..=count).map(|number| format!("pool-{number:05}")).collect()
}

/// The pool of this name, with one worker.
pub(super) fn dispatcher(name: &str, more: &Value) -> anyhow::Result<AIDispatcher> {
    let mut spec = json!({"role": "coder", "image": "agent:1", "modelRef": "qwen"});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    let dispatcher = json!({
        "apiVersion": "southwest.ai/v1alpha1",
        "kind": "AIDispatcher",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    });
    serde_json::from_value(dispatcher).context("failed to write an AIDispatcher")
}

pub(super) fn is_ready(dispatcher: &AIDispatcher) -> bool {
    let conditions = dispatcher.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == api::conditions::READY && condition.status == "True")
}

async fn warm_up(client: &Client) -> anyhow::Result<(String, Children)> {
    let dispatchers: Api<AIDispatcher> = Api::namespaced(client.clone(), NAMESPACE);
    let created = dispatchers
        .create(&PostParams::default(), &dispatcher(WARM_UP, &json!({}))?)
        .await
        .context("failed to create the first AIDispatcher")?;
    wait_for(&dispatchers, WARM_UP, WARM_WITHIN, |dispatcher| dispatcher.is_some_and(is_ready))
        .await
        .context("the first AIDispatcher did not become Ready")?;
    let kinds = [ApiResource::erase::<Deployment>(&())];
    let children = children_of(client, NAMESPACE, WARM_UP, CONTROLLER, &kinds).await?;
    dispatchers
        .delete(WARM_UP, &DeleteParams::background())
        .await
        .context("failed to delete the first AIDispatcher")?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = format!("{WARM_UP}-workers");
    wait_for(&deployments, &deployment, WARM_WITHIN, |deployment| deployment.is_none())
        .await
        .context("the garbage collector left the first Deployment")?;
    Ok((created.uid().unwrap_or_default(), children))
}
