//! The plan after the API server has refused a write: it reports the refusal, and the next reconcile tries again. Pure.

use api::{
    conditions as types, reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use jiff::Timestamp;
use runtime::write::{
    conditions::{Verdict, merged},
    refusal::Refusal,
};

use super::{
    Plan, Run,
    defaults::Defaults,
    noted, nothing, retention,
    status::{
        self,
        conditions::{self, Assessment},
    },
    upload,
};
use crate::{
    objects::training_job::{condition, has_ended, has_running_attempt, is_uploading},
    observe::Observed,
};

/// `planned`: what was refused.
pub(crate) fn refused(
    refusal: &Refusal,
    planned: Plan,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let run = |planned| Plan::Run(Box::new(refused_run(refusal, planned, observed, defaults, now)));
    match planned {
        Plan::Run(planned) => run(*planned),
        // No child is created before the finalizer is set.
        Plan::SetFinalizer { run: planned } => run(*planned),
        Plan::Retire(planned) => {
            let (refusal, wait) = refusal.clone().judged(&*observed.job, defaults.refusal_retry, now);
            Plan::Retire(Box::new(retention::refused(&refusal, *planned, observed, wait)))
        }
    }
}

/// After the refusal of a child, of a deletion or of the finalizer.
pub(super) fn refused_run(
    refusal: &Refusal,
    planned: Run,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Run {
    let job = &observed.job;
    let (refusal, wait) = refusal.clone().judged(&**job, defaults.refusal_retry, now);
    if has_ended(job) {
        return Run { requeue_after: Some(wait), ..nothing(status::observed(observed)) };
    }
    let is_uploading = is_uploading(job.status.as_ref());
    if has_running_attempt(job) || is_uploading {
        // What runs goes on, and is reported beside the refusal.
        let mut status = planned.status;
        if let Some((reason, message)) = conditions::refusal_of(&refusal) {
            let before = job.status.as_ref().map_or(&[][..], |status| &status.conditions);
            let mut verdicts = Vec::new();
            if is_uploading {
                let uploaded = upload::refused(&status, &message);
                status.message = Some(uploaded.message.clone());
                verdicts.push(uploaded);
            }
            verdicts.push(conditions::stalled(reason, message));
            status.conditions.retain(|known| verdicts.iter().all(|verdict| verdict.type_ != known.type_));
            status.conditions.extend(merged(verdicts, before, job.metadata.generation, now));
        }
        return Run {
            // They come with the status that is written. What an upload plans has not happened.
            events: if is_uploading { Vec::new() } else { planned.events },
            follow: planned.follow,
            facts: planned.facts,
            requeue_after: Some(wait),
            ..nothing(status)
        };
    }
    // Nothing of what was planned has happened.
    let written = status::base(observed);
    let verdicts = verdicts_of(&planned.status);
    let assessment =
        Assessment { phase: Phase::Pending, reason: reasons::NOT_RUNNING, message: String::new(), verdicts };
    let assessment = conditions::with_refusal(assessment, &refusal);
    Run { requeue_after: Some(wait), ..noted(observed, written, assessment, now) }
}

/// Conditions of the planned status that do not depend on the children.
fn verdicts_of(status: &TrainingJobStatus) -> Vec<Verdict> {
    let kept = [types::ACCEPTED, types::DEPENDENCIES_READY, types::SUSPENDED];
    let verdict = |type_: &'static str| {
        let known = condition(Some(status), type_)?;
        let reason = [reasons::VALID, reasons::ALL_SUCCEEDED, reasons::RESUMED, reasons::SUSPENDED]
            .into_iter()
            .find(|reason| *reason == known.reason)?;
        Some(Verdict { type_, holds: known.status == "True", reason, message: known.message.clone() })
    };
    kept.into_iter().filter_map(verdict).collect()
}
