//! Events: replicas were set, and why an AIScaler does not scale. Pure.

use api::{conditions, reasons};
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};
use scaling::decide::{Decision, proposal::Rule};

use super::metric;
use crate::observe::{Found, Observed};

/// A new reason why replicas do not follow the metric, and what is suspicious about a metric.
pub(super) fn of(observed: &Observed, verdicts: &[Verdict]) -> Vec<Note> {
    let status = observed.scaler.status.as_ref();
    let before = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let known = |type_| before.iter().find(move |known| known.type_ == type_);
    let note = |Verdict { reason, message, .. }: &Verdict| Note {
        severity: Severity::Warning,
        reason,
        message: message.clone(),
    };
    let is_new = |verdict: &&Verdict| {
        known(verdict.type_).is_none_or(|known| known.reason != verdict.reason)
            // What ends by itself, or was asked for.
            && ![reasons::PAUSED, reasons::WAITING].contains(&verdict.reason)
    };
    let stopped = verdicts.iter().find(|verdict| verdict.type_ == conditions::READY && !verdict.holds);
    let is_suspicious = |verdict: &&Verdict| {
        verdict.holds
            && [
                reasons::IMPLAUSIBLE_VALUE,
                reasons::METRIC_ONLY_GROWS,
                reasons::REPLICAS_CONTESTED,
                reasons::CRASH_LOOP,
                reasons::CANNOT_START,
            ]
            .contains(&verdict.reason)
    };
    // These two repeat the others.
    let is_own = |verdict: &&Verdict| ![conditions::READY, conditions::STALLED].contains(&verdict.type_);
    let suspicious = verdicts.iter().filter(is_suspicious).filter(is_own);
    stopped.into_iter().chain(suspicious).filter(is_new).map(note).collect()
}

/// Of a write against that of another. A pause bounds their number.
pub(super) fn of_set_back(found: &Found, decision: &Decision) -> Note {
    let (from, to) = (decision.record.from, decision.record.to);
    Note {
        severity: Severity::Warning,
        reason: reasons::REPLICAS_SET_BACK,
        message: format!(
            "{}: something else has set {from} replicas, and this controller sets {to} again; remove spec.replicas from what applies it, or \
             delete this AIScaler",
            found.reference
        ),
    }
}

/// As the HorizontalPodAutoscaler has it, with the value that decided.
pub(super) fn of_scale(found: &Found, decision: &Decision) -> Note {
    let (from, to) = (decision.record.from, decision.record.to);
    let reason = decision.conclusion.reason();
    let inputs = &decision.record.inputs;
    let winner = decision.conclusion.winner.and_then(|winner| inputs.metrics.get(winner));
    let because = match winner {
        Some(winner) => {
            let summary = metric::summary(winner, from, inputs.supply.ready);
            let by = match decision.conclusion.rule {
                Rule::Value | Rule::Arrivals => "",
                Rule::ValueBeyondArrivals => "; the value asks for more",
            };
            format!("{summary}{by} ({reason})")
        }
        None => format!(
            "minReplicas is {}, maxReplicas is {} ({reason})",
            inputs.bounds.min(),
            inputs.bounds.max()
        ),
    };
    Note {
        severity: Severity::Normal,
        reason: reasons::SUCCESSFUL_RESCALE,
        message: format!("{}: {from} to {to} replicas: {because}", found.reference),
    }
}
