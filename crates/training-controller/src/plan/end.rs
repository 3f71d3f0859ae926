//! The end of an attempt: it is written before anything is made or deleted because of it.

use std::{sync::Arc, time::Duration};

use api::{
    launcher, reasons,
    trainingjob::{Method, TrainingJob, TrainingJobStatus},
};
use runtime::write::conditions::whole_seconds;

use super::{
    Run, Scene,
    attempt::{
        avoid,
        failure::{self, Class, Failure, History},
        retry::{self, Next, Streaks},
        stage::{Attempt, End, Stage},
    },
    children::claim,
    noted,
    status::{self, conditions, events},
    upload,
};
use crate::observe::Observed;

impl Scene<'_> {
    /// The end of an attempt is written before anything is made or deleted because of it.
    pub(super) fn ended(&self, attempt: &Attempt<'_>, end: End) -> Run {
        let mut written = status::base(self.observed);
        let plan = match end {
            End::Succeeded => self.succeeded(attempt, written),
            End::Suspended => {
                let written = status::ended(written, attempt.number);
                let stage = Stage::Clearing { pods: attempt.pods.clone() };
                let assessment =
                    conditions::of_waiting(self.valid, self.observed, &self.dependencies, &stage, None);
                noted(self.observed, written, assessment, self.now)
            }
            End::DeadlineExceeded(failure) => {
                let streaks = self.streaks(&failure, &written);
                let next = Next::Never { reason: failure.reason, message: failure.message.clone() };
                self.failed(attempt, failure, written, streaks, next)
            }
            End::Failed(mut failure) => {
                failure.checkpoint = failure.checkpoint.and_then(|saved| {
                    let saved = launcher::Checkpoint { path: saved.path, step: saved.step };
                    status::reported(self.valid, &written, &saved)
                });
                let has_trained = written.checkpoint.is_some()
                    || failure.checkpoint.is_some()
                    || written.progress.as_ref().is_some_and(|progress| progress.step > 0);
                let has_stepped = self.observed.log.as_ref().is_some_and(|log| log.has_stepped);
                let history = History { attempt: attempt.number, has_trained, has_stepped };
                let mut failure = failure.after(history);
                let streaks = self.streaks(&failure, &written);
                // A checkpoint with such a loss is no advance.
                if streaks.has_advanced && failure.reason != reasons::LOSS_NOT_FINITE {
                    written.retries = 0;
                }
                self.avoid(attempt, &mut failure, &mut written);
                if failure.reason == reasons::OUT_OF_SPACE {
                    failure.message.push_str(&self.cache_in_claim(&written));
                }
                let ended = (attempt.number, &failure);
                let next = retry::next(self.valid, &written, ended, streaks, &self.defaults.timings);
                self.failed(attempt, failure, written, streaks, next)
            }
        };
        Run { requeue_after: Some(Duration::ZERO), ..plan }
    }

    fn streaks(&self, failure: &Failure, written: &TrainingJobStatus) -> Streaks {
        let before = self.observed.job.status.clone().unwrap_or_default();
        retry::streaks(&before, failure, written)
    }

    /// Notes the nodes that the next attempts avoid because of this one, and names them in its failure.
    fn avoid(&self, attempt: &Attempt<'_>, failure: &mut Failure, written: &mut TrainingJobStatus) {
        let before = self.observed.job.status.clone().unwrap_or_default();
        let mut found = avoid::that_refused(&attempt.pods, &before, self.now);
        found.extend(avoid::with_gpu_faults(self.observed, self.now));
        avoid::add(&mut written.avoided_nodes, found, self.now);
        let mut avoided = avoid::avoided(written, self.now);
        avoided.retain(|node| attempt.pods.iter().any(|pod| pod.node.as_ref() == Some(&node.node)));
        failure.message.push_str(&avoid::words(&avoided));
    }

    fn failed(
        &self,
        attempt: &Attempt<'_>,
        failure: Failure,
        written: TrainingJobStatus,
        streaks: Streaks,
        next: Next,
    ) -> Run {
        let note = events::of_failure(attempt.number, &failure);
        let has_run = failure.exit_code.is_some();
        let is_full = failure.reason == reasons::OUT_OF_SPACE
            && matches!(failure.class, Class::CannotStart | Class::OutOfSpace);
        let mut written = status::failed(written, attempt.number, failure, streaks, &next, self.now);
        if has_run {
            written = status::started(written, self.now);
        }
        if let Some(failure) = written.failure.as_mut().filter(|_| is_full) {
            failure.output_size = claim::output_size(self.valid, self.observed);
        }
        let assessment = match next {
            Next::Never { reason, message } => {
                let message = format!("{message}{}", self.successor(&written));
                written.completion_time = Some(whole_seconds(self.now));
                conditions::of_failure(self.valid, self.observed, &self.dependencies, (reason, message))
            }
            Next::Again { .. } => {
                let at = written.next_attempt_time.as_ref().map(|time| time.0);
                let stage = match at {
                    Some(at) => Stage::Later { at },
                    None => Stage::Clearing { pods: Vec::new() },
                };
                // As it is once this status is written, so that it need not be written again.
                let mut job = TrainingJob::clone(&self.observed.job);
                job.status = Some(written.clone());
                let observed = Observed { job: Arc::new(job), ..self.observed.clone() };
                conditions::of_waiting(self.valid, &observed, &self.dependencies, &stage, None)
            }
        };
        let mut plan = noted(self.observed, written, assessment, self.now);
        plan.events.insert(0, note);
        plan
    }

    /// How another job goes on from what this one has left, and what of it is of no use.
    fn successor(&self, status: &TrainingJobStatus) -> String {
        let saved = status.checkpoint.as_ref().filter(|_| self.valid.method != Method::Ppo);
        let words = |step| {
            format!("; a new job goes on after step {step} with spec.resumeFrom.job {}", self.valid.name)
        };
        let cache = self.hub_cache(status).map(|(folder, claim)| {
            format!("; models and data of hubs are left in {folder} of claim {claim}, and may be deleted")
        });
        saved.map_or_else(String::new, |saved| words(saved.step)) + &cache.unwrap_or_default()
    }

    /// For a claim that is full.
    fn cache_in_claim(&self, status: &TrainingJobStatus) -> String {
        self.hub_cache(status).map_or_else(String::new, |(folder, _)| {
            format!(
                "; models and data of hubs are in {folder} of the claim, too: it needs room for them, or a new job \
                 output.cache None"
            )
        })
    }

    /// The folder of what was loaded from hubs, and its claim.
    fn hub_cache<'s>(&'s self, status: &'s TrainingJobStatus) -> Option<(&'s str, &'s str)> {
        let folder = status.resolved.as_ref()?.hub_cache.as_deref()?;
        Some((folder, self.valid.output.claim.name()))
    }

    fn succeeded(&self, attempt: &Attempt<'_>, written: TrainingJobStatus) -> Run {
        let message = attempt.rank_zero().and_then(failure::message_of).unwrap_or_default();
        let mut written = status::ended(written, attempt.number);
        written = status::started(written, self.now);
        let saved = message.checkpoint.as_ref();
        if let Some(saved) = saved.and_then(|saved| status::reported(self.valid, &written, saved)) {
            status::replace_checkpoint(&mut written, saved, self.now);
        }
        written.progress = status::completed(written.progress, message.step);
        if let Some(upload) = &self.valid.output.upload {
            let uploaded = upload::beginning(upload);
            let assessment =
                conditions::of_uploading(self.valid, self.observed, &self.dependencies, uploaded);
            return noted(self.observed, written, assessment, self.now);
        }
        written.completion_time = Some(whole_seconds(self.now));
        let early = if message.stopped_early { ", stopped early by the trainer" } else { "" };
        let text = format!("{}{early}", status::trained(&written));
        let assessment = conditions::of_success(self.valid, self.observed, &self.dependencies, None, text);
        noted(self.observed, written, assessment, self.now)
    }
}
