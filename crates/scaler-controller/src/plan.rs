//! Decides the replicas of one target and the status of its AIScaler. Pure.

use std::time::Duration;

use api::aiscaler::{AIScalerStatus, Mode};
use jiff::Timestamp;
use runtime::{
    reconcile,
    write::{events::Note, refusal::Refusal},
};
use scaling::{
    decide::{Decision, Outcome, decide, record::Record},
    history::History,
    policy::{Bounds, Extras, Policy, ZeroReplicas},
    reading::Reading,
};

use crate::{
    history::{
        Past,
        attempt::{Attempt, Attempted},
        contest::{Contest, Pause},
        first_look::{Implausible, Wish},
    },
    observe::{Found, Observed},
    samples::OUTDATED_FOR,
    sources::answer::Answer,
    validate::{Invalid, ValidScaler},
};
use hands_off::{HandsOff, hands_off, untouched};
use permission::{Permission, permission};
use status::Follows;

mod conditions;
mod events;
mod hands_off;
mod metric;
mod permission;
mod status;
#[cfg(test)]
mod tests;

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What is known by now of a write whose answer was lost.
    pub(crate) attempted: Attempted,
    pub(crate) scale: Option<ScaleWrite>,
    /// What is remembered until the next decision; `None`: what is known already.
    pub(crate) past: Option<Past>,
    /// `None`: the stored one says the same, or differs in numbers that are not due.
    pub(crate) status: Option<AIScalerStatus>,
    /// All but that of the replicas.
    pub(crate) events: Vec<Note>,
    pub(crate) requeue_after: Option<Duration>,
}

/// What a plan rests on and a watch may not have brought yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The AIScaler may have changed.
    OutdatedScaler,
}

/// New replicas for exactly the version that was observed.
#[derive(Clone, Debug)]
pub(crate) struct ScaleWrite {
    pub(crate) target: Found,
    /// The newest sample of the metric that asked for them; `None` where bounds or a fallback did.
    pub(crate) sampled: Option<Timestamp>,
    /// What is remembered until the answer arrives: the decision, as the status will have it, and its event.
    pub(crate) attempt: Attempt,
    /// The attempt before, whose answer was lost.
    pub(crate) before: Option<Attempt>,
    /// The next look if the target has changed meanwhile.
    pub(crate) outdated_retry: Duration,
}

impl ScaleWrite {
    pub(crate) fn to(&self) -> i32 {
        self.attempt.decision.to
    }

    /// Whether it sets the same replicas of the same target.
    fn is_of(&self, found: &Found, to: i32) -> bool {
        self.target.scaled.uid == found.scaled.uid && self.to() == to
    }
}

/// What an AIScaler does at this time.
enum State<'a> {
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
struct Others {
    /// They have set the present ones since the last look.
    wrote: bool,
    /// Writes of the last hour, if there were many.
    often: Option<usize>,
}

/// What becomes of the decision.
#[derive(Clone, Copy)]
enum Writes<'a> {
    Scale,
    /// The replicas are as wanted, or `mode` is DryRun.
    Nothing,
    /// The first wish of a metric is beyond reason: it is announced before it is acted on.
    Announced(Implausible),
    /// Others have set the replicas too often.
    Paused(Pause),
    Refused(&'a Refusal),
}

/// `period`: between two looks at the target.
pub(crate) fn plan(
    valid: &ValidScaler,
    observed: &Observed,
    period: Duration,
    now: Timestamp,
) -> reconcile::Decision<Plan, Doubt> {
    let decided = match look(valid, observed, period, now) {
        Look::Stays(plan) => return reconcile::Decision::Plan(*plan),
        Look::Scale(decided) => decided,
    };
    let writes = match permission(observed, decided.found, decided.decision.record.to, period, now) {
        Permission::Granted => Writes::Scale,
        Permission::Refused(refusal) => Writes::Refused(refusal),
        Permission::OutdatedTarget => {
            return reconcile::Decision::Plan(unchanged(observed, outdated_retry(period)));
        }
        Permission::UnconfirmedScaler => {
            return match &observed.attempted {
                // It is settled before anything is asked: by the time of the answer others may have set the replicas.
                Attempted::CarriedOut(_) | Attempted::Failed => {
                    reconcile::Decision::Plan(unchanged(observed, outdated_retry(period)))
                }
                Attempted::Nothing | Attempted::Open(_) => reconcile::Decision::Doubt(Doubt::OutdatedScaler),
            };
        }
    };
    reconcile::Decision::Plan(decided.plan(valid, observed, writes, period, now))
}

/// The API server refuses the write of `plan`, and no retry helps.
pub(crate) fn refused(
    refusal: &Refusal,
    plan: &Plan,
    valid: &ValidScaler,
    observed: &Observed,
    period: Duration,
    now: Timestamp,
) -> Plan {
    match look(valid, observed, period, now) {
        Look::Stays(plan) => *plan,
        Look::Scale(decided) => {
            let (found, to) = (decided.found, decided.decision.record.to);
            match &plan.scale {
                Some(write) if write.is_of(found, to) => {
                    decided.plan(valid, observed, Writes::Refused(refusal), period, now)
                }
                // The API server has not refused what is wanted now. The next look sends it.
                Some(_) | None => unchanged(observed, outdated_retry(period)),
            }
        }
    }
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
    Plan { attempted, scale: None, past: None, status, events, requeue_after: None }
}

/// Each reading of a source wakes its object; a look just before it would decide again on the values of the last one.
fn next_look(period: Duration) -> Duration {
    period + period / 2
}

/// The watch of a target brings the new version, or it is read with the next samples.
fn outdated_retry(period: Duration) -> Duration {
    period.min(OUTDATED_FOR)
}

/// Nothing is written until the next look.
fn unchanged(observed: &Observed, next_look: Duration) -> Plan {
    Plan {
        attempted: observed.attempted.clone(),
        scale: None,
        past: None,
        status: None,
        events: Vec::new(),
        requeue_after: Some(next_look),
    }
}

/// A look at the target.
enum Look<'a> {
    /// The replicas stay as they are.
    Stays(Box<Plan>),
    /// They are to be changed, if that may be written.
    Scale(Box<Decided<'a>>),
}

/// What the metrics ask for.
struct Decided<'a> {
    found: &'a Found,
    decision: Decision,
    others: Others,
    /// Without this decision.
    past: Past,
}

fn look<'a>(valid: &ValidScaler, observed: &'a Observed, period: Duration, now: Timestamp) -> Look<'a> {
    let stays = |plan: Plan| Look::Stays(Box::new(plan));
    let found = match hands_off(valid, observed) {
        Ok(found) => found,
        Err(HandsOff::Unread) => return stays(awaiting(valid, observed, period, now)),
        Err(hands_off) => {
            let past = untouched(&hands_off, observed, now);
            return stays(planned(valid, observed, &State::HandsOff(hands_off), past, period, now));
        }
    };
    let mut known = observed.past.of_target(&found.scaled.uid);
    if observed.is_resumed && valid.mode == Mode::Apply {
        known = known.with_unseen(found.scaled.replicas, now);
    }
    let contest = contest(valid, observed, found, &known, now);
    let decision = decision(valid, observed, found, &known, &contest, now);
    let would_scale = matches!(decision.outcome, Outcome::Scale { .. });
    if is_awaiting(valid, observed) && !would_scale {
        return stays(awaiting(valid, observed, period, now));
    }
    let (first_look, implausible) = match wish(&decision) {
        Some(wish) => known.first_look.at(&valid.policy, wish, period, now),
        None => (known.first_look.clone(), None),
    };
    let pause = contest.pause(now).copied();
    let others = Others { wrote: contest.is_foreign(now), often: contest.often() };
    let past = Past { contest, first_look, ..known };
    let decided = Decided { found, decision, others, past };
    let writes = match (valid.mode, pause, implausible) {
        // Said for the whole time, whether there is a wish or not.
        (Mode::Apply, Some(pause), _) => Writes::Paused(pause),
        (Mode::DryRun, _, _) => Writes::Nothing,
        (Mode::Apply, None, Some(implausible)) => Writes::Announced(implausible),
        (Mode::Apply, None, None) if would_scale => return Look::Scale(Box::new(decided)),
        (Mode::Apply, None, None) => Writes::Nothing,
    };
    stays(decided.plan(valid, observed, writes, period, now))
}

/// Who has set the present replicas.
fn contest(valid: &ValidScaler, observed: &Observed, found: &Found, known: &Past, now: Timestamp) -> Contest {
    match valid.mode {
        Mode::Apply if observed.is_resumed => known.contest.resumed(
            found.scaled.replicas,
            !found.keeps_one && was_idle(&known.scaling, &valid.policy, now),
            now,
        ),
        Mode::Apply => known.contest.seen(found.scaled.replicas, now),
        // Another may scale the target.
        Mode::DryRun => Contest::default(),
    }
}

impl Decided<'_> {
    fn plan(
        self,
        valid: &ValidScaler,
        observed: &Observed,
        writes: Writes<'_>,
        period: Duration,
        now: Timestamp,
    ) -> Plan {
        let Self { found, decision, others, past } = self;
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
        return unchanged(observed, next_look(period));
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
            Some(scale(observed, found, decision, period, now))
        }
        State::Decided { .. } | State::HandsOff(_) | State::Awaiting => None,
    };
    let status = status::of(observed, state, verdicts, past.as_ref(), now);
    let status = status::if_due(observed, status, Follows::of(valid), is_wish(valid, state), now);
    let attempted = observed.attempted.clone();
    Plan { attempted, scale, past, status, events, requeue_after: Some(next_look(period)) }
}

fn scale(
    observed: &Observed,
    found: &Found,
    decision: &Decision,
    period: Duration,
    now: Timestamp,
) -> ScaleWrite {
    let attempt = Attempt {
        uid: found.scaled.uid.clone(),
        version: found.scaled.version.clone(),
        at: now,
        decision: status::entry(decision, now),
        note: events::of_scale(found, decision),
    };
    let before = match &observed.attempted {
        Attempted::Open(before) => Some(Attempt::clone(before)),
        Attempted::Nothing | Attempted::Failed | Attempted::CarriedOut(_) => None,
    };
    ScaleWrite {
        target: found.clone(),
        sampled: sampled(observed, decision),
        attempt,
        before,
        outdated_retry: outdated_retry(period),
    }
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
        flows: observed.answers.iter().map(|answer| answer.flow).collect(),
    };
    let readings: Vec<Reading> = observed.answers.iter().map(|answer| answer.reading.clone()).collect();
    decide(&policy(valid, found, contest), &target, &readings, &known.scaling, now)
}

fn sampled(observed: &Observed, decision: &Decision) -> Option<Timestamp> {
    decision.conclusion.raw?;
    observed.answers.get(decision.conclusion.winner?)?.reading.newest()
}

/// The policy of the spec. It has no 0 replicas where the kind does without them, or where another has set 0: those 0
/// stay, as with HPA. Where this controller has set 0, a minimum that was raised since counts, which is no rule of HPA.
fn policy(valid: &ValidScaler, found: &Found, contest: &Contest) -> Policy {
    let mut policy = valid.policy.clone();
    // While two versions share requests, stable keeps what it had: a rollback gives it all of them again.
    let is_above_zero = found.keeps_one || found.scaled.replicas == 0 && contest.is_stopped();
    if is_above_zero && policy.bounds.min() == 0 {
        policy.bounds = Bounds::new(1, policy.bounds.max()).unwrap_or(policy.bounds);
    }
    if let Some(least) = found.least.filter(|least| *least > policy.bounds.min()) {
        let max = policy.bounds.max();
        policy.bounds = Bounds::new(least.min(max), max).unwrap_or(policy.bounds);
    }
    if found.scaled.replicas == 0 && contest.is_idle() && policy.extras != Extras::none() {
        policy.extras.zero = ZeroReplicas::BelowMinimum;
    }
    policy
}
