//! Promises that hold for any intervals and any settings.

#![cfg(test)]

use proptest::prelude::*;
use verdict::{
    bucket::{self, Bucket},
    counters::{Counters, Scrape, Track},
    evidence::Evidence,
    interval::{Counts, Interval, Load, MOST_REQUESTS, Sample, Tracks},
    judge::{Inputs, Judged, Judgement, Step, Verdict, judge},
    metric::{Alpha, Kind, Metric, Mode, Ratio},
    share::{Share, requests_needed, upper_bound},
};

/// Of every size, with few, many and no bad ones.
fn counts() -> impl Strategy<Value = Counts> {
    let requests = prop_oneof![4 => 0_u64..400, 1 => Just(0), 1 => any::<u64>(), 1 => Just(MOST_REQUESTS)];
    let bad = prop_oneof![4 => 0_u64..30, 1 => Just(0), 1 => any::<u64>()];
    (requests, bad).prop_map(|(requests, bad)| {
        let requests = requests.min(MOST_REQUESTS);
        Counts::new(requests, bad.min(requests)).unwrap()
    })
}

fn load() -> impl Strategy<Value = Load> {
    (0.0_f64..50.0, 0_u32..4).prop_map(|(in_hand, ready)| Load::new(in_hand, ready).unwrap())
}

fn tracks<T: Clone + std::fmt::Debug>(
    of: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Tracks<T>> {
    (of.clone(), of).prop_map(|(stable, candidate)| Tracks { stable, candidate })
}

fn interval() -> impl Strategy<Value = Interval> {
    let sample = (tracks(counts().boxed()), tracks(load().boxed()), 0_u64..1_000)
        .prop_map(|(counts, loads, age_seconds)| Sample { counts, loads, age_seconds });
    prop_oneof![
        8 => sample.prop_map(Interval::Complete),
        1 => Just(Interval::Incomplete),
        1 => Just(Interval::BucketMismatch),
    ]
}

fn metric() -> impl Strategy<Value = Metric> {
    let kind = prop::sample::select(vec![Kind::Failure, Kind::Abort, Kind::Latency]);
    let mode = prop::sample::select(vec![Mode::Enforce, Mode::Enforce, Mode::Observe]);
    let limit = prop::option::of(0_u32..=1_000_000);
    (kind, mode, 1_000_u32..=10_000, limit, 0_u32..300).prop_map(
        |(kind, mode, tolerated, limit, warmup_seconds)| Metric {
            name: "metric".to_owned(),
            kind,
            mode,
            tolerated: Ratio::try_from(tolerated).unwrap(),
            limit: limit.map(|limit| Share::from_millionths(limit).unwrap()),
            warmup_seconds,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    (any::<u64>(), any::<u32>(), prop_oneof![0_u32..500, any::<u32>()], any::<u32>(), 100_u32..=100_000)
        .prop_map(|(seconds, min_seconds, min_requests, interval_seconds, alpha)| Step {
            seconds,
            min_seconds,
            min_requests,
            interval_seconds,
            alpha: Alpha::try_from(alpha).unwrap(),
        })
}

fn inputs(metrics: &[Metric], evidence: &[Evidence], step: Step, earlier: Counts) -> Inputs {
    let judged = |(metric, evidence): (&Metric, &Evidence)| Judged {
        metric: metric.clone(),
        evidence: *evidence,
        earlier,
    };
    Inputs { step, metrics: metrics.iter().zip(evidence).map(judged).collect() }
}

fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

/// The verdict that the numbers of the results give, by comparing them.
fn by_hand(judgement: &Judgement, inputs: &Inputs) -> Verdict {
    let enforced =
        judgement.metrics.iter().zip(&inputs.metrics).filter(|(result, _)| result.mode == Mode::Enforce);
    let (mut passes, mut fails, mut waits) = (0, 0, 0);
    for (result, judged) in enforced {
        let is_allowed =
            result.upper_bound.zip(result.allowed).is_some_and(|(bound, allowed)| bound <= allowed);
        let requests = judged.evidence.totals.candidate.requests();
        if result.evidence >= result.evidence_needed && judged.evidence.alarming >= 2 {
            fails += 1;
        } else if result.verdict.is_none() {
            assert_eq!((judged.metric.kind, result.allowed), (Kind::Abort, None));
        } else if result.verdict == Some(Verdict::Pass) {
            assert!(is_allowed && requests >= u64::from(inputs.step.min_requests));
            passes += 1;
        } else {
            waits += 1;
        }
    }
    let is_old = inputs.step.seconds >= u64::from(inputs.step.min_seconds);
    match (fails, waits, passes) {
        (1.., ..) => Verdict::Fail,
        (0, 0, 1..) if is_old => Verdict::Pass,
        _ => Verdict::Inconclusive,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_status_between_the_intervals_changes_nothing(
        metrics in prop::collection::vec(metric(), 0..4),
        intervals in prop::collection::vec(interval(), 0..30),
        step in step(),
        earlier in counts(),
    ) {
        let mut kept = vec![Evidence::default(); metrics.len()];
        let mut stored = kept.clone();
        for interval in &intervals {
            for (metric, (kept, stored)) in metrics.iter().zip(kept.iter_mut().zip(&mut stored)) {
                let before = kept.totals;
                *kept = kept.observe(interval, metric);
                *stored = through_json(&stored.observe(interval, &through_json(metric)));
                // Totals never fall.
                for (before, after) in [
                    (before.stable, kept.totals.stable),
                    (before.candidate, kept.totals.candidate),
                ] {
                    prop_assert!(before.requests() <= after.requests() && before.bad() <= after.bad());
                    prop_assert!(after.bad() <= after.requests());
                }
                prop_assert!(kept.evidence() <= 1_000_000_000_000);
                prop_assert!(kept.alarming <= kept.counted);
            }
            prop_assert_eq!(&kept, &stored);
            let inputs = inputs(&metrics, &kept, step, earlier);
            let judgement = judge(&inputs);
            prop_assert_eq!(&judge(&through_json(&inputs)), &judgement, "judged again from the status");
            prop_assert_eq!(&through_json(&judgement), &judgement);
            prop_assert_eq!(by_hand(&judgement, &inputs), judgement.verdict);
            prop_assert_eq!(judgement.missing.is_some() && judgement.verdict != Verdict::Inconclusive, false);
        }
    }

    /// The evidence of a status that was edited is judged, whatever it says.
    #[test]
    fn no_status_panics(
        log_ratios in any::<[i64; 5]>(),
        numbers in any::<[u32; 4]>(),
        totals in tracks(counts().boxed()),
        next in interval(),
        metric in metric(),
        step in step(),
    ) {
        let [counted, skipped, alarming, in_a_row] = numbers;
        let latest = Evidence::default().observe(&next, &metric).latest;
        let evidence = Evidence { totals, counted, skipped, alarming, log_ratios, latest, in_a_row };
        let next = evidence.observe(&next, &metric);
        let judgement = judge(&inputs(&[metric], &[next], step, totals.stable));
        prop_assert_eq!(judgement.metrics.len(), 1);
    }

    #[test]
    fn a_bound_is_at_least_the_share_and_falls_with_more_requests(counts in counts(), times in 2_u64..50) {
        match (Share::of(counts), upper_bound(counts)) {
            (None, None) => prop_assert_eq!(counts.requests(), 0),
            (Some(share), Some(bound)) => prop_assert!(share <= bound, "{} {}", share, bound),
            (share, bound) => prop_assert!(false, "{share:?} {bound:?}"),
        }
        if counts.requests() > 0 && counts.requests() < MOST_REQUESTS / 50 {
            let more = Counts::new(counts.requests() * times, counts.bad() * times).unwrap();
            prop_assert!(upper_bound(more) <= upper_bound(counts));
        }
    }

    #[test]
    fn the_requests_that_are_needed_are_enough(
        requests in 1_u64..300,
        bad in 0_u64..40,
        allowed in 0_u32..=1_000_000,
    ) {
        let counts = Counts::new(requests, bad.min(requests)).unwrap();
        let allowed = Share::from_millionths(allowed).unwrap();
        if let Some(needed) = requests_needed(counts, allowed).filter(|needed| *needed < 1 << 40) {
            let times = needed.div_ceil(requests);
            let then = Counts::new(requests * times, counts.bad() * times).unwrap();
            prop_assert!(upper_bound(then).unwrap() <= allowed, "{then:?} {:?} {allowed:?}", upper_bound(then));
        } else {
            prop_assert!(upper_bound(counts).unwrap() >= allowed);
        }
    }

    /// Each pod counts up from its start. However often it is looked at, and whatever fails in between, what is added is
    /// what it counted.
    #[test]
    fn looks_add_up_to_what_the_pods_counted(
        looks in prop::collection::vec((prop::collection::vec((0_u64..50, 0_u64..5), 3), any::<[bool; 2]>()), 1..40),
    ) {
        let mut counters = Counters::default();
        let mut at = [(0, 0); 3];
        let mut counted = (0, 0);
        let mut added = (0, 0);
        let mut gaps = 0;
        for (more, [fails, also]) in looks {
            for (pod, (requests, bad)) in at.iter_mut().zip(more) {
                *pod = (pod.0 + requests + bad, pod.1 + bad);
            }
            // Never so many that the readings are dropped.
            let is_gap = fails && also && gaps < 2;
            gaps = if is_gap { gaps + 1 } else { 0 };
            let scrapes: Vec<Scrape> = at.iter().enumerate().map(|(pod, (requests, bad))| Scrape {
                pod: format!("pod-{pod}"),
                track: if pod == 0 { Track::Candidate } else { Track::Stable },
                started: 10,
                counts: (!is_gap || pod != 1).then(|| Counts::new(*requests, *bad).unwrap()),
            }).collect();
            match counters.advance(&scrapes, 0) {
                Ok(tracks) => {
                    added.0 += tracks.stable.requests() + tracks.candidate.requests();
                    added.1 += tracks.stable.bad() + tracks.candidate.bad();
                    counted = at.iter().fold((0, 0), |sum, pod| (sum.0 + pod.0, sum.1 + pod.1));
                }
                Err(_) => prop_assert!(is_gap),
            }
            prop_assert_eq!(added, counted);
        }
    }

    #[test]
    fn a_bound_is_one_of_both_tracks(
        stable in prop::collection::vec((any::<f64>(), any::<u64>()), 0..8),
        candidate in prop::collection::vec(any::<f64>(), 0..8),
        given in prop::option::of(any::<u32>()),
        share_bounds in any::<bool>(),
    ) {
        let seconds = stable.iter().map(|(le, _)| *le);
        let candidate = if share_bounds {
            bucket::bounds(seconds.clone())
        } else {
            bucket::bounds(candidate)
        };
        let buckets: Vec<Bucket> = stable.iter().map(|(le, count)| Bucket { le: *le, count: *count }).collect();
        let given = given.and_then(|millis| bucket::Bound::from_millis(millis).ok());
        if let Ok(bound) = bucket::bound(given, &buckets, &candidate) {
            prop_assert!(candidate.contains(&bound) && bucket::bounds(seconds).contains(&bound));
            prop_assert!(given.is_none_or(|given| given == bound));
        }
    }
}
