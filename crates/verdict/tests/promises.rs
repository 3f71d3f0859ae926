//! Promises that hold for any intervals and any settings.

#![cfg(test)]

use proptest::prelude::*;
use verdict::{
    bucket::{self, Bucket},
    counters::{Counters, Numbers, Scrape, Track},
    e_process::EProcess,
    evidence::Evidence,
    interval::{Counts, Flow, Interval, MOST_REQUESTS, Sample, Tracks},
    judge::{Earlier, Inputs, Judged, Judgement, Step, Verdict, judge},
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

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..400, 1 => Just(0), 1 => any::<u64>()]
}

fn flow() -> impl Strategy<Value = Flow> {
    (number(), counts(), prop_oneof![1 => Just(0), 2 => number()])
        .prop_map(|(arrivals, ended, in_flight)| Flow { arrivals, ended, in_flight, restarts: 0 })
}

fn tracks<T: Clone + Default + std::fmt::Debug>(
    of: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Tracks<T>> {
    (of.clone(), of).prop_map(|(stable, candidate)| Tracks { stable, candidate })
}

fn interval() -> impl Strategy<Value = Interval> {
    let sample = (tracks(flow().boxed()), tracks((0_u32..4).boxed()), 0_u64..1_000)
        .prop_map(|(flows, ready_pods, age_seconds)| Sample { flows, ready_pods, age_seconds });
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
    (kind, mode, 1_000_u32..=10_000, limit, prop::option::of(0_u32..300)).prop_map(
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
    (
        any::<u64>(),
        any::<u32>(),
        prop_oneof![0_u32..500, any::<u32>()],
        any::<u32>(),
        100_u32..=100_000,
        0_u32..=16,
    )
        .prop_map(|(seconds, min_seconds, min_requests, interval_seconds, alpha, steps)| Step {
            seconds,
            min_seconds,
            min_requests,
            interval_seconds,
            alpha: Alpha::try_from(alpha).unwrap(),
            steps,
        })
}

fn begin(metrics: &[Metric], step: Step, earlier: Counts) -> Inputs {
    let earlier = Earlier { counts: earlier, bound: None };
    let begin = |metric: &Metric| Judged::begin(metric.clone(), None, earlier, step.min_requests);
    Inputs { step, metrics: metrics.iter().map(begin).collect() }
}

fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

/// The verdict of one metric from the inputs alone, written once more and without the verdicts of the results. `None`: it is
/// not judged.
fn verdict_by_hand(judged: &Judged, step: &Step, enforced: usize) -> Option<Verdict> {
    let Judged { metric, evidence, earlier, .. } = judged;
    let Tracks { stable, candidate } = evidence.totals;
    let is_abort = metric.kind == Kind::Abort;
    let tests = if evidence.fixed.is_some() { 2 } else { 1 };
    let needed = (step.steps.max(1) as usize * enforced.max(1) * tests * 1_000_000_000_u64 as usize)
        .div_ceil(u32::from(step.alpha) as usize);
    let found = |test: &EProcess| test.alarming >= 2 && test.e_value() >= needed as u64;
    let above = |counts: Counts| match metric.limit {
        None => true,
        Some(limit) => Share::of(counts).is_some_and(|share| share > limit),
    };
    if (found(&evidence.against_stable) || tests == 2 && found(&evidence.against_fixed))
        && (above(candidate) || above(evidence.recent))
    {
        return Some(Verdict::Fail);
    }
    let latest = format!("{:?}", evidence.latest);
    if latest == "Incomplete" && evidence.in_a_row >= 3
        || latest == "BucketMismatch"
        || latest == "WarmingUp" && candidate.requests() == 0
    {
        return Some(Verdict::Inconclusive);
    }
    if is_abort && stable.requests() == 0 && evidence.arrivals.stable == 0 {
        return None;
    }
    let control = if is_abort { stable } else { stable.plus(earlier.counts) };
    let by_control = (control.requests() >= u64::from(step.min_requests.max(1))).then(|| {
        let share = Share::of(control).unwrap().millionths();
        (u64::from(share) * 5 / 4 + 5_000).min(1_000_000)
    });
    let limit = metric.limit.map(|limit| u64::from(limit.millionths()));
    let is_without = by_control.is_none() && (is_abort || limit.is_none());
    let allowed = by_control.unwrap_or_default().max(limit.unwrap_or_default());
    let bound = upper_bound(candidate).map(|bound| u64::from(bound.millionths()));
    let in_flight = u128::from(evidence.in_flight.candidate);
    let older = evidence.marks.older;
    let since = u128::from(candidate.requests().saturating_sub(older.ended));
    let chance = evidence.in_flight.candidate.saturating_add(older.in_flight).isqrt();
    let growth = evidence.in_flight.candidate.saturating_add(chance).saturating_sub(older.in_flight);
    let growth = u128::from(growth);
    let grows = growth * 1_000_000 > u128::from(allowed) * since || since < in_flight;
    let hangs = in_flight * 1_000_000 > u128::from(allowed) * u128::from(candidate.requests())
        && grows
        && (evidence.arrivals.stable == 0
            || in_flight * u128::from(evidence.arrivals.stable)
                > 2 * u128::from(evidence.in_flight.stable) * u128::from(evidence.arrivals.candidate));
    let passes = candidate.requests() >= u64::from(step.min_requests)
        && bound.is_some_and(|bound| bound <= allowed)
        && !is_without
        && !hangs;
    Some(if passes { Verdict::Pass } else { Verdict::Inconclusive })
}

fn by_hand(inputs: &Inputs) -> Verdict {
    let is_enforced = |judged: &&Judged| judged.metric.mode == Mode::Enforce;
    let enforced = inputs.metrics.iter().filter(is_enforced).count();
    let verdicts: Vec<Verdict> = (inputs.metrics.iter().filter(is_enforced))
        .filter_map(|judged| verdict_by_hand(judged, &inputs.step, enforced))
        .collect();
    let is_old = inputs.step.seconds >= u64::from(inputs.step.min_seconds);
    if verdicts.contains(&Verdict::Fail) {
        Verdict::Fail
    } else if verdicts.contains(&Verdict::Inconclusive) || verdicts.is_empty() || !is_old {
        Verdict::Inconclusive
    } else {
        Verdict::Pass
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
        let mut kept = begin(&metrics, step, earlier);
        let mut stored = kept.clone();
        for interval in &intervals {
            for (kept, stored) in kept.metrics.iter_mut().zip(&mut stored.metrics) {
                let before = kept.evidence.totals;
                *kept = kept.clone().observe(interval, None);
                *stored = through_json(&through_json(stored).observe(interval, None));
                // Totals never fall.
                let evidence = &kept.evidence;
                for (before, after) in [
                    (before.stable, evidence.totals.stable),
                    (before.candidate, evidence.totals.candidate),
                ] {
                    prop_assert!(before.requests() <= after.requests() && before.bad() <= after.bad());
                    prop_assert!(after.bad() <= after.requests());
                }
                prop_assert!(evidence.e_value() <= 1_000_000_000_000);
                prop_assert!(evidence.against_stable.alarming <= evidence.against_stable.intervals);
                prop_assert!(evidence.against_stable.intervals <= evidence.counted);
            }
            prop_assert_eq!(&kept, &stored);
            let judgement: Judgement = judge(&kept);
            prop_assert_eq!(&judge(&through_json(&kept)), &judgement, "judged again from the status");
            prop_assert_eq!(&through_json(&judgement), &judgement);
            prop_assert_eq!(by_hand(&kept), judgement.verdict);
            prop_assert_eq!(judgement.missing.is_some() && judgement.verdict != Verdict::Inconclusive, false);
        }
    }

    /// The evidence of a status that was edited is judged, whatever it says.
    #[test]
    fn no_status_panics(
        sums in any::<[[i64; 5]; 2]>(),
        numbers in any::<[u32; 7]>(),
        totals in tracks(counts().boxed()),
        arrivals in tracks(any::<u64>().boxed()),
        fixed in prop::option::of(0_u32..=1_000_000),
        next in interval(),
        metric in metric(),
        step in step(),
    ) {
        let [counted, skipped, in_a_row, intervals, alarming, load_intervals, without_stable] = numbers;
        let [against_stable, against_fixed] = sums.map(|log_sums| EProcess { log_sums, intervals, alarming });
        let mut evidence = Evidence::default().observe(&next, &metric);
        evidence = Evidence {
            totals, arrivals, in_flight: arrivals, counted, skipped, in_a_row, against_stable, against_fixed,
            fixed: fixed.map(|share| Share::from_millionths(share).unwrap()),
            ..evidence
        };
        evidence.loads.per_pod = arrivals;
        (evidence.loads.intervals, evidence.loads.without_stable) = (load_intervals, without_stable);
        let earlier = Earlier { counts: totals.stable, bound: None };
        let judged = Judged { metric, evidence, bound: None, earlier }.observe(&next, None);
        let judgement = judge(&Inputs { step, metrics: vec![judged] });
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
                numbers: (!is_gap || pod != 1)
                    .then(|| Numbers { ended: Counts::new(*requests, *bad).unwrap(), in_flight: 0 }),
                may_be_silent: false,
            }).collect();
            match counters.advance(&scrapes, 0, None) {
                Ok(tracks) => {
                    for flow in [tracks.stable, tracks.candidate] {
                        added.0 += flow.ended.requests();
                        added.1 += flow.ended.bad();
                    }
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
