//! Bad requests that are read before or after their requests.

use super::*;

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
