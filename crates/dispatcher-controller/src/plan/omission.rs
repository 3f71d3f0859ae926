//! What is reported of a child that the pool can do without: its condition is True while the child is refused. Pure.

use std::time::Duration;

use api::reasons;
use runtime::write::{conditions::Verdict, refusal::Refusal};

use crate::observe::Observed;

/// A child that was refused. This also limits how often an unchanged refusal costs a request.
pub(super) const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Of refusals.
const REASONS: [&str; 3] = [reasons::OWNERSHIP_CONFLICT, reasons::INVALID_SPEC, reasons::DENIED];

/// `consequence`: what the pool does without the child. `None`: the refusal passes soon.
pub(super) fn refused(type_: &'static str, refusal: &Refusal, consequence: &str) -> Option<Verdict> {
    let reason = match refusal {
        Refusal::Leftover { .. } => return None,
        Refusal::OwnershipConflict(_) => reasons::OWNERSHIP_CONFLICT,
        Refusal::Invalid(_) => reasons::INVALID_SPEC,
        Refusal::Denied(_) => reasons::DENIED,
    };
    Some(Verdict { type_, holds: true, reason, message: format!("{}; {consequence}", refusal.message()) })
}

/// The refusal that the last status has.
pub(super) fn reported(type_: &'static str, observed: &Observed) -> Option<Verdict> {
    let known = observed.condition(type_)?;
    let reason = REASONS.into_iter().find(|reason| *reason == known.reason)?;
    Some(Verdict { type_, holds: true, reason, message: known.message.clone() })
}
