//! The range of replicas that the rates of a behavior allow now. HPA v2, rules ScaleUpLimit and ScaleDownLimit.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Change, Rate, Select},
    history::ScaleEvent,
    policy::Arithmetic,
};

/// Replicas that the rates allow. The present ones are always allowed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Allowed {
    pub lowest: i32,
    pub highest: i32,
}

pub(crate) fn allowed(
    replicas: i32,
    events: &[ScaleEvent],
    behavior: &Behavior,
    arithmetic: Arithmetic,
    now: Timestamp,
) -> Allowed {
    let highest = behavior.up.rates.iter().map(|rate| highest(*rate, replicas, events, now));
    let highest = match behavior.up.select {
        Select::Max => highest.max(),
        Select::Min => highest.min(),
        Select::Disabled => None,
    };
    let lowest = behavior.down.rates.iter().map(|rate| lowest(*rate, replicas, events, now));
    let lowest = match behavior.down.select {
        Select::Max => lowest.min(),
        Select::Min => lowest.max(),
        Select::Disabled => None,
    };
    // In HPA percentages of 0 are 0, so that a target without replicas would stay without them for ever.
    let first = match (arithmetic, behavior.up.select) {
        (Arithmetic::Hpa, _) | (Arithmetic::ByKind, Select::Disabled) => replicas,
        (Arithmetic::ByKind, Select::Max | Select::Min) => replicas.max(1),
    };
    // A limit beyond the present replicas only means that no further change is allowed now.
    Allowed {
        lowest: lowest.unwrap_or(replicas).min(replicas),
        highest: highest.unwrap_or(replicas).max(first),
    }
}

/// Percentages are rounded up, so that one replica can become two.
fn highest(rate: Rate, replicas: i32, events: &[ScaleEvent], now: Timestamp) -> i32 {
    let period = rate.period();
    let changes = events.iter().map(|event| match event.change {
        // Merged events restrict: what was added counts until all of it is out of the period.
        added @ 1.. if event.reaches_into(period, now) => -i64::from(added),
        removed @ ..=-1 if event.is_within(period, now) => -i64::from(removed),
        _ => 0,
    });
    let start = changes.fold(i64::from(replicas), i64::saturating_add);
    match rate.change() {
        Change::Pods(pods) => clamped(start.saturating_add(i64::from(pods))),
        Change::Percent(percent) => (start as f64 * (1.0 + f64::from(percent) / 100.0)).ceil() as i32,
    }
}

/// Percentages are truncated.
fn lowest(rate: Rate, replicas: i32, events: &[ScaleEvent], now: Timestamp) -> i32 {
    let period = rate.period();
    let changes = events.iter().map(|event| match event.change {
        added @ 1.. if event.is_within(period, now) => -i64::from(added),
        removed @ ..=-1 if event.reaches_into(period, now) => -i64::from(removed),
        _ => 0,
    });
    let start = changes.fold(i64::from(replicas), i64::saturating_add);
    match rate.change() {
        Change::Pods(pods) => clamped(start.saturating_sub(i64::from(pods))),
        Change::Percent(percent) => (start as f64 * (1.0 - f64::from(percent) / 100.0)) as i32,
    }
}

fn clamped(replicas: i64) -> i32 {
    i32::try_from(replicas.clamp(i64::from(i32::MIN), i64::from(i32::MAX))).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn event(since: Option<i64>, time: i64, change: i32) -> ScaleEvent {
        ScaleEvent { since: since.map(at), time: at(time), change }
    }

    /// One rate per minute in both directions.
    fn range(select: Select, changes: &[Change], replicas: i32, events: &[ScaleEvent]) -> (i32, i32) {
        let mut behavior = Behavior::default();
        let rate = |change: &Change| Rate::new(*change, Duration::from_secs(60)).unwrap();
        for rules in [&mut behavior.up, &mut behavior.down] {
            rules.select = select;
            rules.rates = changes.iter().map(rate).collect();
        }
        let Allowed { lowest, highest } = allowed(replicas, events, &behavior, Arithmetic::Hpa, at(100));
        (lowest, highest)
    }

    #[test]
    fn percentages_are_rounded_up_on_the_way_up_and_truncated_on_the_way_down() {
        assert_eq!(range(Select::Max, &[Change::Percent(10)], 5, &[]), (4, 6));
        assert_eq!(range(Select::Max, &[Change::Percent(200)], 5, &[]), (-5, 15));
    }

    #[test]
    fn of_several_rates_the_largest_or_the_smallest_change_counts() {
        let changes = [Change::Pods(4), Change::Percent(100)];
        assert_eq!(range(Select::Max, &changes, 3, &[]), (-1, 7));
        assert_eq!(range(Select::Min, &changes, 3, &[]), (0, 6));
        assert_eq!(range(Select::Disabled, &changes, 3, &[]), (3, 3));
    }

    #[test]
    fn changes_of_the_period_are_part_of_it() {
        let of = |time| range(Select::Max, &[Change::Pods(4)], 10, &[event(None, time, 3)]);
        assert_eq!(of(41), (3, 11));
        assert_eq!(of(40), (6, 14), "exactly a period ago is outside");
        assert_eq!(range(Select::Max, &[Change::Pods(4)], 10, &[event(None, 50, -3)]), (9, 17));
    }

    #[test]
    fn changes_of_the_period_never_force_a_change_back() {
        assert_eq!(range(Select::Max, &[Change::Pods(4)], 10, &[event(None, 50, 9)]), (-3, 10));
    }

    #[test]
    fn merged_events_allow_less_than_each_of_them() {
        let added = [event(Some(30), 50, 6)];
        assert_eq!(range(Select::Max, &[Change::Pods(4)], 10, &added), (6, 10));
        let removed = [event(Some(30), 50, -6)];
        assert_eq!(range(Select::Max, &[Change::Pods(4)], 10, &removed), (10, 14));
    }
}
