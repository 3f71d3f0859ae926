//! What the series of a version have gained.

use super::*;

fn known(of: &[(u64, f64)]) -> Known {
    let mut known = Known::default();
    known.advance(&series(of));
    known
}

/// A version with these series, and then others: what it has gained.
fn gained(requests: [&[(u64, f64)]; 2], bad: [&[(u64, f64)]; 2]) -> (f64, f64) {
    let answer = |now: &[(u64, f64)]| Answer { before: None, now: series(now) };
    let mut version = Version { requests: known(requests[0]), bad: known(bad[0]), ..Version::default() };
    version.advance(&Answers { requests: answer(requests[1]), bad: answer(bad[1]) }, true);
    (version.gained.requests, version.gained.bad)
}

#[test]
fn what_the_series_have_gained_is_counted() {
    let two = gained([&[(1, 100.0), (2, 7.0)], &[(1, 160.0), (2, 47.0)]], [&[(1, 3.0)], &[(1, 5.0)]]);
    assert_eq!(two, (100.0, 2.0));
}

#[test]
fn a_counter_that_begins_anew_adds_its_value_and_a_replica_that_is_behind_adds_nothing() {
    let gains = |of: &[f64]| {
        let mut series = known(&[(1, of[0])]);
        let gains = of[1..].iter().map(|value| series.advance(&Counters::from([(1, *value)])).of_known);
        gains.collect::<Vec<f64>>()
    };
    assert_eq!(gains(&[100.0, 30.0, 40.0, 50.0]), [0.0, 40.0, 10.0], "a restart");
    // As two replicas of a server answer in turn.
    assert_eq!(gains(&[100.0, 95.0, 105.0, 99.0, 98.0, 110.0]), [0.0, 5.0, 0.0, 0.0, 5.0]);
    assert_eq!(gains(&[1.0, 0.0, 1.0, 0.0, 2.0]), [0.0, 0.0, 0.0, 1.0], "of a young counter");
}

#[test]
fn a_series_that_was_away_goes_on_where_it_was() {
    let mut known = known(&[(1, 100.0), (2, 500.0)]);
    let gains =
        [&[(1, 110.0)][..], &[(1, 120.0), (2, 503.0)][..]].map(|now| known.advance(&series(now)).of_known);
    assert_eq!(gains, [10.0, 13.0], "a scrape has failed");
}

#[test]
fn the_first_error_and_a_new_pod_count_and_new_labels_of_all_series_do_not() {
    let first_error = gained([&[(1, 100.0)], &[(1, 130.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 4.0)]]);
    assert_eq!(first_error, (30.0, 4.0));
    let new_pod = gained([&[(1, 100.0)], &[(1, 130.0), (2, 20.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 4.0)]]);
    assert_eq!(new_pod, (50.0, 4.0));
    let renamed = gained([&[(1, 9_000.0)], &[(2, 9_010.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 800.0)]]);
    assert_eq!(renamed, (0.0, 0.0));
    let one_renamed = gained(
        [&[(1, 9_000.0), (3, 70.0)], &[(2, 9_010.0), (3, 80.0)]],
        [&[(9, 0.0)], &[(9, 0.0), (5, 40.0)]],
    );
    assert_eq!(one_renamed, (10.0, 0.0), "of all its life");
    // Servers have the old series until some scrapes after it.
    let overlapped = gained(
        [&[(1, 9_000.0), (3, 70.0)], &[(1, 9_000.0), (2, 9_010.0), (3, 80.0)]],
        [&[(9, 0.0)], &[(9, 0.0), (5, 40.0)]],
    );
    assert_eq!(overlapped, (10.0, 0.0), "also while the old series is there");
    let all_fail =
        gained([&[(1, 5_000.0)], &[(1, 5_000.0), (2, 100.0)]], [&[(9, 0.0)], &[(9, 0.0), (2, 100.0)]]);
    assert_eq!(all_fail, (100.0, 100.0), "in one scrape");
    let early = gained([&[(1, 5_000.0)], &[(1, 5_000.0)]], [&[(9, 0.0)], &[(9, 0.0), (2, 150.0)]]);
    assert_eq!(early, (0.0, 0.0), "the errors are read before their requests, and may be old ones, too");
    let other_exporter =
        gained([&[(1, 5_000.0)], &[(1, 5_060.0), (2, 20.0)]], [&[(9, 0.0)], &[(9, 1.0), (5, 5_000.0)]]);
    assert_eq!(
        other_exporter,
        (60.0, 1.0),
        "its counter has errors of long ago, so new requests lack theirs"
    );
    let too_many =
        gained([&[(1, 5_000.0)], &[(1, 5_010.0), (2, 101.0)]], [&[(9, 0.0)], &[(9, 0.0), (2, 101.0)]]);
    assert_eq!(too_many, (10.0, 0.0), "they may be old ones");
    // Pods are scraped one after the other, and get their new labels so.
    let mut pods = Version { requests: known(&[(1, 9_000.0), (2, 5_000.0)]), ..Version::default() };
    for now in [&[(3, 9_010.0)][..], &[(3, 9_010.0), (4, 5_010.0)]] {
        let requests = Answer { before: None, now: series(now) };
        pods.advance(&Answers { requests, bad: Answer::default() }, true);
    }
    assert_eq!(pods.gained.requests, 0.0, "of all their lives");
    let few = gained([&[(1, 100.0)], &[(1, 100.0), (2, 3.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 3.0)]]);
    assert_eq!(few, (3.0, 3.0), "all requests fail from now on");
    let of_a_predecessor = gained([&[], &[(2, 9_010.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 800.0)]]);
    assert_eq!(of_a_predecessor, (0.0, 0.0), "its first look begins with what is there");
}

/// One scrape has failed: the server has a value of the time before alone.
#[test]
fn a_series_without_a_value_of_the_beginning_goes_on_from_what_is_known_of_it() {
    let gained = |known: Known, before: [&[(u64, f64)]; 2], now: f64| {
        let mut version = Version { requests: known, ..Version::default() };
        let requests = Answer { before: Some(before.map(series)), now: series(&[(1, now)]) };
        version.advance(&Answers { requests, bad: Answer::default() }, true);
        version.gained.requests
    };
    let known = || known(&[(1, 1_000.0)]);
    assert_eq!(gained(known(), [&[(1, 500.0)], &[]], 1_010.0), 10.0);
    assert_eq!(gained(Known::default(), [&[(1, 500.0)], &[]], 1_010.0), 0.0, "it is old");
    assert_eq!(gained(known(), [&[(1, 500.0)], &[(1, 1_004.0)]], 1_010.0), 6.0);
}

/// Requests of the time before the step would count in it, or in two steps.
#[test]
fn an_old_series_that_comes_back_begins_with_its_first_value() {
    let mut version = Version::default();
    let first = Answer { before: Some([series(&[(1, 500.0)]), Counters::new()]), now: Counters::new() };
    version.advance(&Answers { requests: first, bad: Answer::default() }, true);
    let mut gained = |value: f64| {
        let requests = Answer { before: None, now: series(&[(1, value)]) };
        version.advance(&Answers { requests, bad: Answer::default() }, true);
        version.gained.requests
    };
    assert_eq!([gained(1_010.0), gained(1_013.0)], [0.0, 3.0]);
}

#[test]
fn parts_of_requests_add_up_and_negative_values_take_nothing_away() {
    let mut version = Version { requests: known(&[(1, 0.0)]), bad: known(&[(1, 0.0)]), ..Version::default() };
    for look in 1..=5 {
        let now = |each: f64| Answer { before: None, now: series(&[(1, each * f64::from(look)), (2, -9.0)]) };
        version.advance(&Answers { requests: now(10.0), bad: now(0.4) }, true);
    }
    let flow = version.counted();
    assert_eq!((flow.ended.requests(), flow.ended.bad()), (50, 2));
}

#[test]
fn what_is_known_is_bounded() {
    let mut known = Known::default();
    for pod in 0..4_000_u64 {
        known.advance(&series(&[(pod, 1.0)]));
    }
    assert!(known.0.len() <= MOST_SERIES * 2 + 1);
}
