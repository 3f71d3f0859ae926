//! What a user asks for: bounds, metrics with their targets, rates, a fallback; and which of this crate's additions to
//! HPA's rules are on. Values are parsed once; what exists is valid.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    behavior::{Behavior, Window},
    reading::Milli,
};

/// Everything that is not observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub bounds: Bounds,
    /// The largest proposal of all metrics counts. Without any, replicas are held.
    pub metrics: Vec<Metric>,
    pub behavior: Behavior,
    /// Without it, replicas are held while a metric is missing.
    pub fallback: Option<Fallback>,
    pub extras: Extras,
}

/// The range of replicas, both ends included.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(try_from = "BoundsFields", into = "BoundsFields")]
pub struct Bounds {
    min: i32,
    max: i32,
}

/// The serialized form of `Bounds`.
#[derive(Serialize, Deserialize)]
struct BoundsFields {
    min: i32,
    max: i32,
}

/// What is measured, and the value per replica that it is kept at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Unique within the policy. The history of the metric is kept under it, so another source needs another name.
    pub name: MetricName,
    pub kind: Kind,
    pub target: TargetValue,
    /// Up to this total a target with `min` 0 is idle: 0 replicas are proposed.
    pub activation: Milli,
    /// The time over which the source averages. A new pod's samples count once it has been Ready for so long.
    pub window: Duration,
    /// Older samples are stale.
    pub max_age: Duration,
}

/// At most 64 bytes; longer names are cut.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(from = "String")]
pub struct MetricName(String);

/// A positive value per replica.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "Milli", into = "Milli")]
pub struct TargetValue(Milli);

/// What a metric measures, which decides its arithmetic.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Requests, waiting and running. Waiting requests alone are 0 when the capacity is exactly right.
    QueueDepth,
    /// Percent of each GPU. At most 100, so it does not say by how much a pod is overloaded.
    GpuUtil,
    /// Percent of each GPU's memory. Constant with engines that allocate all of it at start.
    GpuMemory,
    /// 95th percentile in milliseconds. Not additive: more pods do not have more latency.
    Latency,
    /// Tokens per minute of all replicas.
    TokensPerMinute,
    /// A total of all replicas, or one value per pod.
    Custom,
    /// Tasks that no worker has begun. The busy workers are counted from the pods.
    TasksAndBusyWorkers,
    /// Tasks that no worker has begun, divided by the target and nothing else.
    TasksOnly,
}

/// Replicas while a metric is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Time without a sample.
    pub after: Duration,
    /// Proposed after that time. Bounds, windows and rates apply.
    pub replicas: i32,
}

/// What this crate adds to HPA's rules, one field per addition.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Extras {
    pub arithmetic: Arithmetic,
    pub pending: PendingPods,
    pub samples: Samples,
    pub backlog: Backlog,
    pub crash_loops: CrashLoops,
    pub constancy: Constancy,
    pub missing: MissingMetrics,
    /// Absent from records of older versions, which had HPA's rule alone.
    #[serde(default, skip_serializing_if = "ZeroReplicas::is_as_in_hpa")]
    pub zero: ZeroReplicas,
    /// Absent from records of older versions, which did not know them.
    #[serde(default, skip_serializing_if = "Arrivals::is_ignored")]
    pub arrivals: Arrivals,
    /// Replicas above the proposal, unless 0 are proposed.
    pub warm_buffer: u16,
}

/// From values to replicas.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Arithmetic {
    /// Totals of additive metrics as HPA's `External` with `AverageValue`, other totals with `Value`, samples of pods
    /// as HPA's `Pods`.
    Hpa,
    /// By the kind of the metric.
    ByKind,
}

/// What pods that are not Ready mean.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum PendingPods {
    /// What they mean in HPA's arithmetic, nothing more.
    AsInHpa,
    /// They are coming supply until the deadline of `cold_start`, and no supply afterwards. While supply is coming,
    /// metrics that cannot show its effect take no further step. Replicas are then removed only if the demand was below
    /// the Ready pods for the whole window.
    AreSupply,
}

/// Which samples of pods count.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Samples {
    /// Those of all running pods, as in HPA for all metrics but CPU.
    OfRunningPods,
    /// Those taken when the pod had been Ready for a whole window of the metric, as in HPA for CPU.
    OfSettledPods,
}

/// How far a queue scales while the effect of the last step cannot be seen.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Backlog {
    Unlimited,
    /// While pods start or have not been Ready for a window of the metric, to at most twice the other Ready pods, and
    /// at least to 8. The queue grows during a cold start, however many pods are coming.
    DoublingPerColdStart,
}

/// Whether pods that do not start are multiplied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum CrashLoops {
    AsInHpa,
    /// No scale-up while at least as many pods are in a crash loop, or cannot start on any node, as are Ready. A single
    /// broken pod among many holds nothing; if all new pods fail, their number stops at that of the Ready ones.
    HoldScaleUp,
}

/// Whether metrics that do not move with the load are found.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Constancy {
    Ignored,
    /// A metric that stayed the same for so long while the load changed proposes nothing.
    Judged(Window),
}

/// What a decision without a usable value leaves in the history.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum MissingMetrics {
    /// Nothing: after a metric was missing for the window of a scale-down, its first value removes replicas at once.
    AsInHpa,
    /// The present replicas as a recommendation, so that the window begins when the metric is back. The first decision
    /// after a pause that outlasted the window leaves them as well.
    RecommendPresent,
}

/// Whether the rate of arrivals counts, where the counters of the pods give one.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Arrivals {
    #[default]
    Ignored,
    /// A queue is scaled by what arrives, and by how long that takes. Its length alone is used while that is not known.
    Counted,
}

/// What 0 replicas mean while the minimum is above 0.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ZeroReplicas {
    /// The target is switched off: they stay.
    #[default]
    AsInHpa,
    /// They were the result of a scale-down, under a minimum that has been raised since: the minimum applies.
    BelowMinimum,
}

/// Why a value is not part of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidPolicy {
    #[error("the minimum of {min} replicas is above the maximum of {max}")]
    MinAboveMax { min: i32, max: i32 },
    #[error("the minimum of {0} replicas is below 0")]
    NegativeMin(i32),
    #[error("the maximum of {0} replicas is not between 1 and 1000000")]
    Max(i32),
    #[error("a target value must be a quantity of at least 1m")]
    TargetValue,
}

/// Far above what one cluster can run; keeps all arithmetic within 64 bits.
const MOST_REPLICAS: i32 = 1_000_000;
const LONGEST_NAME: usize = 64;

impl Bounds {
    pub fn new(min: i32, max: i32) -> Result<Self, InvalidPolicy> {
        if min < 0 {
            return Err(InvalidPolicy::NegativeMin(min));
        }
        if !(1..=MOST_REPLICAS).contains(&max) {
            return Err(InvalidPolicy::Max(max));
        }
        if min > max {
            return Err(InvalidPolicy::MinAboveMax { min, max });
        }
        Ok(Self { min, max })
    }

    pub fn min(self) -> i32 {
        self.min
    }

    pub fn max(self) -> i32 {
        self.max
    }
}

impl TryFrom<BoundsFields> for Bounds {
    type Error = InvalidPolicy;

    fn try_from(BoundsFields { min, max }: BoundsFields) -> Result<Self, Self::Error> {
        Self::new(min, max)
    }
}

impl From<Bounds> for BoundsFields {
    fn from(Bounds { min, max }: Bounds) -> Self {
        Self { min, max }
    }
}

impl Metric {
    /// With an activation of 0, a window of 30 s and samples that are stale after 60 s.
    pub fn new(name: &str, kind: Kind, target: TargetValue) -> Self {
        /// Between the windows of the metrics agents and those of Prometheus rules.
        const WINDOW: Duration = Duration::from_secs(30);
        /// Two scrapes of a Prometheus with its default interval of 30 s.
        const MAX_AGE: Duration = Duration::from_mins(1);
        Self {
            name: MetricName::from(name.to_owned()),
            kind,
            target,
            activation: Milli::ZERO,
            window: WINDOW,
            max_age: MAX_AGE,
        }
    }
}

impl From<String> for MetricName {
    fn from(mut name: String) -> Self {
        name.truncate(name.floor_char_boundary(LONGEST_NAME));
        Self(name)
    }
}

impl MetricName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TargetValue {
    /// In whole units of the metric.
    pub fn units(value: i64) -> Result<Self, InvalidPolicy> {
        Self::try_from(Milli::units(value))
    }

    pub fn milli(self) -> Milli {
        self.0
    }
}

impl TryFrom<Milli> for TargetValue {
    type Error = InvalidPolicy;

    fn try_from(value: Milli) -> Result<Self, Self::Error> {
        if value == Milli::ZERO { Err(InvalidPolicy::TargetValue) } else { Ok(Self(value)) }
    }
}

impl From<TargetValue> for Milli {
    fn from(TargetValue(value): TargetValue) -> Self {
        value
    }
}

impl Kind {
    /// Whether its replicas follow what arrives where that is known.
    pub fn counts_arrivals(self) -> bool {
        match self {
            Self::QueueDepth | Self::Latency | Self::TokensPerMinute | Self::TasksAndBusyWorkers => true,
            Self::GpuUtil | Self::GpuMemory | Self::Custom | Self::TasksOnly => false,
        }
    }

    /// Whether values of pods add up to the value of the target.
    pub(crate) fn is_additive(self) -> bool {
        match self {
            Self::QueueDepth
            | Self::GpuUtil
            | Self::GpuMemory
            | Self::TokensPerMinute
            | Self::Custom
            | Self::TasksAndBusyWorkers
            | Self::TasksOnly => true,
            Self::Latency => false,
        }
    }
}

impl Arrivals {
    fn is_ignored(&self) -> bool {
        match self {
            Self::Ignored => true,
            Self::Counted => false,
        }
    }
}

impl ZeroReplicas {
    fn is_as_in_hpa(&self) -> bool {
        match self {
            Self::AsInHpa => true,
            Self::BelowMinimum => false,
        }
    }
}

impl Extras {
    /// HPA's rules alone.
    pub const fn none() -> Self {
        Self {
            arithmetic: Arithmetic::Hpa,
            pending: PendingPods::AsInHpa,
            samples: Samples::OfRunningPods,
            backlog: Backlog::Unlimited,
            crash_loops: CrashLoops::AsInHpa,
            constancy: Constancy::Ignored,
            missing: MissingMetrics::AsInHpa,
            zero: ZeroReplicas::AsInHpa,
            arrivals: Arrivals::Ignored,
            warm_buffer: 0,
        }
    }

    /// Every addition that depends on no single target.
    pub const fn all() -> Self {
        Self {
            arithmetic: Arithmetic::ByKind,
            pending: PendingPods::AreSupply,
            samples: Samples::OfSettledPods,
            backlog: Backlog::DoublingPerColdStart,
            crash_loops: CrashLoops::HoldScaleUp,
            constancy: Constancy::Judged(Window::FIVE_MINUTES),
            missing: MissingMetrics::RecommendPresent,
            // Only the caller knows how a target came to 0 replicas.
            zero: ZeroReplicas::AsInHpa,
            arrivals: Arrivals::Counted,
            warm_buffer: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_a_range_that_is_not_empty() {
        assert_eq!(Bounds::new(-1, 3), Err(InvalidPolicy::NegativeMin(-1)));
        assert_eq!(Bounds::new(0, 0), Err(InvalidPolicy::Max(0)));
        assert_eq!(Bounds::new(4, 3), Err(InvalidPolicy::MinAboveMax { min: 4, max: 3 }));
        assert_eq!(Bounds::new(0, 1).map(|bounds| (bounds.min(), bounds.max())), Ok((0, 1)));
    }

    #[test]
    fn a_target_value_of_zero_cannot_be_read_back_from_a_record() {
        assert!(serde_json::from_str::<TargetValue>("0").is_err());
        assert!(serde_json::from_str::<TargetValue>("-5").is_err());
        assert_eq!(serde_json::from_str::<TargetValue>("5000").unwrap(), TargetValue::units(5).unwrap());
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let name = MetricName::from("ü".repeat(40));
        assert_eq!(name.as_str(), "ü".repeat(32));
        assert_eq!(MetricName::from("x".repeat(99)).as_str().len(), 64);
    }
}
