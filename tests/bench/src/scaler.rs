//! `cargo xtask bench scaler`: N AIScalers at rest and after steps of their load, beside as many HorizontalPodAutoscalers
//! that read the same series from the same process on the same kind of control plane.
//!
//! The targets are AIInferences without their controller and without pods, so that only the autoscalers work. A step is
//! stamped where the series is set, a sample where the server first answers with the new value, and both reactions where
//! this meter's watch sees the new replicas.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use api::{aiinference::AIInference, aiscaler::AIScaler, conditions};
use fake_prometheus::{Answer, Prometheus};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{autoscaling::v2::HorizontalPodAutoscaler, core::v1::Namespace};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use local_cluster::{Cluster, ClusterSpec, Controller, Detail, NodeClock, NodePool, api_server::install};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

use crate::{
    figures::{Figure, percentile, table},
    machine,
    programs::{build, target_folder, workspace},
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Autoscalers, each with a target of its own
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    count: u32,
    /// Seconds at rest
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(20..=3_600))]
    rest: u64,
    /// Seconds between two readings of a source, and the period of the HorizontalPodAutoscalers beside it
    #[arg(long, value_delimiter = ',', default_value = "15,1")]
    periods: Vec<u64>,
    /// Without the HorizontalPodAutoscalers
    #[arg(long)]
    alone: bool,
    /// Program of the controller; `cargo xtask bench` builds the one that images hold
    #[arg(long, env = "BENCH_PROGRAM")]
    controller: PathBuf,
}

const NAMESPACE: &str = "bench";
const CONTROLLER: &str = "scaler-controller";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const CONNECTIONS: usize = 16;
/// Of each replica.
const TARGET: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(300);
const SETTLE: Duration = Duration::from_secs(20);

/// Milliseconds from a sample to new replicas, p99, of steps of at most so many targets.
const GOALS: [(usize, f64); 2] = [(1, 300.0), (100, 1_500.0)];

/// Who scales.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arm {
    AIScaler,
    Hpa,
}

/// What one arm did.
struct Measured {
    core_percent: f64,
    resident_mib: f64,
    requests_per_second: f64,
    /// Longest time between two readings of one source, as a share of the period.
    longest_gap: f64,
    steps: Vec<Step>,
}

struct Step {
    count: usize,
    /// From the change of the load.
    reactions: Reactions,
    /// From the first sample of the new load: what the autoscaler itself takes.
    of_samples: Reactions,
}

struct Reactions {
    p50_ms: f64,
    p99_ms: f64,
}

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    build(&["--package", "local-cluster"])?;
    local_cluster::install_crypto_provider();
    let kubernetes = local_cluster::tools::ensure()?;
    let supervisor = target_folder()?.join("debug/local-cluster");
    for &period in &args.periods {
        println!("period {period} s: {}", machine::condition()?);
        let measured = |arm| measured(args, &kubernetes, &supervisor, arm, period);
        let own = tokio.block_on(measured(Arm::AIScaler))?;
        let hpa = if args.alone { None } else { Some(tokio.block_on(measured(Arm::Hpa))?) };
        let title = format!("{} AIScalers (NULL: HorizontalPodAutoscalers), {period} s", args.count);
        println!("\n{}", table(&title, &figures(&own, hpa.as_ref())));
        println!("end: {}\n", machine::condition()?);
    }
    Ok(())
}

fn figures(own: &Measured, hpa: Option<&Measured>) -> Vec<Figure> {
    let beside = |figure: Figure, of: &dyn Fn(&Measured) -> f64| match hpa {
        Some(hpa) => figure.beside(of(hpa)),
        None => figure,
    };
    let mut figures = vec![
        beside(Figure::new("at rest: % of a core", own.core_percent).at_most(10.0), &|arm| arm.core_percent),
        beside(Figure::new("at rest: resident MiB", own.resident_mib).at_most(60.0), &|arm| arm.resident_mib),
        beside(
            Figure::new("at rest: requests to the API server per s", own.requests_per_second).at_most(0.1),
            &|arm| arm.requests_per_second,
        ),
        beside(Figure::new("longest gap between looks, in periods", own.longest_gap).at_most(1.2), &|arm| {
            arm.longest_gap
        }),
    ];
    for (index, Step { count, reactions, of_samples }) in own.steps.iter().enumerate() {
        let of_hpa = hpa.and_then(|hpa| hpa.steps.get(index));
        let goal = GOALS.iter().find(|(most, _)| count <= most).map(|(_, goal)| *goal);
        for (words, value, of_hpa, goal) in [
            ("load -> replicas, p50", reactions.p50_ms, of_hpa.map(|step| step.reactions.p50_ms), None),
            ("load -> replicas, p99", reactions.p99_ms, of_hpa.map(|step| step.reactions.p99_ms), None),
            ("sample -> replicas, p50", of_samples.p50_ms, of_hpa.map(|step| step.of_samples.p50_ms), None),
            ("sample -> replicas, p99", of_samples.p99_ms, of_hpa.map(|step| step.of_samples.p99_ms), goal),
        ] {
            let figure = Figure::new(format!("step of {count}: {words}, ms"), value);
            let figure = goal.into_iter().fold(figure, Figure::at_most);
            figures.push(of_hpa.into_iter().fold(figure, Figure::beside));
        }
    }
    figures
}

async fn measured(
    args: &Args,
    kubernetes: &Path,
    supervisor: &Path,
    arm: Arm,
    period: u64,
) -> anyhow::Result<Measured> {
    let prometheus = Prometheus::start(TARGET)?;
    let name = format!("bench-scaler-{}", std::process::id());
    let spec = ClusterSpec::simulated(name, kubernetes, NodePool::default())
        .with_clock(NodeClock::REAL)
        .with_detail(Detail::Lean)
        .with_hpa_period(Duration::from_secs(period));
    let cluster = Cluster::start(spec, supervisor).await?;
    let client = cluster.client().await?;
    cluster.install_shared(&workspace().join("deploy")).await?;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &namespace).await.context("failed to create the namespace")?;
    let names: Vec<String> = (0..args.count).map(|number| format!("model-{number:05}")).collect();
    for name in &names {
        prometheus.set(&load(name), Answer::Value(TARGET));
    }
    create_all(&names, |name| target(client.clone(), name)).await?;
    if arm == Arm::Hpa {
        install::apply(&client, "kube-system", &prometheus.external_metrics()).await?;
    }
    // HorizontalPodAutoscalers cost what the controller manager spends beyond what it spends without them.
    let before = rest(&cluster, arm, Duration::from_secs(10)).await?;
    match arm {
        Arm::AIScaler => {
            let controller = Controller {
                name: CONTROLLER.to_owned(),
                program: args.controller.clone(),
                base: workspace().join("deploy").join(CONTROLLER).join("base"),
                args: vec![
                    format!("--prometheus-url={}", prometheus.url()),
                    format!("--sample-period={period}"),
                ],
                env: BTreeMap::new(),
            };
            cluster.start_controller(&controller).await?;
            create_all(&names, |name| create::<AIScaler>(client.clone(), scaler(name))).await?;
            until_all::<AIScaler>(&client, names.len(), |scaler| {
                let known = scaler.status.iter().flat_map(|status| &status.conditions);
                known.into_iter().any(|known| known.type_ == conditions::READY && known.status == "True")
            })
            .await?;
        }
        Arm::Hpa => {
            create_all(&names, |name| create::<HorizontalPodAutoscaler>(client.clone(), hpa(name))).await?;
            until_all::<HorizontalPodAutoscaler>(&client, names.len(), |hpa| {
                let known = hpa.status.iter().flat_map(|status| status.conditions.iter().flatten());
                known.into_iter().any(|known| known.type_ == "ScalingActive" && known.status == "True")
            })
            .await?;
        }
    }
    sleep(SETTLE).await;
    prometheus.forget_gaps();
    let at_rest = rest(&cluster, arm, Duration::from_secs(args.rest)).await?;
    let longest_gap = prometheus.longest_gap().as_secs_f64() / period as f64;
    let mut steps = Vec::new();
    // Upwards alone: without pods nothing is ever ready, and an AIScaler removes nothing while pods start.
    for (stepped, replicas) in [(0..1, 2), (1..101, 2), (0..names.len(), 3)] {
        if let Some(stepped) = names.get(stepped) {
            steps.push(step(&client, &prometheus, stepped, replicas).await?);
        }
    }
    cluster.stop().await?;
    Ok(Measured {
        core_percent: match arm {
            Arm::AIScaler => at_rest.core_percent,
            Arm::Hpa => at_rest.core_percent - before.core_percent,
        },
        resident_mib: match arm {
            Arm::AIScaler => at_rest.resident_mib,
            Arm::Hpa => at_rest.resident_mib - before.resident_mib,
        },
        requests_per_second: at_rest.requests_per_second,
        longest_gap,
        steps,
    })
}

struct Rest {
    core_percent: f64,
    resident_mib: f64,
    requests_per_second: f64,
}

async fn rest(cluster: &Cluster, arm: Arm, time: Duration) -> anyhow::Result<Rest> {
    let component = match arm {
        Arm::AIScaler => CONTROLLER,
        Arm::Hpa => CONTROLLER_MANAGER,
    };
    let status = cluster.status().await?;
    let Some(pid) =
        status.components.iter().find(|known| known.name == component).and_then(|known| known.pid)
    else {
        return Ok(Rest { core_percent: 0.0, resident_mib: 0.0, requests_per_second: 0.0 });
    };
    let user = match arm {
        Arm::AIScaler => format!("system:serviceaccount:ai-system:{CONTROLLER}"),
        Arm::Hpa => "system:serviceaccount:kube-system:horizontal-pod-autoscaler".to_owned(),
    };
    let (requests, began) = (cluster.audit_events()?.len(), machine::cpu_seconds(pid)?);
    sleep(time).await;
    let used = machine::cpu_seconds(pid)? - began;
    let events = cluster.audit_events()?;
    let sent = events[requests..]
        .iter()
        .filter(|event| event.user == user && event.verb != "watch" && event.resource != "leases")
        .count();
    Ok(Rest {
        core_percent: 1e2 * used / time.as_secs_f64(),
        resident_mib: machine::resident_mib(pid)?,
        requests_per_second: sent as f64 / time.as_secs_f64(),
    })
}

/// Sets the load of these targets, and waits until each has so many replicas.
async fn step(
    client: &Client,
    prometheus: &Prometheus,
    names: &[String],
    replicas: i32,
) -> anyhow::Result<Step> {
    let targets: Api<AIInference> = Api::namespaced(client.clone(), NAMESPACE);
    let list = targets.list(&ListParams::default().limit(1)).await.context("failed to list the targets")?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let changes = targets.watch(&WatchParams::default().timeout(290), &version).await?;
    let mut changes = std::pin::pin!(changes);
    let began = Instant::now();
    for name in names {
        prometheus.set(&load(name), Answer::Value(TARGET * f64::from(replicas)));
    }
    let mut scaled: BTreeMap<String, Instant> = BTreeMap::new();
    let watched = async {
        while scaled.len() < names.len() {
            let event = changes.try_next().await.context("the watch of the targets failed")?;
            let Some(event) = event else { bail!("the watch of the targets ended") };
            if let WatchEvent::Added(target) | WatchEvent::Modified(target) = event
                && target.spec.replicas == replicas
            {
                let name = target.metadata.name.unwrap_or_default();
                scaled.entry(name).or_insert_with(Instant::now);
            }
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, watched).await.context("not every target was scaled")??;
    let since = |start: Instant, end: &Instant| 1e3 * (*end - start).as_secs_f64();
    let reactions = scaled.values().map(|end| since(began, end)).collect();
    let of_samples: Option<Vec<f64>> =
        scaled.iter().map(|(name, end)| Some(since(prometheus.sampled(&load(name))?, end))).collect();
    let of_samples = of_samples.context("a target was scaled without a sample")?;
    Ok(Step {
        count: names.len(),
        reactions: Reactions::of(reactions)?,
        of_samples: Reactions::of(of_samples)?,
    })
}

impl Reactions {
    fn of(milliseconds: Vec<f64>) -> anyhow::Result<Self> {
        let of = |share| percentile(milliseconds.clone(), share).context("no reaction");
        Ok(Self { p50_ms: of(0.5)?, p99_ms: of(0.99)? })
    }
}

async fn create_all<F>(names: &[String], create: impl Fn(String) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    futures::stream::iter(names.iter().cloned())
        .map(create)
        .buffer_unordered(CONNECTIONS)
        .try_collect::<Vec<()>>()
        .await
        .map(drop)
}

/// An AIInference with one replica, as its controller would show it.
async fn target(client: Client, name: String) -> anyhow::Result<()> {
    let targets: Api<AIInference> = Api::namespaced(client, NAMESPACE);
    let target = json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name},
        "spec": {"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}, "replicas": 1},
    });
    targets.create(&PostParams::default(), &serde_json::from_value(target)?).await?;
    let status = json!({"status": {"replicas": 1, "selector": format!("app={name}")}});
    targets.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn create<K>(client: Client, object: Value) -> anyhow::Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(client, NAMESPACE);
    objects.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

async fn until_all<K>(client: &Client, count: usize, is_so: impl Fn(&K) -> bool) -> anyhow::Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let began = Instant::now();
    loop {
        let all = objects.list(&ListParams::default()).await?;
        let done = all.iter().filter(|object| is_so(object)).count();
        if done >= count {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "{done} of {count} {} are active", K::plural(&()));
        sleep(Duration::from_secs(1)).await;
    }
}

fn load(name: &str) -> String {
    format!("load_{}_", name.replace('-', "_"))
}

fn reference(name: &str) -> Value {
    json!({"apiVersion": "ai.infra.example.com/v1alpha1", "kind": "AIInference", "name": name})
}

fn scaler(name: String) -> Value {
    json!({
        "apiVersion": "ai.infra.example.com/v1",
        "kind": "AIScaler",
        "metadata": {"name": name},
        "spec": {
            "targetRef": reference(&name),
            "metricType": "custom",
            "targetValue": 5,
            "maxReplicas": 4,
            "source": {"prometheus": {"query": load(&name)}},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    })
}

fn hpa(name: String) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": reference(&name),
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [{"type": "External", "external": {
                "metric": {"name": load(&name)},
                "target": {"type": "AverageValue", "averageValue": format!("{TARGET}")},
            }}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    })
}
