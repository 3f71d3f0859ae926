//! How fast replicas may change: windows, rates and tolerance of each direction, with HPA's defaults.
//!
//! Values are parsed once; what exists is valid. The rates are applied in `rate`, the windows in `conclusion`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Rules of both directions, `spec.behavior` of an HPA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behavior {
    pub up: Rules,
    pub down: Rules,
}

/// Rules of one direction, `HPAScalingRules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Of the recommendations in this window the most conservative is used.
    pub window: Window,
    pub select: Select,
    pub rates: Vec<Rate>,
    pub tolerance: Tolerance,
}

/// Which of several rates counts, `selectPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The one that allows the largest change.
    Max,
    /// The one that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// Limit of the change per period, `HPAScalingPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    change: Change,
    period: Duration,
}

/// The largest change within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Pods(u32),
    /// Of the replicas at the start of the period.
    Percent(u32),
}

/// A stabilization window, 0 to 3600 seconds; in whole seconds where it is recorded.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "u64", into = "u64")]
pub struct Window(Duration);

/// Relative deviation of a value from its target that changes nothing, in millionths. HPA v2, rule of the tolerance.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct Tolerance(u32);

/// Why a value is not part of a behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidBehavior {
    #[error("a stabilization window of {0} s is longer than 3600 s")]
    Window(u64),
    #[error("a period of {0} s is not between 1 and 1800 s")]
    Period(u64),
    #[error("a change of {0} is not between 1 and 1000000")]
    Change(u32),
    #[error("a tolerance must be a number from 0 to 1000")]
    Tolerance,
}

/// As in `autoscaling/v2`.
const LONGEST_WINDOW: Duration = Duration::from_hours(1);
/// As in `autoscaling/v2`.
const LONGEST_PERIOD: Duration = Duration::from_mins(30);
/// Far above every number of replicas; keeps all arithmetic within 64 bits.
const LARGEST_CHANGE: u32 = 1_000_000;
/// A ratio of 1001 is not scaled up any more: more than this is a mistake in the spec.
const LARGEST_TOLERANCE: f64 = 1_000.0;
const MILLION: f64 = 1_000_000.0;

impl Default for Behavior {
    /// HPA's defaults: up without a window by 4 pods or 100 % per 15 s, down within 300 s by 100 % per 15 s.
    fn default() -> Self {
        const PERIOD: Duration = Duration::from_secs(15);
        let rate = |change| Rate { change, period: PERIOD };
        Self {
            up: Rules {
                window: Window::NONE,
                select: Select::Max,
                rates: vec![rate(Change::Pods(4)), rate(Change::Percent(100))],
                tolerance: Tolerance::default(),
            },
            down: Rules {
                window: Window::FIVE_MINUTES,
                select: Select::Max,
                rates: vec![rate(Change::Percent(100))],
                tolerance: Tolerance::default(),
            },
        }
    }
}

impl Behavior {
    /// No window, no rate, no tolerance: each proposal is applied at once.
    pub fn immediate() -> Self {
        let rules = |change| Rules {
            window: Window::NONE,
            select: Select::Max,
            rates: vec![Rate { change, period: Duration::from_secs(1) }],
            tolerance: Tolerance(0),
        };
        Self { up: rules(Change::Pods(LARGEST_CHANGE)), down: rules(Change::Percent(100)) }
    }

    /// The longest window of both directions.
    pub(crate) fn longest_window(&self) -> Duration {
        self.up.window.max(self.down.window).duration()
    }

    /// The longest period of all rates.
    pub(crate) fn longest_period(&self) -> Duration {
        let rates = self.up.rates.iter().chain(&self.down.rates);
        rates.map(|rate| rate.period).max().unwrap_or_default()
    }
}

impl Rate {
    pub fn new(change: Change, period: Duration) -> Result<Self, InvalidBehavior> {
        let (Change::Pods(most) | Change::Percent(most)) = change;
        if !(1..=LARGEST_CHANGE).contains(&most) {
            return Err(InvalidBehavior::Change(most));
        }
        if period < Duration::from_secs(1) || period > LONGEST_PERIOD {
            return Err(InvalidBehavior::Period(period.as_secs()));
        }
        Ok(Self { change, period })
    }

    pub fn change(self) -> Change {
        self.change
    }

    pub fn period(self) -> Duration {
        self.period
    }
}

impl Window {
    pub const NONE: Self = Self(Duration::ZERO);
    /// HPA's default for a scale-down.
    pub const FIVE_MINUTES: Self = Self(Duration::from_mins(5));

    pub fn new(length: Duration) -> Result<Self, InvalidBehavior> {
        if length > LONGEST_WINDOW {
            return Err(InvalidBehavior::Window(length.as_secs()));
        }
        Ok(Self(length))
    }

    pub fn duration(self) -> Duration {
        self.0
    }
}

impl TryFrom<u64> for Window {
    type Error = InvalidBehavior;

    fn try_from(seconds: u64) -> Result<Self, Self::Error> {
        Self::new(Duration::from_secs(seconds))
    }
}

impl From<Window> for u64 {
    fn from(Window(length): Window) -> Self {
        length.as_secs()
    }
}

impl Default for Tolerance {
    /// 0.1, HPA's default.
    fn default() -> Self {
        Self(100_000)
    }
}

impl Tolerance {
    /// Rounded to millionths.
    pub fn parse(ratio: f64) -> Result<Self, InvalidBehavior> {
        if !(0.0..=LARGEST_TOLERANCE).contains(&ratio) {
            return Err(InvalidBehavior::Tolerance);
        }
        // At most 10⁹, which fits.
        Ok(Self((ratio * MILLION).round() as u32))
    }

    pub(crate) fn millionths(self) -> u32 {
        self.0
    }

    pub(crate) fn ratio(self) -> f64 {
        f64::from(self.0) / MILLION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_the_same_number_as_its_decimal_text() {
        for (text, ratio) in [("0.1", 0.1), ("0.05", 0.05), ("0", 0.0), ("1", 1.0), ("0.333333", 0.333_333)] {
            assert_eq!(Tolerance::parse(ratio).unwrap().ratio(), text.parse::<f64>().unwrap());
        }
    }

    #[test]
    fn what_no_spec_may_say_is_refused() {
        let seconds = Duration::from_secs;
        assert_eq!(Window::new(seconds(3601)), Err(InvalidBehavior::Window(3601)));
        assert_eq!(Rate::new(Change::Pods(0), seconds(15)), Err(InvalidBehavior::Change(0)));
        assert_eq!(Rate::new(Change::Percent(100), seconds(0)), Err(InvalidBehavior::Period(0)));
        assert_eq!(Rate::new(Change::Percent(100), seconds(1801)), Err(InvalidBehavior::Period(1801)));
        for ratio in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Tolerance::parse(ratio), Err(InvalidBehavior::Tolerance));
        }
    }
}
