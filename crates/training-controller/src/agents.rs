//! How busy the GPUs of a TrainingJob are, and which of them failed, as the metrics agents of their nodes report it. It
//! decides nothing.
//!
//! Without agents nothing is known, and nothing else changes.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use api::trainingjob::{Phase, TrainingJob};
use futures::future::BoxFuture;
use metrics_client::{
    args::AgentsArgs,
    discovery::SliceView,
    snapshot::{Event, EventKind, FaultReason, Metric, Subject},
    sources::{News, Sources},
    view::{Attribution, Value, View},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use runtime::{
    key::Key,
    process::Process,
    queue::Waker,
    watch::{cache::Cache, relations::Referrers},
};
use tokio_util::sync::CancellationToken;
use workload::{
    faults::{
        container::quote,
        gpu_faults::{Remedy, remedy},
    },
    views::pod::PodView,
};

use crate::{NAME, relations::keys_by_instance};

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

    /// Keeps the streams until `stop`, and wakes the jobs with pods on a node with a new error.
    pub(crate) fn running(
        &self,
        pods: &Cache<PodView>,
    ) -> impl FnOnce(Waker, CancellationToken) -> BoxFuture<'static, ()> + Send + use<> {
        let (sources, pods) = (self.sources.clone(), pods.clone());
        move |waker, stop| {
            Box::pin(async move {
                let Some(sources) = sources else { return stop.cancelled().await };
                sources.subscribe(move |change| match &change.news {
                    News::Snapshot { events } if events.iter().any(|event| event.is_fatal) => {
                        // Rare, so all pods are looked at.
                        let on_node = |pod: &Arc<PodView>| pod.node.as_deref() == Some(change.node);
                        let keys =
                            pods.all().into_iter().filter(on_node).flat_map(|pod| keys_by_instance(&pod));
                        keys.for_each(|key| waker.wake(&key));
                    }
                    News::Snapshot { .. } | News::Health(_) | News::Gone => {}
                });
                sources.run(stop).await;
            })
        }
    }

    /// Errors of GPUs that these pods held when they happened, by node.
    pub(crate) fn faults<'p>(&self, pods: impl Iterator<Item = &'p PodView>) -> BTreeMap<String, String> {
        let Some(sources) = &self.sources else { return BTreeMap::new() };
        pods.filter_map(|pod| {
            let node = pod.node.as_deref()?;
            Some((node.to_owned(), fault_of(&sources.of_node(node)?, pod)?))
        })
        .collect()
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

/// Agents repeat an error for ten minutes. What a silent agent said before is not waited for.
const OLDEST_ERROR: Duration = Duration::from_secs(900);

/// The first error after which a GPU does no work before it is reset, and that the pod held when it happened. A pod that has
/// ended holds none any more.
fn fault_of(view: &View, pod: &PodView) -> Option<String> {
    let latest = view.latest.as_ref().filter(|latest| latest.is_admitted)?;
    let namespace = pod.metadata.namespace.as_deref()?;
    let was_held = |event: &&Event| event.holders.iter().any(|holder| holder.is_pod(namespace, pod.name()));
    let recent = view.events().filter(|(_, age)| *age <= OLDEST_ERROR).map(|(event, _)| event);
    recent.filter(|event| event.is_fatal).filter(was_held).find_map(|event| {
        let gpu = quote(&event.subject_id);
        match event.kind {
            EventKind::DeviceError => {
                let xid = event.code?;
                // With several GPUs, errors of their links do not say which of them is at fault.
                (remedy(xid, 1) == Some(Remedy::Replace)).then(|| format!("XID {xid} of {gpu}"))
            }
            // Unless it came back.
            EventKind::DeviceLost => {
                let mut subjects = latest.snapshot.subjects.iter();
                let device = subjects.find(|subject| subject.id == event.subject_id)?;
                let is_lost =
                    device.fault.as_ref().is_some_and(|fault| fault.reason == FaultReason::DeviceLost);
                is_lost.then(|| format!("{gpu} does not answer"))
            }
            EventKind::Unspecified
            | EventKind::EccCorrected
            | EventKind::EccUncorrected
            | EventKind::DeviceBack => None,
        }
    })
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

    /// An error of GPU-a, which this pod held then. `code`: an XID, or the device was lost.
    fn error(pod: &str, code: Option<u64>) -> Event {
        let mut holder = gpu(pod, State::Fresh, 0.0).holders.remove(0);
        holder.uid = "u".into();
        Event {
            sequence: 1,
            age: Duration::from_secs(1),
            at: None,
            kind: if code.is_some() { EventKind::DeviceError } else { EventKind::DeviceLost },
            subject_id: "GPU-a".into(),
            code,
            holders: vec![holder],
            is_fatal: true,
        }
    }

    /// Of pod demo/qwen-1-0, while another one holds the GPU.
    fn fault(events: Vec<Event>, edit: impl FnOnce(&mut View)) -> Option<String> {
        let mut view = view(vec![gpu("later", State::Fresh, 0.0)], State::Fresh);
        let latest = view.latest.as_mut().unwrap();
        latest.snapshot = Arc::new(Snapshot { events, ..Snapshot::clone(&latest.snapshot) });
        edit(&mut view);
        let pod = serde_json::json!({"metadata": {"name": "qwen-1-0", "namespace": "demo"}, "spec": {}, "status": {}});
        fault_of(&view, &serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn an_error_that_needs_a_reset_of_a_gpu_is_that_of_the_pod_that_held_it() {
        let xid = |pod, code| fault(vec![error(pod, Some(code))], |_| ());
        assert_eq!(xid("qwen-1-0", 79).as_deref(), Some("XID 79 of GPU-a"));
        assert_eq!(xid("another", 79), None, "another pod held it");
        assert_eq!(xid("qwen-1-0", 13), None, "an error of the application");
        let harmless = Event { is_fatal: false, ..error("qwen-1-0", Some(79)) };
        assert_eq!(fault(vec![harmless], |_| ()), None);
        let refused = |view: &mut View| view.latest.as_mut().unwrap().is_admitted = false;
        assert_eq!(
            fault(vec![error("qwen-1-0", Some(79))], refused),
            None,
            "a source that must not speak for it"
        );
    }

    #[test]
    fn a_gpu_that_came_back_is_not_lost() {
        let is_lost = |is_lost: bool| {
            fault(vec![error("qwen-1-0", None)], |view| {
                let latest = view.latest.as_mut().unwrap();
                let mut snapshot = Snapshot::clone(&latest.snapshot);
                let why = snapshot::Fault { reason: FaultReason::DeviceLost, message: "".into() };
                snapshot.subjects[0].fault = is_lost.then_some(why);
                latest.snapshot = Arc::new(snapshot);
            })
        };
        assert_eq!((is_lost(true).as_deref(), is_lost(false)), (Some("GPU-a does not answer"), None));
    }

    #[test]
    fn what_is_not_known_now_is_not_known() {
        let stale = vec![gpu("qwen-1-0", State::Fresh, 0.0), gpu("qwen-1-0", State::Stale, 0.0)];
        assert_eq!(of(&view(stale, State::Fresh)), None, "one reading is old");
        let holders = vec![gpu("qwen-1-0", State::Fresh, 0.0)];
        assert_eq!(of(&view(holders, State::Missing)), None, "the kubelet has not said who holds what");
    }
}
