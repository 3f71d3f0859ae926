use super::*;
use crate::{interval::Load, metric::Mode};

const AGE: u64 = 1_000;

fn metric(kind: Kind) -> Metric {
    Metric {
        name: "errorRate".to_owned(),
        kind,
        mode: Mode::Enforce,
        tolerated: Ratio::ONE,
        limit: None,
        warmup_seconds: 120,
    }
}

/// Requests, and the bad ones of them.
type Pair = (u64, u64);

fn counts(stable: Pair, candidate: Pair) -> Tracks<Counts> {
    let counts = |(requests, bad)| Counts::new(requests, bad).unwrap();
    Tracks { stable: counts(stable), candidate: counts(candidate) }
}

fn sample(stable: Pair, candidate: Pair) -> Sample {
    let load = Load::new(4.0, 1).unwrap();
    let loads = Tracks { stable: load, candidate: load };
    Sample { counts: counts(stable, candidate), loads, age_seconds: AGE }
}

fn observe(evidence: Evidence, stable: Pair, candidate: Pair) -> Evidence {
    evidence.observe(&Interval::Complete(sample(stable, candidate)), &metric(Kind::Failure))
}

/// Of intervals with counts of the stable version and of the candidate.
fn after(intervals: &[(Pair, Pair)]) -> Evidence {
    intervals
        .iter()
        .fold(Evidence::default(), |evidence, (stable, candidate)| observe(evidence, *stable, *candidate))
}

#[test]
fn four_events_are_enough_at_a_tenth_of_the_requests_when_the_stable_version_has_none() {
    let one = ((90, 0), (10, 1));
    // By hand: (5.263^n + 3.571^n + 2.5^n + 1.818^n + 1.429^n) / 5.
    let evidence = [1, 2, 3, 4].map(|events| after(&vec![one; events]).evidence());
    let expected = [2_916.0, 10_410.0, 43_175.0, 196_780.0_f64];
    for (evidence, expected) in evidence.into_iter().zip(expected) {
        assert!((evidence as f64 / expected - 1.0).abs() < 0.001, "{evidence} of {expected}");
    }
    assert!(!after(&[one; 3]).is_alarm(100_000));
    assert!(after(&[one; 4]).is_alarm(100_000));
}

#[test]
fn an_event_of_each_track_changes_l_as_in_section_6() {
    // p0 = 10 · 1.25 / (10 · 1.25 + 90) = 0.12195; for r = 2, pr = 0.21739.
    let metric = Metric { tolerated: Ratio::new(1.25).unwrap(), ..metric(Kind::Failure) };
    let observe = |stable, candidate| {
        let interval = Interval::Complete(sample((90, stable), (10, candidate)));
        Evidence::default().observe(&interval, &metric).log_ratios[1] as f64 / 1e6
    };
    assert!((observe(0, 1) - (0.217_391_3_f64 / 0.121_951_2).ln()).abs() < 2e-6);
    assert!((observe(1, 0) - (0.782_608_7_f64 / 0.878_048_8).ln()).abs() < 2e-6);
    let both = observe(2, 1) - observe(0, 1) - 2.0 * observe(1, 0);
    assert!(both.abs() < 4e-6, "events add up: {both}");
}

#[test]
fn the_logarithms_are_rounded_down() {
    let evidence = after(&[((90, 1), (10, 0))]);
    // ln(100 / 105) = −0.04879016…
    assert_eq!(evidence.log_ratios[0], -48_791);
    assert_eq!(after(&[((90, 0), (10, 0))]), Evidence { counted: 1, ..evidence_without_events() });
}

fn evidence_without_events() -> Evidence {
    Evidence { totals: counts((90, 0), (10, 0)), latest: Latest::Counted, in_a_row: 1, ..Evidence::default() }
}

#[test]
fn without_events_the_evidence_is_one() {
    assert_eq!(Evidence::default().evidence(), 1_000);
    assert_eq!(after(&[((90, 0), (10, 0)); 50]).evidence(), 1_000);
}

#[test]
fn events_in_the_share_of_the_requests_are_no_evidence_for_an_alarm() {
    let evidence = after(&[((900, 9), (100, 1)); 100]);
    assert!(evidence.evidence() < 1_000, "{}", evidence.evidence());
}

#[test]
fn what_is_tolerated_is_no_evidence_and_more_is() {
    let metric = Metric { tolerated: Ratio::new(2.0).unwrap(), ..metric(Kind::Failure) };
    let after = |candidate: u64| {
        let interval = Interval::Complete(sample((100, 1), (100, candidate)));
        (0..200).fold(Evidence::default(), |evidence, _| evidence.observe(&interval, &metric))
    };
    assert!(after(2).evidence() < 1_000);
    assert!(after(5).is_alarm(100_000));
}

#[test]
fn more_than_twenty_events_of_an_interval_enter_as_twenty_with_the_same_ratio() {
    let few = after(&[((100, 10), (100, 10))]);
    let many = after(&[((100, 100), (100, 100))]);
    assert_eq!(few.log_ratios, many.log_ratios);
    assert_eq!(many.totals, counts((100, 100), (100, 100)), "the totals have all");
    let at_the_limit = after(&[((100, 11), (100, 9))]);
    let scaled = after(&[((1_000, 110), (1_000, 90))]);
    assert_eq!(at_the_limit.log_ratios, scaled.log_ratios);
}

#[test]
fn one_interval_never_gives_an_alarm_and_two_do() {
    let crash = ((90, 0), (200, 200));
    let once = after(&[crash]);
    assert!(once.evidence() <= 20_000, "{}", once.evidence());
    let twice = after(&[((900, 0), (100, 100)); 2]);
    assert!(twice.is_alarm(400_000 - 100), "{}", twice.evidence());
    // The factor forbids it for an alpha of 0.01; the intervals are counted for larger ones.
    let one_of_many = after(&[((900, 0), (100, 3)), ((900, 0), (100, 0))]);
    assert!(one_of_many.evidence() >= 10_000 && !one_of_many.is_alarm(10_000));
    assert_eq!(one_of_many.alarming, 1);
}

#[test]
fn a_crash_is_no_alarm_when_ordinary_events_of_both_tracks_follow() {
    let ordinary = vec![((900, 2), (100, 0)), ((900, 1), (100, 1)), ((900, 3), (100, 0))];
    let mut evidence = after(&[((900, 1), (100, 64))]);
    for (stable, candidate) in ordinary {
        evidence = observe(evidence, stable, candidate);
        assert!(!evidence.is_alarm(100_000), "{}", evidence.evidence());
    }
    assert_eq!(evidence.alarming, 2);
}

#[test]
fn an_interval_without_requests_of_one_track_gives_totals_and_no_evidence() {
    for (stable, candidate) in [((0, 0), (100, 90)), ((100, 90), (0, 0)), ((0, 0), (0, 0))] {
        let evidence = after(&[(stable, candidate); 10]);
        assert_eq!((evidence.log_ratios, evidence.alarming), ([0; 5], 0), "{stable:?} {candidate:?}");
        assert_eq!((evidence.evidence(), evidence.counted), (1_000, 10));
    }
    assert_eq!(after(&[((0, 0), (100, 90)); 2]).totals, counts((0, 0), (200, 180)));
}

#[test]
fn a_share_that_rounds_to_all_or_none_gives_numbers() {
    let most = crate::interval::MOST_REQUESTS;
    for (stable, candidate) in [((1, 1), (most, most)), ((most, most), (1, 1)), ((1, 0), (most, 20))] {
        let evidence = after(&[(stable, candidate); 3]);
        assert!(evidence.log_ratios.iter().all(|log| log.abs() < 1_000_000_000), "{evidence:?}");
        assert!(!evidence.is_alarm(100_000), "as expected with such requests: {evidence:?}");
    }
}

#[test]
fn the_warm_up_is_dropped_and_is_no_gap() {
    let early = Interval::Complete(Sample { age_seconds: 119, ..sample((90, 0), (10, 9)) });
    let on_time = Interval::Complete(Sample { age_seconds: 120, ..sample((90, 0), (10, 9)) });
    let evidence = Evidence::default().observe(&early, &metric(Kind::Failure));
    assert_eq!(evidence, Evidence { latest: Latest::WarmingUp, in_a_row: 1, ..Evidence::default() });
    assert_eq!(evidence.observe(&on_time, &metric(Kind::Failure)).counted, 1);
}

#[test]
fn latencies_count_only_under_comparable_loads() {
    let loads = Tracks { stable: Load::new(10.0, 1).unwrap(), candidate: Load::new(4.0, 1).unwrap() };
    let interval = Interval::Complete(Sample { loads, ..sample((90, 0), (10, 9)) });
    let evidence = Evidence::default().observe(&interval, &metric(Kind::Latency));
    let expected = Evidence { latest: Latest::LoadMismatch, in_a_row: 1, skipped: 1, ..Evidence::default() };
    assert_eq!(evidence, expected);
    for kind in [Kind::Failure, Kind::Abort] {
        assert_eq!(Evidence::default().observe(&interval, &metric(kind)).counted, 1);
    }
}

#[test]
fn what_is_missing_is_counted_in_a_row_and_changes_no_evidence() {
    let before = after(&[((90, 1), (10, 3))]);
    let metric = metric(Kind::Failure);
    let gaps = (0..3).fold(before, |evidence, _| evidence.observe(&Interval::Incomplete, &metric));
    assert_eq!((gaps.latest, gaps.in_a_row, gaps.skipped), (Latest::Incomplete, 3, 3));
    assert_eq!((gaps.totals, gaps.log_ratios, gaps.counted), (before.totals, before.log_ratios, 1));
    let other = gaps.observe(&Interval::BucketMismatch, &metric);
    assert_eq!((other.latest, other.in_a_row), (Latest::BucketMismatch, 1));
    assert_eq!(observe(other, (90, 0), (10, 0)).in_a_row, 1);
}

#[test]
fn numbers_end_at_the_largest_and_the_smallest() {
    let most = Evidence {
        counted: u32::MAX,
        skipped: u32::MAX,
        alarming: u32::MAX,
        in_a_row: u32::MAX,
        latest: Latest::Counted,
        ..Evidence::default()
    };
    let highest = Evidence { log_ratios: [i64::MAX; 5], ..most };
    assert_eq!(observe(highest, (90, 0), (10, 1)), Evidence { totals: counts((90, 0), (10, 1)), ..highest });
    assert_eq!(highest.evidence(), 1_000_000_000_000, "10^9");
    let lowest = Evidence { log_ratios: [i64::MIN; 5], ..most };
    assert_eq!(observe(lowest, (90, 1), (10, 0)).log_ratios, lowest.log_ratios);
    assert_eq!(lowest.evidence(), 0);
}

#[test]
fn a_status_holds_integers() {
    let json = serde_json::to_string(&after(&[((90, 1), (10, 3))])).unwrap();
    assert_eq!(
        json,
        r#"{"totals":{"stable":{"requests":90,"bad":1},"candidate":{"requests":10,"bad":3}},"counted":1,"skipped":0,"alarming":1,"logRatios":[1021234,1698200,2566550,2995732,2995732],"latest":"counted","inARow":1}"#
    );
}
