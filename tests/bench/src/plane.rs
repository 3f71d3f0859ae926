//! A fresh cluster for one arm of a bench, the same for all arms, and a first object that warms it up.

use std::{fmt::Debug, path::PathBuf, time::Duration};

use anyhow::Context as _;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::Deployment, core::v1::Namespace},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DeleteParams, PostParams},
};
use local_cluster::{
    Cluster, ClusterSpec, Controller, Detail, NodeClock, NodePool, api_server::watch::wait_for,
    controller::admin,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    machine::{Processes, Used},
    programs::{target_folder, workspace},
};
use children::{Children, NullWriter, OWNER_NAME, children_of};

mod applied;
pub(crate) mod children;
pub(crate) mod requests;
pub(crate) mod sightings;

pub(crate) const NAMESPACE: &str = "bench";
/// Of the nodes with GPUs.
pub(crate) const PRODUCT: &str = "A100";
/// The garbage collector asks every 30 s which kinds there are.
pub(crate) const WARM_WITHIN: Duration = Duration::from_secs(120);
/// Nodes hold at most 110 pods.
const PODS_PER_NODE: u32 = 100;
/// Kubernetes moves no pod while a cluster of fewer looks dead.
const FEWEST_NODES: u32 = 3;
/// What is not awaited, such as the last events, ends within this time after the last object.
const SETTLE: Duration = Duration::from_secs(3);

/// What is run.
#[derive(Clone)]
pub(crate) struct Programs {
    /// The folder with all of it.
    pub(crate) kubernetes: PathBuf,
    pub(crate) controller: PathBuf,
    pub(crate) supervisor: PathBuf,
}

impl Programs {
    /// `profile`: the folder of builds with the supervisor.
    pub(crate) fn with(controller: PathBuf, profile: &str) -> anyhow::Result<Self> {
        let supervisor = target_folder()?.join(profile).join("local-cluster");
        Ok(Self { kubernetes: local_cluster::tools::ensure()?, controller, supervisor })
    }
}

pub(crate) struct Plane {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    /// The name of the controller, of its program and of its folder in `deploy`.
    controller: &'static str,
}

/// What a burst took.
pub(crate) struct Burst {
    /// From the first create until the last object was seen to be as it should.
    pub(crate) seconds: f64,
    /// Until what follows the last object had ended as well.
    pub(crate) used: Used,
}

/// A first object that was created, became Ready and was deleted, and its children. That proves that the controller works and
/// that the garbage collector knows the kind.
pub(crate) struct First {
    pub(crate) children: Children,
    name: String,
    uid: String,
}

impl Plane {
    /// The control plane spends as little as possible besides its work, because what it spends hides what the controller makes
    /// it do. `run_time`: of trainers. No controller runs.
    pub(crate) async fn start(
        programs: &Programs,
        controller: &'static str,
        arm: &str,
        nodes: NodePool,
        run_time: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let name = format!("bench-{}-{arm}", std::process::id());
        let spec = ClusterSpec::simulated(name, &programs.kubernetes, nodes)
            .with_clock(NodeClock::REAL)
            .with_detail(Detail::Lean);
        let spec = match run_time {
            Some(run_time) => spec.with_training_time(run_time),
            None => spec,
        };
        let cluster = Cluster::start(spec, &programs.supervisor).await?;
        let client = cluster.client().await?;
        cluster.install_shared(&workspace().join("deploy")).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await
            .with_context(|| format!("failed to create namespace {NAMESPACE}"))?;
        Ok(Self { cluster, client, controller })
    }

    pub(crate) async fn start_controller(&self, programs: &Programs) -> anyhow::Result<()> {
        let controller = Controller {
            name: self.controller.to_owned(),
            program: programs.controller.clone(),
            base: workspace().join("deploy").join(self.controller).join("base"),
            args: Vec::new(),
            env: Default::default(),
        };
        self.cluster.start_controller(&controller).await?;
        Ok(())
    }

    pub(crate) async fn stop_controller(&self) -> anyhow::Result<()> {
        Ok(self.cluster.stop_component(self.controller).await?)
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Who is measured. A controller that was stopped is not.
    pub(crate) async fn processes(&self) -> anyhow::Result<Processes> {
        let components = self.cluster.status().await?.components;
        let (controllers, plane): (Vec<_>, Vec<_>) =
            components.into_iter().partition(|component| component.name == self.controller);
        Ok(Processes {
            plane: plane.into_iter().filter_map(|component| Some((component.name, component.pid?))).collect(),
            controller: controllers.iter().find_map(|component| component.pid),
        })
    }

    /// The process of the controller.
    pub(crate) async fn controller(&self) -> anyhow::Result<u32> {
        let running = self.processes().await?.controller;
        running.with_context(|| format!("{} does not run", self.controller))
    }

    /// How often the controller has reconciled so far.
    pub(crate) async fn reconciles(&self) -> anyhow::Result<f64> {
        let page = self.cluster.metrics(self.controller).await.context("failed to count the reconciles")?;
        Ok(admin::sum(&page, "controller_runtime_reconcile_total{"))
    }

    /// `first`: an object whose children are of these kinds, one of each. `deployment`: the name of the Deployment among them.
    pub(crate) async fn warm_up<K>(
        &self,
        first: &K,
        is_ready: fn(&K) -> bool,
        kinds: &[ApiResource],
        deployment: &str,
    ) -> anyhow::Result<First>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize
            + Send
            + Sync
            + 'static,
    {
        let (objects, name, kind) = (self.api::<K>(), first.name_any(), K::kind(&()));
        let created = objects
            .create(&PostParams::default(), first)
            .await
            .with_context(|| format!("failed to create the first {kind}"))?;
        wait_for(&objects, &name, WARM_WITHIN, |object| object.is_some_and(is_ready))
            .await
            .with_context(|| format!("the first {kind} did not become Ready"))?;
        let children = children_of(&self.client, NAMESPACE, &name, self.controller, kinds).await?;
        objects
            .delete(&name, &DeleteParams::background())
            .await
            .with_context(|| format!("failed to delete the first {kind}"))?;
        wait_for(&self.api::<Deployment>(), deployment, WARM_WITHIN, |deployment| deployment.is_none())
            .await
            .context("the garbage collector left the first Deployment")?;
        Ok(First { children, name, uid: created.uid().unwrap_or_default() })
    }
}

impl First {
    /// Makes the children of another object, one after the other, as the controller does.
    pub(crate) async fn copy_to<K>(&self, client: &Client, owner: &K, how: NullWriter) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = ()>,
    {
        let (name, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
        let replaced = [(&*self.name, &*name), (OWNER_NAME, &name), (&self.uid, &uid)];
        self.children.create(client, &replaced, how).await
    }
}

/// Nodes with a GPU for each of so many pods, and for one more, of the warm-up.
pub(crate) fn nodes_with_gpus(pods: u32) -> NodePool {
    let count = (pods + 1).div_ceil(PODS_PER_NODE).max(FEWEST_NODES);
    NodePool { count, gpus: PODS_PER_NODE, products: vec![PRODUCT.to_owned()], without_gpus: 0 }
}

/// Nodes without GPUs for so many pods, and for one more, of the warm-up.
pub(crate) fn nodes_without_gpus(pods: u32) -> NodePool {
    NodePool { without_gpus: (pods + 1).div_ceil(PODS_PER_NODE), ..NodePool::default() }
}

/// Waits for what the plane still writes after the last object, such as events, so that its CPU time is complete.
pub(crate) async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

/// Half a second for each object, which is ten times what it takes, and a minute for a machine that stalls.
pub(crate) fn patience(count: u32) -> Duration {
    Duration::from_secs(60) + Duration::from_millis(500) * count
}

/// The names of the n objects after the first `skipped`; all are of one length.
pub(crate) fn names(prefix: &str, skipped: u32, count: u32) -> Vec<String> {
    (skipped + 1..=skipped + count).map(|number| format!("{prefix}-{number:05}")).collect()
}

pub(crate) fn is_ready(conditions: &[Condition]) -> bool {
    conditions.iter().any(|known| known.type_ == api::conditions::READY && known.status == "True")
}
