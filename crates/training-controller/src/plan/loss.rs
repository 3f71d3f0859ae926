//! Condition LossNotFinite, its event, and the end of the attempt with `onNonFiniteLoss: Fail`. Pure.

use api::{
    conditions, reasons,
    trainingjob::{Method, OnNonFiniteLoss, TrainingJobStatus},
};
use runtime::{
    conditions::Verdict,
    events::{Note, Severity},
};

use super::failure::{Class, Failure};
use crate::{observe::Observed, progress::Row, validate::ValidJob};

/// Logged steps in a row. A few may be skipped by the scaling of half precision.
const STEPS: u32 = 20;

/// `None`: no such loss is known. A condition of before stays until a sound loss is logged: after a restart of this process
/// the log has to be read again.
pub(super) fn verdict(valid: &ValidJob, observed: &Observed) -> Option<Verdict> {
    let mut known = observed.job.status.iter().flat_map(|status| &status.conditions);
    let before = known.find(|known| known.type_ == conditions::LOSS_NOT_FINITE && known.status == "True");
    let row = row(valid, observed).unwrap_or_default();
    let message = match before {
        // In the same words, whatever was read since.
        Some(before) if row.steps >= STEPS || !row.has_sound => before.message.clone(),
        Some(_) | None if row.steps >= STEPS => message(valid, row),
        Some(_) | None => return None,
    };
    Some(Verdict {
        type_: conditions::LOSS_NOT_FINITE,
        holds: true,
        reason: reasons::LOSS_NOT_FINITE,
        message,
    })
}

/// The end of an attempt that trains nothing, if the user wants it.
pub(super) fn failure(valid: &ValidJob, observed: &Observed) -> Option<Failure> {
    let row = row(valid, observed).filter(|row| row.steps >= STEPS)?;
    match valid.on_non_finite_loss {
        OnNonFiniteLoss::Report => None,
        OnNonFiniteLoss::Fail => {
            Some(Failure::of_attempt(reasons::LOSS_NOT_FINITE, Class::Transient, message(valid, row)))
        }
    }
}

/// When the condition becomes True.
pub(super) fn note(before: Option<&TrainingJobStatus>, after: &TrainingJobStatus) -> Option<Note> {
    let find = |status: &TrainingJobStatus| {
        status.conditions.iter().find(|known| known.type_ == conditions::LOSS_NOT_FINITE).cloned()
    };
    let now = find(after).filter(|_| before.and_then(find).is_none())?;
    Some(Note { severity: Severity::Warning, reason: reasons::LOSS_NOT_FINITE, message: now.message })
}

fn row(valid: &ValidJob, observed: &Observed) -> Option<Row> {
    let with_zeros = match valid.method {
        Method::Lora | Method::Qlora | Method::Full => true,
        // The loss of a preference that is learned well, and that of a policy, may be 0.
        Method::Dpo | Method::Ppo => false,
    };
    observed.log.as_ref().map(|log| log.losses.row(with_zeros))
}

fn message(valid: &ValidJob, row: Row) -> String {
    let checkpoints = match valid.on_non_finite_loss {
        OnNonFiniteLoss::Report => "; checkpoints since then are worthless",
        OnNonFiniteLoss::Fail => "",
    };
    format!(
        "the loss is no finite number, or 0, in {STEPS} logged steps from step {} on{checkpoints}; create the job again with a \
         lower --learning_rate or another --torch_dtype in extraArgs, or without samples that have nothing to learn",
        row.since
    )
}
