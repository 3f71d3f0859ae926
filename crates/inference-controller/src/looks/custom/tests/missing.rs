//! Looks without an answer, versions without series, and the beginning of a step.

use api::aiinference::analysis::MetricName;

use super::*;
use crate::looks::{Ask, AskedMetric, Looks, OfQueries, Read};

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
