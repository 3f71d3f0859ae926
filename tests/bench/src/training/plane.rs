//! A fresh cluster for one arm, warmed up in the same way for both: one TrainingJob was created and has succeeded.
//!
//! That proves that the controller works, that the garbage collector knows the kind, and shows what children look like. The
//! job stays, because copies of its children name it as their owner.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use api::trainingjob::TrainingJob;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim},
};
use kube::{
    Api, Client,
    api::{ApiResource, PostParams},
};
use local_cluster::{Cluster, ClusterSpec, Controller, Detail, NodeClock, NodePool, watch::wait_for};
use serde_json::json;
use tokio::time::timeout;

use super::{
    CONNECTIONS, CONTROLLER,
    jobs::{
        Claims, NAMESPACE, SHARED_CLAIM, Setting, WARM_UP, claim_of, has_succeeded, names, patience,
        training_job,
    },
    pods::PodEnds,
};
use crate::{
    children::{Children, children_of},
    machine::Processes,
    programs::workspace,
    sightings::Sightings,
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
    pub(super) ends: PodEnds,
}

/// That of the claims that the controller makes.
const VOLUME_SIZE: &str = "50Gi";
/// Nodes hold at most 110 pods.
const PODS_PER_NODE: u32 = 100;
/// Kubernetes moves no pod while a cluster of fewer looks dead.
const FEWEST_NODES: u32 = 3;
/// The first job waits for caches that are being filled.
const WARM_WITHIN: Duration = Duration::from_secs(120);
/// What is not awaited, such as the last events, ends within this time after the last job.
const SETTLE: Duration = Duration::from_secs(3);

impl Plane {
    /// The control plane spends as little as possible besides its work, because what it spends hides what the controller makes
    /// it do.
    pub(super) async fn start(programs: &Programs, arm: &str, setting: &Setting) -> anyhow::Result<Self> {
        // One more for the warm-up.
        let count = (setting.count + 1).div_ceil(PODS_PER_NODE).max(FEWEST_NODES);
        let nodes =
            NodePool { count, gpus: PODS_PER_NODE, products: vec!["A100".to_owned()], without_gpus: 0 };
        let name = format!("bench-{}-{arm}", std::process::id());
        let spec = ClusterSpec::simulated(name, &programs.kubernetes, nodes)
            .with_clock(NodeClock::REAL)
            .with_detail(Detail::Lean)
            .with_training_time(setting.run_time);
        let cluster = Cluster::start(spec, &programs.supervisor).await?;
        let client = cluster.client().await?;
        cluster.install_shared(&workspace().join("deploy")).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await
            .with_context(|| format!("failed to create namespace {NAMESPACE}"))?;
        prepare_storage(&client, setting).await?;
        let mut ends = PodEnds::played(&client, setting.run_time).await?;
        let controller = Controller {
            name: CONTROLLER.to_owned(),
            program: programs.controller.clone(),
            base: workspace().join("deploy").join(CONTROLLER).join("base"),
            args: Vec::new(),
            env: Default::default(),
        };
        cluster.start_controller(&controller).await?;
        let children = ends.unless_they_fail(warm_up(&client, setting)).await?;
        Ok(Self { cluster, client, children, ends })
    }

    pub(super) fn training_jobs(&self) -> Api<TrainingJob> {
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

/// Waits for what the plane still writes after the last job, such as events, so that its CPU time is complete.
pub(super) async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

async fn warm_up(client: &Client, setting: &Setting) -> anyhow::Result<Children> {
    let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), NAMESPACE);
    jobs.create(&PostParams::default(), &training_job(WARM_UP, setting)?)
        .await
        .context("failed to create the first TrainingJob")?;
    wait_for(&jobs, WARM_UP, WARM_WITHIN, |job| job.is_some_and(has_succeeded))
        .await
        .context("the first TrainingJob did not succeed")?;
    let job = ApiResource::erase::<Job>(&());
    let kinds = match setting.claims {
        Claims::Own => vec![ApiResource::erase::<PersistentVolumeClaim>(&()), job],
        Claims::Shared => vec![job],
    };
    children_of(client, NAMESPACE, WARM_UP, CONTROLLER, &kinds).await
}

/// Volumes that wait for their claims, because no provisioner runs; or one claim, bound.
async fn prepare_storage(client: &Client, setting: &Setting) -> anyhow::Result<()> {
    let claims: Vec<String> = match setting.claims {
        Claims::Own => {
            let jobs = [vec![WARM_UP.to_owned()], names(setting.count)].concat();
            jobs.iter().map(|job| claim_of(job)).collect()
        }
        Claims::Shared => vec![SHARED_CLAIM.to_owned()],
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let mut ready = Sightings::of("Available or Bound", volumes.clone(), "", |volume: &PersistentVolume| {
        let phase = volume.status.as_ref()?.phase.as_deref()?;
        matches!(phase, "Available" | "Bound").then(|| volume.metadata.name.clone()).flatten()
    })
    .await?;
    let created = futures::stream::iter(&claims)
        .map(|claim| create_volume(&volumes, claim))
        .buffer_unordered(CONNECTIONS)
        .try_collect::<()>();
    timeout(patience(setting), created).await.context("the creates of volumes took too long")??;
    ready.until(claims.len(), patience(setting)).await?;
    match setting.claims {
        Claims::Own => Ok(()),
        Claims::Shared => bind_shared_claim(client).await,
    }
}

async fn create_volume(volumes: &Api<PersistentVolume>, claim: &str) -> anyhow::Result<()> {
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": claim},
        "spec": {
            "capacity": {"storage": VOLUME_SIZE},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "claimRef": {"namespace": NAMESPACE, "name": claim},
            // Simulated pods mount nothing.
            "hostPath": {"path": "/nonexistent"},
        },
    });
    let created = volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await;
    created.with_context(|| format!("failed to create PersistentVolume {claim}"))?;
    Ok(())
}

async fn bind_shared_claim(client: &Client) -> anyhow::Result<()> {
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": SHARED_CLAIM, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": VOLUME_SIZE}}},
    });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    claims
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await
        .with_context(|| format!("failed to create PersistentVolumeClaim {NAMESPACE}/{SHARED_CLAIM}"))?;
    let is_bound = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        })
    };
    wait_for(&claims, SHARED_CLAIM, WARM_WITHIN, is_bound)
        .await
        .with_context(|| format!("PersistentVolumeClaim {NAMESPACE}/{SHARED_CLAIM} was not bound"))?;
    Ok(())
}
