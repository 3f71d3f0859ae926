//! How busy the GPUs of a TrainingJob are, as the metrics agents of their nodes report it. It decides nothing.
//!
//! Without agents nothing is known, and nothing else changes.

use std::{fmt, sync::Arc, time::Duration};

use api::trainingjob::{Phase, TrainingJob};
use futures::future::BoxFuture;
use metrics_client::{
    args::AgentsArgs,
    discovery::SliceView,
    snapshot::{Metric, Subject},
    sources::Sources,
    view::{Attribution, Value, View},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use runtime::{
    cache::{Cache, Key},
    controller::Waker,
    process::Process,
    relations::Referrers,
};
use tokio_util::sync::CancellationToken;
use workload::pod::PodView;

use crate::NAME;

/// Agents measure each second; nothing here is decided within seconds.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
const METRICS: &[Metric] = &[Metric::Utilization, Metric::EngineActive];
/// A GPU that trains rests between two steps, and while a checkpoint is saved.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Series of the metric, in the order of namespaces and names.
const MOST_SERIES: usize = 1_000;

/// How busy the GPUs of some pods are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Utilization {
    /// No agent is read.
    #[default]
    NotWatched,
    /// Of one GPU at least.
    Unknown,
    /// The mean over all of them in the last minute, from 0 to 1.
    Known(f64),
}

/// The agents of the nodes.
#[derive(Clone, Default)]
pub(crate) struct Agents {
    /// `None`: none is to be read.
    sources: Option<Sources>,
}

impl Agents {
    /// Declares the watch of the EndpointSlices behind the agents' Service.
    pub(crate) fn new(process: &mut Process, args: &AgentsArgs) -> Self {
        let Some(sources) = args.sources(NAME, MIN_INTERVAL, METRICS) else { return Self::default() };
        let slices = process.watch_in_namespace_if_allowed::<SliceView>(
            "EndpointSlice",
            &args.metrics_agents_namespace,
            &args.selector(),
        );
        let (known, follow) = (slices.clone(), args.follow(&sources));
        slices.subscribe(move |_| follow(&known.all()));
        let collector = metrics_client::metrics::collector(&sources, process.leadership());
        process.metrics().with_registry(|registry| registry.register_collector(collector));
        Self { sources: Some(sources) }
    }

    /// Keeps the streams until `stop`.
    pub(crate) fn running(
        &self,
    ) -> impl FnOnce(Waker, CancellationToken) -> BoxFuture<'static, ()> + Send + use<> {
        let sources = self.sources.clone();
        move |_, stop| {
            Box::pin(async move {
                match sources {
                    Some(sources) => sources.run(stop).await,
                    None => stop.cancelled().await,
                }
            })
        }
    }

    /// Of the GPUs that these pods hold.
    pub(crate) fn utilization<'p>(&self, pods: impl Iterator<Item = &'p PodView>) -> Utilization {
        let Some(sources) = &self.sources else { return Utilization::NotWatched };
        let of_pod = |pod: &PodView| utilization_of(&sources.of_node(pod.node.as_deref()?)?, pod);
        let gpus: Option<Vec<Vec<f64>>> = pods.map(of_pod).collect();
        let gpus = gpus.unwrap_or_default().concat();
        if gpus.is_empty() {
            return Utilization::Unknown;
        }
        Utilization::Known(gpus.iter().sum::<f64>() / gpus.len() as f64)
    }

    /// Exports the utilization of each job that runs.
    pub(crate) fn export(
        &self,
        process: &Process,
        jobs: &Cache<TrainingJob>,
        pods: &Cache<PodView>,
        pods_of: &Referrers,
    ) {
        if self.sources.is_none() {
            return;
        }
        let collector = JobsCollector {
            agents: self.clone(),
            jobs: jobs.clone(),
            pods: pods.clone(),
            pods_of: pods_of.clone(),
            leads: Box::new(process.leadership()),
        };
        process.metrics().with_registry(|registry| registry.register_collector(Box::new(collector)));
    }
}

/// Of each GPU that the pod holds; `None` unless all are known.
fn utilization_of(view: &View, pod: &PodView) -> Option<Vec<f64>> {
    if view.attribution() != Attribution::Fresh {
        return None;
    }
    let held = view.held_by(pod.metadata.namespace.as_deref()?, pod.name());
    held.map(|gpu| mean(view, gpu)).collect()
}

/// Partitions have no utilization; on newer GPUs, the share of cycles in which their engine was active takes its place.
fn mean(view: &View, gpu: &Subject) -> Option<f64> {
    let readings = METRICS.iter().filter_map(|metric| gpu.reading(*metric));
    let mut known = readings.filter(|reading| matches!(view.value(reading), Value::Fresh { .. }));
    known.find_map(|reading| reading.window(WINDOW)).map(|window| window.mean)
}

/// For each job that runs, read when the page is asked for.
struct JobsCollector {
    agents: Agents,
    jobs: Cache<TrainingJob>,
    pods: Cache<PodView>,
    pods_of: Referrers,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct JobLabels {
    namespace: String,
    name: String,
}

impl fmt::Debug for JobsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobsCollector").finish_non_exhaustive()
    }
}

impl Collector for JobsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !(self.leads)() {
            return Ok(());
        }
        let runs = |job: &Arc<TrainingJob>| {
            job.status.as_ref().and_then(|status| status.phase) == Some(Phase::Running)
        };
        let mut keys: Vec<Key> =
            self.jobs.all().iter().filter(|job| runs(job)).map(|job| Key::of(&**job)).collect();
        keys.sort();
        let help = "Mean utilization of the GPUs of a TrainingJob that runs, over the last minute";
        let name = "trainingjob_gpu_utilization_ratio";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for key in keys.into_iter().take(MOST_SERIES) {
            let pods: Vec<_> = self
                .pods_of
                .of_key(&key)
                .iter()
                .filter_map(|key| self.pods.get(key))
                .filter(|pod| !pod.is_over())
                .collect();
            if let Utilization::Known(ratio) = self.agents.utilization(pods.iter().map(AsRef::as_ref)) {
                let labels = JobLabels { namespace: key.namespace.to_string(), name: key.name.to_string() };
                ConstGauge::new(ratio).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use metrics_client::{
        endpoint::{Endpoint, Origin},
        snapshot::{self, FaultReason, Holder, PodName, Reading, Snapshot, State, SubjectKind, Window},
        view::{Health, Latest},
    };

    use super::*;

    /// A GPU of this pod that was so busy.
    fn gpu(pod: &str, state: State, ratio: f64) -> Subject {
        let window = Window { length: WINDOW, mean: ratio, p95: ratio, max: ratio, samples: 60 };
        Subject {
            id: "GPU-a".into(),
            kind: SubjectKind::Device,
            parent_id: "".into(),
            readings: vec![Reading {
                metric: Metric::Utilization,
                state,
                value: Some(ratio),
                age: Duration::ZERO,
                reason: FaultReason::Unspecified,
                windows: vec![window],
            }],
            holders: vec![Holder {
                pod: PodName { namespace: "demo".into(), name: pod.into() },
                uid: "".into(),
                container: "trainer".into(),
                resource: "nvidia.com/gpu".into(),
                shares: 1,
            }],
            fault: None,
        }
    }

    fn view(subjects: Vec<Subject>, attribution: State) -> View {
        let snapshot = Snapshot {
            instance: "i".into(),
            sequence: 1,
            uptime: WINDOW,
            interval: Duration::from_secs(1),
            node: "gpu-1".into(),
            pod: None,
            subjects,
            events: Vec::new(),
            faults: Vec::new(),
            attribution: snapshot::Attribution { state: attribution, age: Duration::ZERO },
            is_cut: false,
        };
        let latest = Latest {
            snapshot: Arc::new(snapshot),
            age: Duration::ZERO,
            patience: MIN_INTERVAL,
            is_admitted: true,
        };
        let endpoint = Endpoint { origin: Origin::Node("gpu-1".into()), address: "10.0.0.7:9401".into() };
        View { endpoint, health: Health::Live, latest: Some(latest) }
    }

    fn of(view: &View) -> Option<Vec<f64>> {
        let pod = serde_json::json!({"metadata": {"name": "qwen-1-0", "namespace": "demo"}, "spec": {}, "status": {}});
        utilization_of(view, &serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn the_gpus_of_a_pod_are_those_that_it_holds() {
        let gpus = vec![
            gpu("qwen-1-0", State::Fresh, 0.5),
            gpu("other", State::Fresh, 1.0),
            gpu("qwen-1-0", State::Fresh, 0.7),
        ];
        assert_eq!(of(&view(gpus, State::Fresh)), Some(vec![0.5, 0.7]));
    }

    #[test]
    fn what_is_not_known_now_is_not_known() {
        let stale = vec![gpu("qwen-1-0", State::Fresh, 0.0), gpu("qwen-1-0", State::Stale, 0.0)];
        assert_eq!(of(&view(stale, State::Fresh)), None, "one reading is old");
        let holders = vec![gpu("qwen-1-0", State::Fresh, 0.0)];
        assert_eq!(of(&view(holders, State::Missing)), None, "the kubelet has not said who holds what");
    }
}
