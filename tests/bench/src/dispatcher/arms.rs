//! The two arms: the writer without a controller, and the controller with a burst, rest, changes of replicas and jumps of
//! queues.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use api::{aidispatcher::AIDispatcher, labels};
use fake_monitors::{Load, Monitors};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    CONNECTIONS, COUNTED,
    plane::{dispatcher, is_ready, names, start},
};
use crate::{
    machine,
    plane::{
        Burst, NAMESPACE, Plane, Programs, children::NullWriter, patience, requests::Requests, settle,
        sightings::Sightings,
    },
};

/// All that was measured of the controller.
pub(super) struct Controlled {
    pub(super) burst: Burst,
    pub(super) reconciles: f64,
    pub(super) peak_mib: f64,
    pub(super) requests: Requests,
    pub(super) at_rest: Rest,
    /// From the answer to a change of replicas until the pod was seen.
    pub(super) replicas_ms: Vec<f64>,
    /// From the report of a monitor until the pod was seen.
    pub(super) queue_ms: Vec<f64>,
}

/// What the controller does when nothing happens.
pub(super) struct Rest {
    pub(super) percent: f64,
    pub(super) mib: f64,
    pub(super) requests: Requests,
}

/// From the last Ready until the controller counts as at rest: streams that are opened, and the first load in the status.
const IDLE_AFTER: Duration = Duration::from_secs(45);
const REST: Duration = Duration::from_secs(20);
/// Between two steps: what one of them causes is over.
const STEPS_APART: Duration = Duration::from_millis(300);
/// Pools whose number of workers follows the queue.
const SCALED: u32 = 25;

pub(super) async fn null(programs: &Programs, count: u32, how: NullWriter) -> anyhow::Result<Burst> {
    let (plane, first) = start(programs, "null", count).await?;
    plane.stop_controller().await?;
    let mut ready_workers = Sightings::of("ready", plane.api(), "", |deployment: &Deployment| {
        has_ready_worker(deployment).then(|| deployment.metadata.name.clone()).flatten()
    })
    .await?;
    // The other arm has it too.
    let _ready = ready(&plane).await?;
    let (dispatchers, processes) = (plane.api(), plane.processes().await?);
    let before = processes.read()?;
    let began = Instant::now();
    // As in the other arm, creates do not wait for the children of the ones before.
    let written = futures::stream::iter(names(count))
        .map(|name| create(&dispatchers, name, json!({})))
        .buffer_unordered(CONNECTIONS)
        .map_ok(|created| {
            let (first, client) = (&first, &plane.client);
            async move { first.copy_to(client, &created, how).await }
        })
        .try_buffer_unordered(CONNECTIONS)
        .try_collect::<()>();
    timeout(patience(count), written).await??;
    ready_workers.until(count as usize, patience(count)).await?;
    let took = began.elapsed();
    settle().await;
    let burst = Burst { seconds: took.as_secs_f64(), used: processes.read()?.since(&before) };
    plane.cluster.stop().await?;
    Ok(burst)
}

pub(super) async fn controlled(programs: &Programs, count: u32, steps: u32) -> anyhow::Result<Controlled> {
    let (plane, _) = start(programs, "controller", count + 2 * steps + 20 * SCALED).await?;
    let (processes, controller) = (plane.processes().await?, plane.controller().await?);
    let mut ready = ready(&plane).await?;
    let dispatchers = plane.api();
    // As in a cluster, they answer as soon as their pod runs; what they cost is not the controller's.
    let monitors = Monitors::of(plane.api());
    let requests_before = plane.cluster.audit_events()?.len();
    let reconciles_before = plane.reconciles().await?;
    let before = processes.read()?;
    let began = Instant::now();
    let created = futures::stream::iter(names(count))
        .map(|name| create(&dispatchers, name, json!({})))
        .buffer_unordered(CONNECTIONS)
        .try_collect::<Vec<_>>();
    timeout(patience(count), created).await.context("the creates took too long")??;
    ready.until(count as usize, patience(count)).await?;
    let took = began.elapsed();
    settle().await;
    let burst = Burst { seconds: took.as_secs_f64(), used: processes.read()?.since(&before) };
    let reconciles = plane.reconciles().await? - reconciles_before;
    let requests = Requests::of(COUNTED, &plane.cluster.audit_events()?[requests_before..], count as usize);
    let peak_mib = machine::peak_resident_mib(controller)?;

    sleep(IDLE_AFTER).await;
    let requests_before = plane.cluster.audit_events()?.len();
    let (rested, used_before) = (Instant::now(), machine::cpu_seconds(controller)?);
    sleep(REST).await;
    let at_rest = Rest {
        percent: 1e2 * (machine::cpu_seconds(controller)? - used_before) / rested.elapsed().as_secs_f64(),
        mib: machine::resident_mib(controller)?,
        requests: Requests::of(COUNTED, &plane.cluster.audit_events()?[requests_before..], 1),
    };

    let pods = created_pods(&plane).await?;
    let replicas_ms = change_replicas(&dispatchers, &pods, count, steps).await?;
    let queue_ms = jump(&plane, &monitors, &mut ready, &pods, count, steps).await?;
    plane.cluster.stop().await?;
    Ok(Controlled { burst, reconciles, peak_mib, requests, at_rest, replicas_ms, queue_ms })
}

/// One pool after the other gets a second worker.
async fn change_replicas(
    dispatchers: &Api<AIDispatcher>,
    pods: &Sightings,
    count: u32,
    steps: u32,
) -> anyhow::Result<Vec<f64>> {
    let mut waited = Vec::new();
    for name in names(count).iter().take(steps as usize) {
        let patch = Patch::Merge(json!({"spec": {"replicas": 2}}));
        dispatchers.patch(name, &PatchParams::default(), &patch).await?;
        let changed = Instant::now();
        sleep(STEPS_APART).await;
        waited.push(milliseconds_until(pods, name, 2, changed).await?);
    }
    Ok(waited)
}

/// The queue of one pool after the other jumps, so that it needs one worker more.
async fn jump(
    plane: &Plane,
    monitors: &Monitors,
    ready: &mut Sightings,
    pods: &Sightings,
    count: u32,
    steps: u32,
) -> anyhow::Result<Vec<f64>> {
    let dispatchers = plane.api();
    let scaled: Vec<String> = (1..=SCALED).map(|number| format!("scaled-{number:03}")).collect();
    for name in &scaled {
        create(&dispatchers, name.clone(), json!({"autoscaling": {"maxReplicas": 50}})).await?;
    }
    ready.until((count + SCALED) as usize, patience(SCALED)).await?;
    sleep(IDLE_AFTER).await;
    let mut waited = Vec::new();
    for step in 0..steps {
        let (round, name) = (u64::from(step / SCALED), &scaled[(step % SCALED) as usize]);
        let wanted = round + 2;
        let of_pool = |worker: &&(String, String)| worker.1.starts_with(&format!("{name}-workers-"));
        let workers = monitors.workers();
        let first = workers.iter().find(of_pool).with_context(|| format!("{name} has no worker"))?;
        monitors.one(first, Load { queued: 5 * (wanted - 1), in_flight: 1, tokens: 0 });
        let jumped = Instant::now();
        sleep(STEPS_APART).await;
        waited.push(milliseconds_until(pods, name, wanted, jumped).await?);
    }
    Ok(waited)
}

async fn milliseconds_until(pods: &Sightings, pool: &str, pod: u64, since: Instant) -> anyhow::Result<f64> {
    let key = format!("{pool} {pod}");
    let began = Instant::now();
    loop {
        if let Some(seen) = pods.first(&key) {
            return Ok(1e3 * seen.saturating_duration_since(since).as_secs_f64());
        }
        anyhow::ensure!(began.elapsed() < patience(0), "pool {pool} has no pod {pod}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// When the n-th pod of each pool was first seen, as `POOL N`.
async fn created_pods(plane: &Plane) -> anyhow::Result<Sightings> {
    let api = plane.api::<Pod>();
    let mut known = BTreeMap::<String, BTreeSet<String>>::new();
    let listed = api.list(&kube::api::ListParams::default()).await?;
    for pod in &listed {
        if let Some((pool, uid)) = pool_and_uid(pod) {
            known.entry(pool).or_default().insert(uid);
        }
    }
    let known = Mutex::new(known);
    Sightings::of("created", api, "", move |pod: &Pod| {
        let (pool, uid) = pool_and_uid(pod)?;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pool = known.entry(pool.clone()).or_default();
        of_pool.insert(uid).then(|| format!("{pool} {}", of_pool.len()))
    })
    .await
}

fn pool_and_uid(pod: &Pod) -> Option<(String, String)> {
    let pool = pod.metadata.labels.as_ref()?.get(labels::INSTANCE)?.clone();
    Some((pool, pod.metadata.uid.clone()?))
}

async fn create(dispatchers: &Api<AIDispatcher>, name: String, more: Value) -> anyhow::Result<AIDispatcher> {
    let created = dispatchers.create(&PostParams::default(), &dispatcher(&name, &more)?).await;
    created.with_context(|| format!("failed to create AIDispatcher {NAMESPACE}/{name}"))
}

async fn ready(plane: &Plane) -> anyhow::Result<Sightings> {
    Sightings::of("Ready", plane.api(), "", |dispatcher: &AIDispatcher| {
        is_ready(dispatcher).then(|| dispatcher.metadata.name.clone()).flatten()
    })
    .await
}

/// Not the condition Available, which waits for `minReadySeconds`: the controller reports ready workers.
fn has_ready_worker(deployment: &Deployment) -> bool {
    deployment.status.as_ref().and_then(|status| status.ready_replicas).is_some_and(|ready| ready > 0)
}
