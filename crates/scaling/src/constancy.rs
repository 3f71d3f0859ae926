//! Metrics that do not move with the load. An engine that allocates all GPU memory at start reports the same percentage
//! whatever it does; scaled by it, a target would run to its maximum or its minimum.
//!
//! A metric is judged by its value per replica, and only after the load has changed: while nothing happens, every
//! metric is constant.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    behavior::Window,
    policy::{Kind, TargetValue},
    reading::Milli,
    time::elapsed,
};

/// The values of a metric since it last varied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Band {
    low: Milli,
    high: Milli,
    /// Ready pods at the last value.
    ready: u32,
    /// When a changed load should have moved the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_changed: Option<Timestamp>,
}

/// Values within 2 % of the largest one are the same: the percentages of GPUs are whole numbers.
const SAME_PERCENT: i64 = 2;
/// A utilization at its upper end cannot rise with the load.
const SATURATED: Milli = Milli::units(99);
/// Below half of its target a metric shows idle pods, of which fewer remain as idle.
const IDLE_PERCENT: i64 = 50;

impl Band {
    pub(crate) fn new(value: Milli, ready: u32) -> Self {
        Self { low: value, high: value, ready, load_changed: None }
    }

    /// Adds a value; `None` if the metric varied.
    pub(crate) fn extended(
        self,
        value: Milli,
        ready: u32,
        target: TargetValue,
        now: Timestamp,
    ) -> Option<Self> {
        let (low, high) = (self.low.min(value), self.high.max(value));
        if high.percent(SAME_PERCENT) < high.count() - low.count() {
            return None;
        }
        let is_idle = high.count() < target.milli().percent(IDLE_PERCENT);
        let load_has_changed = ready > self.ready || ready < self.ready && !is_idle;
        let load_changed = self.load_changed.or(load_has_changed.then_some(now));
        Some(Self { low, high, ready, load_changed })
    }

    pub(crate) fn has_load_changed(self) -> bool {
        self.load_changed.is_some()
    }

    /// Another metric of the policy varied.
    pub(crate) fn note_load(&mut self, now: Timestamp) {
        self.load_changed.get_or_insert(now);
    }

    /// Whether the metric has stayed the same for a whole window after the load had changed.
    pub(crate) fn is_constant(self, kind: Kind, target: TargetValue, window: Window, now: Timestamp) -> bool {
        let may_be = match kind {
            // Above its target a GPU may be busy with all that it can do, of which some engines reach 97 % only.
            Kind::GpuUtil => self.high < target.milli().min(SATURATED),
            Kind::GpuMemory | Kind::Custom => true,
            // They count load. A latency may stay at the largest bucket of a histogram while a target is overloaded.
            Kind::QueueDepth
            | Kind::Latency
            | Kind::TokensPerMinute
            | Kind::TasksAndBusyWorkers
            | Kind::TasksOnly => false,
        };
        // A value of 0 shows that there is no load.
        let has_value = self.high > Milli::ZERO;
        let changed = self.load_changed.is_some_and(|changed| elapsed(changed, now) >= window.duration());
        may_be && has_value && changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    /// Values and Ready pods, one per minute, target 70; whether the metric is constant at the end.
    fn is_constant(kind: Kind, values: &[(i64, u32)]) -> bool {
        let mut band: Option<Band> = None;
        let mut now = 0;
        let target = TargetValue::units(70).unwrap();
        for (value, ready) in values {
            now += 60;
            let value = Milli::units(*value);
            let extended = band.and_then(|band| band.extended(value, *ready, target, at(now)));
            band = Some(extended.unwrap_or_else(|| Band::new(value, *ready)));
        }
        band.unwrap().is_constant(kind, target, Window::FIVE_MINUTES, at(now))
    }

    #[test]
    fn a_metric_that_stays_the_same_for_a_window_after_pods_were_added_is_constant() {
        let constant = [(90, 2), (90, 4), (90, 4), (90, 4), (90, 4), (90, 4), (90, 4)];
        assert!(is_constant(Kind::GpuMemory, &constant));
        assert!(!is_constant(Kind::GpuMemory, &constant[..6]), "the window is not over");
    }

    #[test]
    fn a_metric_that_varies_is_not_constant() {
        let varies = [(90, 2), (90, 4), (90, 4), (90, 4), (80, 4), (90, 4), (90, 4)];
        assert!(!is_constant(Kind::GpuMemory, &varies));
    }

    #[test]
    fn a_constant_load_is_no_reason_to_call_a_metric_constant() {
        assert!(!is_constant(Kind::GpuMemory, &[(90, 4); 20]));
    }

    #[test]
    fn a_value_of_zero_shows_that_there_is_no_load() {
        let idle = [(0, 4), (0, 5), (0, 5), (0, 5), (0, 5), (0, 5), (0, 5), (0, 5)];
        assert!(!is_constant(Kind::Custom, &idle));
    }

    #[test]
    fn fewer_pods_with_the_value_of_idle_ones_are_idle() {
        let fewer =
            |value| [(value, 4), (value, 2), (value, 2), (value, 2), (value, 2), (value, 2), (value, 2)];
        assert!(!is_constant(Kind::GpuMemory, &fewer(34)));
        assert!(is_constant(Kind::GpuMemory, &fewer(60)));
    }

    #[test]
    fn a_saturated_gpu_is_not_called_constant() {
        let saturated = [(100, 2), (100, 4), (100, 4), (100, 4), (100, 4), (100, 4), (100, 4)];
        assert!(!is_constant(Kind::GpuUtil, &saturated));
    }

    #[test]
    fn utilization_is_judged_below_its_target_alone() {
        let after_a_step =
            |value| [(value, 2), (value, 3), (value, 3), (value, 3), (value, 3), (value, 3), (value, 3)];
        assert!(!is_constant(Kind::GpuUtil, &after_a_step(97)), "it may be all that the engine can use");
        assert!(is_constant(Kind::GpuUtil, &after_a_step(60)));
        assert!(is_constant(Kind::GpuMemory, &after_a_step(97)));
    }
}
