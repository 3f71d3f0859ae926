//! The first look at a metric: a value whose unit is wrong by a factor of a thousand is announced before it is acted on.
//! Pure.
//!
//! A wish for more than ten times `maxReplicas` is announced and acted on one period later, if it is the first that these
//! sources and target values have made. So is one that would remove three quarters of the replicas or more, or whose value
//! is below a fiftieth of its target. Such values are seconds in the place of milliseconds, a ratio in the place of
//! percent, or an average in the place of a total. After one wish that was plausible, or was announced, nothing is delayed any more, so a burst of a
//! target that is scaled already is served at once. A value of 0 shows no unit, and settles nothing.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use scaling::{
    policy::{Policy, TargetValue},
    reading::Milli,
};
use serde::{Deserialize, Serialize};

/// What is known of the wishes of a target's metrics.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FirstLook {
    /// Fingerprint of the metrics that are acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<u32>,
    /// Fingerprint of the metrics whose wish was announced, and when.
    #[serde(skip_serializing_if = "Option::is_none")]
    announced: Option<(u32, Timestamp)>,
}

/// What the metrics ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The present replicas, without those whose pods do not start.
    pub(crate) replicas: i32,
    pub(crate) wanted: i32,
    /// Per replica, of the metric that decides; `None` if a fallback does.
    pub(crate) value: Option<Milli>,
    pub(crate) target: TargetValue,
    /// Windows and rates let it change the replicas now.
    pub(crate) is_due: bool,
}

/// Why a first wish is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implausible {
    FarTooMany,
    FarTooFew,
}

/// Ten times the maximum is beyond what a person allows for who has chosen that maximum; a unit is wrong by a thousand.
const FAR_TOO_MANY: i64 = 10;
/// A quarter of the replicas. Who sets a target value knows the load of the replicas better than that.
const FAR_TOO_FEW: i64 = 4;
/// A ratio is at most 1.4 % of a target of 70 %.
const FRACTION_OF_TARGET: i64 = 50;

impl FirstLook {
    /// After a look at a wish. `Some`: it is announced, and not acted on yet. Fewer replicas stay announced until windows and
    /// rates let them be removed.
    pub(crate) fn at(
        &self,
        policy: &Policy,
        wish: Wish,
        period: Duration,
        now: Timestamp,
    ) -> (Self, Option<Implausible>) {
        let metrics = fingerprint(policy);
        let accepted = Self { accepted: Some(metrics), announced: None };
        if self.accepted == Some(metrics) {
            return (accepted, None);
        }
        let why = match (wish.value, wish.implausible(policy)) {
            (None | Some(Milli::ZERO), _) => return (self.clone(), None),
            (Some(_), None) => return (accepted, None),
            // It stays as it is, and is announced when it is no longer at its maximum.
            (Some(_), Some(Implausible::FarTooMany)) if !wish.is_due => return (self.clone(), None),
            (Some(_), Some(why)) => why,
        };
        let announced = self.announced.filter(|(known, at)| *known == metrics && *at <= now);
        let Some((_, at)) = announced else {
            return (Self { accepted: None, announced: Some((metrics, now)) }, Some(why));
        };
        let period = SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX);
        if wish.is_due && now.duration_since(at) >= period {
            return (accepted, None);
        }
        (self.clone(), Some(why))
    }
}

impl Wish {
    fn implausible(self, policy: &Policy) -> Option<Implausible> {
        let Self { replicas, wanted, value, target, is_due: _ } = self;
        let (wanted, replicas) = (i64::from(wanted), i64::from(replicas));
        if wanted > i64::from(policy.bounds.max()) * FAR_TOO_MANY {
            return Some(Implausible::FarTooMany);
        }
        let removes_any = wanted.max(i64::from(policy.bounds.min())) < replicas;
        let is_fraction = value.is_some_and(|value| {
            i128::from(value.count()) * i128::from(FRACTION_OF_TARGET) < i128::from(target.milli().count())
        });
        let is_far = wanted * FAR_TOO_FEW <= replicas || is_fraction;
        (removes_any && is_far).then_some(Implausible::FarTooFew)
    }
}

/// Of sources and target values: other bounds or rates change no wish.
fn fingerprint(policy: &Policy) -> u32 {
    let mut hasher = DefaultHasher::new();
    for metric in &policy.metrics {
        (metric.name.as_str(), metric.target.milli()).hash(&mut hasher);
    }
    // The lower half is as good as the whole.
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use scaling::{
        behavior::Behavior,
        policy::{Bounds, Extras, Kind, Metric, TargetValue},
    };

    use super::*;

    const PERIOD: Duration = Duration::from_secs(15);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn policy(target: i64, max: i32) -> Policy {
        Policy {
            bounds: Bounds::new(1, max).unwrap(),
            metrics: vec![Metric::new("0:custom", Kind::Custom, TargetValue::units(target).unwrap())],
            behavior: Behavior::default(),
            fallback: None,
            extras: Extras::all(),
        }
    }

    /// A wish for so many, of 2 replicas, with a value that fits.
    fn wish(wanted: i32) -> Wish {
        Wish {
            replicas: 2,
            wanted,
            value: Some(Milli::units(5)),
            target: TargetValue::units(5).unwrap(),
            is_due: true,
        }
    }

    #[test]
    fn an_implausible_first_wish_waits_for_a_period() {
        let (first, doubt) = FirstLook::default().at(&policy(5, 10), wish(101), PERIOD, at(0));
        assert_eq!(doubt, Some(Implausible::FarTooMany));
        let (second, doubt) = first.at(&policy(5, 10), wish(4_000), PERIOD, at(14));
        assert_eq!(doubt, Some(Implausible::FarTooMany));
        let (third, doubt) = second.at(&policy(5, 10), wish(4_000), PERIOD, at(15));
        assert_eq!(doubt, None);
        let again = third.at(&policy(5, 10), wish(i32::MAX), PERIOD, at(16)).1;
        assert_eq!(again, None, "it was announced once");
    }

    #[test]
    fn a_wish_for_far_too_few_stays_announced_until_replicas_can_be_removed() {
        let few = |is_due| Wish { replicas: 6, is_due, ..wish(1) };
        let (first, doubt) = FirstLook::default().at(&policy(5, 10), few(false), PERIOD, at(0));
        assert_eq!(doubt, Some(Implausible::FarTooFew));
        let (second, doubt) = first.at(&policy(5, 10), few(false), PERIOD, at(200));
        assert_eq!((&second, doubt), (&first, Some(Implausible::FarTooFew)));
        assert_eq!(second.at(&policy(5, 10), few(true), PERIOD, at(14)).1, Some(Implausible::FarTooFew));
        assert_eq!(second.at(&policy(5, 10), few(true), PERIOD, at(300)).1, None);
    }

    #[test]
    fn a_fraction_of_the_target_is_doubted_only_while_it_would_remove_replicas() {
        let fraction = |replicas| Wish { replicas, value: Some(Milli::from(99)), ..wish(2) };
        let doubt = |wish| FirstLook::default().at(&policy(5, 10), wish, PERIOD, at(0)).1;
        assert_eq!(doubt(fraction(3)), Some(Implausible::FarTooFew));
        assert_eq!(doubt(fraction(2)), None);
        assert_eq!(doubt(Wish { value: Some(Milli::from(100)), ..fraction(3) }), None);
    }

    #[test]
    fn no_value_and_zero_settle_nothing() {
        for value in [None, Some(Milli::ZERO)] {
            let idle = Wish { replicas: 6, value, ..wish(1) };
            let (look, doubt) = FirstLook::default().at(&policy(5, 10), idle, PERIOD, at(0));
            assert_eq!((look, doubt), (FirstLook::default(), None));
        }
    }

    #[test]
    fn a_burst_after_a_plausible_wish_is_served_at_once() {
        let (known, doubt) = FirstLook::default().at(&policy(5, 10), wish(100), PERIOD, at(0));
        assert_eq!(doubt, None);
        let doubt = |policy: &Policy| known.at(policy, wish(5_000), PERIOD, at(15)).1;
        assert_eq!(doubt(&policy(5, 10)), None);
        assert_eq!(doubt(&policy(5, 20)), None, "another maximum is no other metric");
        assert_eq!(doubt(&policy(6, 10)), Some(Implausible::FarTooMany), "another target value is");
    }

    #[test]
    fn an_announcement_of_the_future_is_made_again() {
        let (announced, _) = FirstLook::default().at(&policy(5, 10), wish(4_000), PERIOD, at(1_000));
        let (again, doubt) = announced.at(&policy(5, 10), wish(4_000), PERIOD, at(0));
        assert!(doubt.is_some());
        assert_eq!(again.at(&policy(5, 10), wish(4_000), PERIOD, at(15)).1, None);
    }
}
