//! What is kept of the past, and what merging changes.

use proptest::prelude::*;

use super::*;
use crate::{
    behavior::{Change, Rate},
    policy::Arithmetic,
    rate::allowed,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

fn window(seconds: u64) -> Window {
    Window::new(Duration::from_secs(seconds)).unwrap()
}

/// Windows of 60 s up and 300 s down, and rates per 15 s.
fn behavior() -> Behavior {
    let mut behavior = Behavior::default();
    behavior.up.window = window(60);
    behavior
}

fn recommended(behavior: &Behavior, values: &[(i64, i32)]) -> History {
    let mut history = History::default();
    for (time, replicas) in values {
        history.recommend(*replicas, behavior, at(*time));
    }
    history
}

#[test]
fn the_first_recommendation_is_the_present_number_of_replicas() {
    let mut history = History::default();
    history.begin(5, MissingMetrics::RecommendPresent, &behavior(), at(0));
    history.begin(9, MissingMetrics::RecommendPresent, &behavior(), at(1));
    assert_eq!(history.recommendations, [Recommendation { time: at(0), replicas: 5 }]);
}

#[test]
fn after_a_pause_that_outlasted_the_window_of_a_scale_down_the_present_replicas_count_in_it_alone() {
    let begun = |missing, window_: u64, seconds| {
        let mut behavior = behavior();
        behavior.down.window = window(window_);
        let mut history = recommended(&behavior, &[(0, 3)]);
        history.begin(9, missing, &behavior, at(seconds));
        (history.lowest(window(900), at(seconds)), history.highest(window(900), at(seconds)))
    };
    assert_eq!(begun(MissingMetrics::RecommendPresent, 300, 299), (Some(3), Some(3)));
    assert_eq!(begun(MissingMetrics::RecommendPresent, 300, 300), (Some(3), Some(9)));
    assert_eq!(begun(MissingMetrics::AsInHpa, 300, 300), (Some(3), Some(3)));
    assert_eq!(begun(MissingMetrics::RecommendPresent, 5, 15), (Some(3), Some(3)), "it is the next decision");
}

#[test]
fn decisions_that_are_always_later_than_the_window_may_remove_replicas_every_second_time() {
    let mut history = recommended(&behavior(), &[(0, 3)]);
    let highest = [400, 800, 1_200].map(|seconds| {
        history.begin(9, MissingMetrics::RecommendPresent, &behavior(), at(seconds));
        let highest = history.highest(window(300), at(seconds));
        history.recommend(3, &behavior(), at(seconds));
        highest
    });
    assert_eq!(highest, [Some(9), None, Some(9)]);
}

#[test]
fn a_recommendation_of_exactly_the_start_of_the_window_is_outside() {
    let history = recommended(&behavior(), &[(0, 9), (10, 3)]);
    assert_eq!(history.highest(window(300), at(299)), Some(9));
    assert_eq!(history.highest(window(300), at(300)), Some(3));
}

#[test]
fn a_target_at_rest_has_one_recommendation() {
    let at_rest: Vec<(i64, i32)> = (0..20).map(|step| (step * 15, 4)).collect();
    assert_eq!(recommended(&behavior(), &at_rest).recommendations.len(), 1);
}

#[test]
fn the_last_recommendation_stays_after_its_window() {
    let history = recommended(&behavior(), &[(0, 9)]).recalled(&behavior(), at(4_000));
    assert_eq!(history.recommendations.len(), 1);
    assert_eq!(history.highest(window(300), at(4_000)), None);
}

#[test]
fn a_clock_that_is_set_back_delays_a_change_by_one_window_at_most() {
    let later = recommended(&behavior(), &[(9_000, 9), (9_001, 3)]).recalled(&behavior(), at(0));
    assert_eq!(later.highest(window(300), at(299)), Some(9));
    assert_eq!(later.highest(window(300), at(300)), None);
}

#[test]
fn a_written_change_is_an_event_and_no_change_is_none() {
    let history = History::default().scaled(3, 5, &behavior(), at(0)).scaled(5, 5, &behavior(), at(1));
    assert_eq!(history.scale_events, [ScaleEvent { since: None, time: at(0), change: 2 }]);
    assert_eq!(history.raised, Some(at(0)));
    assert_eq!(history.scaled(5, 4, &behavior(), at(2)).raised, Some(at(0)), "none were added");
}

#[test]
fn events_leave_after_the_longest_period_and_a_minute() {
    let history = History::default().scaled(3, 5, &behavior(), at(0));
    assert_eq!(history.recalled(&behavior(), at(59)).scale_events.len(), 1);
    assert_eq!(history.recalled(&behavior(), at(60)).scale_events.len(), 0);
}

#[test]
fn a_damaged_history_is_repaired() {
    let damaged = History {
        recommendations: vec![
            Recommendation { time: Timestamp::MAX, replicas: i32::MIN },
            Recommendation { time: Timestamp::MIN, replicas: 7 },
        ],
        scale_events: vec![ScaleEvent { since: Some(Timestamp::MAX), time: Timestamp::MAX, change: 1 }],
        ..History::default()
    };
    let repaired = damaged.recalled(&behavior(), at(0));
    assert_eq!(repaired.recommendations, [Recommendation { time: at(0), replicas: 0 }]);
    assert_eq!(repaired.scale_events, [ScaleEvent { since: None, time: at(0), change: 1 }]);
}

/// Windows and a period of half an hour.
fn long() -> Behavior {
    let mut behavior = Behavior::default();
    for rules in [&mut behavior.up, &mut behavior.down] {
        rules.window = window(1_800);
        rules.rates = vec![Rate::new(Change::Pods(1), Duration::from_secs(1_800)).unwrap()];
    }
    behavior
}

proptest! {
    /// Values that only rise or only fall are those of which none can be dropped.
    #[test]
    fn merged_recommendations_delay_a_change_by_a_thirtieth_and_never_hasten_it(
        steps in prop::collection::vec((0_i64..12, 0_i32..4), 1..300),
        rises in any::<bool>(),
    ) {
        let behavior = long();
        let (mut history, mut complete) = (History::default(), Vec::new());
        let (mut now, mut replicas) = (0, 1_000);
        for (seconds, change) in steps {
            now += seconds;
            replicas += if rises { change } else { -change };
            history.recommend(replicas, &behavior, at(now));
            complete.push((now, replicas));
            prop_assert!(history.recommendations.len() <= MOST);
            let within = |seconds: i64| {
                let recent = complete.iter().filter(move |(time, _)| *time > now - seconds);
                recent.map(|(_, replicas)| *replicas)
            };
            let lowest = history.lowest(window(1_800), at(now)).unwrap();
            prop_assert!(lowest <= within(1_800).min().unwrap());
            prop_assert!(lowest >= within(1_860).min().unwrap());
            let highest = history.highest(window(1_800), at(now)).unwrap();
            prop_assert!(highest >= within(1_800).max().unwrap());
            prop_assert!(highest <= within(1_860).max().unwrap());
        }
    }

    #[test]
    fn merged_events_never_allow_more_than_all_of_them(
        steps in prop::collection::vec((0_i64..20, -3_i32..4), 1..200),
    ) {
        let behavior = long();
        let (mut history, mut now, mut complete) = (History::default(), 0, Vec::new());
        for (seconds, change) in steps {
            now += seconds;
            history = history.scaled(1_000, 1_000 + change, &behavior, at(now));
            complete.push(ScaleEvent { since: None, time: at(now), change });
            prop_assert!(history.scale_events.len() <= MOST);
            let (merged, exact) = (
                allowed(1_000, &history.scale_events, &behavior, Arithmetic::ByKind, at(now)),
                allowed(1_000, &complete, &behavior, Arithmetic::ByKind, at(now)),
            );
            prop_assert!(merged.highest <= exact.highest && merged.lowest >= exact.lowest);
        }
    }
}
