use super::*;

/// When everything before is counted.
const SINCE: i64 = 1_000;
/// Of a container that is older.
const OLD: i64 = 500;

fn scrape(pod: &str, started: i64, requests: u64, bad: u64) -> Scrape {
    let track = if pod.starts_with('c') { Track::Candidate } else { Track::Stable };
    let numbers = Some(Numbers { ended: Counts::new(requests, bad).unwrap(), in_flight: 0 });
    Scrape { pod: pod.to_owned(), track, started, numbers, may_be_silent: false }
}

fn silent(pod: &str) -> Scrape {
    Scrape { numbers: None, ..scrape(pod, OLD, 0, 0) }
}

fn counts(requests: u64, bad: u64) -> Counts {
    Counts::new(requests, bad).unwrap()
}

/// Nothing is in flight, so what ended has arrived.
fn tracks(stable: (u64, u64), candidate: (u64, u64)) -> Tracks<Flow> {
    let flow = |(requests, bad)| Flow {
        arrivals: requests,
        ended: counts(requests, bad),
        in_flight: 0,
        restarts: 0,
    };
    Tracks { stable: flow(stable), candidate: flow(candidate) }
}

/// With so many containers that began anew.
fn anew((stable, candidate): (u32, u32), mut of: Tracks<Flow>) -> Tracks<Flow> {
    (of.stable.restarts, of.candidate.restarts) = (stable, candidate);
    of
}

/// Of one stable pod and one candidate pod after their first look.
fn known() -> Counters {
    let mut counters = Counters::default();
    let first = counters.advance(&[scrape("s", OLD, 100, 10), scrape("c", OLD, 20, 2)], SINCE, None);
    assert_eq!(first, Ok(tracks((0, 0), (0, 0))), "their counts may be older than the step");
    counters
}

#[test]
fn pods_add_the_differences_of_their_counters_to_their_track() {
    let mut counters = known();
    let scrapes = [scrape("s", OLD, 150, 11), scrape("c", OLD, 25, 4)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(tracks((50, 1), (5, 2))));
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(tracks((0, 0), (0, 0))), "only once");
}

#[test]
fn a_restarted_container_adds_its_counts_since_its_start() {
    let mut counters = known();
    let scrapes = [scrape("s", OLD, 100, 10), scrape("c", 1_200, 7, 3)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(anew((0, 1), tracks((0, 0), (7, 3)))));
    // Also if they are higher than before already.
    let scrapes = [scrape("s", 1_300, 400, 50), scrape("c", 1_200, 9, 3)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(anew((1, 0), tracks((400, 50), (2, 0)))));
}

#[test]
fn requests_that_fell_began_anew_from_zero() {
    let mut counters = known();
    let scrapes = [scrape("s", OLD, 30, 1), scrape("c", OLD, 25, 2)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(anew((1, 0), tracks((30, 1), (5, 0)))));
}

#[test]
fn bad_requests_that_fell_alone_are_no_restart() {
    let mut counters = known();
    let at = |requests, bad| [scrape("s", OLD, 100, 10), scrape("c", OLD, requests, bad)];
    assert_eq!(counters.advance(&at(25, 1), SINCE, None), Ok(tracks((0, 0), (5, 0))));
    assert_eq!(counters.advance(&at(27, 2), SINCE, None), Ok(tracks((0, 0), (2, 0))), "counted before");
    assert_eq!(counters.advance(&at(30, 4), SINCE, None), Ok(tracks((0, 0), (3, 2))));
}

#[test]
fn a_second_fall_with_the_same_start_is_a_gap() {
    let mut counters = known();
    let at = |requests| [scrape("s", OLD, 100, 10), scrape("c", OLD, requests, 0)];
    assert_eq!(counters.advance(&at(12), SINCE, None), Ok(anew((0, 1), tracks((0, 0), (12, 0)))));
    assert_eq!(counters.advance(&at(20), SINCE, None), Ok(tracks((0, 0), (8, 0))));
    for _ in 0..MISSING_AFTER {
        assert_eq!(counters.advance(&at(12), SINCE, None), Err(Gap::FellTwice));
    }
    assert_eq!(counters.advance(&at(12), SINCE, None), Ok(tracks((0, 0), (0, 0))), "from then on anew");
}

/// A candidate pod with so many ended requests and requests in flight.
fn flying(ended: u64, in_flight: u64) -> [Scrape; 1] {
    [Scrape { numbers: Some(Numbers { ended: counts(ended, 0), in_flight }), ..scrape("c", OLD, 0, 0) }]
}

#[test]
fn arrivals_are_ended_requests_and_the_change_of_those_in_flight() {
    let mut counters = Counters::default();
    let mut look = |ended, in_flight| {
        counters.advance(&flying(ended, in_flight), SINCE, None).map(|flow| {
            let Flow { arrivals, ended, in_flight, restarts: _ } = flow.candidate;
            (arrivals, ended.requests(), in_flight)
        })
    };
    assert_eq!(look(20, 5), Ok((0, 0, 5)));
    assert_eq!(look(22, 9), Ok((6, 2, 9)));
    assert_eq!(look(31, 0), Ok((0, 9, 0)));
    // One read of requests in flight was late: 3 arrivals too many are subtracted later.
    assert_eq!(look(31, 3), Ok((3, 0, 3)));
    assert_eq!(look(31, 0), Ok((0, 0, 0)));
    assert_eq!(look(32, 1), Ok((0, 1, 1)));
    assert_eq!(look(34, 1), Ok((1, 2, 1)));
}

#[test]
fn requests_in_flight_at_a_restart_have_arrived_once() {
    let mut counters = Counters::default();
    counters.advance(&flying(20, 5), SINCE, None).unwrap();
    let restarted = Scrape {
        numbers: Some(Numbers { ended: counts(2, 0), in_flight: 3 }),
        ..scrape("c", SINCE + 1, 0, 0)
    };
    let added = counters.advance(&[restarted], SINCE, None).unwrap().candidate;
    assert_eq!(added, Flow { arrivals: 5, ended: counts(2, 0), in_flight: 3, restarts: 1 });
}

#[test]
fn another_bound_starts_anew() {
    let mut counters = known();
    let at = |requests, bad| [scrape("s", OLD, 100, 10), scrape("c", OLD, requests, bad)];
    let bound = Bound::from_millis(250).ok();
    // 8 of its requests are above the lower bound: they are not bad requests of this interval.
    assert_eq!(counters.advance(&at(25, 10), SINCE, bound), Ok(tracks((0, 0), (0, 0))));
    assert_eq!(counters.advance(&at(27, 11), SINCE, bound), Ok(tracks((0, 0), (2, 1))));
}

#[test]
fn a_start_that_is_seen_after_the_fall_is_the_same_restart() {
    let mut counters = known();
    let at = |started, requests| [scrape("s", OLD, 100, 10), scrape("c", started, requests, 0)];
    assert_eq!(counters.advance(&at(OLD, 5), SINCE, None), Ok(anew((0, 1), tracks((0, 0), (5, 0)))));
    assert_eq!(counters.advance(&at(1_200, 8), SINCE, None), Ok(tracks((0, 0), (3, 0))), "not 8");
    assert_eq!(
        counters.advance(&at(1_300, 9), SINCE, None),
        Ok(anew((0, 1), tracks((0, 0), (9, 0)))),
        "the next restart"
    );
    assert_eq!(counters.advance(&at(1_200, 11), SINCE, None), Ok(tracks((0, 0), (2, 0))), "an older status");
    assert_eq!(counters.advance(&at(1_300, 12), SINCE, None), Ok(tracks((0, 0), (1, 0))), "no restart");
}

#[test]
fn a_new_pod_adds_its_counts_only_if_it_started_after_everything_was_counted() {
    let mut counters = known();
    let two = [scrape("s", OLD, 100, 10), scrape("c", OLD, 20, 2)];
    let with = |pod: Scrape| [two.to_vec(), vec![pod]].concat();
    let added = counters.clone().advance(&with(scrape("c2", SINCE + 1, 6, 1)), SINCE, None);
    assert_eq!(added, Ok(tracks((0, 0), (6, 1))));
    // A caller that restarted gives the time of its last look, so that they are not counted twice.
    let added = counters.clone().advance(&with(scrape("c2", SINCE + 1, 6, 1)), SINCE + 15, None);
    assert_eq!(added, Ok(tracks((0, 0), (0, 0))));
    let added = counters.advance(&with(scrape("c2", SINCE, 6, 1)), SINCE, None);
    assert_eq!(added, Ok(tracks((0, 0), (0, 0))), "not known to be later");
    let added = counters.advance(&with(scrape("c2", SINCE, 8, 1)), SINCE, None);
    assert_eq!(added, Ok(tracks((0, 0), (2, 0))), "from then on the difference");
}

#[test]
fn a_pod_that_is_gone_is_forgotten() {
    let mut counters = known();
    let only = [scrape("s", OLD, 110, 10)];
    assert_eq!(counters.advance(&only, SINCE, None), Ok(tracks((10, 0), (0, 0))));
    assert_eq!(counters.pods.len(), 1);
}

#[test]
fn a_gap_counts_for_no_track_and_is_counted_for_both_afterwards() {
    let mut counters = known();
    // Both fail in the gap. Counted for one of them, it would be evidence.
    assert_eq!(
        counters.advance(&[scrape("s", OLD, 140, 30), silent("c")], SINCE, None),
        Err(Gap::NoCounters)
    );
    let scrapes = [scrape("s", OLD, 150, 30), scrape("c", OLD, 25, 7)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(tracks((50, 20), (5, 5))));
}

/// It may come back without a restart, and what it has counted meanwhile must not be lost for its version alone.
#[test]
fn a_pod_that_may_be_silent_is_no_gap_and_keeps_its_reading() {
    let mut counters = known();
    let quiet = Scrape { may_be_silent: true, ..silent("c") };
    for requests in [150, 160, 170, 180] {
        let seen = counters.advance(&[scrape("s", OLD, requests, 10), quiet.clone()], SINCE, None);
        assert_eq!(seen.unwrap().candidate.ended, counts(0, 0));
    }
    let back = counters.advance(&[scrape("s", OLD, 180, 10), scrape("c", OLD, 50, 22)], SINCE, None);
    assert_eq!(back, Ok(tracks((0, 0), (30, 20))));
    let new = Scrape { may_be_silent: true, ..silent("c2") };
    let none = counters.advance(&[scrape("s", OLD, 180, 10), scrape("c", OLD, 50, 22), new], SINCE, None);
    assert_eq!(none, Ok(tracks((0, 0), (0, 0))));
}

#[test]
fn a_long_gap_is_no_interval() {
    let mut counters = known();
    for _ in 0..MISSING_AFTER {
        assert_eq!(
            counters.advance(&[silent("s"), scrape("c", OLD, 25, 2)], SINCE, None),
            Err(Gap::NoCounters)
        );
    }
    let scrapes = [scrape("s", OLD, 150, 11), scrape("c", OLD, 30, 4)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(tracks((0, 0), (0, 0))));
    let scrapes = [scrape("s", OLD, 151, 11), scrape("c", OLD, 31, 4)];
    assert_eq!(counters.advance(&scrapes, SINCE, None), Ok(tracks((1, 0), (1, 0))));
}

#[test]
fn more_pods_than_are_kept_are_a_gap() {
    let pods = |count: usize| -> Vec<Scrape> {
        (0..count).map(|pod| scrape(&format!("s{pod}"), OLD, 1, 0)).collect()
    };
    let mut counters = Counters::default();
    assert_eq!(counters.advance(&pods(MOST_PODS + 1), SINCE, None), Err(Gap::TooManyPods));
    assert_eq!(counters.advance(&pods(MOST_PODS), SINCE, None), Ok(tracks((0, 0), (0, 0))));
    assert_eq!(counters.pods.len(), MOST_PODS);
}

#[test]
fn a_pod_that_is_seen_twice_is_a_gap() {
    let twice = [scrape("s", OLD, 150, 10), scrape("s", OLD, 150, 10)];
    assert_eq!(known().advance(&twice, SINCE, None), Err(Gap::SamePodTwice));
}
