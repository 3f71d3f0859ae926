//! Replicas by all metrics, windows, rates and bounds, from recorded numbers alone.

use crate::{
    decide::{
        proposal::{Proposal, Rule, proposal},
        record::{Inputs, Record},
    },
    measurement::Measurement,
    policy::{CrashLoops, PendingPods, ZeroReplicas},
    reading::Fault,
};

/// The result, with a reason for each condition of an HPA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    pub to: i32,
    /// What the metrics recommend; `None` if they recommend nothing, or if bounds alone decided.
    pub raw: Option<i32>,
    /// Without those for what waits: `raw`, or fewer.
    pub lasting: Option<i32>,
    /// By metric; `None` without a usable value.
    pub proposals: Vec<Option<i32>>,
    /// Which metric made the largest proposal.
    pub winner: Option<usize>,
    /// By which rule that was.
    pub rule: Rule,
    pub active: Active,
    pub able: Able,
    pub limited: Limited,
}

/// Reason of the condition ScalingActive, which is True for the first one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Active {
    ValidMetricFound,
    /// The replicas were set to 0 by hand.
    ScalingDisabled,
    MetricMissing(Fault),
    MetricStale,
    /// It asks for fewer replicas, and some of its data was missing.
    MetricPartial,
    MetricNotLoadSensitive,
}

/// Reason of the condition AbleToScale, which is True for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Able {
    ReadyForNewScale,
    ScaleUpStabilized,
    ScaleDownStabilized,
    /// No replicas are removed while pods start that the demand may need.
    WaitingForPods,
    /// No replicas are added while their pods would crash.
    CrashLoop,
    /// No replicas are added while their pods could not start, whatever the node.
    CannotStart,
}

/// Reason of the condition ScalingLimited, which is False for the first one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    DesiredWithinRange,
    TooFewReplicas,
    TooManyReplicas,
    ScaleUpLimit,
    ScaleDownLimit,
}

/// The replicas that follow from what was recorded: always `record.to`.
pub fn recompute(record: &Record) -> i32 {
    conclude(record.from, &record.inputs).to
}

/// Never outside the bounds, except that 0 replicas stay if the minimum is above 0, unless a scale-down led to them.
pub fn conclude(replicas: i32, inputs: &Inputs) -> Conclusion {
    let (min, max) = (inputs.bounds.min(), inputs.bounds.max());
    if replicas == 0 && min > 0 && inputs.extras.zero == ZeroReplicas::AsInHpa {
        return Conclusion { active: Active::ScalingDisabled, ..unmeasured(0) };
    }
    let by_metric: Vec<Option<Proposal>> =
        inputs.metrics.iter().map(|metric| proposal(metric, replicas, inputs)).collect();
    let lasting = by_metric.iter().flatten().map(|proposed| proposed.lasting).max();
    let proposals: Vec<Option<i32>> =
        by_metric.iter().map(|proposed| proposed.map(|proposed| proposed.replicas)).collect();
    let active = active(inputs, &proposals, replicas);
    // HPA v2: bounds apply at once, without windows and rates.
    if replicas > max {
        return Conclusion { active, limited: Limited::TooManyReplicas, ..unmeasured(max) };
    }
    if replicas < min {
        return Conclusion { active, limited: Limited::TooFewReplicas, ..unmeasured(min) };
    }
    let (winner, Some(proposed)) = largest(&proposals) else {
        return Conclusion { active, proposals, ..unmeasured(replicas) };
    };
    let largest = winner.and_then(|winner| *by_metric.get(winner)?);
    let rule = largest.map_or(Rule::Value, |proposal| proposal.rule);
    // HPA v2: with some metrics invalid, the others may add replicas and remove none. Nor may one that is incomplete.
    if has_missing(inputs) && proposed < replicas {
        return Conclusion { active, proposals, winner, rule, ..unmeasured(replicas) };
    }
    let with_buffer = |proposed: i32| match proposed {
        0 => 0,
        proposed => proposed.saturating_add(i32::from(inputs.extras.warm_buffer)),
    };
    let (raw, lasting) = (with_buffer(proposed), lasting.map(with_buffer));
    let (stable, able) = stabilized(raw, replicas, inputs);
    let (to, limited) = limited(stable, replicas, inputs);
    Conclusion { to, raw: Some(raw), lasting, proposals, winner, rule, active, able, limited }
}

impl Conclusion {
    /// The word that explains the result best.
    pub fn reason(&self) -> &'static str {
        if self.active != Active::ValidMetricFound {
            self.active.as_str()
        } else if self.limited == Limited::DesiredWithinRange && self.able != Able::ReadyForNewScale {
            self.able.as_str()
        } else {
            self.limited.as_str()
        }
    }
}

impl Active {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ValidMetricFound => "ValidMetricFound",
            Self::ScalingDisabled => "ScalingDisabled",
            Self::MetricMissing(_) => "MetricMissing",
            Self::MetricStale => "MetricStale",
            Self::MetricPartial => "MetricPartial",
            Self::MetricNotLoadSensitive => "MetricNotLoadSensitive",
        }
    }
}

impl Able {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadyForNewScale => "ReadyForNewScale",
            Self::ScaleUpStabilized => "ScaleUpStabilized",
            Self::ScaleDownStabilized => "ScaleDownStabilized",
            Self::WaitingForPods => "WaitingForPods",
            Self::CrashLoop => "CrashLoop",
            Self::CannotStart => "CannotStart",
        }
    }
}

impl Limited {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DesiredWithinRange => "DesiredWithinRange",
            Self::TooFewReplicas => "TooFewReplicas",
            Self::TooManyReplicas => "TooManyReplicas",
            Self::ScaleUpLimit => "ScaleUpLimit",
            Self::ScaleDownLimit => "ScaleDownLimit",
        }
    }
}

/// A result without a recommendation.
fn unmeasured(to: i32) -> Conclusion {
    Conclusion {
        to,
        raw: None,
        lasting: None,
        proposals: Vec::new(),
        winner: None,
        rule: Rule::Value,
        active: Active::ValidMetricFound,
        able: Able::ReadyForNewScale,
        limited: Limited::DesiredWithinRange,
    }
}

/// The first of the largest proposals.
fn largest(proposals: &[Option<i32>]) -> (Option<usize>, Option<i32>) {
    let mut winner: (Option<usize>, Option<i32>) = (None, None);
    for (index, proposed) in proposals.iter().enumerate() {
        if proposed.is_some() && *proposed > winner.1 {
            winner = (Some(index), *proposed);
        }
    }
    winner
}

/// Whether data is missing that might ask for more replicas. A metric that does not move with the load is known to say
/// nothing; it is not missing.
fn has_missing(inputs: &Inputs) -> bool {
    inputs.metrics.iter().any(|metric| match metric.measurement {
        Measurement::Invalid(_) | Measurement::PartialTotal(_) => true,
        Measurement::Total(_)
        | Measurement::Pods(_)
        | Measurement::Fallback { .. }
        | Measurement::NotLoadSensitive => false,
    })
}

/// HPA v2: by the first metric that is invalid, or incomplete, if that decides.
fn active(inputs: &Inputs, proposals: &[Option<i32>], replicas: i32) -> Active {
    let mut faults = inputs.metrics.iter().filter_map(|metric| match metric.measurement {
        Measurement::Invalid(Fault::Stale) | Measurement::Fallback { fault: Fault::Stale, .. } => {
            Some(Active::MetricStale)
        }
        Measurement::Invalid(fault) | Measurement::Fallback { fault, .. } => {
            Some(Active::MetricMissing(fault))
        }
        Measurement::PartialTotal(_) => Some(Active::MetricPartial),
        Measurement::NotLoadSensitive => Some(Active::MetricNotLoadSensitive),
        Measurement::Total(_) | Measurement::Pods(_) => None,
    });
    let has_measured = inputs.metrics.iter().any(|metric| match metric.measurement {
        Measurement::Total(_) | Measurement::PartialTotal(_) | Measurement::Pods(_) => true,
        Measurement::Invalid(_) | Measurement::Fallback { .. } | Measurement::NotLoadSensitive => false,
    });
    let holds = has_missing(inputs) && largest(proposals).1.is_some_and(|proposed| proposed < replicas);
    if has_measured && !holds {
        return Active::ValidMetricFound;
    }
    faults.next().unwrap_or(Active::MetricMissing(Fault::Empty))
}

/// HPA v2, `stabilizeRecommendationWithBehaviors`; then what pods that start or fail forbid.
fn stabilized(raw: i32, replicas: i32, inputs: &Inputs) -> (i32, Able) {
    let lowest = inputs.recommended.lowest.map_or(raw, |lowest| lowest.min(raw));
    let highest = inputs.recommended.highest.map_or(raw, |highest| highest.max(raw));
    let stable = replicas.max(lowest).min(highest);
    let supply = inputs.supply;
    let waits = match inputs.extras.pending {
        PendingPods::AsInHpa => false,
        PendingPods::AreSupply => supply.coming > 0 && i64::from(stable) >= i64::from(supply.ready),
    };
    if stable < replicas && waits {
        return (replicas, Able::WaitingForPods);
    }
    let fails = match inputs.extras.crash_loops {
        CrashLoops::AsInHpa => false,
        CrashLoops::HoldScaleUp => supply.broken() > 0 && supply.broken() >= supply.ready,
    };
    if stable > replicas && fails {
        let why = if supply.cannot_start == 0 { Able::CrashLoop } else { Able::CannotStart };
        return (replicas, why);
    }
    let able = match stable == raw {
        true => Able::ReadyForNewScale,
        false if raw >= replicas => Able::ScaleUpStabilized,
        false => Able::ScaleDownStabilized,
    };
    (stable, able)
}

/// HPA v2, `convertDesiredReplicasWithBehaviorRate`.
fn limited(stable: i32, replicas: i32, inputs: &Inputs) -> (i32, Limited) {
    let (bounds, allowed) = (inputs.bounds, inputs.allowed);
    if stable > replicas {
        let (highest, limit) = if bounds.max() > allowed.highest {
            (allowed.highest, Limited::ScaleUpLimit)
        } else {
            (bounds.max(), Limited::TooManyReplicas)
        };
        if stable > highest {
            return (highest, limit);
        }
    } else if stable < replicas {
        let (lowest, limit) = if bounds.min() < allowed.lowest {
            (allowed.lowest, Limited::ScaleDownLimit)
        } else {
            (bounds.min(), Limited::TooFewReplicas)
        };
        if stable < lowest {
            return (lowest, limit);
        }
    }
    (stable, Limited::DesiredWithinRange)
}

#[cfg(test)]
mod tests;
