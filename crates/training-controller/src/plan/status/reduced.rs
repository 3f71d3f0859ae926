//! The status that is written if the API server refuses the whole one: the phase, the conditions and the numbers by which
//! attempts are counted. So a job can still be suspended, end and be deleted. Pure.

use std::time::Duration;

use api::{
    conditions, reasons,
    trainingjob::{TrainingJob, TrainingJobStatus},
};
use jiff::Timestamp;
use runtime::write::{
    apply::Written,
    conditions::{Verdict, merged},
};
use text::{cut, printable};

/// Bytes of a message.
const LONGEST_MESSAGE: usize = 1_024;

/// `refused`: what was to be written; `words`: of the API server. Lists and texts stay as they were written last, because any
/// of them may be what is refused.
pub(crate) fn reduced(
    job: &TrainingJob,
    refused: &TrainingJobStatus,
    words: &str,
    now: Timestamp,
) -> TrainingJobStatus {
    let TrainingJobStatus {
        phase,
        start_time,
        completion_time,
        message,
        reason,
        attempts,
        retries,
        ended_attempts,
        attempts_without_progress,
        // An older definition may lack these; then they are what is refused.
        failed_starts: _,
        active_since: _,
        active_seconds: _,
        avoided_nodes: _,
        next_attempt_time,
        failures: _,
        resolved: _,
        dependencies: _,
        resume_from: _,
        progress: _,
        loss_curve: _,
        checkpoint: _,
        mitigations: _,
        upload_check_time,
        artifacts: _,
        failure: _,
        observed_generation,
        conditions,
    } = refused.clone();
    let before = job.status.clone().unwrap_or_default();
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let why = format!(
        "the API server refuses the status of TrainingJob {name}, of which only phase, conditions and counts are written: \
         {}; install the CustomResourceDefinition of this release, or shorten what the message names",
        short(words)
    );
    let message = message.map(|message| format!("{}; ", short(&message))).unwrap_or_default() + &why;
    let stalled = Verdict { type_: conditions::STALLED, holds: true, reason: reasons::DENIED, message: why };
    let is_kept = |type_: &str| ![conditions::STALLED, conditions::RECONCILING].contains(&type_);
    let mut kept = conditions;
    kept.retain(|condition| is_kept(&condition.type_));
    for condition in &mut kept {
        condition.message = short(&condition.message);
    }
    kept.extend(merged(vec![stalled], &before.conditions, job.metadata.generation, now));
    TrainingJobStatus {
        phase,
        start_time,
        completion_time,
        message: Some(message),
        reason,
        attempts,
        retries,
        ended_attempts,
        attempts_without_progress,
        next_attempt_time,
        upload_check_time,
        observed_generation,
        conditions: kept,
        ..before
    }
}

fn short(text: &str) -> String {
    cut(printable(text), LONGEST_MESSAGE)
}

/// When to reconcile again after a reduced status: a plan that goes on at once does so only if this one has changed
/// something.
pub(crate) fn wait_after_reduction(
    written: &Written,
    planned: Option<Duration>,
    retry: Duration,
) -> Duration {
    let planned = match written {
        Written::Changed | Written::Created => planned,
        Written::Unchanged | Written::Contested(_) => planned.filter(|wait| !wait.is_zero()),
    };
    planned.map_or(retry, |wait| wait.min(retry))
}

#[cfg(test)]
mod tests {
    use api::trainingjob::{Dependency, Phase};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::tests::{at, job};

    #[test]
    fn a_status_that_the_api_server_refuses_is_reduced_to_what_ends_are_counted_by() {
        let mut job = job("qwen", "{model: m, dataset: d, method: lora}");
        let record = |name: &str| Dependency { name: name.into(), ..Dependency::default() };
        job.status = Some(TrainingJobStatus {
            phase: Some(Phase::Running),
            attempts: 2,
            ended_attempts: 1,
            dependencies: vec![record("known")],
            ..TrainingJobStatus::default()
        });
        let verdict = |type_, message: String| Verdict { type_, holds: true, reason: "Words", message };
        let verdicts = vec![
            verdict(conditions::FAILED, "x".repeat(40_000)),
            verdict(conditions::RECONCILING, String::new()),
        ];
        let refused = TrainingJobStatus {
            phase: Some(Phase::Failed),
            reason: Some("Words".into()),
            message: Some("the trainer failed".into()),
            completion_time: Some(Time(at(9))),
            attempts: 2,
            ended_attempts: 2,
            observed_generation: 3,
            dependencies: (0..65).map(|index| record(&index.to_string())).collect(),
            conditions: merged(verdicts, &[], Some(3), at(9)),
            ..TrainingJobStatus::default()
        };
        let words = "status.dependencies: Too many: 65: must have at most 64 items";
        let written = reduced(&job, &refused, words, at(9));
        assert_eq!((written.phase, written.ended_attempts), (Some(Phase::Failed), 2));
        assert_eq!((written.observed_generation, written.completion_time.clone()), (3, Some(Time(at(9)))));
        assert_eq!(written.dependencies, [record("known")]);
        let message = written.message.as_deref().unwrap();
        assert!(message.starts_with("the trainer failed; the API server refuses") && message.contains(words));
        let types: Vec<&str> = written.conditions.iter().map(|known| known.type_.as_str()).collect();
        assert_eq!(types, [conditions::FAILED, conditions::STALLED]);
        assert!(written.conditions.iter().all(|known| known.message.len() <= 2_048));
        job.status = Some(written.clone());
        assert_eq!(reduced(&job, &refused, words, at(99)), written, "at rest nothing is written");
    }

    #[test]
    fn a_plan_that_is_refused_again_and_again_is_not_repeated_at_once() {
        let [zero, short, long] = [0, 5, 60].map(Duration::from_secs);
        assert_eq!(wait_after_reduction(&Written::Changed, Some(zero), long), zero);
        assert_eq!(wait_after_reduction(&Written::Unchanged, Some(zero), long), long);
        assert_eq!(wait_after_reduction(&Written::Unchanged, Some(short), long), short);
        assert_eq!(wait_after_reduction(&Written::Unchanged, None, long), long);
    }
}
