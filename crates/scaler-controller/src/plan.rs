//! Decides the replicas of one target and the status of its AIScaler. Pure.

use std::time::Duration;

use api::aiscaler::{AIScalerStatus, Decision as StoredDecision, Mode};
use jiff::Timestamp;
use runtime::{events::Note, refusal::Refusal};
use scaling::{
    decide::{Decision, Outcome, decide},
    history::History,
    policy::{Bounds, Extras, Policy, ZeroReplicas},
    reading::Reading,
    record::Record,
};

use crate::{
    contender::Contender,
    contest::{Contest, Pause},
    first_look::{Doubt, Wish},
    history::Past,
    observe::{Found, Observed, Target},
    samples::{Answer, Attempted},
    validate::{Invalid, ValidScaler},
};

mod conditions;
mod events;
mod status;
#[cfg(test)]
mod tests;

use status::Follows;
pub(crate) use status::record;

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) scale: Option<ScaleWrite>,
    /// `None`: the stored one says the same, or differs in numbers that are not due.
    pub(crate) status: Option<AIScalerStatus>,
    /// All but that of the replicas.
    pub(crate) events: Vec<Note>,
    /// What is remembered until the next decision; `None`: what is known already.
    pub(crate) past: Option<Past>,
    /// What is known by now of a write whose answer was lost.
    pub(crate) attempted: Attempted,
    pub(crate) requeue_after: Option<Duration>,
}

/// New replicas for exactly the version that was observed.
#[derive(Clone, Debug)]
pub(crate) struct ScaleWrite {
    pub(crate) target: Found,
    pub(crate) to: i32,
    /// The newest sample of the metric that asked for them; `None` where bounds or a fallback did.
    pub(crate) sampled: Option<Timestamp>,
    /// As the status will have it.
    pub(crate) decision: StoredDecision,
    pub(crate) note: Note,
}

/// Why nothing is scaled although the spec is valid.
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

/// What an AIScaler does at this time.
pub(super) enum State<'a> {
    HandsOff(HandsOff),
    /// The first samples are on their way.
    Awaiting,
    Decided {
        found: &'a Found,
        decision: Box<Decision>,
        writes: Writes<'a>,
        others: Others,
    },
}

/// What others did to the replicas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    /// They have set the present ones since the last look.
    wrote: bool,
    /// Writes of the last hour, if there were many.
    often: Option<usize>,
}

/// What becomes of the decision.
#[derive(Clone, Copy)]
pub(super) enum Writes<'a> {
    Scale,
    /// The replicas are as wanted, or `mode` is DryRun.
    Nothing,
    /// The first wish of a metric is beyond reason: it is announced before it is acted on.
    Announced(Doubt),
    /// Others have set the replicas too often.
    Paused(Pause),
    Refused(&'a Refusal),
}

/// `period`: the time until the target is looked at again if no sample arrives.
pub(crate) fn plan(valid: &ValidScaler, observed: &Observed, period: Duration, now: Timestamp) -> Plan {
    decided(valid, observed, None, period, now)
}

/// The API server refuses to change the replicas, and no retry helps.
pub(crate) fn refused(
    refusal: &Refusal,
    valid: &ValidScaler,
    observed: &Observed,
    period: Duration,
    now: Timestamp,
) -> Plan {
    decided(valid, observed, Some(refusal), period, now)
}

/// Whether nothing is decided, whatever the metrics say: they need not be read.
pub(crate) fn is_left_alone(valid: &ValidScaler, observed: &Observed) -> bool {
    match hands_off(valid, observed) {
        Err(HandsOff::OtherAutoscaler(_) | HandsOff::ScalesItself(_) | HandsOff::Paused) => true,
        Err(
            HandsOff::Unread
            | HandsOff::Missing(_)
            | HandsOff::Unknown(_)
            | HandsOff::NoSelector(_)
            | HandsOff::Deleted(_),
        )
        | Ok(_) => false,
    }
}

/// Replicas stay as they are.
pub(crate) fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    let verdicts = conditions::of_invalid(invalid);
    let events = events::of(observed, &verdicts);
    let status = status::of_invalid(observed, verdicts, now);
    let status = status::if_due(observed, status, Follows::Nothing, false, now);
    let attempted = observed.attempted.clone();
    Plan { scale: None, status, events, past: None, attempted, requeue_after: None }
}

fn decided(
    valid: &ValidScaler,
    observed: &Observed,
    refusal: Option<&Refusal>,
    period: Duration,
    now: Timestamp,
) -> Plan {
    let found = match hands_off(valid, observed) {
        Ok(found) => found,
        Err(HandsOff::Unread) => return awaiting(valid, observed, period, now),
        Err(hands_off) => {
            let past = untouched(&hands_off, observed, now);
            return planned(valid, observed, &State::HandsOff(hands_off), past, period, now);
        }
    };
    let mut known = observed.past.of_target(&found.scaled.uid);
    if observed.is_resumed && valid.mode == Mode::Apply {
        known = known.with_unseen(found.scaled.replicas, now);
    }
    let contest = match valid.mode {
        Mode::Apply if observed.is_resumed => known.contest.resumed(
            found.scaled.replicas,
            !found.keeps_one && was_idle(&known.scaling, &valid.policy, now),
            now,
        ),
        Mode::Apply => known.contest.seen(found.scaled.replicas, now),
        // Another may scale the target.
        Mode::DryRun => Contest::default(),
    };
    let decision = decision(valid, observed, found, &known, &contest, now);
    let would_scale = matches!(decision.outcome, Outcome::Scale { .. });
    if is_awaiting(valid, observed) && !would_scale {
        return awaiting(valid, observed, period, now);
    }
    let (first_look, doubt) = match wish(&decision) {
        Some(wish) => known.first_look.at(&valid.policy, wish, period, now),
        None => (known.first_look.clone(), None),
    };
    let writes = match (refusal, valid.mode, contest.pause(now), doubt) {
        // Said for the whole time, whether there is a wish or not.
        (_, Mode::Apply, Some(pause), _) => Writes::Paused(*pause),
        (_, Mode::DryRun, _, _) => Writes::Nothing,
        (_, Mode::Apply, None, Some(doubt)) => Writes::Announced(doubt),
        (_, Mode::Apply, None, None) if !would_scale => Writes::Nothing,
        (Some(refusal), Mode::Apply, None, None) => Writes::Refused(refusal),
        (None, Mode::Apply, None, None) => Writes::Scale,
    };
    let others = Others { wrote: contest.is_foreign(now), often: contest.often() };
    let past = Past { contest, first_look, ..known };
    let past = match writes {
        Writes::Scale => Past {
            contest: past.contest.written(decision.record.to),
            scaling: Decision::clone(&decision).written(&valid.policy),
            ..past
        },
        Writes::Nothing | Writes::Announced(_) | Writes::Paused(_) | Writes::Refused(_) => {
            Past { scaling: decision.history.clone(), ..past }
        }
    };
    let state = State::Decided { found, decision: Box::new(decision), writes, others };
    planned(valid, observed, &state, Some(past), period, now)
}

/// What the metrics ask for; bounds alone have no wish.
fn wish(decision: &Decision) -> Option<Wish> {
    let Record { from, raw, inputs, .. } = &decision.record;
    decision.conclusion.raw?;
    let winner = inputs.metrics.get(decision.conclusion.winner?)?;
    let supply = decision.supply();
    let expected = i32::try_from(supply.ready.saturating_add(supply.coming)).unwrap_or(i32::MAX);
    Some(Wish {
        // To remove pods that do not start is no sign of a wrong unit.
        replicas: if expected == 0 { *from } else { expected.min(*from) },
        wanted: *raw,
        value: winner.value_per_replica(*from),
        target: winner.target,
        is_due: matches!(decision.outcome, Outcome::Scale { .. }),
    })
}

/// Whether this controller may have set 0 replicas: they were recommended for a whole window of scale-downs, and allowed.
fn was_idle(history: &History, policy: &Policy, now: Timestamp) -> bool {
    if policy.bounds.min() > 0 {
        return false;
    }
    let window = policy.behavior.down.window.duration();
    let is_recent =
        |time: Timestamp| Duration::try_from(now.duration_since(time)).is_ok_and(|age| age < window);
    let mut recent = history.recommendations.iter().filter(|known| is_recent(known.time));
    history.recommendations.last().is_some_and(|last| last.replicas == 0)
        && recent.all(|known| known.replicas == 0)
}

/// What is remembered of a target that is left alone.
fn untouched(hands_off: &HandsOff, observed: &Observed, now: Timestamp) -> Option<Past> {
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

/// Whether a source has not been read since the process began or the sources changed. A missing sample has been read.
fn is_awaiting(valid: &ValidScaler, observed: &Observed) -> bool {
    observed.answers.len() < valid.sources.len() || observed.answers.iter().any(Answer::is_pending)
}

/// A status of this spec stays until the samples are there: a new process knows no less of the target than the one before.
fn awaiting(valid: &ValidScaler, observed: &Observed, period: Duration, now: Timestamp) -> Plan {
    let metadata = &observed.scaler.metadata;
    let is_known = observed.scaler.status.as_ref().is_some_and(|status| {
        Some(status.observed_generation) == metadata.generation && !status.conditions.is_empty()
    });
    if is_known {
        return Plan {
            scale: None,
            status: None,
            events: Vec::new(),
            past: None,
            attempted: observed.attempted.clone(),
            requeue_after: Some(period),
        };
    }
    planned(valid, observed, &State::Awaiting, None, period, now)
}

fn planned(
    valid: &ValidScaler,
    observed: &Observed,
    state: &State<'_>,
    past: Option<Past>,
    period: Duration,
    now: Timestamp,
) -> Plan {
    let verdicts = conditions::of(valid, observed, state);
    let mut events = events::of(observed, &verdicts);
    let scale = match state {
        State::Decided { found, decision, writes: Writes::Scale, others } => {
            if others.wrote {
                events.push(events::of_set_back(found, decision));
            }
            Some(ScaleWrite {
                target: Found::clone(found),
                to: decision.record.to,
                sampled: sampled(observed, decision),
                decision: status::entry(decision, now),
                note: events::of_scale(found, decision),
            })
        }
        State::Decided { .. } | State::HandsOff(_) | State::Awaiting => None,
    };
    let status = status::of(observed, state, verdicts, past.as_ref(), now);
    let status = status::if_due(observed, status, Follows::of(valid), is_wish(valid, state), now);
    let attempted = observed.attempted.clone();
    Plan { scale, status, events, past, attempted, requeue_after: Some(period) }
}

/// Whether a decision is no write of replicas.
fn is_wish(valid: &ValidScaler, state: &State<'_>) -> bool {
    let State::Decided { writes, .. } = state else { return false };
    match writes {
        Writes::Scale => false,
        Writes::Nothing => valid.mode == Mode::DryRun,
        Writes::Announced(_) | Writes::Paused(_) | Writes::Refused(_) => true,
    }
}

fn hands_off<'a>(valid: &ValidScaler, observed: &'a Observed) -> Result<&'a Found, HandsOff> {
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

fn decision(
    valid: &ValidScaler,
    observed: &Observed,
    found: &Found,
    known: &Past,
    contest: &Contest,
    now: Timestamp,
) -> Decision {
    let target = scaling::target::Target {
        replicas: found.scaled.replicas,
        status_replicas: found.scaled.status_replicas,
        pods: found.pods.iter().flatten().map(|pod| pod.for_scaling(now)).collect(),
        cold_start: found.cold_start,
    };
    let readings: Vec<Reading> = observed.answers.iter().map(|answer| answer.reading.clone()).collect();
    decide(&policy(valid, found, contest), &target, &readings, &known.scaling, now)
}

fn sampled(observed: &Observed, decision: &Decision) -> Option<Timestamp> {
    decision.conclusion.raw?;
    observed.answers.get(decision.conclusion.winner?)?.reading.newest()
}

/// As the spec says, without 0 replicas where the kind does without them, and where another has set 0: then they stay,
/// as those of every target with a minimum above 0. 0 that this controller has set follow a minimum that was raised since,
/// which is no rule of HPA.
fn policy(valid: &ValidScaler, found: &Found, contest: &Contest) -> Policy {
    let mut policy = valid.policy.clone();
    let is_above_zero = found.keeps_one || found.scaled.replicas == 0 && contest.is_stopped();
    if is_above_zero && policy.bounds.min() == 0 {
        policy.bounds = Bounds::new(1, policy.bounds.max()).unwrap_or(policy.bounds);
    }
    if found.scaled.replicas == 0 && contest.is_idle() && policy.extras != Extras::none() {
        policy.extras.zero = ZeroReplicas::BelowMinimum;
    }
    policy
}
