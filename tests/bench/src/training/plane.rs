//! A fresh cluster for one arm, warmed up in the same way for both: one TrainingJob was created and has succeeded.
//!
//! That proves that the controller works, that the garbage collector knows the kind, and shows what children look like. The
//! job stays, because copies of its children name it as their owner.

use anyhow::Context as _;
use api::trainingjob::TrainingJob;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolume, PersistentVolumeClaim},
};
use kube::{
    Api, Client,
    api::{ApiResource, PostParams},
};
use local_cluster::api_server::watch::wait_for;
use serde_json::json;
use tokio::time::timeout;

use super::{
    CONNECTIONS, CONTROLLER,
    jobs::{Claims, SHARED_CLAIM, Setting, WARM_UP, claim_of, has_succeeded, names, patience, training_job},
    pods::PodEnds,
};
use crate::plane::{
    NAMESPACE, Plane, Programs, WARM_WITHIN,
    children::{Children, children_of},
    nodes_with_gpus,
    sightings::Sightings,
};

pub(super) struct Trained {
    pub(super) plane: Plane,
    pub(super) children: Children,
    pub(super) ends: PodEnds,
}

/// That of the claims that the controller makes.
const VOLUME_SIZE: &str = "50Gi";

impl Trained {
    pub(super) async fn start(programs: &Programs, arm: &str, setting: &Setting) -> anyhow::Result<Self> {
        let nodes = nodes_with_gpus(setting.count);
        let plane = Plane::start(programs, CONTROLLER, arm, nodes, Some(setting.run_time)).await?;
        prepare_storage(&plane.client, setting).await?;
        let mut ends = PodEnds::played(&plane.client, setting.run_time).await?;
        plane.start_controller(programs).await?;
        let children = ends.unless_they_fail(warm_up(&plane.client, setting)).await?;
        Ok(Self { plane, children, ends })
    }
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
