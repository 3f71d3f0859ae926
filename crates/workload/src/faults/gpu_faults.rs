//! Errors of GPUs that pods hold: which of them cost a pod its GPU, and which pod is replaced because of one.
//!
//! A pod is deleted with its grace period, never by force. Of an owner, one pod is deleted at a time. The next one follows
//! when the replacement is ready, or after a while. A pod whose container has started again since the error and serves has
//! recovered. Which errors there were, and which pods held the GPU, is found out elsewhere, and only what is certain
//! arrives here. NVIDIA's device plugin takes such a GPU from the node, so the replacement does not get it again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::reasons;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    faults::{migrations::PodMigration, pace::Allowance},
    time::elapsed,
    views::pod::PodView,
};

/// An error of a GPU while a pod held it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFault {
    /// Id of the GPU.
    pub gpu: String,
    /// NVIDIA's XID; `None`: the GPU does not answer any more.
    pub xid: Option<u64>,
    pub remedy: Remedy,
    /// By the clock of the node, like the times in the status of a container.
    pub at: Timestamp,
}

/// What a pod needs after an error. The second one is the stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// Another GPU, if it does not serve: the error may have left its work alone.
    ReplaceUnlessServing,
    /// Another GPU: this one does no work before it is reset.
    Replace,
}

/// The remedy for an XID on one of so many GPUs of a pod. `None`: the pod needs no other GPU.
///
/// By the immediate actions in NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog):
///
/// - RESET_GPU and RESTART_BM: no process can use the GPU as it is.
/// - RESTART_APP needs no other GPU. The kubelet starts the container again. An example is 94, a memory error that was
///   contained to one process.
/// - IGNORE needs nothing. An example is 63, memory that is remapped at the next reset.
///
/// NVIDIA asks for a reset after 136, 143, 155 and 156, which concern links and retired resources. They cost running work
/// nothing. 109 is an error of the application in most cases.
pub fn remedy(xid: u64, gpus: usize) -> Option<Remedy> {
    match xid {
        // Stopped processing; uncorrected memory error; PMU halted; off the bus; memory error that was not contained; SEC2
        // fault; GSP does not answer; GSP error; uncorrected memory error that escaped; fatal timeout.
        46 | 48 | 62 | 79 | 95 | 110 | 119 | 120 | 140 | 158 => Some(Remedy::Replace),
        // Memory that could not be retired: work goes on until it is touched again.
        64 => Some(Remedy::ReplaceUnlessServing),
        // NVLink: most of these errors are corrected, and the registers that would say so are not reported. A pod with one
        // GPU does not use the link.
        74 if gpus > 1 => Some(Remedy::ReplaceUnlessServing),
        _ => None,
    }
}

/// Errors by uid of the pods that held the GPUs. Sources repeat an error for minutes only, and a pod may have to wait for
/// longer. A restart of the process loses those that are not repeated any more.
#[derive(Debug, Default)]
pub struct GpuFaults(Mutex<HashMap<String, GpuFault>>);

/// Maximum number of pods. Beyond it all entries are dropped.
const MOST: usize = 10_000;

impl GpuFaults {
    /// The strongest error counts, and of those the newest.
    pub fn note(&self, pod: &str, fault: GpuFault) {
        let mut by_uid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if by_uid.len() >= MOST && !by_uid.contains_key(pod) {
            by_uid.clear();
        }
        let known = by_uid.entry(pod.to_owned()).or_insert_with(|| fault.clone());
        if (known.remedy, known.at) < (fault.remedy, fault.at) {
            *known = fault;
        }
    }

    pub fn of(&self, pod: &str) -> Option<GpuFault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(pod).cloned()
    }

    pub fn forget(&self, pod: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(pod);
    }
}

/// What is known of the GPUs of one owner's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFaults {
    /// By uid of the pods.
    pub faults: BTreeMap<String, GpuFault>,
    /// Whether there is an error of which it is not certain that a pod held the GPU.
    pub is_doubtful: bool,
    /// Whether the watch of the pods or of their owners is failing.
    pub is_stale: bool,
    /// Whether an agent reports on the node of one of the pods.
    pub is_reported: bool,
}

/// The owner's settings.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub is_paused: bool,
    pub replicas: i32,
    /// The container that decides whether a pod serves.
    pub container: &'static str,
    /// When a pod of this owner was last deleted for this reason.
    pub last: Option<Timestamp>,
}

/// The pods of one owner that have lost a GPU, in the order of their replacement.
#[derive(Debug)]
pub struct FaultyPods<'a> {
    pods: Vec<Faulty<'a>>,
    hold: Option<Hold>,
    is_doubtful: bool,
}

#[derive(Debug)]
pub struct Faulty<'a> {
    pod: &'a PodView,
    node: &'a str,
    fault: &'a GpuFault,
}

/// Why no pod is replaced at this time.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Paused,
    Stale,
    /// Another one is being replaced; what is left of the longest wait.
    OneAtATime(Duration),
}

/// As long as a large model takes to load. If the replacement cannot be scheduled, the next pod is no worse off.
const LONGEST_WAIT: Duration = Duration::from_secs(900);
/// An agent asks its kubelet every five seconds who holds what.
const DOUBT_RETRY: Duration = Duration::from_secs(5);
/// A watch that works again starts no reconcile, a change of an admission policy neither.
const RETRY: Duration = Duration::from_secs(60);

impl<'a> FaultyPods<'a> {
    /// `others`: pods that are replaced for another reason, by uid.
    pub fn of(
        pods: impl Iterator<Item = &'a PodView>,
        known: &'a PodFaults,
        others: &[&str],
        terms: &Terms,
        now: Timestamp,
    ) -> Self {
        let (mut faulty, mut ready) = (Vec::new(), 0_usize);
        for pod in pods {
            let fault =
                known.faults.get(pod.uid()).filter(|fault| costs_its_gpu(pod, fault, terms.container));
            match (fault, pod.node.as_deref()) {
                (Some(fault), Some(node)) if !others.contains(&pod.uid()) => {
                    faulty.push(Faulty { pod, node, fault });
                }
                (Some(_), _) => {}
                (None, _) => ready += usize::from(pod.is_ready),
            }
        }
        faulty.sort_by_key(|one| (std::cmp::Reverse(one.fault.remedy), one.pod.name()));
        let wanted = usize::try_from(terms.replicas).unwrap_or_default();
        let is_complete = ready + faulty.len() >= wanted;
        let left = terms.last.map(|last| LONGEST_WAIT.saturating_sub(elapsed(last, now)));
        let hold = if terms.is_paused {
            Some(Hold::Paused)
        } else if known.is_stale {
            Some(Hold::Stale)
        } else {
            left.filter(|left| !left.is_zero() && !is_complete).map(Hold::OneAtATime)
        };
        Self { pods: faulty, hold, is_doubtful: known.is_doubtful }
    }

    /// The uid of the pod whose time has come.
    pub fn due(&self) -> Option<&'a str> {
        self.pods.first().filter(|_| self.hold.is_none()).map(|faulty| faulty.pod.uid())
    }

    /// The pod to delete now.
    pub fn allowed(&self, allowance: &Allowance) -> Option<&Faulty<'a>> {
        let due = self.due()?;
        self.pods.first().filter(|_| allowance.pods.contains(due))
    }

    /// When to check again. Call it after the allowed pod has been deleted: if it still exists, its deletion was refused.
    pub fn requeue_after(&self, allowance: &Allowance) -> Option<Duration> {
        let doubt = self.is_doubtful.then_some(DOUBT_RETRY);
        let wait = match (self.pods.first(), self.hold) {
            (None, _) | (Some(_), Some(Hold::Paused)) => None,
            (Some(_), Some(Hold::Stale)) => Some(RETRY),
            (Some(_), Some(Hold::OneAtATime(left))) => Some(left),
            (Some(_), None) => Some(allowance.requeue_after.unwrap_or(RETRY)),
        };
        [doubt, wait].into_iter().flatten().min()
    }

    /// A message about the first pod that has lost a GPU and is still there.
    pub fn outlook_message(&self) -> Option<String> {
        let first = self.pods.first()?;
        let outlook = match self.hold {
            Some(Hold::Paused) => "is not replaced while spec.paused is true",
            Some(Hold::Stale) => "is not replaced while the watch of pods fails",
            Some(Hold::OneAtATime(_)) => "is replaced when the one before it has been",
            None => "is replaced",
        };
        Some(format!("{}; pod {} {outlook}", first.loss(), first.pod.name()))
    }
}

impl Faulty<'_> {
    /// What is known of it once its deletion was accepted.
    pub fn migration(&self, now: Timestamp) -> PodMigration {
        PodMigration {
            pod: self.pod.name().to_owned(),
            node: self.node.to_owned(),
            reason: reasons::GPU_FAULT,
            message: Some(self.loss()),
            time: now,
        }
    }

    /// The message of the event about an accepted deletion.
    pub fn message(&self) -> String {
        format!("{}; pod {} is replaced", self.loss(), self.pod.name())
    }

    /// Of the pod, as preconditions of its deletion.
    pub fn identity(&self) -> Pod {
        self.pod.identity()
    }

    fn loss(&self) -> String {
        let GpuFault { gpu, xid, .. } = self.fault;
        match xid {
            Some(xid) => format!("XID {xid} of {gpu} on node {}", self.node),
            None => format!("{gpu} on node {} is lost", self.node),
        }
    }
}

/// Whether the pod needs another GPU. Both times are of the clock of the node.
fn costs_its_gpu(pod: &PodView, fault: &GpuFault, container: &str) -> bool {
    let container = pod.container(container);
    let serves = container.is_some_and(|container| container.ready);
    let started = container
        .and_then(|container| container.state.running.as_ref())
        .and_then(|running| running.started_at);
    // Times of containers are whole seconds: one that started in the second of the error started before it.
    let has_recovered = serves && started.is_some_and(|started| started > fault.at);
    match fault.remedy {
        Remedy::Replace => !has_recovered,
        Remedy::ReplaceUnlessServing => !serves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn fault(xid: u64) -> GpuFault {
        let remedy = remedy(xid, 2).unwrap_or(Remedy::Replace);
        GpuFault { gpu: "GPU-a".into(), xid: Some(xid), remedy, at: at(0) }
    }

    /// Its engine started at this second, before or after the errors at 0.
    fn pod(name: &str, ready: bool, started: i64) -> PodView {
        let labels = "app.kubernetes.io/instance: chat, app.kubernetes.io/name: aiinference, \
                      app.kubernetes.io/managed-by: inference-controller";
        let condition = if ready { "True" } else { "False" };
        let text = format!(
            "{{metadata: {{name: {name}, uid: {name}, labels: {{{labels}}}}}, spec: {{nodeName: gpu-1}}, \
             status: {{conditions: [{{type: Ready, status: '{condition}'}}], containerStatuses: \
             [{{name: engine, ready: {ready}, state: {{running: {{startedAt: '{}'}}}}}}]}}}}",
            at(started)
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    const TERMS: Terms = Terms { is_paused: false, replicas: 2, container: "engine", last: None };

    struct Scene {
        pods: Vec<PodView>,
        known: PodFaults,
        terms: Terms,
        now: Timestamp,
    }

    /// Pods a and b, of which those named have had this XID.
    fn scene(xid: u64, faulty: &[&str]) -> Scene {
        let faults = faulty.iter().map(|pod| ((*pod).to_owned(), fault(xid))).collect();
        Scene {
            pods: vec![pod("a", true, -100), pod("b", true, -100)],
            known: PodFaults { faults, ..PodFaults::default() },
            terms: TERMS,
            now: at(1),
        }
    }

    impl Scene {
        fn with<T>(&self, read: impl FnOnce(FaultyPods<'_>) -> T) -> T {
            read(FaultyPods::of(self.pods.iter(), &self.known, &[], &self.terms, self.now))
        }

        fn due(&self) -> Option<String> {
            self.with(|faulty| faulty.due().map(str::to_owned))
        }

        fn requeue_after(&self) -> Option<u64> {
            self.with(|faulty| faulty.requeue_after(&Allowance::default())).map(|wait| wait.as_secs())
        }
    }

    #[test]
    fn only_errors_after_which_a_gpu_has_to_be_reset_cost_a_pod_its_gpu() {
        for xid in [46, 48, 79, 95, 119, 120, 140] {
            assert_eq!(remedy(xid, 1), Some(Remedy::Replace), "{xid}");
        }
        // Of the application, contained to it, remapped, counted.
        for xid in [0, 13, 31, 43, 45, 63, 68, 92, 94, 109, 999] {
            assert_eq!(remedy(xid, 8), None, "{xid}");
        }
        assert_eq!(remedy(64, 1), Some(Remedy::ReplaceUnlessServing));
        assert_eq!((remedy(74, 1), remedy(74, 8)), (None, Some(Remedy::ReplaceUnlessServing)));
    }

    #[test]
    fn a_pod_on_a_lost_gpu_is_replaced_although_it_says_that_it_is_ready() {
        assert_eq!(scene(79, &["b"]).due().as_deref(), Some("b"));
        assert_eq!(scene(79, &[]).due(), None);
    }

    #[test]
    fn a_pod_that_goes_on_serving_after_an_error_that_may_have_left_it_alone_stays() {
        let mut scene = scene(64, &["b"]);
        assert_eq!(scene.due(), None);
        scene.pods[1] = pod("b", false, -100);
        assert_eq!(scene.due().as_deref(), Some("b"));
    }

    #[test]
    fn an_engine_that_started_again_after_the_error_and_serves_has_recovered() {
        let mut scene = scene(48, &["b"]);
        scene.pods[1] = pod("b", true, 1);
        assert_eq!(scene.due(), None);
        scene.pods[1] = pod("b", true, 0);
        assert_eq!(scene.due().as_deref(), Some("b"), "in the second of the error");
        scene.pods[1] = pod("b", false, 1);
        assert_eq!(scene.due().as_deref(), Some("b"), "it started again, and does not serve");
    }

    #[test]
    fn one_pod_of_an_owner_is_replaced_at_a_time() {
        let mut scene = scene(79, &["a", "b"]);
        assert_eq!(scene.due().as_deref(), Some("a"));
        scene.terms.last = Some(at(1));
        scene.now = at(2);
        scene.pods = vec![pod("b", true, -100), pod("c", false, 1)];
        assert_eq!(scene.due(), None, "the replacement is not ready");
        assert_eq!(scene.requeue_after(), Some(899));
        let message = scene.with(|faulty| faulty.outlook_message()).unwrap();
        assert_eq!(
            message,
            "XID 79 of GPU-a on node gpu-1; pod b is replaced when the one before it has been"
        );
        scene.pods[1] = pod("c", true, 1);
        assert_eq!(scene.due().as_deref(), Some("b"));
        scene.pods[1] = pod("c", false, 1);
        scene.now = at(901);
        assert_eq!(scene.due().as_deref(), Some("b"), "the replacement may never be ready");
    }

    #[test]
    fn another_pod_that_is_missing_does_not_keep_a_broken_one() {
        let mut scene = scene(79, &["b"]);
        scene.pods.remove(0);
        assert_eq!(scene.due().as_deref(), Some("b"));
    }

    #[test]
    fn the_stronger_error_comes_first() {
        let mut scene = scene(79, &["b"]);
        scene.pods[0] = pod("a", false, -100);
        scene.known.faults.insert("a".into(), fault(64));
        assert_eq!(scene.due().as_deref(), Some("b"));
    }

    #[test]
    fn nothing_is_replaced_while_the_owner_is_paused_or_the_caches_are_old() {
        let mut paused = scene(79, &["b"]);
        paused.terms.is_paused = true;
        assert_eq!((paused.due(), paused.requeue_after()), (None, None));
        let mut stale = scene(79, &["b"]);
        stale.known.is_stale = true;
        assert_eq!((stale.due(), stale.requeue_after()), (None, Some(60)));
    }

    #[test]
    fn what_is_not_certain_is_looked_at_again_and_replaces_nothing() {
        let mut scene = scene(79, &[]);
        scene.known.is_doubtful = true;
        assert_eq!((scene.due(), scene.requeue_after()), (None, Some(5)));
    }

    #[test]
    fn a_pod_that_is_replaced_for_another_reason_is_left_to_that() {
        let scene = scene(79, &["a", "b"]);
        let faulty = FaultyPods::of(scene.pods.iter(), &scene.known, &["a"], &scene.terms, scene.now);
        assert_eq!(faulty.due(), Some("b"));
    }

    #[test]
    fn a_deletion_names_pod_node_gpu_and_error() {
        let allowance = Allowance { pods: ["b".to_owned()].into(), requeue_after: None };
        scene(79, &["b"]).with(|faulty| {
            let faulty = faulty.allowed(&allowance).expect("allowed");
            assert_eq!(faulty.message(), "XID 79 of GPU-a on node gpu-1; pod b is replaced");
            assert_eq!(faulty.identity().metadata.uid.as_deref(), Some("b"));
            let PodMigration { pod, node, reason, message, time } = faulty.migration(at(5));
            assert_eq!((&*pod, &*node, reason, time), ("b", "gpu-1", "GPUFault", at(5)));
            assert_eq!(message.as_deref(), Some("XID 79 of GPU-a on node gpu-1"));
        });
        scene(79, &["b"]).with(|faulty| assert!(faulty.allowed(&Allowance::default()).is_none()));
    }

    #[test]
    fn the_memory_keeps_the_strongest_and_newest_error_of_a_pod_and_is_bounded() {
        let faults = GpuFaults::default();
        faults.note("a", fault(64));
        faults.note("a", fault(79));
        faults.note("a", GpuFault { at: at(9), ..fault(64) });
        assert_eq!(faults.of("a").unwrap().xid, Some(79));
        faults.note("a", GpuFault { at: at(9), ..fault(95) });
        assert_eq!(faults.of("a").unwrap().xid, Some(95));
        faults.forget("a");
        assert_eq!(faults.of("a"), None);
        (0..=MOST).for_each(|pod| faults.note(&pod.to_string(), fault(79)));
        assert_eq!(faults.0.lock().unwrap().len(), 1);
    }
}
