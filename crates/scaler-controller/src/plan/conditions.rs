//! The conditions of an AIScaler: types and reasons of the HorizontalPodAutoscaler and a few of this project. Pure.
//!
//! Transition times are set in `status`.

use api::{aiscaler::Mode, conditions, reasons};
use runtime::write::conditions::{Verdict, whole_seconds};
use scaling::{
    behavior::Rules,
    decide::{
        Decision,
        conclusion::{Able, Active, Limited},
        proposal::Rule,
        record::Record,
    },
    measurement::Measurement,
    reading::Fault,
    supply::Supply,
};

use super::{State, Writes, hands_off::HandsOff, metric};
use crate::{
    history::contest::{MOST_FOREIGN, Pause, WINDOW},
    history::first_look::Implausible,
    observe::{Found, Observed},
    target::pod::StartFault,
    validate::{Invalid, ValidScaler, word},
};

pub(super) fn of(valid: &ValidScaler, observed: &Observed, state: &State<'_>) -> Vec<Verdict> {
    match state {
        State::HandsOff(hands_off) => of_hands_off(hands_off),
        State::Awaiting => awaiting(),
        State::Decided { found, decision, writes, others } => {
            let able = match writes {
                Writes::Refused(refusal) => fails(
                    conditions::ABLE_TO_SCALE,
                    reasons::FAILED_UPDATE_SCALE,
                    refusal.message().to_owned(),
                ),
                Writes::Paused(pause) => contested(pause, found),
                Writes::Announced(why) => announced(*why, decision, valid),
                Writes::Scale | Writes::Nothing => match others.often {
                    Some(count) => set_back(count, found),
                    None => able(valid, decision, found),
                },
            };
            let active = active(valid, observed, decision, found);
            let limited = limited(decision, valid, found);
            let ready = ready(&able, &active);
            with_progress(vec![able, active, limited, ready])
        }
    }
}

fn awaiting() -> Vec<Verdict> {
    let message = "replicas stay until the first samples have arrived";
    with_progress(vec![
        fails(conditions::SCALING_ACTIVE, reasons::WAITING, message.to_owned()),
        fails(conditions::READY, reasons::WAITING, message.to_owned()),
    ])
}

pub(super) fn of_invalid(invalid: &Invalid) -> Vec<Verdict> {
    let message = invalid.to_string();
    with_progress(vec![
        fails(conditions::SCALING_ACTIVE, reasons::INVALID_SPEC, message.clone()),
        fails(conditions::READY, reasons::INVALID_SPEC, message),
    ])
}

fn of_hands_off(hands_off: &HandsOff) -> Vec<Verdict> {
    let able = |holds: bool, reason, message: &str| Verdict {
        type_: conditions::ABLE_TO_SCALE,
        holds,
        reason,
        message: message.to_owned(),
    };
    let found = || able(true, reasons::SUCCEEDED_GET_SCALE, "the target can be scaled");
    let active = |reason, message: &str| fails(conditions::SCALING_ACTIVE, reason, message.to_owned());
    let (able, active) = match hands_off {
        HandsOff::Unread => return awaiting(),
        HandsOff::Missing(why) => (
            able(false, reasons::FAILED_GET_SCALE, why),
            active(reasons::FAILED_GET_SCALE, "there is no target to compute replicas of"),
        ),
        HandsOff::Unknown(why) => (
            able(false, reasons::FAILED_GET_SCALE, why),
            active(reasons::FAILED_GET_SCALE, "replicas stay until the target is seen again"),
        ),
        HandsOff::Deleted(why) => {
            (able(false, reasons::FAILED_GET_SCALE, why), active(reasons::FAILED_GET_SCALE, why))
        }
        HandsOff::NoSelector(why) => (found(), active(reasons::INVALID_SELECTOR, why)),
        HandsOff::OtherAutoscaler(why) | HandsOff::ScalesItself(why) => {
            (found(), active(reasons::TARGET_MANAGED_BY_OTHER, why))
        }
        HandsOff::Paused => {
            (found(), active(reasons::PAUSED, "spec.paused is true; replicas stay as they are"))
        }
    };
    let ready = ready(&able, &active);
    with_progress(vec![able, active, ready])
}

fn able(valid: &ValidScaler, decision: &Decision, found: &Found) -> Verdict {
    let supply = decision.supply();
    let Record { raw, inputs, .. } = &decision.record;
    let stabilized = |others: Option<i32>, rules: &Rules, field: &str| {
        let others = others.map_or("others".to_owned(), |others| others.to_string());
        let window = rules.window.duration().as_secs();
        format!(
            "{raw} replicas are recommended, and {others} were within the last {window} s (spec.behavior.{field})"
        )
    };
    // Which pods do not start, and why, is said after it.
    let none_added =
        || format!("no replicas are added to {} that are Ready, because more would not start", supply.ready);
    let (reason, message) = match decision.conclusion.able {
        Able::ReadyForNewScale => {
            (reasons::READY_FOR_NEW_SCALE, format!("{} can be scaled", found.reference))
        }
        Able::ScaleUpStabilized => (
            reasons::SCALE_UP_STABILIZED,
            stabilized(
                inputs.recommended.lowest,
                &valid.policy.behavior.up,
                "scaleUp.stabilizationWindowSeconds",
            ),
        ),
        Able::ScaleDownStabilized => (
            reasons::SCALE_DOWN_STABILIZED,
            stabilized(
                inputs.recommended.highest,
                &valid.policy.behavior.down,
                "scaleDown.stabilizationWindowSeconds",
            ),
        ),
        Able::WaitingForPods => (
            reasons::WAITING_FOR_PODS,
            format!("no replicas are removed while {} pods start that may be needed", supply.coming),
        ),
        Able::CrashLoop => (reasons::CRASH_LOOP, none_added()),
        Able::CannotStart => (reasons::CANNOT_START, none_added()),
    };
    let message = match not_starting(supply, found) {
        Some(pods) => format!("{message}; {pods}"),
        None => message,
    };
    holds(conditions::ABLE_TO_SCALE, reason, message)
}

/// Pods that may never serve, by what keeps them from it.
fn not_starting(supply: Supply, found: &Found) -> Option<String> {
    let kinds = [
        (supply.unschedulable, "without a node or not created"),
        (supply.stalled, "not Ready in time"),
        (supply.crash_looping, "in a crash loop"),
        (supply.cannot_start, start_fault(found)),
    ];
    let counts: Vec<String> = kinds
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{kind}: {count}"))
        .collect();
    let all = supply.not_starting();
    let uncreated = if supply.unschedulable > 0 {
        ", and for pods that were not created those of what creates them"
    } else {
        ""
    };
    (all > 0).then(|| {
        format!("pods that do not start: {all} ({}); see their events and logs{uncreated}", counts.join(", "))
    })
}

/// Why pods would start on no node: of several causes the same one at each look.
fn start_fault(found: &Found) -> &'static str {
    let pods = found.pods.iter().flatten();
    pods.filter_map(|pod| pod.cannot_start).min().map_or("", StartFault::as_str)
}

/// The time in it stays the same, so that it is one message for the whole pause.
fn contested(pause: &Pause, found: &Found) -> Verdict {
    let message = format!(
        "others have set the replicas of {} {MOST_FOREIGN} times within {} s, last to {}; this controller sets none until {}; \
         stop what sets them, such as kubectl scale or a tool that applies spec.replicas, or delete this AIScaler",
        found.reference,
        WINDOW.as_secs(),
        pause.replicas,
        whole_seconds(pause.until).0
    );
    fails(conditions::ABLE_TO_SCALE, reasons::REPLICAS_CONTESTED, message)
}

/// The replicas follow the metric after each of these writes, and not between them.
fn set_back(count: usize, found: &Found) -> Verdict {
    let message = format!(
        "others have set the replicas of {} at least {count} times within an hour, and they were set back; stop what sets \
         them, such as a tool that applies spec.replicas, or delete this AIScaler",
        found.reference
    );
    holds(conditions::ABLE_TO_SCALE, reasons::REPLICAS_CONTESTED, message)
}

fn announced(why: Implausible, decision: &Decision, valid: &ValidScaler) -> Verdict {
    let Record { from, raw, inputs, .. } = &decision.record;
    let winner = decision.conclusion.winner.and_then(|winner| inputs.metrics.get(winner));
    let summary =
        winner.map(|winner| metric::summary(winner, *from, inputs.supply.ready)).unwrap_or_default();
    let message = match why {
        Implausible::FarTooMany => format!(
            "{summary}, which asks for {raw} replicas where maxReplicas is {}; if a unit is wrong, correct targetValue \
             or source now: replicas are added one period of the controller (--period) after this value was first seen",
            valid.policy.bounds.max(),
        ),
        Implausible::FarTooFew => format!(
            "{summary}, which asks for {raw} of {from} replicas; if a unit is wrong, or the query gives an average \
             instead of a total, correct targetValue or source now: replicas are removed after \
             spec.behavior.scaleDown.stabilizationWindowSeconds, {} s, and a period of the controller at least",
            valid.policy.behavior.down.window.duration().as_secs(),
        ),
    };
    holds(conditions::ABLE_TO_SCALE, reasons::IMPLAUSIBLE_VALUE, message)
}

fn active(valid: &ValidScaler, observed: &Observed, decision: &Decision, found: &Found) -> Verdict {
    let verdict = by_metrics(valid, observed, decision, found);
    let Some(foreign) = foreign(found) else { return verdict };
    let reason = match verdict.reason {
        reasons::VALID_METRIC_FOUND => reasons::FOREIGN_PODS,
        worse => worse,
    };
    Verdict { reason, message: format!("{}; {foreign}", verdict.message), ..verdict }
}

fn by_metrics(valid: &ValidScaler, observed: &Observed, decision: &Decision, found: &Found) -> Verdict {
    let remarks = remarks(observed, decision);
    let Record { from: replicas, to, .. } = decision.record;
    let fails = |reason, message| fails(conditions::SCALING_ACTIVE, reason, message);
    match decision.conclusion.active {
        Active::ValidMetricFound => by_valid_metric(valid, observed, decision, &remarks),
        Active::ScalingDisabled => fails(
            reasons::SCALING_DISABLED,
            format!("{} has 0 replicas, which stay; set 1 or more to scale again", found.reference),
        ),
        Active::MetricMissing(Fault::Empty | Fault::NoSettledPods) if replicas == 0 && to == 0 => {
            fails(reasons::METRIC_NEEDS_PODS, remarks.with_missing(&needs_pods(found)))
        }
        Active::MetricMissing(_) => fails(
            reasons::METRIC_MISSING,
            remarks.of_held(decision, &format!("{replicas} replicas stay without a metric")),
        ),
        Active::MetricStale => fails(
            reasons::METRIC_STALE,
            remarks.of_held(decision, &format!("{replicas} replicas stay, because the metric is too old")),
        ),
        Active::MetricPartial => {
            let held =
                format!("{replicas} replicas stay, because a metric that asks for fewer is incomplete");
            fails(reasons::METRIC_PARTIAL, remarks.of_held(decision, &held))
        }
        Active::MetricNotLoadSensitive => fails(
            reasons::METRIC_NOT_LOAD_SENSITIVE,
            "the metric stayed the same while the load changed; scale by another one, such as queue_depth"
                .to_owned(),
        ),
    }
}

/// Which metric decides, and what is remarkable about it and the others.
fn by_valid_metric(
    valid: &ValidScaler,
    observed: &Observed,
    decision: &Decision,
    remarks: &Remarks,
) -> Verdict {
    let which = decision.conclusion.winner.unwrap_or_default();
    let name = valid.policy.metrics.get(which).map_or("", |metric| word(metric.kind));
    let mut message = format!("replicas are computed from metric {name}");
    message.push_str(match decision.conclusion.rule {
        Rule::Value => "",
        Rule::Arrivals => ", by what arrives",
        Rule::ValueBeyondArrivals => ", whose value asks for more than what arrives",
    });
    let counter = as_counter(valid, observed, decision);
    if let Some(counter) = &counter {
        message = format!("{message}, but {counter}");
    }
    if valid.mode == Mode::DryRun {
        message = format!("{message}; spec.mode is DryRun, so none are set");
    }
    for remark in remarks.none_removed().iter().chain(&remarks.fallbacks).chain(&remarks.usable) {
        message = format!("{message}; {remark}");
    }
    if valid.lacks_completions(which) {
        message.push_str(
            "; set source.prometheus.completionsQuery to scale by what arrives; query must then count requests that wait and \
             that run",
        );
    }
    let reason = if counter.is_some() { reasons::METRIC_ONLY_GROWS } else { reasons::VALID_METRIC_FOUND };
    holds(conditions::SCALING_ACTIVE, reason, message)
}

/// A query whose series come from elsewhere looks the same while what exports them is away.
fn needs_pods(found: &Found) -> String {
    format!(
        "{} has 0 replicas, which stay while the metric has no value; if only its own pods have one, scale by what stands in \
         front of them, such as the requests of a gateway or the length of a queue, in source or additionalMetrics, or set \
         minReplicas to 1",
        found.reference
    )
}

fn foreign(found: &Found) -> Option<String> {
    let of_others = found.foreign.as_ref()?;
    Some(format!(
        "pods of {of_others} match the selector of {target} as well and do not count; give the pods of {target} a label that \
         no others have, and select by it",
        target = found.reference
    ))
}

/// The first metric that is a counter by its name, or by its values while replicas were added.
fn as_counter(valid: &ValidScaler, observed: &Observed, decision: &Decision) -> Option<String> {
    let metrics = valid.policy.metrics.iter().zip(&valid.sources).zip(&observed.answers);
    metrics.into_iter().find_map(|((metric, source), answer)| {
        let word = word(metric.kind);
        if let Some(counter) = source.bare_counters().first() {
            return Some(format!(
                "the query of {word} uses the counter {counter} as it is, which only grows; wrap it, as in \
                 rate({counter}[5m])"
            ));
        }
        let since = answer.only_grows_since?;
        let raised = decision.history.raised.is_some_and(|raised| raised >= since);
        let is_at_most = decision.record.from >= valid.policy.bounds.max();
        (raised || is_at_most).then(|| {
            format!(
                "{word} has risen with every sample while replicas were added; if it is a counter, wrap it in rate(...) \
                 of source.prometheus"
            )
        })
    })
}

/// What the sources said beside their values.
#[derive(Default)]
struct Remarks {
    /// Of metrics that let no replicas be removed.
    missing: Vec<String>,
    /// Of metrics that `spec.fallback` stands for.
    fallbacks: Vec<String>,
    /// Of values that are used, for example that some pods have none.
    usable: Vec<String>,
}

impl Remarks {
    /// These words, and why values are missing.
    fn with_missing(&self, words: &str) -> String {
        match self.missing.join("; ") {
            text if text.is_empty() => words.to_owned(),
            text => format!("{words}: {text}"),
        }
    }

    /// Said as soon as one value is missing.
    fn none_removed(&self) -> Option<String> {
        (!self.missing.is_empty())
            .then(|| self.with_missing("no replicas are removed, because values are missing"))
    }

    /// `words`: why the replicas stay where no metric is usable.
    fn of_held(&self, decision: &Decision, words: &str) -> String {
        match decision.conclusion.raw {
            // Without a metric only a fallback recommends anything.
            Some(_) => {
                let none_removed = self.none_removed();
                self.fallbacks.iter().chain(&none_removed).map(String::as_str).collect::<Vec<_>>().join("; ")
            }
            None => self.with_missing(words),
        }
    }
}

fn remarks(observed: &Observed, decision: &Decision) -> Remarks {
    let mut remarks = Remarks::default();
    for (metric, answer) in decision.record.inputs.metrics.iter().zip(&observed.answers) {
        let into = match metric.measurement {
            Measurement::Invalid(_) | Measurement::PartialTotal(_) => &mut remarks.missing,
            Measurement::Fallback { .. } => {
                let summary = metric::summary(metric, decision.record.from, decision.supply().ready);
                remarks.fallbacks.push(match answer.message.as_str() {
                    "" => summary,
                    why => format!("{summary}: {why}"),
                });
                continue;
            }
            Measurement::Total(_) | Measurement::Pods(_) => &mut remarks.usable,
            // It has a reason of its own.
            Measurement::NotLoadSensitive => continue,
        };
        if !answer.message.is_empty() {
            into.push(answer.message.clone());
        }
    }
    remarks
}

fn limited(decision: &Decision, valid: &ValidScaler, found: &Found) -> Verdict {
    let (min, max) = (valid.policy.bounds.min(), valid.policy.bounds.max());
    // More than the spec's where the kind does without 0 replicas.
    let least = decision.record.inputs.bounds.min();
    let raw = decision.record.raw;
    let verdict =
        |holds, reason, message| Verdict { type_: conditions::SCALING_LIMITED, holds, reason, message };
    match decision.conclusion.limited {
        Limited::DesiredWithinRange => verdict(
            false,
            reasons::DESIRED_WITHIN_RANGE,
            "the replicas are within minReplicas and maxReplicas".to_owned(),
        ),
        Limited::TooFewReplicas if least > min => verdict(
            true,
            reasons::TOO_FEW_REPLICAS,
            format!("{raw} replicas are recommended, and {} keeps at least {least}", found.reference),
        ),
        Limited::TooFewReplicas => verdict(
            true,
            reasons::TOO_FEW_REPLICAS,
            format!("{raw} replicas are recommended, minReplicas is {min}"),
        ),
        Limited::TooManyReplicas => verdict(
            true,
            reasons::TOO_MANY_REPLICAS,
            format!(
                "{raw} replicas are recommended, maxReplicas is {max}; raise it if the load shall be served"
            ),
        ),
        Limited::ScaleUpLimit => verdict(
            true,
            reasons::SCALE_UP_LIMIT,
            format!("{raw} replicas are recommended, behavior.scaleUp allows {}", decision.record.to),
        ),
        Limited::ScaleDownLimit => verdict(
            true,
            reasons::SCALE_DOWN_LIMIT,
            format!("{raw} replicas are recommended, behavior.scaleDown allows {}", decision.record.to),
        ),
    }
}

/// True while replicas follow the metric.
fn ready(able: &Verdict, active: &Verdict) -> Verdict {
    let broken = [able, active].into_iter().find(|verdict| !verdict.holds);
    match broken {
        Some(broken) => fails(conditions::READY, broken.reason, broken.message.clone()),
        None => holds(conditions::READY, active.reason, active.message.clone()),
    }
}

/// Waiting ends by itself; what a person has to change does not.
fn with_progress(mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
    let ready = verdicts.iter().find(|verdict| verdict.type_ == conditions::READY);
    if let Some(ready) = ready.filter(|ready| !ready.holds && ready.reason != reasons::PAUSED) {
        let type_ =
            if ready.reason == reasons::WAITING { conditions::RECONCILING } else { conditions::STALLED };
        verdicts.push(holds(type_, ready.reason, ready.message.clone()));
    }
    verdicts
}

fn holds(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: true, reason, message }
}

fn fails(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: false, reason, message }
}
