//! The status: counts, conditions with transition times, tokens, and how long a minor change may be delayed. Pure.

use std::time::Duration;

use api::{
    aidispatcher::{AIDispatcher, AIDispatcherStatus, Phase, Tokens},
    conditions::READY,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::{
    conditions::{Verdict, merged, whole_seconds},
    events::Note,
};
use scaling::history::History;
use workload::{
    reporting::{self, Unwritten, delay_of_counts, without_numbers},
    templates::revision::Revision,
};

use super::{metadata::selector_text, replicas::Sizing, revision::resolved};
use crate::{
    MEASURED_EVERY,
    observe::Observed,
    records::tokens::{message_of, total},
    validate::ValidDispatcher,
};
use conditions::{Assessment, Counts, checkpoint_failed::LOST};
use events::UNDER_WAY;

pub(super) mod conditions;
pub(super) mod events;

/// The first status of an object that starts without a fault may be delayed for this time, so that it already has the
/// first results.
const BEGINNING_LASTS: Duration = Duration::from_secs(5);

pub(super) fn of_valid(
    valid: &ValidDispatcher,
    revision: &Revision<'_>,
    sizing: &Sizing,
    past: Option<&History>,
    observed: &Observed,
    assessment: Assessment,
    now: Timestamp,
) -> AIDispatcherStatus {
    let before = observed.dispatcher.status.as_ref();
    let is_scaled = sizing.decision.is_some() || sizing.is_awaiting || sizing.unwatched.is_some();
    let last_scale_time = match sizing.scales(valid) {
        Some(_) => Some(whole_seconds(now)),
        None => before.and_then(|before| before.last_scale_time.clone()).filter(|_| is_scaled),
    };
    let scaling_history = match past {
        Some(past) => stored(past, before),
        None => before.and_then(|before| before.scaling_history.clone()).filter(|_| is_scaled),
    };
    AIDispatcherStatus {
        desired_replicas: sizing.desired,
        selector: Some(selector_text(&valid.name)),
        resolved: Some(resolved(revision, observed, now)),
        last_scale_time,
        scaling_history,
        ..written(observed, assessment, now)
    }
}

/// The status for a number of workers that was not written: rates must not count it.
pub(super) fn without_rescale(
    status: AIDispatcherStatus,
    before: Option<&AIDispatcherStatus>,
) -> AIDispatcherStatus {
    AIDispatcherStatus {
        last_scale_time: before.and_then(|before| before.last_scale_time.clone()),
        scaling_history: before.and_then(|before| before.scaling_history.clone()),
        ..status
    }
}

/// The status with one condition more, as the last status has it if it is the same.
pub(super) fn with_verdict(
    mut status: AIDispatcherStatus,
    verdict: Verdict,
    dispatcher: &AIDispatcher,
    now: Timestamp,
) -> AIDispatcherStatus {
    let before = dispatcher.status.as_ref().map(|before| before.conditions.as_slice()).unwrap_or_default();
    status.conditions.retain(|known| known.type_ != verdict.type_);
    status.conditions.extend(merged(vec![verdict], before, dispatcher.metadata.generation, now));
    status
}

/// The stored history is kept if it differs only in time.
fn stored(past: &History, before: Option<&AIDispatcherStatus>) -> Option<String> {
    let known = before.and_then(|before| before.scaling_history.clone());
    let is_same = known
        .as_deref()
        .and_then(|text| serde_json::from_str::<History>(text).ok())
        .is_some_and(|known| past.differs_only_in_time(&known));
    // Numbers and short words, which serialize.
    if is_same { known } else { serde_json::to_string(past).ok() }
}

/// Fields that depend on the last valid spec stay unchanged.
pub(super) fn of_invalid(observed: &Observed, assessment: Assessment, now: Timestamp) -> AIDispatcherStatus {
    written(observed, assessment, now)
}

fn written(observed: &Observed, assessment: Assessment, now: Timestamp) -> AIDispatcherStatus {
    let Counts { all, ready, updated: _, updated_ready: _, busy, queued, is_load_known: _ } =
        assessment.counts;
    let before = observed.dispatcher.status.clone().unwrap_or_default();
    let generation = observed.dispatcher.metadata.generation;
    let tokens = observed.tokens.clone();
    AIDispatcherStatus {
        available_replicas: ready,
        current_phase: Some(assessment.phase),
        active_workers: busy,
        token_usage: total(&tokens).max(before.token_usage),
        state: assessment.state,
        replicas: all,
        desired_replicas: before.desired_replicas,
        queue_depth: queued,
        // A new process has no rate until it has enough samples.
        tokens_per_minute: observed.token_rate.per_minute.or(before.tokens_per_minute),
        last_checkpoint_time: last_checkpoint(observed).or(before.last_checkpoint_time),
        selector: before.selector,
        resolved: before.resolved,
        tokens: Some(tokens).filter(|tokens| *tokens != Tokens::default()),
        last_scale_time: before.last_scale_time,
        scaling_history: before.scaling_history,
        observed_generation: generation.unwrap_or_default(),
        conditions: merged(assessment.verdicts, &before.conditions, generation, now),
    }
}

fn last_checkpoint(observed: &Observed) -> Option<Time> {
    let known = observed.dispatcher.status.as_ref().and_then(|status| status.last_checkpoint_time.as_ref());
    let left = observed.ending.iter().filter_map(|pod| message_of(pod)?.checkpoint);
    let reported = observed.loads.values().filter_map(|load| i64::try_from(load.saved?).ok());
    let left = left.chain(reported).filter_map(|seconds| Timestamp::from_second(seconds).ok()).max();
    left.into_iter().chain(known.map(|known| known.0)).max().map(Time)
}

/// A status, its events and the facts about it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) status: AIDispatcherStatus,
    pub(super) events: Vec<Note>,
    pub(super) facts: Vec<String>,
    /// How long the write is still delayed; `None`: it is written now.
    pub(super) wait: Option<Duration>,
}

impl Report {
    /// While the write of a minor change is delayed, the stored status stays.
    pub(super) fn in_time(mut self, observed: &Observed, now: Timestamp) -> Self {
        let unwritten = unwritten_numbers(observed, &self.status, now)
            .or_else(|| unwritten_first(observed, &self.status, now));
        let wait = unwritten.as_ref().and_then(|unwritten| unwritten.wait);
        let wait = wait.or_else(|| delay_of_minor(observed, &self.status, now));
        self.facts.extend(unwritten.map(|unwritten| unwritten.fact));
        match &observed.dispatcher.status {
            Some(written) if wait.is_some() => {
                // What is newly lost is so until it is reported.
                self.facts.retain(|fact| !fact.starts_with(LOST) || observed.facts.contains_key(fact));
                // Events compare with the stored status, and come with the one that is written.
                Self { status: written.clone(), events: Vec::new(), facts: self.facts, wait }
            }
            Some(_) | None => Self { wait, ..self },
        }
    }
}

/// The status differs from the stored one only in what is measured: load, tokens, and words about them.
fn unwritten_numbers(observed: &Observed, status: &AIDispatcherStatus, now: Timestamp) -> Option<Unwritten> {
    let before = observed.dispatcher.status.as_ref()?;
    if before == status || without_load(before) != without_load(status) {
        return None;
    }
    let numbers = (before.token_usage, before.queue_depth, before.active_workers, before.tokens_per_minute);
    Some(Unwritten::measured(numbers, &before.conditions, MEASURED_EVERY, &observed.facts, now))
}

/// The first status may wait. Until then the object has the phase of a new one, and no generation is observed.
fn unwritten_first(observed: &Observed, status: &AIDispatcherStatus, now: Timestamp) -> Option<Unwritten> {
    let before = observed.dispatcher.status.as_ref()?;
    let is_new = before.observed_generation == 0 && before.conditions.is_empty();
    let ready = status.conditions.iter().find(|condition| condition.type_ == READY)?;
    let comes_up = UNDER_WAY.contains(&&*ready.reason) && status.current_phase != Some(Phase::Failed);
    (is_new && comes_up).then(|| Unwritten::first(BEGINNING_LASTS, &observed.facts, now))
}

/// How long the write of a status may be delayed that differs only in counts and messages, which change often while pods
/// are new. Phase, conditions, reasons and the desired number are written at once.
fn delay_of_minor(observed: &Observed, status: &AIDispatcherStatus, now: Timestamp) -> Option<Duration> {
    let before = observed.dispatcher.status.as_ref()?;
    if before == status || without_counts(before) != without_counts(status) {
        return None;
    }
    delay_of_counts(observed.pods().map(AsRef::as_ref), now)
}

/// Whether workers are busy changes with each task.
fn without_load(status: &AIDispatcherStatus) -> AIDispatcherStatus {
    let phase = match status.current_phase {
        Some(Phase::Processing) => Some(Phase::Ready),
        other => other,
    };
    AIDispatcherStatus {
        current_phase: phase,
        active_workers: 0,
        token_usage: 0,
        state: None,
        queue_depth: None,
        tokens_per_minute: None,
        last_checkpoint_time: None,
        tokens: None,
        scaling_history: None,
        ..with_messages(status, without_numbers)
    }
}

fn without_counts(status: &AIDispatcherStatus) -> AIDispatcherStatus {
    AIDispatcherStatus {
        available_replicas: 0,
        replicas: 0,
        ..with_messages(&without_load(status), |_| String::new())
    }
}

fn with_messages(status: &AIDispatcherStatus, map: impl Fn(&str) -> String) -> AIDispatcherStatus {
    AIDispatcherStatus { conditions: reporting::with_messages(&status.conditions, map), ..status.clone() }
}
