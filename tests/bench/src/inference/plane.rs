//! A fresh cluster for one arm, warmed up in the same way for both: one AIInference was created, became Ready
//! and was deleted.
//!
//! That proves that the controller works, that the garbage collector knows the kind, and shows what children look like.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use api::{aiinference::AIInference, labels};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Service},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use local_cluster::{Cluster, ClusterSpec, Controller, Detail, NodeClock, NodePool, watch::wait_for};
use serde_json::{Value, json};

use super::{CONTROLLER, NullWriter, applied::applied_by};
use crate::{
    machine::{Processes, Used},
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
    pub(super) children: Children,
}

/// What the children of one AIInference look like, as the controller applies them.
pub(super) struct Children(Vec<(ApiResource, String)>);

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
/// Stands for the uid of the owner in the templates of children.
const OWNER_UID: &str = "OWNER-UID";
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
        let nodes = NodePool { count, gpus: PODS_PER_NODE, products: vec![PRODUCT.to_owned()] };
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
        let children = warm_up(&client).await?;
        Ok(Self { cluster, client, children })
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

impl Children {
    pub(super) fn kinds(&self) -> usize {
        self.0.len()
    }

    /// Makes those of this AIInference, one after the other, as the controller does.
    pub(super) async fn create(
        &self,
        client: &Client,
        owner: &AIInference,
        how: NullWriter,
    ) -> anyhow::Result<()> {
        let (name, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
        for (resource, template) in &self.0 {
            let child = template.replace(WARM_UP, &name).replace(OWNER_UID, &uid);
            let child: DynamicObject = serde_json::from_str(&child)?;
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, resource);
            let child_name = child.metadata.name.clone().unwrap_or_default();
            let created = match how {
                NullWriter::Post => api.create(&PostParams::default(), &child).await,
                NullWriter::Apply => {
                    api.patch(&child_name, &PatchParams::apply("null-writer"), &Patch::Apply(&child)).await
                }
            };
            created
                .with_context(|| format!("failed to create {} {NAMESPACE}/{child_name}", resource.kind))?;
        }
        Ok(())
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

async fn warm_up(client: &Client) -> anyhow::Result<Children> {
    let inferences: Api<AIInference> = Api::namespaced(client.clone(), NAMESPACE);
    inferences
        .create(&PostParams::default(), &inference(WARM_UP)?)
        .await
        .context("failed to create the first AIInference")?;
    wait_for(&inferences, WARM_UP, WARM_WITHIN, |inference| inference.is_some_and(is_ready))
        .await
        .context("the first AIInference did not become Ready")?;
    let children = children_of(client, WARM_UP).await?;
    inferences
        .delete(WARM_UP, &DeleteParams::background())
        .await
        .context("failed to delete the first AIInference")?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    wait_for(&deployments, WARM_UP, WARM_WITHIN, |deployment| deployment.is_none())
        .await
        .context("the garbage collector left the first Deployment")?;
    Ok(children)
}

/// In the order in which the controller makes them.
async fn children_of(client: &Client, inference: &str) -> anyhow::Result<Children> {
    let kinds = [
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<Service>(&()),
    ];
    let of_inference = ListParams::default().labels(&format!("{}={inference}", labels::INSTANCE));
    let mut children = Vec::new();
    for kind in kinds {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind);
        let found =
            api.list(&of_inference).await.with_context(|| format!("failed to list {}", kind.plural))?.items;
        let owned: Vec<DynamicObject> =
            found.into_iter().filter(|child| child.metadata.owner_references.is_some()).collect();
        let [child] = owned.as_slice() else {
            bail!("{inference} has {} children of kind {}, not one", owned.len(), kind.kind);
        };
        children.push((kind.clone(), template(child, &kind)?));
    }
    Ok(Children(children))
}

/// As it was applied, with names that are replaced.
fn template(child: &DynamicObject, kind: &ApiResource) -> anyhow::Result<String> {
    let value = serde_json::to_value(child)?;
    let mut applied = applied_by(&value, CONTROLLER)
        .with_context(|| format!("{CONTROLLER} has not applied {}", kind.kind))?;
    applied["apiVersion"] = json!(kind.api_version);
    applied["kind"] = json!(kind.kind);
    applied["metadata"]["name"] = value["metadata"]["name"].clone();
    let uid = applied
        .pointer_mut("/metadata/ownerReferences/0/uid")
        .with_context(|| format!("{CONTROLLER} has applied {} without an owner", kind.kind))?;
    *uid = json!(OWNER_UID);
    Ok(Value::to_string(&applied))
}
