//! Replicas that one metric proposes: HPA's arithmetic, or that of the metric's kind.

use crate::{
    decide::record::{Inputs, MetricInputs},
    measurement::Measurement,
    policy::Arithmetic,
};

mod by_kind;
pub(crate) mod hpa;

/// What one metric proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) replicas: i32,
    /// Without those for what waits, which is gone when they have served it.
    pub(crate) lasting: i32,
}

/// `None` if the metric has no usable value.
pub(crate) fn proposal(metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> Option<Proposal> {
    by_kind::of_flow(metric, replicas, inputs).or_else(|| {
        let proposed = of_value(metric, replicas, inputs)?;
        Some(Proposal { replicas: proposed, lasting: proposed })
    })
}

fn of_value(metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> Option<i32> {
    match metric.measurement {
        Measurement::Invalid(_) | Measurement::NotLoadSensitive => None,
        Measurement::Fallback { replicas, .. } => Some(replicas),
        Measurement::Total(value) | Measurement::PartialTotal(value) => {
            Some(match inputs.extras.arithmetic {
                Arithmetic::Hpa => hpa::of_total(value, metric, replicas, inputs),
                Arithmetic::ByKind => by_kind::of_total(value, metric, replicas, inputs),
            })
        }
        Measurement::Pods(values) => Some(match inputs.extras.arithmetic {
            Arithmetic::Hpa => hpa::of_pods(values, metric, replicas, inputs),
            Arithmetic::ByKind => by_kind::of_pods(values, metric, replicas, inputs),
        }),
    }
}
