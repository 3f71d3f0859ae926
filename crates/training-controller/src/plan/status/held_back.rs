//! Holds back a status that differs from the written one only in details, until it has differed for five seconds; its events
//! wait with it. A pod that comes up passes through states that last for a second or two, and each would be a write: with a
//! thousand jobs, these were most of the work of the API server. A plan that creates or deletes something is not held back.
//! Pure.

use std::time::Duration;

use api::{conditions, trainingjob::TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use workload::time::remaining;

use crate::{
    observe::Observed,
    plan::{Child, Run},
};

/// How long the status may lack a detail.
const DETAIL_WAIT: Duration = Duration::from_secs(5);
/// For `FactTimes`, until the status is written: a write that fails is tried again without another wait.
pub(crate) const DETAIL_HELD_BACK: &str = "the status lacks a detail";
/// Conditions that say how far a job is on its way.
const DETAILS: [&str; 3] = [conditions::SCHEDULED, conditions::RUNNING, conditions::RECONCILING];

/// The plan without its status and its events, if these are only details and not due yet.
pub(crate) fn held_back(mut plan: Run, observed: &Observed, now: Timestamp) -> Run {
    let Some(before) = observed.job.status.as_ref() else { return plan };
    // The Service of a gang is compared each time.
    let creates = plan.children.iter().any(|child| !matches!(child, Child::Service(_)));
    let acts = creates || !plan.deletions.is_empty() || plan.is_expired;
    if acts || plan.status == *before || !differ_at_most_in_details(before, &plan.status) {
        return plan;
    }
    plan.facts.push(DETAIL_HELD_BACK.to_owned());
    let since = observed.facts.get(DETAIL_HELD_BACK).copied().unwrap_or(now);
    let Some(left) = remaining(DETAIL_WAIT, since, now) else { return plan };
    let requeue_after = plan.requeue_after.into_iter().chain([left]).min();
    Run { status: before.clone(), events: Vec::new(), requeue_after, ..plan }
}

fn differ_at_most_in_details(before: &TrainingJobStatus, after: &TrainingJobStatus) -> bool {
    let attempt = |status: &TrainingJobStatus| status.progress.as_ref().map(|progress| progress.attempt);
    if attempt(before) == attempt(after) && before.progress != after.progress {
        // The log has its own pace: see `progress`.
        return false;
    }
    let others = |status: &TrainingJobStatus| -> Vec<Condition> {
        let all = status.conditions.iter();
        all.filter(|known| !DETAILS.contains(&&*known.type_)).cloned().collect()
    };
    let without = |status: &TrainingJobStatus| TrainingJobStatus {
        reason: None,
        message: None,
        progress: None,
        loss_curve: Vec::new(),
        checkpoint: None,
        conditions: others(status),
        ..status.clone()
    };
    without(before) == without(after)
}

#[cfg(test)]
mod tests {
    use api::trainingjob::{Phase, Progress};
    use runtime::write::events::{Note, Severity};

    use super::*;
    use crate::{
        plan::{nothing, tests::observed},
        tests::{at, job},
    };

    /// What is planned for a job of this status, of which a detail has been held back since then.
    fn planned(before: TrainingJobStatus, after: TrainingJobStatus, held_since: Option<i64>) -> Run {
        let mut observed = observed(job("qwen", "{model: m, dataset: d, method: lora}"));
        std::sync::Arc::make_mut(&mut observed.job).status = Some(before);
        observed.facts.extend(held_since.map(|seconds| (DETAIL_HELD_BACK.to_owned(), at(seconds))));
        let event = Note { severity: Severity::Warning, reason: "Unschedulable", message: String::new() };
        held_back(Run { events: vec![event], ..nothing(after) }, &observed, at(10))
    }

    fn status(phase: Phase, reason: &str) -> TrainingJobStatus {
        TrainingJobStatus {
            phase: Some(phase),
            reason: Some(reason.to_owned()),
            ..TrainingJobStatus::default()
        }
    }

    fn with_step(step: i64) -> TrainingJobStatus {
        let progress = Progress { step, attempt: 1, ..Progress::default() };
        TrainingJobStatus { progress: Some(progress), ..status(Phase::Running, "Training") }
    }

    #[test]
    fn a_detail_is_written_with_its_event_once_it_has_lasted() {
        let (before, after) = (status(Phase::Pending, "Starting"), status(Phase::Pending, "Unschedulable"));
        for held_since in [None, Some(10), Some(6)] {
            let plan = planned(before.clone(), after.clone(), held_since);
            assert_eq!(plan.status, before, "{held_since:?}");
            assert!(plan.events.is_empty());
            assert_eq!(plan.facts, [DETAIL_HELD_BACK]);
            let left = 5 - (10 - held_since.unwrap_or(10));
            assert_eq!(plan.requeue_after, Some(Duration::from_secs(left.unsigned_abs())));
        }
        let plan = planned(before.clone(), after.clone(), Some(5));
        assert_eq!((plan.status, plan.events.len()), (after, 1));
        assert_eq!(plan.facts, [DETAIL_HELD_BACK], "a write that fails is tried again at once");
        let plan = planned(before.clone(), before, Some(8));
        assert_eq!((plan.facts, plan.requeue_after), (Vec::new(), None), "it has passed by itself");
    }

    #[test]
    fn what_matters_is_written_at_once() {
        let before = status(Phase::Pending, "Starting");
        let changes: [fn(&mut TrainingJobStatus); 5] = [
            |status| status.phase = Some(Phase::Running),
            |status| status.attempts = 1,
            |status| status.ended_attempts = 1,
            |status| status.observed_generation = 2,
            |status| {
                let verdict = runtime::write::conditions::Verdict {
                    type_: conditions::STALLED,
                    holds: true,
                    reason: "Denied",
                    message: String::new(),
                };
                status.conditions = runtime::write::conditions::merged(vec![verdict], &[], Some(1), at(0));
            },
        ];
        for change in changes {
            let mut after = status(Phase::Pending, "Unschedulable");
            change(&mut after);
            assert_eq!(planned(before.clone(), after.clone(), None).status, after);
        }
    }

    #[test]
    fn a_gang_whose_service_is_there_acts_no_more_than_a_single_pod() {
        let before = status(Phase::Pending, "Starting");
        let held = |child: fn() -> Child| {
            let mut observed = observed(job("qwen", "{model: m, dataset: d, method: lora}"));
            std::sync::Arc::make_mut(&mut observed.job).status = Some(before.clone());
            let after = status(Phase::Pending, "Unschedulable");
            let plan = held_back(Run { children: vec![child()], ..nothing(after) }, &observed, at(0));
            plan.status == before
        };
        assert!(held(|| Child::Service(Box::default())));
        assert!(!held(|| Child::Claim(Box::default())), "a plan that creates something is reported at once");
    }

    #[test]
    fn progress_keeps_the_pace_of_the_log() {
        let first = with_step(1);
        assert_eq!(planned(status(Phase::Running, "Preparing"), first.clone(), None).status.progress, None);
        let later = with_step(20);
        assert_eq!(planned(first, later.clone(), None).status, later);
    }
}
