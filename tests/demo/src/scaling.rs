//! A burst of requests meets two Deployments, one scaled by a HorizontalPodAutoscaler, the other by an AIScaler: what
//! both do in five minutes.
//!
//! The HorizontalPodAutoscaler gets the queue as an external metric, as from KEDA or an adapter. The AIScaler reads the
//! engines, as it does by default.
//!
//! It needs a cluster of its own. A cluster has one server of external metrics, and without the one of this process,
//! which ends with the demo, namespaces could no longer be deleted.

mod course;
mod engines;
mod manifests;
mod picture;
mod record;

use std::{
    array,
    cell::RefCell,
    collections::BTreeMap,
    iter::Peekable,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use api::{aiscaler::AIScaler, conditions};
use fake_prometheus::{Answer, Prometheus};
use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler, core::v1::Pod};
use kube::{Api, Client, api::ListParams};
use local_cluster::{Cluster, ClusterSpec, Controller, NodePool, api_server::install, own_network, tools};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::engines::Engines;
use self::record::{Autoscaler, Event, EventKind, Record, Settings};
use crate::files;

const CLUSTER: &str = "demo-scaling";
const CONTROLLER: &str = "scaler-controller";
const NAMESPACE: &str = "scaling";

/// Requests per second, before the burst, in it, and after it.
const CALM: u32 = 2;
const BURST: u32 = 12;
/// Four cold starts.
const BURST_SECONDS: f64 = 120.0;
/// How much is recorded before the burst begins, and from then on: five minutes are enough for the window of scaling down.
const LEAD_SECONDS: f64 = 20.0;
const RECORDED_SECONDS: f64 = 300.0;

const LEAST: u32 = 2;
const SETTINGS: Settings = Settings {
    target_value: 5,
    min_replicas: LEAST,
    // Far above the 12 that serve the burst.
    max_replicas: 64,
    // The default of both.
    period_seconds: 15,
    // Instead of 300 s, so that a run takes minutes.
    down_window_seconds: 60,
};
/// How long a simulated pod loads its model and warms up.
const LOADS_SECONDS: u32 = 10;
const WARMS_UP_SECONDS: u32 = 20;

/// Interval between two looks at the Deployments, and between two values of the queue.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A third of a period: what is seen later is recorded later than it was.
const LONGEST_GAP: Duration = Duration::from_secs(5);
/// A cold start, the minute after which an AIScaler knows what arrives, and a machine that is busy.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// All of it; each request to the API server is within this time.
const WITHIN: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for the record (scaling.json) and its picture (scaling.svg)
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
    /// Draws a record again, beside it, instead of making a burst
    #[arg(long, value_name = "RECORD", conflicts_with = "out")]
    draw: Option<PathBuf>,
}

/// The replicas of one Deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Replicas {
    desired: u32,
    ready: u32,
}

type Seen = BTreeMap<Autoscaler, Replicas>;

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.draw {
        return files::draw(file, picture::svg);
    }
    let tools = tools::ensure()?;
    own_network::take_addresses_of_pods()?;
    // The cluster ends with this future, however that ends.
    let record = tokio::select! {
        record = timeout(WITHIN, play(tools)) => {
            record.unwrap_or_else(|_| bail!("the demo did not end within {} s", WITHIN.as_secs()))
        }
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("failed to wait for Ctrl-C")?;
            Err(anyhow::anyhow!("interrupted"))
        }
    }?;
    println!("\n{}", summary(&record));
    files::write(&args.out, "scaling", &record, picture::svg)
}

async fn play(tools: PathBuf) -> anyhow::Result<Record> {
    println!("starts a cluster of its own, which ends with the demo");
    let load = Prometheus::start(0.0)?;
    let deploy = Path::new("deploy");
    let spec = ClusterSpec::simulated(CLUSTER, tools, NodePool::default());
    let cluster = Cluster::start(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
    let client = cluster.client().await?;
    install::apply(&client, NAMESPACE, &load.external_metrics()).await?;
    cluster.install_shared(deploy).await?;
    cluster.start_controller(&Controller::new(CONTROLLER, deploy)?).await?;
    let record = observe(&client, &load).await;
    let stopped = cluster.stop().await;
    let record = record?;
    stopped?;
    Ok(record)
}

/// Sets both up, lets the burst begin, and records for five minutes.
async fn observe(client: &Client, load: &Prometheus) -> anyhow::Result<Record> {
    let apply = async |object: Value| install::apply(client, NAMESPACE, &object.to_string()).await.map(drop);
    let engines = Engines::start().await?;
    let mut recording = Recording::new(load, &engines);
    recording.publish(&[]);
    apply(manifests::namespace(NAMESPACE)).await?;
    for of in Autoscaler::BOTH {
        let takes = (LOADS_SECONDS, WARMS_UP_SECONDS);
        apply(manifests::deployment(of, LEAST, takes, engines.port())).await?;
    }
    println!("waits until {LEAST} pods of each Deployment are Ready and both autoscalers know the load");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    until(READY_WITHIN, "the pods are not Ready", async || {
        Ok(are_calm(&seen(&deployments).await?).then_some(()))
    })
    .await?;
    for of in Autoscaler::BOTH {
        apply(manifests::autoscaler(of, &SETTINGS)).await?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let recording_of = RefCell::new(&mut recording);
    until(READY_WITHIN, "an autoscaler does not know the load", async || {
        let ready = ready_pods(&pods).await?;
        recording_of.borrow_mut().publish(&ready);
        Ok(are_active(client).await?.then_some(()))
    })
    .await?;

    println!();
    let began = Instant::now();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let busy = "the API server did not answer, so the record would have a gap";
        let seen = until(LONGEST_GAP, busy, async || seen(&deployments).await.map(Some)).await?;
        let second = course::rounded(began.elapsed().as_secs_f64() - LEAD_SECONDS);
        recording.advance(second, &seen);
        recording.publish(&ready_pods(&pods).await?);
        if second >= RECORDED_SECONDS {
            return Ok(recording.record);
        }
    }
}

/// A record that grows, and the queues that follow from it.
struct Recording<'a> {
    load: &'a Prometheus,
    engines: &'a Engines,
    /// When the queues were published last.
    published: Option<Instant>,
    record: Record,
    /// When the load changes, and to how many requests per second.
    upcoming: Peekable<array::IntoIter<(f64, u32), 2>>,
    seen: Seen,
}

impl<'a> Recording<'a> {
    fn new(load: &'a Prometheus, engines: &'a Engines) -> Self {
        let record = Record {
            kubernetes: tools::KUBERNETES_VERSION.to_owned(),
            settings: SETTINGS,
            cold_start_seconds: LOADS_SECONDS + WARMS_UP_SECONDS,
            requests_per_second: CALM,
            from: -LEAD_SECONDS,
            until: -LEAD_SECONDS,
            events: Vec::new(),
        };
        let calm = Replicas { desired: LEAST, ready: LEAST };
        Self {
            load,
            engines,
            published: None,
            record,
            upcoming: [(0.0, BURST), (BURST_SECONDS, CALM)].into_iter().peekable(),
            seen: Autoscaler::BOTH.into_iter().map(|of| (of, calm)).collect(),
        }
    }

    /// Adds what has happened until now, which is in tenths of a second.
    fn advance(&mut self, now: f64, seen: &Seen) {
        self.record.until = now;
        while let Some((second, requests_per_second)) = self.upcoming.next_if(|(second, _)| *second <= now) {
            self.keep(second, EventKind::Load { requests_per_second });
        }
        for (&of, &replicas) in seen {
            let Some(before) = self.seen.insert(of, replicas) else { continue };
            let Replicas { desired, ready } = replicas;
            if desired != before.desired {
                self.keep(now, EventKind::Desired { of, from: before.desired, replicas: desired });
            }
            if ready != before.ready {
                self.keep(now, EventKind::Ready { of, from: before.ready, replicas: ready });
            }
        }
    }

    fn keep(&mut self, second: f64, what: EventKind) {
        let event = Event { second, what };
        let requests = match event.what {
            EventKind::Load { .. } => 0.0,
            EventKind::Desired { of, .. } | EventKind::Ready { of, .. } => {
                course::now(&self.record, of).requests
            }
        };
        if let Some(line) = record::line(&event, requests) {
            println!("{line}");
        }
        self.record.events.push(event);
    }

    /// Sets what the autoscalers read: one the queue, the other the engines of these pods. Both count whole requests.
    fn publish(&mut self, ready: &[IpAddr]) {
        let [hpa, aiscaler] = Autoscaler::BOTH.map(|of| course::now(&self.record, of));
        self.load.set(manifests::QUEUE, Answer::Value(hpa.requests.round()));
        let since = self.published.replace(Instant::now());
        let seconds = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        self.engines.advance(seconds, aiscaler, ready);
    }
}

/// The addresses of the AIScaler's Ready pods, in the order in which they became Ready.
async fn ready_pods(pods: &Api<Pod>) -> anyhow::Result<Vec<IpAddr>> {
    let of = ListParams::default().labels(&format!("app={}", Autoscaler::AiScaler.name()));
    let list = pods.list(&of).await.context("failed to list pods")?;
    let ready = |pod: &Pod| {
        let status = pod.status.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none())?;
        let mut conditions = status.conditions.iter().flatten();
        let ready = conditions.find(|known| known.type_ == "Ready" && known.status == "True")?;
        let address: IpAddr = status.pod_ip.as_ref()?.parse().ok()?;
        Some((ready.last_transition_time.as_ref().map(|at| at.0), address))
    };
    let mut ready: Vec<_> = list.items.iter().filter_map(ready).collect();
    ready.sort();
    Ok(ready.into_iter().map(|(_, address)| address).collect())
}

fn are_calm(seen: &Seen) -> bool {
    let calm = Replicas { desired: LEAST, ready: LEAST };
    Autoscaler::BOTH.into_iter().all(|of| seen.get(&of) == Some(&calm))
}

async fn seen(deployments: &Api<Deployment>) -> anyhow::Result<Seen> {
    let list = deployments.list(&ListParams::default()).await.context("failed to list Deployments")?;
    let of = |deployment: &Deployment| {
        let name = deployment.metadata.name.as_deref()?;
        Autoscaler::BOTH.into_iter().find(|of| of.name() == name)
    };
    let replicas = |deployment: &Deployment| {
        // A status without Ready replicas leaves their number out.
        let desired = deployment.spec.as_ref()?.replicas?;
        let ready = deployment.status.as_ref()?.ready_replicas.unwrap_or(0);
        Some(Replicas { desired: desired.try_into().ok()?, ready: ready.try_into().ok()? })
    };
    Ok(list.items.iter().filter_map(|deployment| Some((of(deployment)?, replicas(deployment)?))).collect())
}

/// Whether both know the load.
async fn are_active(client: &Client) -> anyhow::Result<bool> {
    let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), NAMESPACE);
    let name = Autoscaler::Hpa.name();
    let hpa =
        hpas.get_status(name).await.with_context(|| format!("failed to read HPA {NAMESPACE}/{name}"))?;
    let mut conditions = hpa.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let theirs = conditions.any(|known| known.type_ == conditions::SCALING_ACTIVE && known.status == "True");
    let scalers: Api<AIScaler> = Api::namespaced(client.clone(), NAMESPACE);
    let name = Autoscaler::AiScaler.name();
    let scaler =
        scalers.get(name).await.with_context(|| format!("failed to read AIScaler {NAMESPACE}/{name}"))?;
    let mut conditions = scaler.status.iter().flat_map(|status| &status.conditions);
    // In its first minute it does not know yet what arrives.
    let ours = conditions.any(|known| {
        known.type_ == conditions::SCALING_ACTIVE
            && known.status == "True"
            && known.message.contains("by what arrives")
    });
    Ok(theirs && ours)
}

/// Asks until there is an answer; a question that fails is asked again.
async fn until<Answer>(
    within: Duration,
    otherwise: &str,
    ask: impl AsyncFn() -> anyhow::Result<Option<Answer>>,
) -> anyhow::Result<Answer> {
    let mut failed = None;
    let answered = async {
        loop {
            match ask().await {
                Ok(Some(answer)) => return answer,
                Ok(None) => failed = None,
                Err(error) => failed = Some(error),
            }
            sleep(LOOK_EVERY).await;
        }
    };
    if let Ok(answer) = timeout(within, answered).await {
        return Ok(answer);
    }
    let late = format!("{otherwise}, for {} s", within.as_secs());
    Err(match failed {
        Some(error) => error.context(late),
        None => anyhow::anyhow!(late),
    })
}

/// The table, as text.
fn summary(record: &Record) -> String {
    let [first, second] = Autoscaler::BOTH.map(|of| of.to_string());
    let row = |title: &str, [first, second]: [String; 2]| format!("{title:<38}{first:>10}{second:>12}\n");
    let rows = course::table(record).into_iter().map(|(title, values)| row(title, values));
    std::iter::once(row("", [first, second])).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the command wrote in the run that the manual shows.
    const RECORD: &str = include_str!("../../../docs/scaling.json");
    const PICTURE: &str = include_str!("../../../docs/scaling.svg");
    const MANUAL: &str = include_str!("../../../docs/getting-started.md");

    fn record() -> Record {
        serde_json::from_str(RECORD).unwrap()
    }

    #[test]
    fn the_picture_in_docs_is_that_of_the_record_beside_it() {
        assert!(
            picture::svg(&record()) == PICTURE,
            "run `cargo xtask demo scaling --draw docs/scaling.json`"
        );
    }

    #[test]
    fn the_manual_shows_the_summary_of_the_record_in_docs() {
        let summary = summary(&record());
        assert!(MANUAL.contains(&summary), "{summary}");
    }

    #[tokio::test]
    async fn a_recording_has_each_change_once_and_the_queue_that_follows_from_it() {
        let load = Prometheus::start(0.0).unwrap();
        let engines = Engines::start().await.unwrap();
        let mut recording = Recording::new(&load, &engines);
        let of = Autoscaler::Hpa;
        let seen = Seen::from([(of, Replicas { desired: 6, ready: LEAST })]);
        recording.advance(10.0, &seen);
        recording.advance(10.2, &seen);
        let kept = [
            Event { second: 0.0, what: EventKind::Load { requests_per_second: BURST } },
            Event { second: 10.0, what: EventKind::Desired { of, from: LEAST, replicas: 6 } },
        ];
        assert_eq!(recording.record.events, kept);
        // Twelve per second arrive and two leave.
        assert_eq!(course::now(&recording.record, of).requests.round(), 112.0);
    }
}
