//! Replicas that one metric proposes: HPA's arithmetic, or that of the metric's kind.

use crate::{
    decide::record::{Inputs, MetricInputs},
    measurement::Measurement,
    policy::Arithmetic,
};

mod by_kind;
pub(crate) mod hpa;

/// `None` if the metric has no usable value.
pub(crate) fn proposal(metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> Option<i32> {
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
