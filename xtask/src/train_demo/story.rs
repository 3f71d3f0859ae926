//! What a person sees of a TrainingJob: a line for each change of its status.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::{
    conditions,
    trainingjob::{LossPoint, Phase, TrainingJob, TrainingJobStatus},
};
use kube::{Api, Client};
use tokio::time::sleep;

/// The status is written at most every two seconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How a line of ms-swift names a step.
const STEP: &str = "'global_step/max_steps'";

pub(super) struct Story {
    jobs: Api<TrainingJob>,
    job: String,
    began: Instant,
    shown: TrainingJobStatus,
}

impl Story {
    pub(super) fn begin(client: &Client, namespace: &str, job: &str) -> Self {
        let jobs = Api::namespaced(client.clone(), namespace);
        Self { jobs, job: job.to_owned(), began: Instant::now(), shown: TrainingJobStatus::default() }
    }

    pub(super) fn line(&self, text: &str) {
        println!("{:7.1} s  {text}", self.began.elapsed().as_secs_f64());
    }

    /// Shows changes until the status is as wanted. A job that fails never will be.
    pub(super) async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        is_reached: impl Fn(&TrainingJobStatus) -> bool,
    ) -> anyhow::Result<TrainingJobStatus> {
        let asked = Instant::now();
        loop {
            let job = self.jobs.get(&self.job).await;
            let job = job.with_context(|| format!("failed to read TrainingJob {}", self.job))?;
            let status = job.status.unwrap_or_default();
            for change in changes(&self.shown, &status) {
                self.line(&change);
            }
            self.shown.clone_from(&status);
            if is_reached(&status) {
                return Ok(status);
            }
            let message = || status.message.clone().unwrap_or_default();
            match status.phase {
                Some(Phase::Failed) => bail!("TrainingJob {} failed before {what}: {}", self.job, message()),
                Some(Phase::Succeeded) => {
                    bail!("TrainingJob {} succeeded before {what}: it needs more steps", self.job)
                }
                Some(Phase::Pending | Phase::Running) | None => {}
            }
            if asked.elapsed() > limit {
                let (job, limit) = (&self.job, limit.as_secs());
                bail!("TrainingJob {job} did not reach {what} within {limit} s: {}", message());
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// A line for each change.
fn changes(before: &TrainingJobStatus, now: &TrainingJobStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if now.failure != before.failure
        && let Some(failure) = &now.failure
    {
        let message = failure.message.as_deref().unwrap_or_default();
        lines.push(format!("attempt {} ended: {}: {message}", failure.attempt, failure.reason));
    }
    if now.attempts != before.attempts {
        lines.push(match &now.checkpoint {
            Some(checkpoint) => format!("attempt {} starts, from {}", now.attempts, checkpoint.path),
            None => format!("attempt {} starts", now.attempts),
        });
    }
    if now.phase != before.phase
        && let Some(phase) = now.phase
    {
        let reason = now.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        lines.push(format!("phase {phase:?}{reason}"));
    }
    let has_other_progress = now.progress != before.progress;
    if let Some(progress) = now.progress.as_ref().filter(|_| has_other_progress) {
        let loss = progress.loss.as_deref().unwrap_or("unknown");
        let mut line = format!("step {}/{}, loss {loss}", progress.step, progress.total_steps);
        if let Some(eta) = &progress.eta {
            line.push_str(&format!(", ETA {eta}"));
        }
        if let Some(checkpoint) = &now.checkpoint {
            line.push_str(&format!(", checkpoint {}", checkpoint.step));
        }
        lines.push(line);
    }
    let has_other_upload = uploaded(now) != uploaded(before);
    if let Some((status, reason)) = uploaded(now).filter(|_| has_other_upload) {
        lines.push(format!("condition {} {status} ({reason})", conditions::UPLOADED));
    }
    lines
}

/// Status and reason of the condition.
fn uploaded(status: &TrainingJobStatus) -> Option<(&str, &str)> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == conditions::UPLOADED)?;
    Some((&condition.status, &condition.reason))
}

/// What the log says of a resumption: which checkpoint, and the first step after it.
pub(super) fn resumption(log: &str) -> Vec<String> {
    let note = log.lines().find(|line| line.contains("resuming from")).map(str::to_owned);
    let step = log.lines().find(|line| line.contains(STEP)).map(|line| {
        let pairs = line.trim_matches(['{', '}']).split(", ");
        let kept = pairs.filter(|pair| pair.starts_with("'loss'") || pair.starts_with(STEP));
        format!("{{{}}}", kept.collect::<Vec<_>>().join(", "))
    });
    note.into_iter().chain(step).collect()
}

/// Compares the first step of an attempt with the same one of the attempt that was killed after it.
pub(super) fn comparison(killed: &[LossPoint], resumed: &TrainingJobStatus) -> Option<String> {
    let progress = resumed.progress.as_ref()?;
    let loss = progress.loss.as_ref()?;
    let known = killed.iter().find(|point| point.step == progress.step)?;
    let step = known.step;
    Some(if known.loss == *loss {
        format!("step {step} has the loss {loss} in both attempts: the optimizer was restored")
    } else {
        format!("step {step} had the loss {} in the killed attempt and has {loss} now", known.loss)
    })
}

/// The first, the last, and some between them.
pub(super) fn losses(curve: &[LossPoint]) -> String {
    /// So many fit into a line.
    const SHOWN: usize = 6;
    let stride = curve.len().div_ceil(SHOWN).max(1);
    let shown = curve.iter().enumerate().filter(|(at, _)| at % stride == 0 || at + 1 == curve.len());
    let points: Vec<String> =
        shown.map(|(_, point)| format!("{} at step {}", point.loss, point.step)).collect();
    points.join(", ")
}

#[cfg(test)]
mod tests {
    use api::trainingjob::{Checkpoint, Failure, Progress};

    use super::*;

    #[test]
    fn a_change_is_one_line_and_the_same_status_is_none() {
        let running = TrainingJobStatus {
            phase: Some(Phase::Running),
            reason: Some("Running".to_owned()),
            attempts: 1,
            progress: Some(Progress {
                step: 5,
                total_steps: 20,
                loss: Some("1.5".to_owned()),
                ..Progress::default()
            }),
            ..TrainingJobStatus::default()
        };
        let lines = ["attempt 1 starts", "phase Running (Running)", "step 5/20, loss 1.5"];
        assert_eq!(changes(&TrainingJobStatus::default(), &running), lines);
        assert!(changes(&running, &running).is_empty());
    }

    #[test]
    fn an_attempt_names_why_it_follows_and_from_where() {
        let before = TrainingJobStatus { attempts: 1, ..TrainingJobStatus::default() };
        let now = TrainingJobStatus {
            attempts: 2,
            failure: Some(Failure { attempt: 1, reason: "Preempted".to_owned(), ..Failure::default() }),
            checkpoint: Some(Checkpoint { path: "/output/checkpoint-7".to_owned(), ..Checkpoint::default() }),
            ..before.clone()
        };
        let lines = ["attempt 1 ended: Preempted: ", "attempt 2 starts, from /output/checkpoint-7"];
        assert_eq!(changes(&before, &now), lines);
    }

    #[test]
    fn a_resumption_is_shown_by_its_checkpoint_and_first_step() {
        let log = "training-launcher: resuming from /output/checkpoint-80\n[INFO:swift] something\n\
                   {'loss': 5.2, 'epoch': 28.4, 'global_step/max_steps': '85/240', 'elapsed_time': '2s'}\n\
                   {'loss': 5.1, 'global_step/max_steps': '90/240'}\n";
        let shown = [
            "training-launcher: resuming from /output/checkpoint-80",
            "{'loss': 5.2, 'global_step/max_steps': '85/240'}",
        ];
        assert_eq!(resumption(log), shown);
        assert_eq!(resumption("no step yet"), [""; 0]);
    }

    #[test]
    fn only_the_same_step_is_compared() {
        let point = |step| LossPoint { step, loss: "5.2".to_owned() };
        let now = |loss: &str| TrainingJobStatus {
            progress: Some(Progress { step: 85, loss: Some(loss.to_owned()), ..Progress::default() }),
            ..TrainingJobStatus::default()
        };
        assert_eq!(comparison(&[point(80), point(90)], &now("5.2")), None);
        assert!(comparison(&[point(85)], &now("5.2")).is_some_and(|line| line.contains("in both")));
        assert!(comparison(&[point(85)], &now("5.3")).is_some_and(|line| line.contains("5.3 now")));
    }

    #[test]
    fn the_curve_has_its_ends() {
        let curve: Vec<LossPoint> =
            (1..=20).map(|step| LossPoint { step, loss: format!("0.{step}") }).collect();
        let shown = losses(&curve);
        assert!(shown.starts_with("0.1 at step 1,") && shown.ends_with("0.20 at step 20"), "{shown}");
        assert_eq!(losses(&[]), "");
    }
}
