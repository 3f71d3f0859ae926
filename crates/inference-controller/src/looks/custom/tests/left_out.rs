//! Series that are new and not counted: how long they delay a pass.

use super::*;
use crate::looks::OfQueries;

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
        assert!(fault.ends_with("; no step follows for two minutes"), "{fault}");
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
    // Also of looks that are further apart than a pass waits.
    for seconds in [120, 300] {
        let mut counting = passing();
        let mut passes = (0_i64..8).map(|n| {
            look_at(&mut counting, 415 + seconds * n, &[(100 + n.unsigned_abs(), 9_000.0, 0.0)]).may_pass
        });
        assert!(!passes.next().unwrap() && passes.nth(5).unwrap(), "{seconds}");
    }
    let fault = look_at(&mut counting, 415 + 15 * 44, &[(200, 9_000.0, 0.0)]).fault.unwrap();
    assert!(fault.ends_with("they may be old ones with new labels"), "{fault}");
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
