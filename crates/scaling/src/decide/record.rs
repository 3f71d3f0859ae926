//! A decision with the numbers that it was computed from, so that it can be explained and computed again.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    behavior::Tolerance,
    flow::{Flow, Needs},
    measurement::Measurement,
    policy::{Bounds, Extras, Kind, MetricName, TargetValue},
    rate::Allowed,
    reading::Milli,
    supply::Supply,
};

/// One entry of `status.decisions`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub time: Timestamp,
    pub from: i32,
    pub to: i32,
    /// Recommended replicas before windows, rates and bounds; `from` if the metrics recommended nothing.
    pub raw: i32,
    pub inputs: Inputs,
    /// One CamelCase word.
    pub reason: String,
}

/// Everything besides the present replicas that a decision depends on. As JSON at most 4096 bytes with 16 metrics of
/// ordinary names.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    pub bounds: Bounds,
    pub tolerance: Tolerances,
    pub extras: Extras,
    /// `status.replicas` of the scale.
    pub status_replicas: i32,
    pub supply: Supply,
    pub metrics: Vec<MetricInputs>,
    pub recommended: Recommended,
    pub allowed: Allowed,
}

/// Tolerances of both directions, in millionths.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerances {
    pub up: Tolerance,
    pub down: Tolerance,
}

/// Extremes of the recommendations before this one; absent where the window has none.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Recommended {
    /// The smallest of the window of a scale-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest: Option<i32>,
    /// The largest of the window of a scale-down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<i32>,
}

/// What one metric contributes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MetricInputs {
    pub name: MetricName,
    pub kind: Kind,
    pub target: TargetValue,
    pub activation: Milli,
    /// Ready pods that have not been Ready for a whole window of the metric.
    pub settling: u32,
    pub measurement: Measurement,
    /// What its counters say of the requests, where they are known and count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<FlowInputs>,
}

/// The requests of a target, and what its replicas need to serve them.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FlowInputs {
    #[serde(flatten)]
    pub flow: Flow,
    /// Until an ordered replica is Ready.
    pub cold_start_seconds: u32,
}

impl FlowInputs {
    /// Replicas for its requests. `ready`: replicas that serve. `None` if it is not known how many of them a replica at its
    /// target has in hand.
    pub fn needs(self, kind: Kind, target: TargetValue, ready: u32) -> Option<Needs> {
        let cold_start = f64::from(self.cold_start_seconds);
        let in_hand = self.flow.in_hand_at_target(kind, target)?;
        Some(match kind {
            Kind::TasksAndBusyWorkers => self.flow.needs_of_tasks(in_hand, ready, cold_start),
            Kind::QueueDepth
            | Kind::GpuUtil
            | Kind::GpuMemory
            | Kind::Latency
            | Kind::TokensPerMinute
            | Kind::Custom
            | Kind::TasksOnly => self.flow.needs(in_hand, ready, cold_start),
        })
    }
}

impl MetricInputs {
    /// The measured value per replica, as a status shows it beside the target; of a latency, the value itself.
    pub fn value_per_replica(&self, replicas: i32) -> Option<Milli> {
        let replicas = i64::from(replicas.max(1));
        match self.measurement {
            Measurement::Total(value) | Measurement::PartialTotal(value) if self.kind.is_additive() => {
                Some(Milli::from(value.count() / replicas))
            }
            Measurement::Total(value) | Measurement::PartialTotal(value) => Some(value),
            Measurement::Pods(values) => Some(values.mean()),
            Measurement::Invalid(_) | Measurement::Fallback { .. } | Measurement::NotLoadSensitive => None,
        }
    }
}
