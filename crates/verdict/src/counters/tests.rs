use super::*;

/// When everything before is counted.
const SINCE: i64 = 1_000;
/// Of a container that is older.
const OLD: i64 = 500;

fn scrape(pod: &str, started: i64, requests: u64, bad: u64) -> Scrape {
    let track = if pod.starts_with('c') { Track::Candidate } else { Track::Stable };
    let counts = Some(Counts::new(requests, bad).unwrap());
    Scrape { pod: pod.to_owned(), track, started, counts }
}

fn silent(pod: &str) -> Scrape {
    Scrape { counts: None, ..scrape(pod, OLD, 0, 0) }
}

fn counts(requests: u64, bad: u64) -> Counts {
    Counts::new(requests, bad).unwrap()
}

fn tracks(stable: (u64, u64), candidate: (u64, u64)) -> Tracks<Counts> {
    Tracks { stable: counts(stable.0, stable.1), candidate: counts(candidate.0, candidate.1) }
}

/// Of one stable pod and one candidate pod after their first look.
fn known() -> Counters {
    let mut counters = Counters::default();
    let first = counters.advance(&[scrape("s", OLD, 100, 10), scrape("c", OLD, 20, 2)], SINCE);
    assert_eq!(first, Ok(tracks((0, 0), (0, 0))), "their counts may be older than the step");
    counters
}

#[test]
fn pods_add_the_differences_of_their_counters_to_their_track() {
    let mut counters = known();
    let scrapes = [scrape("s", OLD, 150, 11), scrape("c", OLD, 25, 4)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((50, 1), (5, 2))));
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((0, 0), (0, 0))), "only once");
}

#[test]
fn a_restarted_container_adds_its_counts_since_its_start() {
    let mut counters = known();
    let scrapes = [scrape("s", OLD, 100, 10), scrape("c", 1_200, 7, 3)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((0, 0), (7, 3))));
    // Also if they are higher than before already.
    let scrapes = [scrape("s", 1_300, 400, 50), scrape("c", 1_200, 9, 3)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((400, 50), (2, 0))));
}

#[test]
fn a_counter_that_fell_began_anew_from_zero() {
    let mut counters = known();
    let scrapes = [scrape("s", OLD, 30, 1), scrape("c", OLD, 25, 1)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((30, 1), (25, 1))), "either of the two");
}

#[test]
fn a_start_that_is_seen_after_the_fall_is_the_same_restart() {
    let mut counters = known();
    let at = |started, requests| [scrape("s", OLD, 100, 10), scrape("c", started, requests, 0)];
    assert_eq!(counters.advance(&at(OLD, 5), SINCE), Ok(tracks((0, 0), (5, 0))));
    assert_eq!(counters.advance(&at(1_200, 8), SINCE), Ok(tracks((0, 0), (3, 0))), "not 8");
    assert_eq!(counters.advance(&at(1_300, 9), SINCE), Ok(tracks((0, 0), (9, 0))), "the next restart");
    assert_eq!(counters.advance(&at(1_200, 11), SINCE), Ok(tracks((0, 0), (2, 0))), "an older status");
    assert_eq!(counters.advance(&at(1_300, 12), SINCE), Ok(tracks((0, 0), (1, 0))), "no restart");
}

#[test]
fn a_new_pod_adds_its_counts_only_if_it_started_after_everything_was_counted() {
    let mut counters = known();
    let two = [scrape("s", OLD, 100, 10), scrape("c", OLD, 20, 2)];
    let with = |pod: Scrape| [two.to_vec(), vec![pod]].concat();
    let added = counters.clone().advance(&with(scrape("c2", SINCE + 1, 6, 1)), SINCE);
    assert_eq!(added, Ok(tracks((0, 0), (6, 1))));
    // A caller that restarted gives the time of its last look, so that they are not counted twice.
    let added = counters.clone().advance(&with(scrape("c2", SINCE + 1, 6, 1)), SINCE + 15);
    assert_eq!(added, Ok(tracks((0, 0), (0, 0))));
    let added = counters.advance(&with(scrape("c2", SINCE, 6, 1)), SINCE);
    assert_eq!(added, Ok(tracks((0, 0), (0, 0))), "not known to be later");
    let added = counters.advance(&with(scrape("c2", SINCE, 8, 1)), SINCE);
    assert_eq!(added, Ok(tracks((0, 0), (2, 0))), "from then on the difference");
}

#[test]
fn a_pod_that_is_gone_is_forgotten() {
    let mut counters = known();
    let only = [scrape("s", OLD, 110, 10)];
    assert_eq!(counters.advance(&only, SINCE), Ok(tracks((10, 0), (0, 0))));
    assert_eq!(counters.pods.len(), 1);
}

#[test]
fn a_gap_counts_for_no_track_and_is_counted_for_both_afterwards() {
    let mut counters = known();
    // Both fail in the gap. Counted for one of them, it would be evidence.
    assert_eq!(counters.advance(&[scrape("s", OLD, 140, 30), silent("c")], SINCE), Err(Gap::NoCounters));
    let scrapes = [scrape("s", OLD, 150, 30), scrape("c", OLD, 25, 7)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((50, 20), (5, 5))));
}

#[test]
fn a_long_gap_is_no_interval() {
    let mut counters = known();
    for _ in 0..MISSING_AFTER {
        assert_eq!(counters.advance(&[silent("s"), scrape("c", OLD, 25, 2)], SINCE), Err(Gap::NoCounters));
    }
    let scrapes = [scrape("s", OLD, 150, 11), scrape("c", OLD, 30, 4)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((0, 0), (0, 0))));
    let scrapes = [scrape("s", OLD, 151, 11), scrape("c", OLD, 31, 4)];
    assert_eq!(counters.advance(&scrapes, SINCE), Ok(tracks((1, 0), (1, 0))));
}

#[test]
fn more_pods_than_are_kept_are_a_gap() {
    let pods = |count: usize| -> Vec<Scrape> {
        (0..count).map(|pod| scrape(&format!("s{pod}"), OLD, 1, 0)).collect()
    };
    let mut counters = Counters::default();
    assert_eq!(counters.advance(&pods(MOST_PODS + 1), SINCE), Err(Gap::TooManyPods));
    assert_eq!(counters.advance(&pods(MOST_PODS), SINCE), Ok(tracks((0, 0), (0, 0))));
    assert_eq!(counters.pods.len(), MOST_PODS);
}

#[test]
fn a_pod_that_is_seen_twice_is_a_gap() {
    let twice = [scrape("s", OLD, 150, 10), scrape("s", OLD, 150, 10)];
    assert_eq!(known().advance(&twice, SINCE), Err(Gap::SamePodTwice));
}
