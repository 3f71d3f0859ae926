//! Why a pod has no node: the scheduler finds none, a gate holds it back, or no scheduler looks at it. Pure.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;

use crate::{
    Cause, Finding,
    faults::gpu::{Demand, NodeCapacity, unschedulable},
    time::remaining,
    views::pod::PodView,
};

/// The scheduler of the cluster may have a backlog of thousands of pods.
const LOOKED_AT_WITHIN: Duration = Duration::from_secs(60);
/// A scheduler that a spec names is often one that is not installed.
const NAMED_LOOKS_WITHIN: Duration = Duration::from_secs(20);
/// Of Kueue, in the name of its gate.
const KUEUE: &str = "kueue.x-k8s.io/";

/// `demand` is `None` for pods without GPUs.
pub fn unplaced(
    demand: Option<Demand<'_>>,
    pod: &PodView,
    capacities: Option<&[NodeCapacity]>,
    now: Timestamp,
) -> Finding {
    if pod.node.is_some() || pod.is_over() || pod.has_started_containers() {
        return Finding::default();
    }
    let Some(scheduled) = &pod.scheduled else { return unseen(pod, now) };
    let cause = if scheduled.status == "False" && scheduled.reason == "SchedulingGated" {
        Some(gated(pod))
    } else {
        unschedulable(demand, pod, capacities)
    };
    Finding { cause, requeue_after: None }
}

fn gated(pod: &PodView) -> Cause {
    let gates: Vec<&str> = pod.gates.iter().map(AsRef::as_ref).collect();
    let who = if gates.iter().any(|gate| gate.starts_with(KUEUE)) {
        "; Kueue removes it when the queue has room: see kubectl get workloads"
    } else {
        "; what added it must remove it"
    };
    let message = format!("pod {} is held back by the scheduling gate {}{who}", pod.name(), gates.join(", "));
    Cause { reason: reasons::SCHEDULING_GATED, message }
}

/// No scheduler has written anything about the pod.
fn unseen(pod: &PodView, now: Timestamp) -> Finding {
    let patience = if pod.scheduler.is_some() { NAMED_LOOKS_WITHIN } else { LOOKED_AT_WITHIN };
    let Some(created) = pod.created() else { return Finding::default() };
    if let Some(wait) = remaining(patience, created, now) {
        return Finding { cause: None, requeue_after: Some(wait) };
    }
    let fix = match &pod.scheduler {
        Some(name) => {
            format!("check that the scheduler {name} runs, or change spec.scheduling.schedulerName")
        }
        None => "check that the scheduler of the cluster runs".to_owned(),
    };
    let message = format!(
        "no scheduler has said anything of pod {} within {} s of its creation: {fix}",
        pod.name(),
        patience.as_secs()
    );
    Finding { cause: Some(Cause { reason: reasons::NO_SCHEDULER, message }), requeue_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &str, status: &str, seconds: i64) -> Finding {
        let text = format!(
            "{{metadata: {{name: new, creationTimestamp: '2026-01-01T12:00:00Z', labels: {{app.kubernetes.io/name: a, \
             app.kubernetes.io/instance: b, app.kubernetes.io/managed-by: c-controller}}}}, spec: {{{spec}}}, \
             status: {{{status}}}}}"
        );
        let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let pod: PodView = serde_saphyr::from_str(&text).unwrap();
        unplaced(None, &pod, None, noon + jiff::SignedDuration::from_secs(seconds))
    }

    fn message(finding: Finding) -> (&'static str, String) {
        let Cause { reason, message } = finding.cause.unwrap();
        (reason, message)
    }

    #[test]
    fn a_gate_is_named_with_what_removes_it() {
        let gated = "conditions: [{type: PodScheduled, status: 'False', reason: SchedulingGated}]";
        let of = |gate: &str| message(found(&format!("schedulingGates: [{{name: {gate}}}]"), gated, 0));
        let (reason, kueue) = of("kueue.x-k8s.io/admission");
        assert_eq!(reason, reasons::SCHEDULING_GATED);
        assert_eq!(
            kueue,
            "pod new is held back by the scheduling gate kueue.x-k8s.io/admission; Kueue removes it when the queue has \
             room: see kubectl get workloads"
        );
        assert!(of("example.com/review").1.ends_with("example.com/review; what added it must remove it"));
    }

    #[test]
    fn a_scheduler_that_does_not_look_is_named_after_a_while() {
        let volcano = "schedulerName: volcano";
        assert_eq!(
            found(volcano, "", 5),
            Finding { cause: None, requeue_after: Some(Duration::from_secs(15)) }
        );
        let (reason, said) = message(found(volcano, "", 20));
        assert_eq!(reason, reasons::NO_SCHEDULER);
        assert!(
            said.ends_with("check that the scheduler volcano runs, or change spec.scheduling.schedulerName")
        );
        let default = "schedulerName: default-scheduler";
        assert_eq!(found(default, "", 20).requeue_after, Some(Duration::from_secs(40)));
        assert!(message(found(default, "", 60)).1.contains("the scheduler of the cluster"));
    }

    #[test]
    fn a_pod_with_a_node_or_at_its_end_is_not_reported() {
        assert_eq!(found("nodeName: a", "", 99), Finding::default());
        assert_eq!(found("", "phase: Failed", 99), Finding::default());
    }
}
