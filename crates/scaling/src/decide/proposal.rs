//! Replicas that one metric proposes: HPA's arithmetic, or that of the metric's kind.

use crate::{
    decide::record::{FlowInputs, Inputs, MetricInputs},
    measurement::Measurement,
    policy::Arithmetic,
};

mod by_kind;
pub(crate) mod hpa;

/// What a proposal is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The value of the metric, or its fallback.
    Value,
    Arrivals,
    /// The value asks for more replicas than what arrives, which is not known well enough, or does not explain the value.
    ValueBeyondArrivals,
}

/// What one metric proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) replicas: i32,
    /// Without those for what waits, which is gone when they have served it.
    pub(crate) lasting: i32,
    pub(crate) rule: Rule,
}

impl Proposal {
    fn of_value(replicas: i32) -> Self {
        Self { replicas, lasting: replicas, rule: Rule::Value }
    }
}

/// `None` if the metric has no usable value.
pub(crate) fn proposal(metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> Option<Proposal> {
    let by_value = || of_value(metric, replicas, inputs).map(Proposal::of_value);
    let Some(by_flow) = by_kind::of_flow(metric, replicas, inputs) else { return by_value() };
    // What is known of a moment, or was known before a pod fell silent, removes nothing that the value asks for. Without a
    // queue that explains it, a latency says how fast replicas are with what they have in hand.
    let is_unsure = metric
        .flow
        .is_some_and(|FlowInputs { flow, .. }| flow.is_rough || !flow.explains(metric.kind, metric.target));
    let by_value = by_value().filter(|_| is_unsure);
    Some(by_value.map_or(by_flow, |by_value| Proposal {
        replicas: by_flow.replicas.max(by_value.replicas),
        lasting: by_flow.lasting.max(by_value.lasting),
        rule: if by_value.replicas > by_flow.replicas { Rule::ValueBeyondArrivals } else { Rule::Arrivals },
    }))
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
