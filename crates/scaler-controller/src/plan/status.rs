//! The status of an AIScaler, and when it is worth a write. Pure.

use std::time::Duration;

use api::aiscaler::{
    AIScalerStatus, ColdStart, Decision as StoredDecision, MetricReading, MetricStatus, Mode,
};
use jiff::Timestamp;
use runtime::write::conditions::{Verdict, merged, whole_seconds};
use scaling::decide::{Decision, Outcome, record::MetricInputs};

use super::{State, Writes, metric};
use crate::{
    history::{Past, attempt::Unwritten, record, stored, to_store},
    observe::Observed,
    validate::{ValidScaler, word},
};

/// Measured values change with every sample. A status that differs only in them is written after this time; an HPA writes
/// each 15 s.
const MEASURED_EVERY: Duration = Duration::from_secs(30);

/// `past`: what the next decision begins with.
pub(super) fn of(
    observed: &Observed,
    state: &State<'_>,
    verdicts: Vec<Verdict>,
    past: Option<&Past>,
    now: Timestamp,
) -> AIScalerStatus {
    let mut status = of_invalid(observed, verdicts, now);
    if let Some(past) = past {
        status.history = Some(to_store(past));
    }
    let State::Decided { found, decision, writes, others: _ } = state else { return status };
    if observed.past.is_of_another(&found.scaled.uid) {
        // They were those of another target.
        status.decisions.clear();
        status.last_scale_time = None;
    }
    let has_written = matches!(writes, Writes::Scale);
    let replicas = if has_written { decision.record.to } else { found.scaled.replicas };
    let metrics = &decision.record.inputs.metrics;
    AIScalerStatus {
        current_replicas: found.scaled.status_replicas,
        desired_replicas: decision.record.to,
        metric: metrics.first().map(|metric| measured(metric, replicas)),
        metrics: metrics
            .iter()
            .zip(&decision.conclusion.proposals)
            .map(|(metric, proposal)| {
                let MetricStatus { value, target, display } = measured(metric, replicas);
                MetricReading {
                    metric_type: word(metric.kind).to_owned(),
                    value,
                    target,
                    display,
                    replicas: *proposal,
                }
            })
            .collect(),
        last_scale_time: if has_written { Some(whole_seconds(now)) } else { status.last_scale_time },
        cold_start: decision
            .cold_start
            .map(|known| ColdStart { p50_seconds: seconds(known.p50), p90_seconds: seconds(known.p90) }),
        decisions: decisions(status.decisions, decision, *writes, now),
        ..status
    }
}

/// All but the conditions is what it was.
pub(super) fn of_invalid(observed: &Observed, verdicts: Vec<Verdict>, now: Timestamp) -> AIScalerStatus {
    let mut before = observed.scaler.status.clone().unwrap_or_default();
    if let Some(Unwritten { decisions, last_scale_time }) = &observed.unwritten {
        before.decisions.clone_from(decisions);
        before.last_scale_time.clone_from(last_scale_time);
    }
    let generation = observed.scaler.metadata.generation;
    AIScalerStatus {
        conditions: merged(verdicts, &before.conditions, generation, now),
        observed_generation: generation.unwrap_or_default(),
        ..before
    }
}

/// Whether replicas follow the recommendations that a status keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Recommendations { of_window_of_scale_up: bool },
    Nothing,
}

impl Follows {
    pub(super) fn of(valid: &ValidScaler) -> Self {
        match valid.mode {
            Mode::Apply => Self::Recommendations {
                of_window_of_scale_up: !valid.policy.behavior.up.window.duration().is_zero(),
            },
            Mode::DryRun => Self::Nothing,
        }
    }

    /// Whether a process that starts with the stored past would remove or add replicas sooner than this one.
    fn must_be_written(self, past: &Past, stored: &Past) -> bool {
        let Self::Recommendations { of_window_of_scale_up } = self else { return false };
        let last = |past: &Past| past.scaling.recommendations.last().map(|known| known.replicas);
        match (last(past), last(stored)) {
            (Some(last), Some(stored)) => last > stored || of_window_of_scale_up && last < stored,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

/// The status if it says something new, or if its numbers were last written a while ago. `is_wish`: the replicas that are
/// desired are not written, so they are one more number.
pub(super) fn if_due(
    observed: &Observed,
    status: AIScalerStatus,
    follows: Follows,
    is_wish: bool,
    now: Timestamp,
) -> Option<AIScalerStatus> {
    let Some(before) = &observed.scaler.status else { return Some(status) };
    let (past, known) = (stored(&status), stored(before));
    let news = |status: &AIScalerStatus| {
        let mut news = without_numbers(status);
        if is_wish {
            news.desired_replicas = 0;
            news.decisions.clear();
        }
        news
    };
    if news(before) != news(&status)
        || !past.has_same_writers(&known)
        || follows.must_be_written(&past, &known)
    {
        return Some(status);
    }
    let has_same_wish =
        before.desired_replicas == status.desired_replicas && before.decisions == status.decisions;
    let same_history = past.differs_only_in_time(&known);
    if same_history && has_same_wish && before.metric == status.metric && before.metrics == status.metrics {
        return None;
    }
    let is_due =
        observed.written.is_none_or(|written| now.duration_since(written).unsigned_abs() >= MEASURED_EVERY);
    is_due.then_some(status)
}

/// What a write cannot wait for.
fn without_numbers(status: &AIScalerStatus) -> AIScalerStatus {
    let mut status = AIScalerStatus { metric: None, metrics: Vec::new(), history: None, ..status.clone() };
    for condition in &mut status.conditions {
        condition.message.retain(|c| !c.is_ascii_digit());
    }
    status
}

/// Per replica; of a latency, the value itself.
fn measured(metric: &MetricInputs, replicas: i32) -> MetricStatus {
    let target = metric::exact(metric.target.milli());
    let value = metric.value_per_replica(replicas).map(|value| metric::beside(metric.target, value));
    match value {
        Some(value) => MetricStatus { display: format!("{value}/{target}"), value, target },
        None => MetricStatus { value: String::new(), display: format!("<unknown>/{target}"), target },
    }
}

/// With this decision if replicas change by it, or would without DryRun.
fn decisions(
    mut known: Vec<StoredDecision>,
    decision: &Decision,
    writes: Writes<'_>,
    now: Timestamp,
) -> Vec<StoredDecision> {
    let Outcome::Scale { from, to } = decision.outcome else { return known };
    let reason = &decision.record.reason;
    let is_last = |last: &StoredDecision| (last.from, last.to, &last.reason) == (from, to, reason);
    match writes {
        Writes::Scale => {}
        // In DryRun nothing changes: one wish is one entry.
        Writes::Nothing if known.last().is_some_and(is_last) => return known,
        Writes::Nothing => {}
        Writes::Announced(_) | Writes::Paused(_) | Writes::Refused(_) => return known,
    }
    record(&mut known, entry(decision, now));
    known
}

/// As `status.decisions` has it.
pub(super) fn entry(Decision { record, .. }: &Decision, now: Timestamp) -> StoredDecision {
    StoredDecision {
        time: Some(whole_seconds(now)),
        from: record.from,
        to: record.to,
        raw: record.raw,
        // Numbers and short words, which serialize.
        inputs: serde_json::to_string(&record.inputs).unwrap_or_default(),
        reason: record.reason.clone(),
    }
}

fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}
