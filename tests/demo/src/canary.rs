//! A bad version of a model and then a good one get a share of its requests, through Envoy on real nodes: what the route, the
//! status and the load show until the good one is stable.
//!
//! It needs real nodes, and a cluster of its own: Envoy and the load are in its network.

mod objects;
mod observation;
mod picture;
mod record;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use api::{
    aiinference::{AIInference, traffic::CanaryPhase},
    conditions,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{LogParams, Patch, PatchParams},
};
use local_cluster::{
    Cluster, ClusterSpec, NodePool, RealNodes,
    api_server::{install, watch::wait_for},
    gateway::{GATEWAY, RoutesFrom},
    real, tools,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use self::{
    objects::{LOAD, MODEL, NAMESPACE},
    observation::{Observer, Snapshot, events_between},
    record::{Event, EventKind, Load, Record, Settings, Version, line, rounded},
};
use crate::files;

const CLUSTER: &str = "demo-canary";
const CONTROLLER: &str = "inference-controller";
const SETTINGS: Settings = Settings {
    requests_per_second: 40,
    // Both versions take four minutes on two cores.
    load_seconds: 300,
    // The shortest.
    interval_seconds: 5,
    bad_percent: 30,
    limit_percent: 5,
    step_percents: [10, 50],
};
/// So long stable alone is shown.
const LEAD_SECONDS: f64 = 10.0;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// One request to the API server.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const READY_WITHIN: Duration = Duration::from_secs(120);
/// After the load, its last answers and its report.
const REPORTED_WITHIN: Duration = Duration::from_secs(60);
/// All of it, with the start of the cluster.
const WITHIN: Duration = Duration::from_secs(720);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder that `cargo xtask images --dev --with-tests` has made; `cargo xtask demo canary` makes and names it
    #[arg(long, value_name = "DIR", required_unless_present = "draw")]
    images: Option<PathBuf>,
    /// Folder for the record (canary.json) and its picture (canary.svg)
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
    /// Draws a record again, beside it, instead of starting a cluster
    #[arg(long, value_name = "RECORD", conflicts_with = "out")]
    draw: Option<PathBuf>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.draw {
        return files::draw(file, picture::svg);
    }
    let images = args.images.as_deref().context("no images are named")?;
    real::check()?;
    // The cluster ends with this future, however that ends.
    let record = tokio::select! {
        record = timeout(WITHIN, play(images)) => {
            record.unwrap_or_else(|_| bail!("the demo did not end within {} s", WITHIN.as_secs()))
        }
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("failed to wait for Ctrl-C")?;
            Err(anyhow::anyhow!("interrupted"))
        }
    }?;
    println!("\n{}", summary(&record));
    files::write(&args.out, "canary", &record, picture::svg)
}

async fn play(images: &Path) -> anyhow::Result<Record> {
    println!("starts a cluster of its own with two real nodes, which ends with the demo");
    let gateway_tools = tools::ensure_gateway()?;
    let real = RealNodes {
        count: 2,
        gpus: 4,
        product: objects::PRODUCT.to_owned(),
        tools: tools::ensure_nodes()?,
        pause: images.join("pause"),
    };
    let simulated = NodePool { count: 3, ..NodePool::default() };
    let spec = ClusterSpec::simulated(CLUSTER, tools::ensure()?, simulated).with_real_nodes(real);
    let cluster = Cluster::start(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
    let deploy = Path::new("deploy");
    cluster.install_shared(deploy).await?;
    for (layout, reference) in read_images(images)? {
        cluster.load_image(&layout, &reference)?;
    }
    let envoy = cluster.start_gateway(&gateway_tools, NAMESPACE, RoutesFrom::Same).await?;
    let envoy = envoy.context("a cluster with real nodes has no Envoy")?;
    cluster.deploy(&deploy.join(CONTROLLER).join("overlays/dev")).await?;
    let record = observe(&cluster, &envoy.to_string()).await;
    let stopped = cluster.stop().await;
    let record = record?;
    stopped?;
    Ok(record)
}

/// Folder and reference of each image.
fn read_images(folder: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    #[derive(Deserialize)]
    struct Image {
        layout: PathBuf,
        reference: String,
    }
    let list = folder.join("images.json");
    let text = fs::read(&list).with_context(|| format!("failed to read {}", list.display()))?;
    let images: Vec<Image> =
        serde_json::from_slice(&text).with_context(|| format!("{} is no list of images", list.display()))?;
    Ok(images.into_iter().map(|image| (folder.join(image.layout), image.reference)).collect())
}

/// Sets stable up, lets the load begin, and records until the good version is stable and the load has ended.
async fn observe(cluster: &Cluster, envoy: &str) -> anyhow::Result<Record> {
    let client = cluster.client().await?;
    let apply = async |object: Value| install::apply(&client, NAMESPACE, &object.to_string()).await.map(drop);
    let model = cluster.folder().root().join("model");
    fs::create_dir_all(&model)
        .and_then(|()| fs::write(model.join("config.json"), "{}"))
        .and_then(|()| fs::write(model.join("weights.bin"), vec![7; 64 * 1024]))
        .with_context(|| format!("failed to make a model in {}", model.display()))?;
    for object in objects::claim(&model) {
        apply(object).await?;
    }
    apply(objects::inference(GATEWAY)).await?;
    let inferences: Api<AIInference> = Api::namespaced(client.clone(), NAMESPACE);
    let is_ready = |inference: Option<&AIInference>| {
        let status = inference.and_then(|inference| inference.status.as_ref());
        let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
        conditions.any(|known| known.type_ == conditions::READY && known.status == "True")
    };
    wait_for(&inferences, MODEL, READY_WITHIN, is_ready).await.context("the model is not Ready")?;
    apply(objects::load(envoy, SETTINGS)).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let phase =
        |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.clone()).unwrap_or_default();
    wait_for(&pods, LOAD, READY_WITHIN, |pod| phase(pod) == "Running")
        .await
        .context("the load does not begin")?;
    println!("\nthe load begins: {} requests per second", SETTINGS.requests_per_second);
    let events = until_promoted(&client, &inferences).await?;
    println!("\nwaits for the end of the load");
    let rest = Duration::from_secs(SETTINGS.load_seconds.into()) + REPORTED_WITHIN;
    wait_for(&pods, LOAD, rest, |pod| phase(pod) == "Succeeded").await.context("the load does not end")?;
    Ok(Record {
        kubernetes: tools::KUBERNETES_VERSION.to_owned(),
        settings: SETTINGS,
        events,
        load: report(&pods).await?,
    })
}

async fn until_promoted(client: &Client, inferences: &Api<AIInference>) -> anyhow::Result<Vec<Event>> {
    let observer = Observer::new(client);
    let began = Instant::now();
    let mut story = Story::default();
    let mut before = Snapshot::default();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let looked = timeout(ANSWERED_WITHIN, observer.look()).await;
        let now = looked.context("the API server did not answer, so the record would have a gap")??;
        let second = rounded(began.elapsed().as_secs_f64());
        for what in events_between(&before, &now) {
            story.keep(second, what);
        }
        // The pods of the bad version are gone before the good one comes.
        let next = match story.applied {
            None => (second >= LEAD_SECONDS).then_some(Version::Bad),
            Some(Version::Bad) => now.is_in(CanaryPhase::RolledBack).then_some(Version::Good),
            Some(Version::Good) => {
                if now.is_in(CanaryPhase::Promoted) && now.canary.replicas == 0 {
                    return Ok(story.events);
                }
                None
            }
        };
        if let Some(version) = next {
            give(inferences, version).await?;
            story.applied = Some(version);
            story.keep(second, EventKind::Applied { version });
        }
        before = now;
        ensure!(
            second < f64::from(SETTINGS.load_seconds),
            "the good version is not stable before the load ends; the candidate is {:?}",
            before.canary.phase
        );
    }
}

#[derive(Default)]
struct Story {
    events: Vec<Event>,
    applied: Option<Version>,
}

impl Story {
    fn keep(&mut self, second: f64, what: EventKind) {
        let event = Event { second, what };
        println!("{}", line(&event));
        self.events.push(event);
    }
}

async fn give(inferences: &Api<AIInference>, version: Version) -> anyhow::Result<()> {
    let patch = Patch::Merge(objects::canary(version, SETTINGS));
    let params = PatchParams::default();
    let patched = timeout(ANSWERED_WITHIN, inferences.patch(MODEL, &params, &patch)).await;
    patched
        .context("the API server did not answer")?
        .with_context(|| format!("failed to set the {version}"))?;
    Ok(())
}

/// The last line of the load generator.
async fn report(pods: &Api<Pod>) -> anyhow::Result<Load> {
    let params = LogParams { tail_lines: Some(1), ..LogParams::default() };
    let log = timeout(ANSWERED_WITHIN, pods.logs(LOAD, &params)).await;
    let log = log.context("the API server did not answer")?.context("failed to read the log of the load")?;
    let report: Value = serde_json::from_str(&log).context("the load has written no report")?;
    let load = json!({
        "sent": report["sent"],
        "failed": report["failed"],
        "failures": report["failures"],
        "failedBySecond": report["failed_by_second"],
        "answers": report["by_revision"],
    });
    serde_json::from_value(load).context("the report of the load has another form")
}

/// The table, as text.
fn summary(record: &Record) -> String {
    let row = |title: &str, [first, second]: [String; 2]| format!("{title:<40}{first:>14}{second:>15}\n");
    let head = row("since its first share", Version::BOTH.map(|version| version.to_string()));
    let rows = record::table(record).into_iter().map(|(title, values)| row(title, values));
    let Load { sent, failed, .. } = &record.load;
    let all = format!("{failed} of {sent} requests failed\n");
    std::iter::once(head).chain(rows).chain([all]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the command wrote in the run that the manual shows.
    const RECORD: &str = include_str!("../../../docs/canary.json");
    const PICTURE: &str = include_str!("../../../docs/canary.svg");
    const MANUAL: &str = include_str!("../../../docs/two-versions.md");

    fn record() -> Record {
        serde_json::from_str(RECORD).unwrap()
    }

    #[test]
    fn the_picture_in_docs_is_that_of_the_record_beside_it() {
        assert!(picture::svg(&record()) == PICTURE, "run `cargo xtask demo canary --draw docs/canary.json`");
    }

    #[test]
    fn the_manual_shows_the_summary_of_the_record_in_docs() {
        let summary = summary(&record());
        assert!(MANUAL.contains(&summary), "{summary}");
    }

    /// What the picture says of the good version holds of the run that it shows.
    #[test]
    fn the_run_in_docs_lost_no_request_but_those_of_the_bad_version() {
        let Record { load, .. } = record();
        assert_eq!(load.failures.get("status 500"), Some(&load.failed));
        assert_eq!(load.failed_by_second.values().sum::<u32>(), load.failed);
    }
}
