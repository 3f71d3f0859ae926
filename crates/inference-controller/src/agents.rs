//! Errors of GPUs, as the metrics agents of the nodes report them, and which pods held these GPUs. It decides nothing about
//! a pod: `workload::faults::gpu_faults` does.
//!
//! Without agents there are no errors, and nothing else changes.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use metrics_client::{
    args::AgentsArgs,
    discovery::SliceView,
    snapshot::{Event, EventKind, FaultReason},
    sources::{News, Sources},
    view::{Attribution, Health, View},
};
use runtime::{process::Process, queue::Waker, watch::cache::Cache};
use tokio_util::sync::CancellationToken;
use workload::{
    faults::gpu_faults::{GpuFault, GpuFaults, PodFaults, Remedy, remedy},
    views::pod::PodView,
};

use crate::{NAME, observe::keys_by_instance};

/// An error brings a snapshot at once; the others only say that the agent lives.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Agents repeat an error for ten minutes. What a silent agent said before is not waited for.
const OLDEST_ERROR: Duration = Duration::from_secs(900);

/// The agents, and the errors that they have reported.
#[derive(Default)]
pub(crate) struct Agents {
    /// `None`: none is to be read.
    sources: Option<Sources>,
    faults: Arc<GpuFaults>,
}

/// What an agent says of the GPUs of one pod.
#[derive(Debug, PartialEq)]
enum Finding {
    Nothing,
    /// There is an error, and whether the pod holds the GPU is not certain now.
    Doubt,
    Fault(GpuFault),
}

impl Agents {
    /// Declares the watch of the EndpointSlices behind the agents' Service. Errors of deleted pods are dropped.
    pub(crate) fn new(process: &mut Process, args: &AgentsArgs, pods: &Cache<PodView>) -> Self {
        let Some(sources) = args.sources(NAME, MIN_INTERVAL, &[]) else { return Self::default() };
        let slices = process.watch_in_namespace_if_allowed::<SliceView>(
            "EndpointSlice",
            &args.metrics_agents_namespace,
            &args.selector(),
        );
        let (known, follow) = (slices.clone(), args.follow(&sources));
        slices.subscribe(move |_| follow(&known.all()));
        let collector = metrics_client::metrics::collector(&sources, process.leadership());
        process.metrics().with_registry(|registry| registry.register_collector(collector));
        let faults = Arc::<GpuFaults>::default();
        let kept = Arc::clone(&faults);
        pods.subscribe(move |change| {
            if let Some(pod) = change.gone() {
                kept.forget(pod.uid());
            }
        });
        Self { sources: Some(sources), faults }
    }

    /// Keeps the streams until `stop`, and wakes the owners of pods on a node with a new error.
    pub(crate) fn running(
        &self,
        pods: &Cache<PodView>,
    ) -> impl FnOnce(Waker, CancellationToken) -> futures::future::BoxFuture<'static, ()> + Send + use<> {
        let (sources, pods) = (self.sources.clone(), pods.clone());
        move |waker, stop| {
            Box::pin(async move {
                let Some(sources) = sources else { return stop.cancelled().await };
                sources.subscribe(move |change| match &change.news {
                    News::Snapshot { events } if events.iter().any(|event| event.is_fatal) => {
                        // Rare, so all pods are looked at.
                        let on_node = |pod: &Arc<PodView>| pod.node.as_deref() == Some(change.node);
                        let keys =
                            pods.all().into_iter().filter(on_node).flat_map(|pod| keys_by_instance(&*pod));
                        keys.for_each(|key| waker.wake(&key));
                    }
                    News::Snapshot { .. } | News::Health(_) | News::Gone => {}
                });
                sources.run(stop).await;
            })
        }
    }

    /// What is known of the GPUs of these pods. `is_stale`: whether the caches may be out of date.
    pub(crate) fn faults_of<'p>(&self, pods: impl Iterator<Item = &'p PodView>, is_stale: bool) -> PodFaults {
        let Some(sources) = &self.sources else { return PodFaults::default() };
        let mut known = PodFaults { is_stale, ..PodFaults::default() };
        for pod in pods {
            let view = pod.node.as_deref().and_then(|node| sources.of_node(node));
            known.is_reported |= view.is_some();
            match view.map_or(Finding::Nothing, |view| finding(&view, pod)) {
                Finding::Nothing => {}
                Finding::Doubt => known.is_doubtful = true,
                Finding::Fault(fault) => self.faults.note(pod.uid(), fault),
            }
            known.faults.extend(self.faults.of(pod.uid()).map(|fault| (pod.uid().to_owned(), fault)));
        }
        known
    }
}

/// The worst error of the GPUs that a pod holds. An error counts if the agent named the pod as a holder when it happened, and
/// names it now, by a kubelet that has just answered.
fn finding(view: &View, pod: &PodView) -> Finding {
    let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or_default(), pod.name());
    let was_held = |event: &&Event| event.holders.iter().any(|holder| holder.is_pod(namespace, name));
    let gpus = view.held_by(namespace, name).count();
    let recent = view.events().filter(|(_, age)| *age <= OLDEST_ERROR).map(|(event, _)| event);
    let faults = recent.filter(|event| event.is_fatal).filter(was_held);
    let faults: Vec<(&Event, GpuFault)> =
        faults.filter_map(|event| Some((event, fault(view, event, gpus)?))).collect();
    if faults.is_empty() {
        return Finding::Nothing;
    }
    if view.health != Health::Live || view.attribution() != Attribution::Fresh {
        return Finding::Doubt;
    }
    let is_held = |event: &Event| {
        view.held_by(namespace, name)
            .any(|subject| subject.id == event.subject_id || subject.parent_id == event.subject_id)
    };
    let held = faults.into_iter().filter(|(event, _)| is_held(event)).map(|(_, fault)| fault);
    held.max_by_key(|fault| (fault.remedy, fault.at)).map_or(Finding::Nothing, Finding::Fault)
}

/// `None`: it costs no pod its GPU.
fn fault(view: &View, event: &Event, gpus: usize) -> Option<GpuFault> {
    let (xid, remedy) = match event.kind {
        EventKind::DeviceError => (event.code, remedy(event.code?, gpus)?),
        // Unless it came back.
        EventKind::DeviceLost => {
            let mut subjects = view.latest.iter().flat_map(|latest| &latest.snapshot.subjects);
            let device = subjects.find(|subject| subject.id == event.subject_id)?;
            device.fault.as_ref().filter(|fault| fault.reason == FaultReason::DeviceLost)?;
            (None, Remedy::Replace)
        }
        EventKind::Unspecified
        | EventKind::EccCorrected
        | EventKind::EccUncorrected
        | EventKind::DeviceBack => return None,
    };
    let at = Timestamp::try_from(event.at?).ok()?;
    Some(GpuFault { gpu: event.subject_id.to_string(), xid, remedy, at })
}

#[cfg(test)]
mod tests {
    use metrics_client::{
        endpoint::{Endpoint, Origin},
        snapshot::{Fault, Holder, PodName, Snapshot, State, Subject, SubjectKind},
        view::Latest,
    };

    use super::*;
    use crate::tests::{at, pod};

    fn holder(name: &str) -> Holder {
        Holder {
            pod: PodName { namespace: "demo".into(), name: name.into() },
            uid: "".into(),
            container: "engine".into(),
            resource: "nvidia.com/gpu".into(),
            shares: 1,
        }
    }

    fn gpu(id: &str, parent: &str, holders: &[&str]) -> Subject {
        Subject {
            id: id.into(),
            kind: if parent.is_empty() { SubjectKind::Device } else { SubjectKind::Partition },
            parent_id: parent.into(),
            readings: Vec::new(),
            holders: holders.iter().map(|name| holder(name)).collect(),
            fault: None,
        }
    }

    /// `code`: nothing if the device was lost.
    fn event(gpu: &str, code: Option<u64>, holders: &[&str]) -> Event {
        Event {
            sequence: 1,
            age: Duration::from_secs(1),
            at: Some(at(-1).into()),
            kind: if code.is_some() { EventKind::DeviceError } else { EventKind::DeviceLost },
            subject_id: gpu.into(),
            code,
            holders: holders.iter().map(|name| holder(name)).collect(),
            is_fatal: true,
        }
    }

    fn view(subjects: Vec<Subject>, events: Vec<Event>) -> View {
        let snapshot = Snapshot {
            instance: "i".into(),
            sequence: 1,
            uptime: Duration::from_secs(100),
            interval: Duration::from_secs(1),
            node: "gpu-1".into(),
            pod: None,
            subjects,
            events,
            faults: Vec::new(),
            attribution: metrics_client::snapshot::Attribution { state: State::Fresh, age: Duration::ZERO },
            is_cut: false,
        };
        View {
            endpoint: Endpoint { origin: Origin::Node("gpu-1".into()), address: "10.0.0.1:9401".into() },
            health: Health::Live,
            latest: Some(Latest {
                snapshot: Arc::new(snapshot),
                age: Duration::from_secs(1),
                patience: Duration::from_secs(30),
                is_admitted: true,
            }),
        }
    }

    fn edited(mut view: View, edit: impl FnOnce(&mut Snapshot)) -> View {
        let latest = view.latest.as_mut().unwrap();
        let mut snapshot = Snapshot::clone(&latest.snapshot);
        edit(&mut snapshot);
        latest.snapshot = Arc::new(snapshot);
        view
    }

    /// Of pod demo/b.
    fn found(view: &View) -> Finding {
        finding(view, &pod("{name: b, node: gpu-1, ready: true}"))
    }

    fn xid(finding: &Finding) -> Option<u64> {
        match finding {
            Finding::Fault(fault) => fault.xid,
            Finding::Nothing | Finding::Doubt => None,
        }
    }

    #[test]
    fn an_error_of_a_gpu_that_a_pod_held_then_and_holds_now_is_its_fault() {
        let view = view(vec![gpu("a", "", &["b"])], vec![event("a", Some(79), &["b"])]);
        let fault = GpuFault { gpu: "a".into(), xid: Some(79), remedy: Remedy::Replace, at: at(-1) };
        assert_eq!(found(&view), Finding::Fault(fault));
    }

    #[test]
    fn an_error_of_before_or_after_a_pod_held_the_gpu_is_not() {
        let before = view(vec![gpu("a", "", &["b"])], vec![event("a", Some(79), &["older"])]);
        assert_eq!(found(&before), Finding::Nothing);
        let after = view(vec![gpu("a", "", &["newer"])], vec![event("a", Some(79), &["b"])]);
        assert_eq!(found(&after), Finding::Nothing);
        let of_another = view(vec![gpu("a", "", &["b"]), gpu("c", "", &[])], vec![event("c", Some(79), &[])]);
        assert_eq!(found(&of_another), Finding::Nothing);
    }

    #[test]
    fn an_error_that_the_agent_or_the_catalogue_calls_harmless_is_nothing() {
        let mut harmless = event("a", Some(79), &["b"]);
        harmless.is_fatal = false;
        assert_eq!(found(&view(vec![gpu("a", "", &["b"])], vec![harmless])), Finding::Nothing);
        let remapped = event("a", Some(63), &["b"]);
        assert_eq!(found(&view(vec![gpu("a", "", &["b"])], vec![remapped])), Finding::Nothing);
    }

    #[test]
    fn the_error_of_a_device_is_that_of_its_partitions() {
        let view = view(
            vec![gpu("a", "", &[]), gpu("MIG-1", "a", &["b"])],
            vec![event("a", Some(95), &["b", "other"])],
        );
        assert_eq!(xid(&found(&view)), Some(95));
    }

    #[test]
    fn the_worst_of_several_errors_counts() {
        let view = view(
            vec![gpu("a", "", &["b"])],
            vec![event("a", Some(79), &["b"]), event("a", Some(64), &["b"])],
        );
        assert_eq!(xid(&found(&view)), Some(79));
    }

    #[test]
    fn what_is_old_or_not_trusted_is_a_doubt() {
        let view = view(vec![gpu("a", "", &["b"])], vec![event("a", Some(79), &["b"])]);
        let silent = View { health: Health::Silent { lasting: Duration::from_secs(9) }, ..view.clone() };
        assert_eq!(found(&silent), Finding::Doubt);
        let old = edited(view.clone(), |snapshot| snapshot.attribution.state = State::Stale);
        assert_eq!(found(&old), Finding::Doubt);
        let mut liar = view;
        liar.latest.as_mut().unwrap().is_admitted = false;
        assert_eq!(found(&liar), Finding::Doubt);
    }

    #[test]
    fn an_error_of_long_ago_is_not_waited_for() {
        let mut old = view(vec![gpu("a", "", &["b"])], vec![event("a", Some(79), &["b"])]);
        let lasting = Duration::from_secs(900);
        old.health = Health::Silent { lasting };
        old.latest.as_mut().unwrap().age = lasting;
        assert_eq!(found(&old), Finding::Nothing);
    }

    #[test]
    fn a_device_is_lost_until_it_is_back() {
        let lost = Fault { reason: FaultReason::DeviceLost, message: "".into() };
        let with = |fault: Option<Fault>| {
            let subject = Subject { fault, ..gpu("a", "", &["b"]) };
            found(&view(vec![subject], vec![event("a", None, &["b"])]))
        };
        assert!(matches!(with(Some(lost)), Finding::Fault(GpuFault { xid: None, .. })));
        assert_eq!(with(None), Finding::Nothing);
    }
}
