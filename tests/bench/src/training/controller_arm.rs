//! The arm of the training-controller: a burst, and rest with the jobs that have ended.

use std::time::Duration;

use anyhow::Context as _;
use api::trainingjob::TrainingJob;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{Api, api::PostParams};
use local_cluster::Cluster;
use tokio::time::{Instant, sleep, timeout};

use super::{
    CONNECTIONS, COUNTED,
    jobs::{
        Burst, SeenJobs, Setting, has_succeeded, names, patience, seconds_until, sightings, training_job,
    },
    plane::Trained,
};
use crate::{
    machine,
    plane::{NAMESPACE, Programs, requests::Requests, settle},
};

/// All that was measured of the controller.
pub(super) struct Controlled {
    pub(super) burst: Burst,
    /// From the first create until the last TrainingJob was seen to have succeeded.
    pub(super) succeeded_seconds: f64,
    pub(super) reconciles: f64,
    pub(super) peak_mib: f64,
    pub(super) idle_mib: f64,
    pub(super) requests: Requests,
    pub(super) at_rest: Rest,
}

/// What the controller does when nothing happens.
pub(super) struct Rest {
    pub(super) seconds: f64,
    pub(super) core_percent: f64,
    pub(super) requests: Requests,
}

/// From the last end until the controller counts as at rest: late events and memory that the allocator gives back.
const IDLE_AFTER: Duration = Duration::from_secs(10);

pub(super) async fn run(programs: &Programs, setting: &Setting) -> anyhow::Result<Controlled> {
    let Trained { plane, children: _, mut ends } = Trained::start(programs, "controller", setting).await?;
    let (processes, controller) = (plane.processes().await?, plane.controller().await?);
    let mut seen = SeenJobs::from_now_on(&plane.client).await?;
    let mut succeeded = sightings("Succeeded", &plane.client, has_succeeded).await?;
    let requests_before = plane.cluster.audit_events()?.len();
    let reconciles_before = plane.reconciles().await?;
    let (training_jobs, names) = (plane.api(), names(setting.count));
    let created = futures::stream::iter(&names)
        .map(|name| create(&training_jobs, name, setting))
        .buffer_unordered(CONNECTIONS)
        .try_collect::<()>();
    let burst = async {
        timeout(patience(setting), created).await.context("the creates took too long")??;
        succeeded.until(names.len(), patience(setting)).await?;
        seen.until_complete(setting).await
    };
    let before = processes.read()?;
    let began = Instant::now();
    ends.unless_they_fail(burst).await?;
    let ended = processes.read()?;
    settle().await;
    let (created_seconds, completed_seconds) = seen.seconds_since(began)?;
    let used = processes.read()?.since(&before);
    let burst = Burst { created_seconds, completed_seconds, busy: ended.since(&before), used };
    let reconciles = plane.reconciles().await? - reconciles_before;
    let events = plane.cluster.audit_events()?;
    let requests = Requests::of(COUNTED, &events[requests_before..], names.len());
    let peak_mib = machine::peak_resident_mib(controller)?;
    sleep(IDLE_AFTER).await;
    let at_rest = rest(&plane.cluster, controller, setting.rest).await?;
    let idle_mib = machine::resident_mib(controller)?;
    let succeeded_seconds = seconds_until(&succeeded, began)?;
    plane.cluster.stop().await?;
    Ok(Controlled { burst, succeeded_seconds, reconciles, peak_mib, idle_mib, requests, at_rest })
}

pub(super) async fn create(jobs: &Api<TrainingJob>, name: &str, setting: &Setting) -> anyhow::Result<()> {
    let created = jobs.create(&PostParams::default(), &training_job(name, setting)?).await;
    created.with_context(|| format!("failed to create TrainingJob {NAMESPACE}/{name}"))?;
    Ok(())
}

async fn rest(cluster: &Cluster, controller: u32, time: Duration) -> anyhow::Result<Rest> {
    let requests_before = cluster.audit_events()?.len();
    let (began, used_before) = (Instant::now(), machine::cpu_seconds(controller)?);
    sleep(time).await;
    let (seconds, used) = (began.elapsed().as_secs_f64(), machine::cpu_seconds(controller)? - used_before);
    let requests = Requests::of(COUNTED, &cluster.audit_events()?[requests_before..], 1);
    Ok(Rest { seconds, core_percent: 1e2 * used / seconds, requests })
}
