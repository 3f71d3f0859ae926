//! Condition LossNotFinite, its event, and the end of the attempt with `onNonFiniteLoss: Fail`. Pure.

use api::{
    conditions, reasons,
    trainingjob::{Method, OnNonFiniteLoss, TrainingJobStatus},
};
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};

use crate::{objects::training_job::condition, observe::Observed, progress::Row, validate::ValidJob};

/// Logged steps in a row. A few may be skipped by the scaling of half precision.
const STEPS: u32 = 20;

/// `None`: no such loss is known. A condition of before stays until a sound loss is logged: after a restart of this process
/// the log has to be read again.
pub(super) fn verdict(valid: &ValidJob, observed: &Observed) -> Option<Verdict> {
    let before = condition(observed.job.status.as_ref(), conditions::LOSS_NOT_FINITE);
    let before = before.filter(|known| known.status == "True");
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

/// Why an attempt that trains nothing ends, if the user wants it.
pub(super) fn ends_attempt(valid: &ValidJob, observed: &Observed) -> Option<String> {
    let row = row(valid, observed).filter(|row| row.steps >= STEPS)?;
    match valid.on_non_finite_loss {
        OnNonFiniteLoss::Report => None,
        OnNonFiniteLoss::Fail => Some(message(valid, row)),
    }
}

/// When the condition becomes True.
pub(super) fn note(before: Option<&TrainingJobStatus>, after: &TrainingJobStatus) -> Option<Note> {
    let now = condition(Some(after), conditions::LOSS_NOT_FINITE)?;
    let is_new = condition(before, conditions::LOSS_NOT_FINITE).is_none();
    let message = now.message.clone();
    is_new.then_some(Note { severity: Severity::Warning, reason: reasons::LOSS_NOT_FINITE, message })
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
