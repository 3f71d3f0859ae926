//! Why nothing is scaled although the spec is valid, and what is remembered of such a target. Pure.

use api::aiscaler::Mode;
use jiff::Timestamp;

use crate::{
    history::{Past, contest::Contest},
    observe::{Found, Observed, Target},
    target::contender::Contender,
    validate::ValidScaler,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HandsOff {
    /// Its scale is read with the first samples.
    Unread,
    Missing(String),
    Unknown(String),
    NoSelector(String),
    OtherAutoscaler(String),
    ScalesItself(String),
    Deleted(String),
    Paused,
}

/// The target, if it may be scaled.
pub(super) fn hands_off<'a>(valid: &ValidScaler, observed: &'a Observed) -> Result<&'a Found, HandsOff> {
    let found = match &observed.target {
        Target::Unread => return Err(HandsOff::Unread),
        Target::Missing(why) => return Err(HandsOff::Missing(why.clone())),
        Target::Unknown(why) => return Err(HandsOff::Unknown(why.clone())),
        Target::Found(found) => found,
    };
    if valid.is_paused {
        return Err(HandsOff::Paused);
    }
    let reference = &found.reference;
    if found.is_deleted {
        return Err(HandsOff::Deleted(format!("{reference} is being deleted")));
    }
    if found.scales_itself {
        return Err(HandsOff::ScalesItself(format!(
            "{reference} has spec.autoscaling; remove it there, or delete this AIScaler"
        )));
    }
    if let (Some(other), Mode::Apply) = (&observed.contender, valid.mode) {
        let doubt = match (other, observed.unwatched) {
            // Without a watch of AIScalers this is not reached.
            (Contender::AIScaler(_), _) | (_, None) => String::new(),
            (_, Some(kind)) => format!("; the watch of {kind} fails, so it may be gone"),
        };
        return Err(HandsOff::OtherAutoscaler(other.message(reference) + &doubt));
    }
    if found.pods.is_none() {
        return Err(HandsOff::NoSelector(format!(
            "{reference} has no selector of its pods, or one that matches every pod or is too long to be read; give it one, or name another target"
        )));
    }
    Ok(found)
}

/// What is remembered of a target that is left alone.
pub(super) fn untouched(hands_off: &HandsOff, observed: &Observed, now: Timestamp) -> Option<Past> {
    let Target::Found(found) = &observed.target else { return None };
    let known = observed.past.of_target(&found.scaled.uid);
    let contest = match hands_off {
        HandsOff::Paused => known.contest.seen_paused(found.scaled.replicas),
        // Another autoscaler sets the replicas: its writes are not counted as foreign, and its 0 is no maintenance.
        HandsOff::OtherAutoscaler(_) | HandsOff::ScalesItself(_) => Contest::default(),
        HandsOff::Unread
        | HandsOff::Missing(_)
        | HandsOff::Unknown(_)
        | HandsOff::NoSelector(_)
        | HandsOff::Deleted(_) => return None,
    };
    // Meanwhile no metric is read, so that none is missing.
    Some(Past { contest, scaling: known.scaling.unread(now), ..known })
}
