//! The arm of the inference-controller: a burst, objects at a pace, and rest.

use std::time::Duration;

use anyhow::Context as _;
use api::{aiinference::AIInference, labels};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Resource as _, api::PostParams};
use tokio::time::{Instant, timeout};

use super::{
    CONNECTIONS, CONTROLLER, COUNTED,
    plane::{inference, is_ready, names, start},
};
use crate::{
    figures::percentile,
    machine,
    plane::{Burst, NAMESPACE, Plane, Programs, patience, requests::Requests, settle, sightings::Sightings},
};

/// All that was measured of the controller.
pub(super) struct Controlled {
    pub(super) burst: Burst,
    pub(super) reconciles: f64,
    pub(super) peak_mib: f64,
    pub(super) idle_mib: f64,
    pub(super) requests: Requests,
    pub(super) burst_child_ms: Percentiles,
    pub(super) paced_child_ms: Percentiles,
    pub(super) paced_create_ms: Percentiles,
    pub(super) at_rest: Requests,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// The figures of a burst alone.
pub(super) struct Grown {
    pub(super) burst: Burst,
    pub(super) reconciles: f64,
    pub(super) peak_mib: f64,
}

/// At a pace of two a second this is half a minute.
const PACED: u32 = 60;
/// From the last Ready until the memory at rest is measured: late status updates have arrived by then.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// From the last Ready until requests at rest are counted: a pod that is alone is marked for autoscalers of nodes half a minute
/// after it was Ready.
const MARKED_WITHIN: Duration = Duration::from_secs(45);
/// How long requests at rest are counted.
const REST: Duration = Duration::from_secs(20);

pub(super) async fn run(programs: &Programs, count: u32, pace: u32) -> anyhow::Result<Controlled> {
    let (plane, _) = start(programs, "controller", count + PACED).await?;
    let controller = plane.controller().await?;
    let mut seen = Seen::from_now_on(&plane).await?;
    let requests_before = plane.cluster.audit_events()?.len();

    let Bursted { burst, created, reconciles } = create_at_once(&plane, &mut seen, count).await?;
    let burst_child_ms = seen.first_child_after(&created)?;
    let requests = Requests::of(COUNTED, &plane.cluster.audit_events()?[requests_before..], count as usize);
    let peak_mib = machine::peak_resident_mib(controller)?;
    tokio::time::sleep(IDLE_AFTER).await;
    let idle_mib = machine::resident_mib(controller)?;

    let paced = create_at_a_pace(&plane, count, pace).await?;
    seen.ready.until((count + PACED) as usize, patience(PACED)).await?;
    let paced_child_ms = seen.first_child_after(&paced)?;
    let paced_create_ms = percentiles(paced.iter().map(Created::milliseconds).collect())?;
    tokio::time::sleep(MARKED_WITHIN).await;

    let requests_before = plane.cluster.audit_events()?.len();
    tokio::time::sleep(REST).await;
    let at_rest = Requests::of(COUNTED, &plane.cluster.audit_events()?[requests_before..], 1);
    plane.cluster.stop().await?;
    Ok(Controlled {
        burst,
        reconciles,
        peak_mib,
        idle_mib,
        requests,
        burst_child_ms,
        paced_child_ms,
        paced_create_ms,
        at_rest,
    })
}

pub(super) async fn burst(programs: &Programs, count: u32) -> anyhow::Result<Grown> {
    let (plane, _) = start(programs, "controller", count).await?;
    let controller = plane.controller().await?;
    let mut seen = Seen::from_now_on(&plane).await?;
    let Bursted { burst, created: _, reconciles } = create_at_once(&plane, &mut seen, count).await?;
    let peak_mib = machine::peak_resident_mib(controller)?;
    plane.cluster.stop().await?;
    Ok(Grown { burst, reconciles, peak_mib })
}

struct Bursted {
    burst: Burst,
    created: Vec<Created>,
    reconciles: f64,
}

async fn create_at_once(plane: &Plane, seen: &mut Seen, count: u32) -> anyhow::Result<Bursted> {
    let processes = plane.processes().await?;
    let inferences = plane.api();
    let reconciles_before = plane.reconciles().await?;
    let before = processes.read()?;
    let began = Instant::now();
    let created = futures::stream::iter(names(0, count))
        .map(|name| create(&inferences, name))
        .buffer_unordered(CONNECTIONS)
        .try_collect::<Vec<Created>>();
    let created = timeout(patience(count), created).await.context("the creates took too long")??;
    seen.ready.until(count as usize, patience(count)).await?;
    let took = began.elapsed();
    settle().await;
    let burst = Burst { seconds: took.as_secs_f64(), used: processes.read()?.since(&before) };
    let reconciles = plane.reconciles().await? - reconciles_before;
    Ok(Bursted { burst, created, reconciles })
}

/// By the clock, whatever the objects before took.
async fn create_at_a_pace(plane: &Plane, skipped: u32, pace: u32) -> anyhow::Result<Vec<Created>> {
    let inferences = plane.api();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / pace);
    let mut created = Vec::new();
    for name in names(skipped, PACED) {
        ticks.tick().await;
        created
            .push(timeout(patience(0), create(&inferences, name)).await.context("a create took too long")??);
    }
    Ok(created)
}

pub(super) struct Created {
    name: String,
    pub(super) inference: AIInference,
    sent: Instant,
    acknowledged: Instant,
}

impl Created {
    fn milliseconds(&self) -> f64 {
        1e3 * (self.acknowledged - self.sent).as_secs_f64()
    }
}

pub(super) async fn create(inferences: &Api<AIInference>, name: String) -> anyhow::Result<Created> {
    let inference = inference(&name)?;
    let sent = Instant::now();
    let inference = inferences
        .create(&PostParams::default(), &inference)
        .await
        .with_context(|| format!("failed to create AIInference {NAMESPACE}/{name}"))?;
    Ok(Created { name, inference, sent, acknowledged: Instant::now() })
}

/// What the meter's own watches have seen.
pub(super) struct Seen {
    ready: Sightings,
    /// The ConfigMap is the first child that the controller makes.
    child: Sightings,
}

impl Seen {
    pub(super) async fn from_now_on(plane: &Plane) -> anyhow::Result<Self> {
        let of_ours = format!("{}={CONTROLLER}", labels::MANAGED_BY);
        Ok(Self {
            ready: Sightings::of("Ready", plane.api(), "", |inference: &AIInference| {
                is_ready(inference).then(|| inference.metadata.name.clone()).flatten()
            })
            .await?,
            child: Sightings::of("seen to have a child", plane.api(), &of_ours, |child: &ConfigMap| {
                child.meta().labels.as_ref()?.get(labels::INSTANCE).cloned()
            })
            .await?,
        })
    }

    /// A child may be seen before the answer to the create has come back: that counts as no time at all.
    fn first_child_after(&self, created: &[Created]) -> anyhow::Result<Percentiles> {
        let waited = created.iter().map(|created| {
            let seen =
                self.child.first(&created.name).with_context(|| format!("{} has no child", created.name))?;
            Ok(1e3 * seen.saturating_duration_since(created.acknowledged).as_secs_f64())
        });
        percentiles(waited.collect::<anyhow::Result<_>>()?)
    }
}

fn percentiles(milliseconds: Vec<f64>) -> anyhow::Result<Percentiles> {
    let of = |share| percentile(milliseconds.clone(), share).context("nothing was measured");
    Ok(Percentiles { p50: of(0.5)?, p99: of(0.99)? })
}
