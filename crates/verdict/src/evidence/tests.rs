use super::*;
use crate::{burst::MOST_BAD, metric::Mode};

const AGE: u64 = 1_000;

fn metric(kind: Kind) -> Metric {
    Metric {
        name: "errorRate".to_owned(),
        kind,
        mode: Mode::Enforce,
        tolerated: Ratio::ONE,
        limit: None,
        warmup_seconds: Some(120),
    }
}

/// Requests, and the bad ones of them.
type Pair = (u64, u64);

fn counts(stable: Pair, candidate: Pair) -> Tracks<Counts> {
    let counts = |(requests, bad)| Counts::new(requests, bad).unwrap();
    Tracks { stable: counts(stable), candidate: counts(candidate) }
}

/// Of as many arrivals as ended requests.
fn sample(stable: Pair, candidate: Pair) -> Sample {
    let counts = counts(stable, candidate);
    let flow = |ended: Counts| Flow { arrivals: ended.requests(), ended, in_flight: 0, restarts: 0 };
    let flows = Tracks { stable: flow(counts.stable), candidate: flow(counts.candidate) };
    Sample { flows, ready_pods: Tracks { stable: 1, candidate: 1 }, age_seconds: AGE }
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
    // By hand, with f = 5.263, 3.571, 2.5, 1.818, 1.429: the mean of f / 2 + 1/2; of f² / 2 + f / 4 + 1/4; and so on.
    let e_values = [1, 2].map(|events| after(&vec![one; events]).e_value());
    for (found, expected) in e_values.into_iter().zip([1_958.0, 6_184.0_f64]) {
        assert!((found as f64 / expected - 1.0).abs() < 0.001, "{found} of {expected}");
    }
    assert!(!after(&[one; 3]).is_alarm(100_000, None));
    assert!(after(&[one; 4]).is_alarm(100_000, None));
}

#[test]
fn an_event_of_each_track_changes_l_as_in_section_6() {
    // p0 = 10 · 1.25 / (10 · 1.25 + 90) = 0.12195; for r = 2, pr = 0.21739.
    let metric = Metric { tolerated: Ratio::new(1.25).unwrap(), ..metric(Kind::Failure) };
    let observe = |stable, candidate| {
        let interval = Interval::Complete(sample((90, stable), (10, candidate)));
        Evidence::default().observe(&interval, &metric).against_stable.log_sums[1] as f64 / 1e6 - 0.5_f64.ln()
    };
    assert!((observe(0, 1) - (0.217_391_3_f64 / 0.121_951_2).ln()).abs() < 2e-6);
    assert!((observe(1, 0) - (0.782_608_7_f64 / 0.878_048_8).ln()).abs() < 2e-6);
    let both = observe(2, 1) - observe(0, 1) - 2.0 * observe(1, 0);
    assert!(both.abs() < 4e-6, "events add up: {both}");
}

#[test]
fn the_logarithms_are_rounded_down() {
    // ln(1/2 · 100 / 105) = −0.7419373447…
    assert_eq!(after(&[((90, 1), (10, 0))]).against_stable.log_sums[0], -741_938);
}

#[test]
fn without_events_the_evidence_is_one() {
    assert_eq!(Evidence::default().e_value(), 1_000);
    assert_eq!(after(&[((90, 0), (10, 0)); 50]).e_value(), 1_000);
}

#[test]
fn events_in_the_share_of_the_requests_are_no_evidence_for_an_alarm() {
    let evidence = after(&[((900, 9), (100, 1)); 100]);
    assert!(evidence.e_value() < 1_000, "{}", evidence.e_value());
}

#[test]
fn what_is_tolerated_is_no_evidence_and_more_is() {
    let metric = Metric { tolerated: Ratio::new(2.0).unwrap(), ..metric(Kind::Failure) };
    let after = |candidate: u64| {
        let interval = Interval::Complete(sample((100, 1), (100, candidate)));
        (0..200).fold(Evidence::default(), |evidence, _| evidence.observe(&interval, &metric))
    };
    assert!(after(2).e_value() < 1_000);
    assert!(after(5).is_alarm(100_000, None));
}

#[test]
fn an_interval_with_a_restart_enters_no_test() {
    let before = after(&[((90, 1), (10, 0)); 4]);
    for (stable, candidate) in [(1, 0), (0, 1)] {
        let mut sample = sample((90, 1), (10, 9));
        (sample.flows.stable.restarts, sample.flows.candidate.restarts) = (stable, candidate);
        let anew = before.observe(&Interval::Complete(sample), &metric(Kind::Failure));
        assert_eq!((anew.against_stable, anew.usual), (before.against_stable, before.usual));
        assert_eq!(anew.totals, counts((450, 5), (50, 9)), "the totals have it");
    }
}

#[test]
fn a_batch_that_fails_at_once_is_one_event() {
    let of = |crash| after(&[((1_800, 0), (200, crash))]).e_value();
    assert_eq!((of(20), of(200)), (of(1), of(1)));
    assert!(of(3) > of(200), "three single ones");
}

#[test]
fn more_than_twenty_events_of_an_interval_enter_as_twenty_with_the_same_ratio() {
    let usual = vec![((100, 10), (100, 10)); 3];
    let next = |stable, candidate| observe(after(&usual), (100, stable), (100, candidate));
    let [few, many] = [next(10, 10), next(20, 20)];
    assert_eq!(few.against_stable, many.against_stable);
    assert_eq!(many.totals, counts((400, 50), (400, 50)), "the totals have all");
    assert_eq!(MOST_BAD, 20);
}

#[test]
fn one_interval_never_gives_an_alarm() {
    let crash = ((90, 0), (200, 200));
    assert!(after(&[crash]).e_value() <= 20_000);
    // The factor forbids it for an alpha of 0.01; the intervals are counted for larger ones.
    let one_of_many = after(&[((900, 0), (100, 3)), ((900, 0), (100, 0))]);
    assert!(one_of_many.e_value() >= 5_000 && !one_of_many.is_alarm(5_000, None));
    assert_eq!(one_of_many.against_stable.alarming, 1);
}

#[test]
fn arrivals_are_the_exposure_and_not_ended_requests() {
    // Each track fails 2 % of what arrives. The candidate's weight just rose, so few of its answers have ended.
    let flow = |arrivals, ended, bad| Flow {
        arrivals,
        ended: Counts::new(ended, bad).unwrap(),
        in_flight: 0,
        restarts: 0,
    };
    let flows = Tracks { stable: flow(500, 450, 10), candidate: flow(500, 90, 10) };
    let interval = Interval::Complete(Sample { flows, ..sample((0, 0), (0, 0)) });
    let evidence = Evidence::default().observe(&interval, &metric(Kind::Failure));
    assert!(evidence.e_value() < 1_000, "{}", evidence.e_value());
    assert_eq!(evidence.totals, counts((450, 10), (90, 10)));
}

#[test]
fn a_bad_request_of_earlier_arrivals_makes_the_exposure_no_smaller() {
    let flow = |arrivals, ended, bad| Flow {
        arrivals,
        ended: Counts::new(ended, bad).unwrap(),
        in_flight: 0,
        restarts: 0,
    };
    let with = |arrivals| {
        let flows = Tracks { stable: flow(90, 90, 0), candidate: flow(arrivals, 3, 3) };
        let interval = Interval::Complete(Sample { flows, ..sample((0, 0), (0, 0)) });
        Evidence::default().observe(&interval, &metric(Kind::Failure)).against_stable
    };
    assert_eq!(with(0), with(3));
}

#[test]
fn with_a_limit_the_share_must_be_above_it() {
    let limit = Share::from_percent(1.0).ok();
    let worse = after(&vec![((9_000, 0), (1_000, 5)); 8]);
    assert!(worse.is_alarm(100_000, None));
    assert!(!worse.is_alarm(100_000, limit), "0.5 % is within the limit");
    assert!(worse.is_alarm(100_000, Share::from_percent(0.4).ok()));
    // A fault after a long good time is above it in the last minutes.
    let good = after(&vec![((900, 0), (100, 0)); 500]);
    let broken = (0..8).fold(good, |evidence, _| observe(evidence, (900, 0), (100, 100)));
    assert!(Share::of(broken.totals.candidate) < Share::from_percent(5.0).ok());
    assert!(broken.is_alarm(100_000, Share::from_percent(5.0).ok()));
}

fn fixed(percent: f64) -> Evidence {
    Evidence::begin(Share::from_percent(percent).ok())
}

#[test]
fn without_control_a_fixed_share_finds_a_broken_candidate() {
    for stable in [(0, 0), (15, 0)] {
        let broken = (0..4).fold(fixed(1.0), |evidence, _| observe(evidence, stable, (285, 285)));
        assert!(broken.is_alarm(200_000, None), "{stable:?}: {}", broken.e_value());
        let none = (0..4).fold(Evidence::begin(None), |evidence, _| observe(evidence, stable, (285, 285)));
        assert!(!none.is_alarm(200_000, None) && none.tests() == 1);
    }
    let allowed = (0..500).fold(fixed(1.0), |evidence, _| observe(evidence, (0, 0), (100, 1)));
    assert!(allowed.e_value() <= 1_000);
}

#[test]
fn beside_a_control_nothing_is_compared_with_a_fixed_share() {
    let evidence = observe(fixed(1.0), (30, 30), (270, 270));
    assert_eq!((evidence.against_fixed, evidence.tests()), (EProcess::default(), 2));
    assert_eq!(observe(fixed(1.0), (29, 29), (270, 270)).against_fixed.intervals, 1);
}

#[test]
fn a_fixed_share_is_compared_with_the_bad_part_of_what_arrived() {
    // 6 of 285 fail at once. Of the others, 14 have ended.
    let candidate = Flow { arrivals: 285, ended: Counts::new(20, 6).unwrap(), in_flight: 265, restarts: 0 };
    let flows = Tracks { candidate, ..Tracks::default() };
    let evidence = fixed(3.0)
        .observe(&Interval::Complete(Sample { flows, ..sample((0, 0), (0, 0)) }), &metric(Kind::Failure));
    assert!(evidence.against_fixed.e_value() < 1_000, "{}", evidence.against_fixed.e_value());
}

#[test]
fn a_good_interval_with_many_bad_requests_is_not_scaled_up() {
    // ln(1/2) + 30 · ln(1.5) + 970 · ln(0.85 / 0.9) = −43.97; scaled to 20 events, it would be −29.5.
    let log = observe(fixed(10.0), (0, 0), (1_000, 30)).against_fixed.log_sums[0];
    assert!((-44_000_000..-43_900_000).contains(&log), "{log}");
}

#[test]
fn a_fixed_share_is_never_none_or_all() {
    assert_eq!(Evidence::begin(Some(Share::NONE)).fixed, Some(LEAST_FIXED));
    assert_eq!(Evidence::begin(Some(Share::ALL)).fixed, None);
    let high = observe(fixed(99.9999), (0, 0), (100, 100));
    assert!(high.e_value() <= 1_000 && high.against_fixed.log_sums.iter().all(|log| *log < 0));
}

/// A day of 5760 intervals with 1 % bad at a tenth of 20 requests per second.
#[test]
fn after_a_day_of_equal_versions_a_broken_candidate_is_found_within_ten_intervals() {
    let day = (0..5_760_u64).fold(fixed(1.0), |evidence, look| {
        observe(evidence, (270, 2 + u64::from(look % 10 < 7)), (30, u64::from(look % 10 < 3)))
    });
    assert!(!day.is_alarm(200_000, None));
    let mut broken = day;
    let found = (1..=10).find(|_| {
        broken = observe(broken, (270, 3), (30, 30));
        broken.is_alarm(200_000, Share::from_percent(1.0).ok())
    });
    println!("found after {found:?}");
    assert!(found.is_some(), "{broken:?}");
}

#[test]
fn a_crash_is_no_alarm_when_ordinary_events_of_both_tracks_follow() {
    let ordinary = vec![((900, 2), (100, 0)), ((900, 1), (100, 1)), ((900, 3), (100, 0))];
    let mut evidence = after(&[((900, 1), (100, 64))]);
    for (stable, candidate) in ordinary {
        evidence = observe(evidence, stable, candidate);
        assert!(!evidence.is_alarm(100_000, None), "{}", evidence.e_value());
    }
    assert_eq!(evidence.against_stable.alarming, 2);
}

#[test]
fn an_interval_without_requests_of_one_track_gives_totals_and_no_evidence() {
    for (stable, candidate) in [((0, 0), (100, 90)), ((100, 90), (0, 0)), ((0, 0), (0, 0))] {
        let evidence = after(&[(stable, candidate); 10]);
        assert_eq!(evidence.against_stable, EProcess::default(), "{stable:?} {candidate:?}");
        assert_eq!((evidence.e_value(), evidence.counted), (1_000, 10));
    }
    assert_eq!(after(&[((0, 0), (100, 90)); 2]).totals, counts((0, 0), (200, 180)));
}

#[test]
fn a_share_that_rounds_to_all_or_none_gives_numbers() {
    let most = crate::interval::MOST_REQUESTS;
    for (stable, candidate) in [((1, 1), (most, most)), ((most, most), (1, 1)), ((1, 0), (most, 20))] {
        let evidence = after(&[(stable, candidate); 3]);
        assert!(evidence.against_stable.log_sums.iter().all(|log| log.abs() < 1_000_000_000), "{evidence:?}");
        assert!(!evidence.is_alarm(100_000, None), "as expected with such requests: {evidence:?}");
    }
}

#[test]
fn the_warm_up_is_dropped_and_is_no_gap() {
    let early = Interval::Complete(Sample { age_seconds: 119, ..sample((90, 0), (10, 9)) });
    let on_time = Interval::Complete(Sample { age_seconds: 120, ..sample((90, 0), (10, 9)) });
    let evidence = Evidence::default().observe(&early, &metric(Kind::Failure));
    let loads = evidence.loads;
    assert_eq!(evidence, Evidence { latest: Latest::WarmingUp, in_a_row: 1, loads, ..Evidence::default() });
    assert_eq!(evidence.observe(&on_time, &metric(Kind::Failure)).counted, 1);
}

#[test]
fn latencies_count_only_under_comparable_arrivals() {
    let interval = Interval::Complete(sample((90, 0), (40, 9)));
    let evidence = Evidence::default().observe(&interval, &metric(Kind::Latency));
    assert_eq!((evidence.latest, evidence.skipped), (Latest::LoadMismatch, 1));
    assert_eq!((evidence.totals, evidence.against_stable), (Tracks::default(), EProcess::default()));
    for kind in [Kind::Failure, Kind::Abort] {
        assert_eq!(Evidence::default().observe(&interval, &metric(kind)).counted, 1);
    }
}

#[test]
fn a_slow_candidate_is_not_excused_by_the_requests_that_it_piles_up() {
    let flow = |in_flight| Flow { arrivals: 50, ended: Counts::new(50, 0).unwrap(), in_flight, restarts: 0 };
    let flows = Tracks { stable: flow(20), candidate: flow(200) };
    let interval = Interval::Complete(Sample { flows, ..sample((0, 0), (0, 0)) });
    let evidence = Evidence::default().observe(&interval, &metric(Kind::Latency));
    assert_eq!(
        (evidence.latest, evidence.in_flight),
        (Latest::Counted, Tracks { stable: 20, candidate: 200 })
    );
}

#[test]
fn at_full_weight_latencies_count_without_comparison() {
    let interval = Interval::Complete(sample((0, 0), (500, 9)));
    let evidence = Evidence::default().observe(&interval, &metric(Kind::Latency));
    assert_eq!((evidence.counted, evidence.totals), (1, counts((0, 0), (500, 9))));
}

#[test]
fn what_is_missing_is_counted_in_a_row_and_changes_no_evidence() {
    let before = after(&[((90, 1), (10, 3))]);
    let metric = metric(Kind::Failure);
    let gaps = (0..3).fold(before, |evidence, _| evidence.observe(&Interval::Incomplete, &metric));
    assert_eq!((gaps.latest, gaps.in_a_row, gaps.skipped), (Latest::Incomplete, 3, 3));
    assert_eq!((gaps.totals, gaps.against_stable, gaps.counted), (before.totals, before.against_stable, 1));
    let other = gaps.observe(&Interval::BucketMismatch, &metric);
    assert_eq!((other.latest, other.in_a_row), (Latest::BucketMismatch, 1));
    assert_eq!(observe(other, (90, 0), (10, 0)).in_a_row, 1);
}

#[test]
fn numbers_end_at_the_largest_and_the_smallest() {
    let process = |log_sums| EProcess { log_sums, intervals: u32::MAX, alarming: u32::MAX };
    let most = Evidence {
        counted: u32::MAX,
        skipped: u32::MAX,
        in_a_row: u32::MAX,
        latest: Latest::Counted,
        ..fixed(1.0)
    };
    let highest =
        Evidence { against_stable: process([i64::MAX; 5]), against_fixed: process([i64::MAX; 5]), ..most };
    let next = observe(highest, (90, 0), (10, 1));
    assert_eq!(
        (next.against_stable, next.counted, next.in_a_row),
        (highest.against_stable, u32::MAX, u32::MAX)
    );
    assert_eq!(highest.e_value(), 1_000_000_000_000, "10^9");
    let lowest =
        Evidence { against_stable: process([i64::MIN; 5]), against_fixed: process([i64::MIN; 5]), ..most };
    assert_eq!(lowest.e_value(), 0);
    assert!(observe(lowest, (90, 0), (10, 1)).against_stable.log_sums[0] > -60_000_000, "mass begins anew");
}

#[test]
fn a_status_holds_integers() {
    let json = serde_json::to_string(&after(&[((90, 1), (10, 3))])).unwrap();
    assert!(
        json.starts_with(
            r#"{"totals":{"stable":{"requests":90,"bad":1},"candidate":{"requests":10,"bad":3}},"#
        )
    );
    assert!(json.contains(r#""againstStable":{"logSums":["#), "{json}");
    assert!(!json.contains("null") && !json.contains('.'), "{json}");
}

#[test]
fn evidence_of_other_versions_and_damaged_evidence_can_be_read() {
    let known = after(&[((90, 1), (10, 3))]);
    let json = serde_json::to_string(&known).unwrap();
    let read = |json: &str| serde_json::from_str::<Evidence>(json).unwrap();
    assert_eq!(read(&json), known);
    assert_eq!(read("{}"), Evidence::default());
    // Older: logarithms of a test that had no restarts.
    let older = r#"{"totals":{"stable":{"requests":90,"bad":1},"candidate":{"requests":10,"bad":3}},"logRatios":[1,2,3,4,5],"counted":1}"#;
    assert_eq!(read(older), Evidence { totals: known.totals, counted: 1, ..Evidence::default() });
    // Newer: more fields, more words, more ratios.
    let newer = json
        .replace(r#""counted":"#, r#""more":{"a":[1]},"counted":"#)
        .replace(r#""latest":"counted""#, r#""latest":"asleep""#);
    assert_ne!(newer, json);
    assert_eq!(read(&newer), Evidence { latest: Latest::Nothing, ..known });
    let ratios = r#"{"againstStable":{"logSums":[1,2,3,4,5,6],"intervals":3}}"#;
    assert_eq!(read(ratios).against_stable.log_sums, [0; 5]);
    // Damaged.
    let damaged = r#"{"totals":{"stable":{"requests":3,"bad":4}},"counted":-1,"againstStable":7,"fixed":2000000,"loads":null}"#;
    assert_eq!(read(damaged), Evidence::default());
}
