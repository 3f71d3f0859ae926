//! Canaries at rest, and while the engines of both versions are asked: what they cost in CPU time and requests.
//!
//! The gateway is a stand-in that accepts every route. The network of this meter has the addresses of all simulated pods,
//! and one server of it answers for all their engines. Both use CPU time of the meter, none of the controller.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use api::aiinference::{AIInference, traffic::CanaryPhase};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use local_cluster::{gateway::HTTP_ROUTES, own_network};
use scripted_server::answer_scrapes;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet, time::Instant};

use super::{
    CONNECTIONS, COUNTED,
    plane::{inference, names, start_with},
};
use crate::{
    figures::{Figure, table},
    machine,
    plane::{NAMESPACE, Plane, Programs, patience, requests::Requests, sightings::Sightings},
};

/// Where engines answer.
const ENGINE_PORT: u16 = 8000;
/// What each engine has ended after a second, in requests.
const ENDED_PER_SECOND: u64 = 20;
/// From the last canary at rest until its requests are counted: a pod that is alone is marked for autoscalers of nodes half a
/// minute after it was Ready.
const MARKED_WITHIN: Duration = Duration::from_secs(45);
/// How long each of both is measured: four intervals of an analysis.
const MEASURED: Duration = Duration::from_secs(60);

pub(super) async fn run(programs: &Programs, count: u32) -> anyhow::Result<()> {
    own_network::take_addresses_of_pods()?;
    let began = machine::condition()?;
    let (plane, _) = start_with(programs, "canaries", 2 * count, Some(HTTP_ROUTES)).await?;
    let mut stand_ins = JoinSet::new();
    stand_ins.spawn(accept_routes(plane.client.clone()));
    let scrapes = Arc::<AtomicU64>::default();
    stand_ins.spawn(answer_as_engines(Arc::clone(&scrapes)));

    let mut rest = of_phase(&plane, "at rest", CanaryPhase::AwaitingApproval).await?;
    create(&plane, count).await?;
    failed_or(&mut stand_ins, rest.until(count as usize, patience(4 * count))).await?;
    tokio::time::sleep(MARKED_WITHIN).await;
    let at_rest = measured(&plane).await?;

    let mut asked = of_phase(&plane, "analysed", CanaryPhase::Analysing).await?;
    analyse(&plane, count).await?;
    failed_or(&mut stand_ins, asked.until(count as usize, patience(count))).await?;
    let before = scrapes.load(Ordering::Relaxed);
    let analysing = failed_or(&mut stand_ins, measured(&plane)).await?;
    let scrapes = scrapes.load(Ordering::Relaxed).saturating_sub(before);
    ensure!(scrapes > 0, "no engine was read while {count} canaries were analysed, so nothing was measured");
    let resident = machine::peak_resident_mib(plane.controller().await?)?;
    plane.cluster.stop().await?;

    println!(
        "requests at rest\n{}\nrequests while {count} are analysed\n{}",
        at_rest.requests, analysing.requests
    );
    let seconds = MEASURED.as_secs();
    let per_minute = |requests: &Requests| 60.0 * requests.total() as f64 / seconds as f64;
    let figures = [
        Figure::new("CPU of the controller at rest, % of a core", at_rest.percent).at_most(0.5),
        Figure::new("requests in a minute at rest, without Lease and watches", per_minute(&at_rest.requests))
            .at_most(0.0),
        Figure::new("CPU of the controller while analysed, % of a core", analysing.percent).at_most(5.0),
        Figure::new(
            "requests in a minute while analysed, of each",
            per_minute(&analysing.requests) / f64::from(count),
        ),
        Figure::new(
            "scrapes of engines in a minute, of each",
            60.0 * scrapes as f64 / seconds as f64 / f64::from(count),
        ),
        Figure::new("resident memory of the controller at its peak, MiB", resident),
        Figure::new("cores used by other processes at rest", at_rest.stranger_cores),
        Figure::new("cores used by other processes while analysed", analysing.stranger_cores),
    ];
    println!(
        "begin: {began}\nend:   {}\n\n{}",
        machine::condition()?,
        table(&format!("{count} canaries"), &figures)
    );
    Ok(())
}

/// What is awaited, unless one of the stand-ins ends before.
async fn failed_or<T>(
    stand_ins: &mut JoinSet<anyhow::Result<()>>,
    awaited: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        awaited = awaited => awaited,
        Some(ended) = stand_ins.join_next() => {
            ended.context("a stand-in panicked")??;
            anyhow::bail!("a stand-in has ended")
        }
    }
}

struct Measured {
    percent: f64,
    requests: Requests,
    stranger_cores: f64,
}

async fn measured(plane: &Plane) -> anyhow::Result<Measured> {
    let processes = plane.processes().await?;
    let requests_before = plane.cluster.audit_events()?.len();
    let before = processes.read()?;
    tokio::time::sleep(MEASURED).await;
    let used = processes.read()?.since(&before);
    let requests = Requests::of(COUNTED, &plane.cluster.audit_events()?[requests_before..], 1);
    let percent = 1e2 * used.controller_seconds / used.elapsed_seconds;
    Ok(Measured { percent, requests, stranger_cores: used.stranger_cores })
}

async fn of_phase(plane: &Plane, what: &'static str, phase: CanaryPhase) -> anyhow::Result<Sightings> {
    Sightings::of(what, plane.api(), "", move |inference: &AIInference| {
        let canary = inference.status.as_ref()?.canary.as_ref()?;
        (canary.phase == Some(phase)).then(|| inference.metadata.name.clone()).flatten()
    })
    .await
}

/// Two versions each. The candidate gets a tenth of the requests, and then waits for its approval.
async fn create(plane: &Plane, count: u32) -> anyhow::Result<()> {
    let inferences: Api<AIInference> = plane.api();
    let with_canary = |name: &str| -> anyhow::Result<AIInference> {
        let mut object = serde_json::to_value(inference(name)?)?;
        object["spec"]["gateway"] = json!({"name": "public", "hostnames": [format!("{name}.example.com")]});
        object["spec"]["canary"] =
            json!({"image": "engine:2", "steps": [{"weightPercent": 10, "minSeconds": 5}]});
        serde_json::from_value(object).context("failed to write an AIInference with a canary")
    };
    stream::iter(names(0, count))
        .map(|name| {
            let inferences = &inferences;
            async move {
                let created = inferences.create(&PostParams::default(), &with_canary(&name)?).await;
                created.map(drop).with_context(|| format!("failed to create AIInference {NAMESPACE}/{name}"))
            }
        })
        .buffer_unordered(CONNECTIONS)
        .try_collect()
        .await
}

/// The only step begins again, and its engines are asked as long as the bench runs.
async fn analyse(plane: &Plane, count: u32) -> anyhow::Result<()> {
    let inferences: Api<AIInference> = plane.api();
    let canary = json!({"steps": [{"weightPercent": 11, "minSeconds": 3600}], "analysis": {}});
    let patch = Patch::Merge(json!({"spec": {"canary": canary}}));
    for name in names(0, count) {
        inferences
            .patch(&name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("failed to change AIInference {NAMESPACE}/{name}"))?;
    }
    Ok(())
}

/// A gateway that accepts each version of a route.
async fn accept_routes(client: kube::Client) -> anyhow::Result<()> {
    let kind = ApiResource {
        group: "gateway.networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "gateway.networking.k8s.io/v1".to_owned(),
        kind: "HTTPRoute".to_owned(),
        plural: "httproutes".to_owned(),
    };
    let routes: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &kind);
    let mut from = "0".to_owned();
    loop {
        let events =
            routes.watch(&WatchParams::default(), &from).await.context("failed to watch HTTPRoutes")?;
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.try_next().await.context("a watch of HTTPRoutes broke")? {
            let (WatchEvent::Added(route) | WatchEvent::Modified(route)) = event else { continue };
            from = route.metadata.resource_version.clone().unwrap_or_default();
            if let Some(status) = acceptance(&route) {
                let name = route.metadata.name.as_deref().unwrap_or_default();
                let patch = Patch::Merge(json!({"status": status}));
                routes
                    .patch_status(name, &PatchParams::default(), &patch)
                    .await
                    .context("failed to accept")?;
            }
        }
    }
}

/// `None`: this version is accepted already.
fn acceptance(route: &DynamicObject) -> Option<Value> {
    let generation = route.metadata.generation;
    let said = &route.data["status"]["parents"][0]["conditions"][0]["observedGeneration"];
    if *said == json!(generation) {
        return None;
    }
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": type_, "message": "", "observedGeneration": generation,
            "lastTransitionTime": route.metadata.creation_timestamp,
        })
    };
    let conditions = [condition("Accepted"), condition("ResolvedRefs")];
    let parents = [json!({
        "parentRef": route.data["spec"]["parentRefs"][0],
        "controllerName": "example.com/stand-in",
        "conditions": conditions,
    })];
    Some(json!({"parents": parents}))
}

/// All engines, at the addresses of all pods.
async fn answer_as_engines(scrapes: Arc<AtomicU64>) -> anyhow::Result<()> {
    let address = (Ipv4Addr::UNSPECIFIED, ENGINE_PORT);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("port {ENGINE_PORT} is needed for the metrics of engines"))?;
    let began = Instant::now();
    let error = answer_scrapes(listener, move |_| {
        scrapes.fetch_add(1, Ordering::Relaxed);
        page(began.elapsed())
    })
    .await;
    Err(error).context("failed to accept a connection for the metrics of engines")
}

fn page(elapsed: Duration) -> String {
    let ended = ENDED_PER_SECOND * elapsed.as_secs();
    let mut page = String::new();
    for (reason, count) in [("stop", ended), ("length", 0), ("abort", 0), ("error", 0), ("repetition", 0)] {
        page.push_str(&format!(
            "vllm:request_success_total{{engine=\"0\",finished_reason=\"{reason}\",model_name=\"model\"}} {count}\n"
        ));
    }
    page + "vllm:num_requests_running{engine=\"0\",model_name=\"model\"} 2\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"model\"} 0\n"
}
