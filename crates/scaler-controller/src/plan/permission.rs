//! Whether the replicas may be written now, by what became of the writes before. Pure.

use std::time::Duration;

use jiff::Timestamp;
use runtime::write::refusal::Refusal;

use crate::observe::{Found, Observed};

pub(super) enum Permission<'a> {
    Granted,
    /// The API server has called this version of the target outdated.
    OutdatedTarget,
    /// The API server has refused the same write lately.
    Refused(&'a Refusal),
    /// This process may have a spec and a status of long ago: a watch that hangs fails late.
    UnconfirmedScaler,
}

pub(super) fn permission<'a>(
    observed: &'a Observed,
    found: &Found,
    to: i32,
    period: Duration,
    now: Timestamp,
) -> Permission<'a> {
    if is_outdated(observed, found, now) {
        return Permission::OutdatedTarget;
    }
    let refused = observed.refused.as_ref();
    if let Some(refusal) = refused.and_then(|refused| refused.of(&found.scaled.uid, to, period, now)) {
        return Permission::Refused(refusal);
    }
    if observed.is_confirmed { Permission::Granted } else { Permission::UnconfirmedScaler }
}

fn is_outdated(observed: &Observed, found: &Found, now: Timestamp) -> bool {
    observed.outdated.as_ref().is_some_and(|outdated| {
        outdated.is_of(&found.scaled.version)
            && match found.reference.watched() {
                Some(_) => outdated.is_recent(now),
                // Nothing newer is known until the scale is read again.
                None => true,
            }
    })
}
