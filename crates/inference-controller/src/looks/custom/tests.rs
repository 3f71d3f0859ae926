use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use api::aiinference::analysis::{AnalysisPrometheus, MetricName};
use jiff::Timestamp;
use runtime::read::secrets::Secrets;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Barrier,
};

use super::*;
use crate::{
    looks::{Ask, AskedMetric, Looks, OfQueries, Read},
    tests::parsed,
};

fn series(of: &[(u64, f64)]) -> Counters {
    of.iter().copied().collect()
}

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

/// Both versions at this time: requests and bad ones so far, of stable and of the candidate.
fn looked(stable: (f64, f64), candidate: Option<(f64, f64)>) -> Answered {
    let answers = |(requests, bad): (f64, f64)| Answers {
        requests: Answer { before: None, now: series(&[(1, requests)]) },
        bad: Answer { before: None, now: series(&[(1, bad)]) },
    };
    let read = Tracks { stable: answers(stable), candidate: candidate.map(answers).unwrap_or_default() };
    Answered { queries: queries("b"), read: Ok(read) }
}

/// A look that also has the values of the beginning.
fn before(stable: (f64, f64), candidate: (f64, f64), mut looked: Answered) -> Answered {
    if let Ok(Tracks { stable: of_stable, candidate: of_candidate }) = &mut looked.read {
        for (answers, (requests, bad)) in [(of_stable, stable), (of_candidate, candidate)] {
            for (answer, value) in [(&mut answers.requests, requests), (&mut answers.bad, bad)] {
                answer.before = Some([Counters::new(), series(&[(1, value)])]);
            }
        }
    }
    looked
}

/// A step that began at 100 with these counters.
fn counting(stable: (f64, f64), candidate: Option<(f64, f64)>) -> Counting {
    let mut begun = before(stable, candidate.unwrap_or_default(), looked(stable, candidate));
    if let (Ok(Tracks { candidate: none, .. }), None) = (&mut begun.read, candidate) {
        *none = Answers::default();
    }
    let mut counting = Counting::default();
    assert_eq!(counting.found(&begun, (100, 101), 1), (Found::Pooled, None));
    counting
}

fn counts(found: (Found, Option<String>)) -> Option<[(u64, u64); 2]> {
    let (Found::Counted { flows, .. }, None) = found else { return None };
    Some([flows.stable, flows.candidate].map(|flow| (flow.ended.requests(), flow.ended.bad())))
}

#[test]
fn a_look_between_the_scrapes_of_both_versions_waits_for_the_other_one() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let stable_alone = counting.found(&looked((190.0, 1.0), Some((10.0, 0.0))), (100, 115), 15);
    assert_eq!(stable_alone, (Found::Pooled, None));
    let both = counting.found(&looked((190.0, 1.0), Some((20.0, 3.0))), (115, 130), 30);
    assert_eq!(counts(both), Some([(90, 1), (10, 3)]));
    let nothing = counting.found(&looked((190.0, 1.0), Some((20.0, 3.0))), (130, 145), 45);
    assert_eq!(nothing, (Found::Pooled, None));
    // A candidate without requests does not keep those of stable from being counted.
    let over = counting.found(&looked((990.0, 1.0), Some((20.0, 3.0))), (235, 250), 150);
    assert_eq!(counts(over), Some([(800, 0), (0, 0)]));
}

#[test]
fn bad_requests_that_come_later_than_their_requests_are_not_lost() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let first = counting.found(&looked((190.0, 0.0), Some((70.0, 0.0))), (100, 115), 15);
    assert_eq!(counts(first), Some([(90, 0), (60, 0)]));
    let later = counting.found(&looked((280.0, 0.0), Some((72.0, 6.0))), (115, 130), 30);
    assert_eq!(counts(later), Some([(90, 0), (2, 2)]), "no more than requests");
    let rest = counting.found(&looked((370.0, 0.0), Some((82.0, 6.0))), (130, 145), 45);
    assert_eq!(counts(rest), Some([(90, 0), (10, 4)]));
}

/// A user says what was wrong with an answer after it was counted, and the next request comes much later.
#[test]
fn a_bad_request_waits_for_the_next_request_of_a_candidate_with_few_requests() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let mut look = |at: i64, stable: f64, candidate: (f64, f64)| {
        counts(counting.found(&looked((stable, 0.0), Some(candidate)), (at - 15, at), at - 100))
    };
    assert_eq!(look(115, 190.0, (11.0, 0.0)), Some([(90, 0), (1, 0)]));
    assert_eq!(look(175, 190.0, (11.0, 1.0)), None);
    assert_eq!(look(240, 190.0, (11.0, 1.0)), Some([(0, 0), (0, 0)]));
    assert_eq!(look(365, 190.0, (11.0, 1.0)), Some([(0, 0), (0, 0)]));
    assert_eq!(look(380, 190.0, (12.0, 1.0)), Some([(0, 0), (1, 1)]));
    assert_eq!(look(395, 190.0, (12.0, 9.0)), None);
    assert_eq!(look(510, 190.0, (13.0, 9.0)), Some([(0, 0), (1, 1)]));
    assert_eq!(look(525, 190.0, (23.0, 9.0)), Some([(0, 0), (10, 1)]), "no more than were counted as good");
}

fn failed() -> Answered {
    Answered { queries: queries("b"), read: Err("no server".to_owned()) }
}

#[test]
fn a_gap_is_counted_with_the_next_look_unless_it_is_too_long() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let missing = (Found::Incomplete, Some("no server".to_owned()));
    for at in [115, 130] {
        assert_eq!(counting.found(&failed(), (100, at), at - 100), missing);
    }
    let next = counting.found(&looked((190.0, 0.0), Some((20.0, 0.0))), (130, 145), 45);
    assert_eq!(counts(next), Some([(90, 0), (10, 0)]));
    for at in [160, 175, 190] {
        assert_eq!(counting.found(&failed(), (100, at), at - 100), missing);
    }
    let after_it = counting.found(&looked((9_000.0, 0.0), Some((800.0, 700.0))), (190, 205), 105);
    assert_eq!(after_it, (Found::Pooled, None));
    let next = counting.found(&looked((9_090.0, 0.0), Some((810.0, 701.0))), (205, 220), 120);
    assert_eq!(counts(next), Some([(90, 0), (10, 1)]));
    assert!(!counting.begins(&queries("b")) && counting.begins(&queries("c")));
}

#[test]
fn a_look_that_was_answered_ends_a_gap_also_without_series_of_the_candidate() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    for at in [115, 130, 145] {
        assert_eq!(counting.found(&failed(), (100, at), at - 100).0, Found::Incomplete);
        let silent = counting.found(&looked((100.0, 0.0), None), (100, at + 5), at - 95);
        assert_eq!(silent.0, Found::Incomplete);
    }
    let next = counting.found(&looked((190.0, 0.0), Some((20.0, 0.0))), (150, 165), 65);
    assert_eq!(counts(next), Some([(90, 0), (10, 0)]));
}

/// At weight 100, or where nothing leads to stable.
#[test]
fn a_version_without_requests_is_waited_for_once() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let mut at = 101;
    let mut look = |seconds: i64, stable: f64, candidate: f64| {
        at += seconds;
        let found =
            counting.found(&looked((stable, 0.0), Some((candidate, 0.0))), (at - seconds, at), at - 100);
        if found == (Found::Pooled, None) { None } else { counts(found) }
    };
    assert_eq!(look(60, 100.0, 20.0), None);
    assert_eq!(look(60, 100.0, 30.0), Some([(0, 0), (20, 0)]));
    assert_eq!(look(15, 100.0, 40.0), Some([(0, 0), (10, 0)]));
    assert_eq!(look(15, 150.0, 50.0), Some([(50, 0), (10, 0)]));
    assert_eq!(look(15, 150.0, 60.0), None, "it has requests again");
    // The gateway's pods were replaced, and the new ones have sent stable nothing.
    assert_eq!(look(120, 150.0, 70.0), Some([(0, 0), (20, 0)]));
    let mut gone = looked((0.0, 0.0), Some((80.0, 0.0)));
    gone.read.as_mut().unwrap().stable.requests.now.clear();
    assert_eq!(counts(counting.found(&gone, (300, 360), 260)), Some([(0, 0), (10, 0)]));
}

/// The gateway drops a version without a share at once.
#[test]
fn at_weight_100_stable_may_have_no_series_from_the_beginning() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let gone = |candidate: f64| {
        let mut gone = looked((0.0, 0.0), Some((candidate, 0.0)));
        gone.read.as_mut().unwrap().stable.requests.now.clear();
        gone.queries.stable_may_be_silent = true;
        gone
    };
    assert_eq!(counting.found(&gone(20.0), (100, 115), 15), (Found::Pooled, None));
    assert_eq!(counts(counting.found(&gone(30.0), (100, 221), 121)), Some([(0, 0), (20, 0)]));
    assert_eq!(counts(counting.found(&gone(40.0), (221, 236), 136)), Some([(0, 0), (10, 0)]));
    assert!(!counting.begins(&gone(40.0).queries), "the same queries");
}

/// Of an engine that began anew between two candidates.
#[test]
fn a_step_begins_with_the_values_of_its_time_also_if_they_are_less_than_before() {
    let counting = counting((100_000.0, 900.0), Some((10.0, 0.0)));
    let mut next = counting.in_next_step();
    let look = before((70_000.0, 600.0), (20.0, 0.0), looked((70_090.0, 601.0), Some((30.0, 0.0))));
    assert_eq!(counts(next.found(&look, (300, 315), 15)), Some([(90, 1), (10, 0)]));
}

/// The next candidate comes days later. What is known of the last one is of pods that may be old or gone.
#[test]
fn a_step_that_begins_long_after_the_last_answer_knows_nothing() {
    let mut next = counting((100.0, 0.0), Some((10.0, 0.0))).in_next_step();
    let (day, asked) = (86_400, looked((70_090.0, 0.0), Some((30.0, 0.0))));
    let first = before((70_000.0, 0.0), (20.0, 0.0), asked);
    assert_eq!(counts(next.found(&first, (day, day + 15), 15)), Some([(90, 0), (10, 0)]));
    assert!(!next.counts_new(day + 15), "an old series could still appear");
    assert!(next.counts_new(day + 125));
}

/// A pod may not have been scraped just when the queries were asked first.
#[test]
fn an_old_series_that_appears_soon_after_the_beginning_is_not_counted_from_0() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let with_another = |own: (f64, f64), value: f64| {
        let mut looked = looked(own, Some((20.0, 0.0)));
        let stable = &mut looked.read.as_mut().unwrap().stable;
        stable.requests.now.insert(2, value);
        stable.bad.now.insert(2, value / 20.0);
        looked
    };
    let soon = counting.found(&with_another((190.0, 0.0), 700_000.0), (100, 160), 60);
    assert_eq!(counts(soon), Some([(90, 0), (10, 0)]));
    let mut begun = self::counting((100.0, 0.0), Some((10.0, 0.0)));
    let later = begun.found(&with_another((190.0, 0.0), 20.0), (100, 230), 130);
    assert_eq!(counts(later), Some([(110, 1), (10, 0)]), "a new pod");
}

#[test]
fn a_version_without_series_is_waited_for_and_then_it_is_said() {
    let mut silent = counting((100.0, 0.0), None);
    let waits = silent.found(&looked((190.0, 0.0), None), (100, 115), 15);
    assert_eq!(waits, (Found::Pooled, None));
    let (found, fault) = silent.found(&looked((290.0, 0.0), None), (300, 315), 215);
    assert_eq!(found, Found::Incomplete);
    let fault = fault.unwrap();
    assert!(fault.contains("requestsQuery has no series for the Service chat-canary: "), "{fault}");
    assert!(fault.contains("it has had no request yet"), "{fault}");
    // The pods of both were scraped, and now those of the candidate are not.
    let mut gone = counting((100.0, 0.0), Some((10.0, 0.0)));
    let (found, fault) = gone.found(&looked((190.0, 0.0), None), (100, 115), 15);
    assert_eq!(found, Found::Incomplete);
    assert!(fault.unwrap().contains("no series any more for the Service chat-canary: "));
    let back = gone.found(&looked((190.0, 0.0), Some((30.0, 0.0))), (115, 130), 30);
    assert_eq!(counts(back), Some([(90, 0), (20, 0)]), "of the same time");
    for at in [145, 160, 175, 190] {
        let silent = gone.found(&looked((190.0, 0.0), None), (at - 15, at), at - 100);
        assert_eq!(silent.0, Found::Incomplete, "also after three looks");
    }
    let later = gone.found(&looked((280.0, 0.0), Some((60.0, 0.0))), (190, 205), 105);
    assert_eq!(counts(later), Some([(90, 0), (30, 0)]), "the server has answered all the time");
}

/// With `match`, or with a pin at 95 %, stable may have no requests. The candidate is judged by a limit then.
#[test]
fn stable_without_series_is_waited_for_and_then_the_candidate_is_counted_and_it_is_said() {
    let half = |candidate: f64| {
        let mut half = looked((0.0, 0.0), Some((candidate, 0.0)));
        half.read.as_mut().unwrap().stable.requests.now.clear();
        half
    };
    let mut never = Counting::default();
    assert_eq!(never.found(&half(20.0), (100, 115), 15), (Found::Pooled, None));
    assert_eq!(never.found(&half(30.0), (100, 130), 30), (Found::Pooled, None));
    let (found, fault) = never.found(&half(40.0), (115, 260), 160);
    assert!(fault.unwrap().contains("requestsQuery has no series for the Service chat:"));
    assert_eq!(counts((found, None)), Some([(0, 0), (20, 0)]));
    let (found, fault) = never.found(&half(50.0), (260, 275), 175);
    assert!(fault.is_some());
    assert_eq!(counts((found, None)), Some([(0, 0), (10, 0)]));
    let mut at_100 = half(60.0);
    at_100.queries.stable_may_be_silent = true;
    assert_eq!(counts(never.found(&at_100, (275, 290), 190)), Some([(0, 0), (10, 0)]));
    // The pods of both were scraped, and now those of stable are not.
    let mut gone = counting((100.0, 0.0), Some((10.0, 0.0)));
    let (found, fault) = gone.found(&half(20.0), (100, 115), 15);
    assert_eq!(found, Found::Incomplete);
    assert!(fault.unwrap().contains("no series any more for the Service chat: "));
    let back = gone.found(&looked((190.0, 0.0), Some((30.0, 0.0))), (115, 130), 30);
    assert_eq!(counts(back), Some([(90, 0), (20, 0)]), "of the same time");
    for (candidate, at) in [(70.0, 255), (80.0, 270)] {
        let (found, fault) = gone.found(&half(candidate), (130, at), at - 100);
        assert_eq!(found, Found::Incomplete, "the candidate is not judged by itself");
        assert!(fault.is_some());
    }
}

/// Answers queries of a Service with a counter. That of requests has ten times the time of the query. That of the
/// candidate's errors has twice that time, and stable has none. Without a time, the query is of 15 s after the beginning.
/// Answers of earlier times wait until all of them are asked for: two of each query for each Service.
async fn server() -> SocketAddr {
    let earlier = Arc::new(Barrier::new(8));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let earlier = earlier.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 8_192];
                let count = stream.read(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let time = text.rsplit_once("&time=").map(|(_, time)| time.parse::<i64>().unwrap());
                if time.is_some() {
                    earlier.wait().await;
                }
                let time = time.unwrap_or(SINCE + 15);
                let is_of_candidate = text.contains("chat-canary");
                let times = match (text.contains("errors"), is_of_candidate) {
                    (true, true) => 2,
                    (true, false) => 0,
                    (false, _) => 10,
                };
                let body = format!(
                    r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{}},"value":[{time},"{}"]}}]}}}}"#,
                    times * time
                );
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

fn asking(flags: &[&str]) -> Prometheus {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, kube::Error>(kube::Error::Service("no server".into()))
    });
    let secrets = Secrets::new(kube::Client::new(service, "demo"));
    Prometheus::new(parsed(flags).unwrap().prometheus, secrets, "test/1")
}

fn queries(bad: &str) -> Queries {
    Queries {
        prometheus: Box::new(AnalysisPrometheus {
            url: None,
            requests_query: r#"requests{service="$name"}"#.to_owned(),
            bad_requests_query: bad.to_owned(),
            secret_name: None,
            ca_secret_name: None,
        }),
        services: Tracks { stable: "chat".to_owned(), candidate: "chat-canary".to_owned() },
        stable_may_be_silent: false,
    }
}

const SINCE: i64 = 1_700_000_000;

fn asked_at() -> Moment {
    let now = Timestamp::from_second(SINCE + 15).unwrap();
    Moment { now, wall: now }
}

#[tokio::test]
async fn both_versions_are_asked_and_the_first_time_also_for_the_time_before() {
    let prometheus = asking(&[&format!("--prometheus-url=http://{}", server().await)]);
    let turns = Bodies::new(1, 1);
    let asked = queries(r#"errors{service="$name"} or vector(0)"#);
    let of = async |since| answered((&prometheus, &turns), &asked, "demo", since, asked_at()).await;
    let mut counting = Counting::default();
    assert!(counting.begins(&asked));
    let first = counting.found(&of(Some(SINCE)).await, (SINCE, SINCE + 15), 15);
    assert_eq!(counts(first), Some([(150, 0), (150, 30)]));
    assert!(!counting.begins(&asked));
    let again = counting.found(&of(None).await, (SINCE + 15, SINCE + 30), 30);
    assert_eq!(again, (Found::Pooled, None), "the same values");
}

#[tokio::test]
async fn what_cannot_be_asked_names_its_field() {
    let without = asking(&[]);
    let turns = Bodies::new(1, 1);
    let of = async |bad: &str| {
        answered((&without, &turns), &queries(bad), "demo", None, asked_at()).await.read.unwrap_err()
    };
    let said = of(r#"errors{service="$name"} or vector(0)"#).await;
    assert!(said.starts_with("spec.canary.analysis.prometheus: prometheus.url is not set"), "{said}");
    let said = of("sum(").await;
    assert!(
        said.starts_with("spec.canary.analysis.prometheus.badRequestsQuery: the query cannot be used: at "),
        "{said}"
    );
    let said = of("sum(errors) or vector(0)").await;
    assert!(
        said.contains("badRequestsQuery has sum() of several pods: keep the label pod or instance"),
        "{said}"
    );
    let mut without_end = queries("vector(0)");
    without_end.prometheus.requests_query += " or vector(0)";
    let said = answered((&without, &turns), &without_end, "demo", None, asked_at()).await.read.unwrap_err();
    assert!(said.contains("requestsQuery has vector(): leave it out"), "{said}");
    let said = of("sum(increase(errors[1m])) or vector(0)").await;
    assert!(
        said.starts_with(
            "spec.canary.analysis.prometheus.badRequestsQuery has increase(): write the counter"
        ),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn queries_that_are_not_answered_in_time_say_what_helps() {
    let (without, turns) = (asking(&[]), Bodies::new(1, 1));
    let _other = turns.permit("demo").await;
    let late = answered((&without, &turns), &queries("b"), "demo", None, asked_at()).await.read.unwrap_err();
    let fix = "within 8 s; select fewer series, or raise intervalSeconds";
    assert!(late.ends_with(fix), "{late}");
}

/// Both versions would have the same requests: nothing that is judged would be of the candidate.
#[tokio::test]
async fn a_query_that_is_the_same_for_both_versions_is_refused() {
    let (without, turns) = (asking(&[]), Bodies::new(1, 1));
    let of = async |asked: Queries| {
        answered((&without, &turns), &asked, "demo", None, asked_at()).await.read.unwrap_err()
    };
    let wrong = |field: &str| {
        format!(
            "spec.canary.analysis.prometheus.{field} is the same query for both versions: write $name as the value of a \
             label, as in service=\"$name\""
        )
    };
    assert_eq!(of(queries("errors or vector(0)")).await, wrong("badRequestsQuery"));
    let mut of_all = queries(r#"errors{service="$name"} or vector(0)"#);
    of_all.prometheus.requests_query = r#"requests{namespace="$namespace"}"#.to_owned();
    assert_eq!(of(of_all).await, wrong("requestsQuery"));
}

/// A stable version that fails everything, and errors that are counted once for each try.
#[test]
fn bad_requests_that_wait_keep_a_candidate_from_passing_for_two_minutes_and_those_of_stable_do_not() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let (mut stable, mut candidate, mut at) = ((100.0, 0.0), (10.0, 0.0), 220);
    let mut may_pass = |more: (f64, f64), of_candidate: (f64, f64)| {
        at += 15;
        stable = (stable.0 + more.0, stable.1 + more.1);
        candidate = (candidate.0 + of_candidate.0, candidate.1 + of_candidate.1);
        let (found, _) = counting.found(&looked(stable, Some(candidate)), (at - 15, at), at - 100);
        counting.may_pass(&found, at)
    };
    may_pass((50.0, 0.0), (100.0, 0.0));
    may_pass((100.0, 105.0), (10.0, 0.0));
    assert!([0; 3].iter().all(|_| may_pass((100.0, 100.0), (10.0, 0.0))), "what waits is of stable");
    for look in 0..8 {
        assert!(!may_pass((100.0, 0.0), (10.0, 11.0)), "{look}");
    }
    assert!([0; 4].iter().all(|_| may_pass((100.0, 0.0), (10.0, 11.0))), "they were waited for");
    assert!(may_pass((100.0, 0.0), (90.0, 0.0)));
    assert!(!may_pass((100.0, 0.0), (10.0, 11.0)), "others are waited for anew");
}

/// The counters of a look are those that the next one goes on from, in one step and with the same queries.
#[test]
fn only_the_first_look_of_a_step_asks_for_the_time_before() {
    let looks = Looks::default();
    let metrics = vec![AskedMetric { name: MetricName::Custom, given: None, known: None }];
    let ask = Ask {
        step_since: 100,
        counted_until: 100,
        engine: engine_metrics::engine::Engine::Vllm,
        port: 8_000,
        path: "/metrics",
        pods: Vec::new(),
        metrics,
        queries: Some(queries("b")),
    };
    let since = |ask: &Ask| {
        looks.ask("uid", ask);
        let (_, since) = looks.begin("uid").unwrap();
        since
    };
    let note = |ask: &Ask, queries: Answered, at: i64| {
        looks.note("uid", ask, &Read { pods: Vec::new(), queries: Some(queries) }, at);
        looks.of("uid", None).looks.last().unwrap().clone()
    };
    assert_eq!(since(&ask), Some(100));
    note(&ask, looked((100.0, 0.0), Some((10.0, 0.0))), 115);
    assert_eq!(since(&ask), None);
    let look = note(&ask, looked((190.0, 0.0), Some((20.0, 5.0))), 130);
    let Found::Counted { flows, .. } = look.metrics[&MetricName::Custom] else { panic!("{look:?}") };
    assert_eq!((flows.candidate.ended.requests(), flows.candidate.ended.bad()), (10, 5));
    assert_eq!(since(&Ask { queries: Some(queries("c")), ..ask.clone() }), Some(130));
    assert!(!look.of_queries.unwrap().may_pass, "an old series could still appear");
    assert_eq!(note(&ask, failed(), 145).of_queries.unwrap().fault.as_deref(), Some("no server"));
    // The next step begins with the values of its beginning, or with those of its first look if that one fails.
    let next = Ask { step_since: 300, counted_until: 300, ..ask.clone() };
    assert_eq!(since(&next), Some(300));
    note(&next, failed(), 305);
    assert_eq!(since(&next), Some(305));
    let at_its_beginning = before((900.0, 0.0), (20.0, 5.0), looked((990.0, 0.0), Some((30.0, 5.0))));
    let look = note(&next, at_its_beginning, 315);
    let Found::Counted { flows, .. } = look.metrics[&MetricName::Custom] else { panic!("{look:?}") };
    assert_eq!((flows.stable.ended.requests(), flows.candidate.ended.requests()), (90, 10));
    let hash = hash(&queries("b").prometheus);
    assert_eq!(look.of_queries, Some(OfQueries { hash, fault: None, may_pass: true }));
    assert_eq!(since(&next), None);
    let may_pass = |looked: Answered, at: i64| note(&next, looked, at).of_queries.unwrap().may_pass;
    assert!(!may_pass(looked((1_080.0, 0.0), Some((32.0, 11.0))), 330), "bad requests wait for requests");
    assert!(may_pass(looked((1_170.0, 0.0), Some((42.0, 11.0))), 345));
    assert!(may_pass(looked((1_172.0, 9.0), Some((52.0, 11.0))), 360), "those of stable may wait");
    looks.note("uid", &next, &Read { pods: Vec::new(), queries: None }, 375);
    assert_eq!(since(&next), Some(375), "the metric was taken away, and comes back");
}

/// The two are scraped by themselves, and of an idle version each is all that there is.
#[test]
fn bad_requests_that_are_read_before_their_requests_wait_for_them() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let at = |counting: &mut Counting, stable: f64, candidate: (f64, f64), at: i64| {
        counts(counting.found(&looked((stable, 0.0), Some(candidate)), (at - 15, at), at))
    };
    assert_eq!(at(&mut counting, 110.0, (10.0, 0.0), 400), Some([(10, 0), (0, 0)]), "it is idle");
    assert_eq!(at(&mut counting, 120.0, (10.0, 60.0), 415), None);
    assert_eq!(at(&mut counting, 130.0, (70.0, 60.0), 430), Some([(20, 0), (60, 60)]));
}

/// After the first two minutes of its queries.
fn passing() -> Counting {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    counting.began = -1_000;
    assert!(look_at(&mut counting, 400, &[]).may_pass);
    counting
}

/// A look in which both versions have gained, and the candidate has these series more: requests, and bad ones.
fn look_at(counting: &mut Counting, at: i64, new: &[(u64, f64, f64)]) -> OfQueries {
    let mut looked = looked((at as f64, 0.0), Some((at as f64, 0.0)));
    let Answers { requests, bad } = &mut looked.read.as_mut().unwrap().candidate;
    requests.now.extend(new.iter().map(|(label, requests, _)| (*label, *requests)));
    bad.now.extend(new.iter().map(|(label, _, bad)| (*label, *bad)));
    counting.look(&looked, (at - 15, at), at).1
}

/// Perhaps all requests fail from now on. The next scrapes say it.
#[test]
fn a_candidate_does_not_pass_right_after_new_series_that_are_not_counted() {
    for (requests, bad) in [(15_000.0, 0.0), (0.0, 15_000.0)] {
        let mut counting = passing();
        let left_out = look_at(&mut counting, 415, &[(77, requests, bad)]);
        assert!(!left_out.may_pass, "{requests} {bad}");
        let fault = left_out.fault.unwrap();
        assert!(fault.contains("new series of the Service chat-canary are not counted"), "{fault}");
        assert!(!look_at(&mut counting, 430, &[(77, requests + 1.0, bad)]).may_pass);
        let counted = look_at(&mut counting, 535, &[(77, requests + 9.0, bad)]);
        assert_eq!((counted.may_pass, counted.fault), (true, None));
        assert!(!look_at(&mut counting, 550, &[(78, requests, bad)]).may_pass, "others are waited for anew");
    }
}

/// The pod of the gateway is replaced: its counters have new labels, and the candidate fails all of its first requests.
#[test]
fn a_candidate_does_not_pass_by_the_first_look_after_all_labels_have_changed() {
    let mut counting = passing();
    let of = |requests: &[(u64, f64)], bad: &[(u64, f64)]| Answers {
        requests: Answer { before: None, now: series(requests) },
        bad: Answer { before: None, now: series(bad) },
    };
    let mut read = |at: i64, stable: Answers, candidate: Answers| {
        let answered = Answered { queries: queries("b"), read: Ok(Tracks { stable, candidate }) };
        let (found, of_queries) = counting.look(&answered, (at - 15, at), at);
        (matches!(found, Found::Counted { .. }), of_queries.may_pass)
    };
    for at in [415, 475, 535] {
        assert_eq!(read(at, of(&[], &[(9, 0.0)]), of(&[], &[(9, 0.0)])), (false, false));
    }
    let fails = of(&[(77, 90.0)], &[(77, 90.0)]);
    assert_eq!(read(550, of(&[(78, 50.0)], &[(78, 0.0)]), fails), (true, false));
}

/// A label of each batch, or of each caller.
#[test]
fn series_that_are_new_in_each_look_delay_a_pass_for_ten_minutes_and_not_for_ever() {
    let mut counting = passing();
    let passes: Vec<bool> = (0_i64..44)
        .map(|n| look_at(&mut counting, 415 + 15 * n, &[(100 + n.unsigned_abs(), 9_000.0, 0.0)]).may_pass)
        .collect();
    let expected: Vec<bool> = (0..44).map(|n| n >= 40).collect();
    assert_eq!(passes, expected);
}

/// Two gateways are replaced one after the other.
#[test]
fn each_series_that_is_left_out_delays_a_pass_for_two_minutes() {
    let mut counting = passing();
    let mut may_pass = |at, series: &[(u64, f64, f64)]| look_at(&mut counting, at, series).may_pass;
    assert!(!may_pass(415, &[(77, 9_000.0, 0.0)]));
    assert!(!may_pass(520, &[(77, 9_001.0, 0.0), (78, 9_000.0, 9_000.0)]));
    assert!(!may_pass(550, &[(77, 9_002.0, 0.0), (78, 9_000.0, 9_000.0)]), "two minutes after the first");
    assert!(may_pass(645, &[(77, 9_003.0, 0.0), (78, 9_000.0, 9_000.0)]));
}

#[test]
fn what_was_left_out_in_a_step_delays_no_pass_of_the_next_one() {
    let mut counting = passing();
    assert!(!look_at(&mut counting, 415, &[(77, 9_000.0, 0.0)]).may_pass);
    let mut next = counting.in_next_step();
    let first = look_at(&mut next, 430, &[(77, 9_001.0, 0.0)]);
    assert_eq!((first.may_pass, first.fault), (true, None));
}
