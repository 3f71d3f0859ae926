//! Requests that take a while. Answers last a minute and failures end at once, so a track whose weight just rose has ended
//! few requests and all of its failures.

use std::collections::BTreeMap;

use verdict::{
    bucket::Bound,
    counters::{Counters, Numbers, Scrape, Track},
    interval::{Counts, Interval, Sample, Tracks},
    judge::{Earlier, Inputs, Judged, Reason, Step, Verdict, judge},
    metric::{Alpha, Kind, Metric, Mode},
    share::Share,
};

use crate::random::{Poisson, Random};

const INTERVAL: f64 = 15.0;

/// How one version answers.
#[derive(Clone, Copy)]
struct Version {
    /// Mean seconds of an answer; infinite if it hangs.
    mean: f64,
    /// Of all requests; they end after 0.2 s.
    failing: f64,
}

const EQUAL: Version = Version { mean: 60.0, failing: 0.02 };

/// One pod: when its requests end, and whether they are bad.
#[derive(Default)]
struct Pod {
    /// By the microsecond of the end.
    running: BTreeMap<u64, bool>,
    hanging: u64,
    ended: u64,
    bad: u64,
}

/// Both versions under one stream of requests.
struct World {
    random: Random,
    pods: [Pod; 2],
    counters: Counters,
    arrivals: Poisson,
    versions: [Version; 2],
    /// Longer ones are bad; without, failures are.
    slow: Option<f64>,
    /// Of the candidate's requests; they never end.
    hanging: f64,
    now: f64,
}

impl World {
    fn of(seed: u64, per_second: f64, versions: [Version; 2], slow: Option<f64>) -> Self {
        let arrivals = Poisson::of(per_second * INTERVAL);
        let (random, counters, pods) = (Random::of(seed), Counters::default(), <[Pod; 2]>::default());
        Self { random, pods, counters, arrivals, versions, slow, hanging: 0.0, now: 0.0 }
    }

    /// One interval at a weight of the candidate from 0 to 1.
    fn interval(&mut self, weight: f64) -> Interval {
        for _ in 0..self.arrivals.draw(&mut self.random) {
            let track = usize::from(self.random.happens(weight));
            let start = self.now + self.random.uniform() * INTERVAL;
            let Version { mean, failing } = self.versions[track];
            let fails = self.random.happens(failing);
            let lasts = if fails { 0.2 } else { -mean * (1.0 - self.random.uniform()).ln() };
            let hangs = track == 1 && self.hanging > 0.0 && self.random.happens(self.hanging);
            let lasts = if hangs { f64::INFINITY } else { lasts };
            let bad = self.slow.map_or(fails, |slow| lasts > slow);
            let pod = &mut self.pods[track];
            if lasts.is_finite() {
                let mut end = ((start + lasts) * 1e6) as u64;
                while pod.running.contains_key(&end) {
                    end += 1;
                }
                pod.running.insert(end, bad);
            } else {
                pod.hanging += 1;
            }
        }
        self.now += INTERVAL;
        for pod in &mut self.pods {
            let later = pod.running.split_off(&((self.now * 1e6) as u64));
            pod.ended += pod.running.len() as u64;
            pod.bad += pod.running.values().filter(|bad| **bad).count() as u64;
            pod.running = later;
        }
        let scrape = |name: &str, track, pod: &Pod| Scrape {
            pod: name.to_owned(),
            track,
            started: 0,
            numbers: Some(Numbers {
                ended: Counts::new(pod.ended, pod.bad).unwrap(),
                in_flight: pod.running.len() as u64 + pod.hanging,
            }),
            may_be_silent: false,
        };
        let [stable, candidate] = &self.pods;
        let scrapes =
            [scrape("stable", Track::Stable, stable), scrape("candidate", Track::Candidate, candidate)];
        let flows = self.counters.advance(&scrapes, 0, self.bound()).unwrap();
        Interval::Complete(Sample {
            flows,
            ready_pods: Tracks { stable: 1, candidate: 1 },
            age_seconds: self.now as u64,
        })
    }

    fn bound(&self) -> Option<Bound> {
        self.slow.map(|slow| Bound::from_seconds(slow).unwrap())
    }
}

fn metric(kind: Kind, limit: Option<f64>) -> Metric {
    Metric {
        name: "metric".to_owned(),
        kind,
        mode: Mode::Enforce,
        tolerated: kind.tolerated(),
        limit: limit.map(|percent| Share::from_percent(percent).unwrap()),
        warmup_seconds: None,
    }
}

/// The verdicts of a step after each of so many intervals.
fn step(
    world: &mut World,
    metric: &Metric,
    earlier: Earlier,
    weight: f64,
    intervals: u32,
) -> Vec<(Verdict, Reason)> {
    let bound = world.bound();
    let mut judged = Judged::begin(metric.clone(), bound, earlier, 300);
    (1..=intervals)
        .map(|look| {
            judged = judged.clone().observe(&world.interval(weight), bound);
            let seconds = u64::from(look) * 15;
            let step = Step {
                seconds,
                min_seconds: 300,
                min_requests: 300,
                interval_seconds: 15,
                alpha: Alpha::ONE_PERCENT,
                steps: 1,
            };
            let judgement = judge(&Inputs { step, metrics: vec![judged.clone()] });
            (judgement.verdict, judgement.reason)
        })
        .collect()
}

fn earlier(counts: (u64, u64)) -> Earlier {
    Earlier { counts: Counts::new(counts.0, counts.1).unwrap(), bound: None }
}

fn has(verdicts: &[(Verdict, Reason)], verdict: Verdict) -> bool {
    verdicts.iter().any(|(of, _)| *of == verdict)
}

/// Five minutes at the weight before, then ten at the next one, with 20 requests per second. How many of 60 seeds fail, and how
/// many pass, after the weight rose.
fn rises(before: f64, after: f64) -> (usize, usize) {
    let metric = metric(Kind::Failure, None);
    let (mut fails, mut passes) = (0, 0);
    for seed in 0..60 {
        let mut world = World::of(900 + seed, 20.0, [EQUAL; 2], None);
        step(&mut world, &metric, Earlier::default(), before, 20);
        let verdicts = step(&mut world, &metric, earlier((9_000, 180)), after, 40);
        fails += usize::from(has(&verdicts, Verdict::Fail));
        passes += usize::from(has(&verdicts, Verdict::Pass));
    }
    (fails, passes)
}

#[test]
fn a_weight_that_rises_accuses_no_equal_version() {
    for (before, after) in [(0.1, 0.5), (0.5, 0.95), (0.5, 1.0)] {
        let (fails, passes) = rises(before, after);
        println!("{before} to {after}: {fails} fail and {passes} pass of 60");
        assert!(fails <= 2, "{before} to {after}: {fails}");
    }
}

#[test]
fn a_candidate_that_is_three_times_slower_is_found() {
    let slower = Version { mean: 60.0, failing: 0.0 };
    let fast = Version { mean: 20.0, failing: 0.0 };
    let metric = metric(Kind::Latency, None);
    let looks: Vec<usize> = (0..20)
        .map(|seed| {
            let mut world = World::of(70 + seed, 4.0, [fast, slower], Some(60.0));
            let verdicts = step(&mut world, &metric, Earlier::default(), 0.5, 80);
            assert!(!has(&verdicts, Verdict::Pass));
            verdicts.iter().position(|(verdict, _)| *verdict == Verdict::Fail).unwrap() + 1
        })
        .collect();
    println!("three times slower: found after {looks:?} intervals");
}

#[test]
fn equal_latencies_are_not_accused() {
    let fast = Version { mean: 20.0, failing: 0.0 };
    let metric = metric(Kind::Latency, None);
    let fails = (0..40).filter(|seed| {
        let mut world = World::of(300 + seed, 4.0, [fast; 2], Some(60.0));
        has(&step(&mut world, &metric, Earlier::default(), 0.5, 120), Verdict::Fail)
    });
    assert_eq!(fails.count(), 0);
}

#[test]
fn a_candidate_that_hangs_never_passes() {
    // Four of ten requests hang; the others are good and end soon.
    let good = Version { mean: 2.0, failing: 0.0 };
    let metric = metric(Kind::Failure, Some(1.0));
    for seed in 0..10 {
        let mut world =
            World::of(seed, 4.0, [good, Version { mean: f64::INFINITY, failing: 0.6 }], Some(1e3));
        let verdicts = step(&mut world, &metric, Earlier::default(), 0.5, 60);
        assert!(!has(&verdicts, Verdict::Pass));
        assert!(verdicts.iter().any(|(_, reason)| *reason == Reason::InFlight), "{verdicts:?}");
    }
}

#[test]
fn a_candidate_that_breaks_at_full_weight_is_found() {
    let metric = metric(Kind::Failure, None);
    for weight in [0.95, 1.0] {
        let mut world = World::of(5, 4.0, [EQUAL; 2], None);
        step(&mut world, &metric, Earlier::default(), 0.5, 20);
        world.versions[1] = Version { failing: 0.5, ..EQUAL };
        let verdicts = step(&mut world, &metric, earlier((9_000, 180)), weight, 20);
        let found = verdicts.iter().position(|(verdict, _)| *verdict == Verdict::Fail).map(|look| look + 1);
        println!("half of the requests fail at {weight}: found after {found:?} intervals");
        assert!(found.is_some_and(|found| found <= 4), "{found:?}");
    }
}

/// Intervals until a pass at weight 100.
fn until_pass(candidate: Version, per_second: f64, seed: u64, most: u32) -> Option<usize> {
    let metric = metric(Kind::Failure, Some(1.0));
    let mut world = World::of(seed, per_second, [EQUAL, candidate], None);
    let verdicts = step(&mut world, &metric, Earlier::default(), 1.0, most);
    verdicts.iter().position(|(verdict, _)| *verdict == Verdict::Pass).map(|look| look + 1)
}

/// The docs of `hanging.rs` have these figures.
#[test]
fn long_answers_at_full_weight_pass_when_those_in_flight_grow_no_more() {
    for (mean, per_second, most) in [(60.0, 20.0, 60), (60.0, 4.0, 60), (180.0, 20.0, 120)] {
        let good = Version { mean, failing: 0.0 };
        let mut looks: Vec<_> = (0..20).map(|seed| until_pass(good, per_second, seed, 240)).collect();
        looks.sort_unstable();
        println!("answers of {mean} s at {per_second}/s: a pass after {looks:?} intervals");
        assert!(looks.iter().all(|look| look.is_some_and(|look| look <= most)), "{looks:?}");
    }
}

/// Of 20 steps of an hour at weight 100 with a limit of 1 %, those that pass.
fn passes_with(hanging: f64, mean: f64) -> usize {
    let good = Version { mean, failing: 0.0 };
    let passes = (0..20).filter(|seed| {
        let mut world = World::of(700 + seed, 20.0, [EQUAL, good], None);
        world.hanging = hanging;
        let metric = metric(Kind::Failure, Some(1.0));
        has(&step(&mut world, &metric, Earlier::default(), 1.0, 240), Verdict::Pass)
    });
    passes.count()
}

#[test]
fn a_candidate_of_which_a_part_hangs_passes_as_rarely_as_the_docs_say() {
    for mean in [2.0, 60.0] {
        for hanging in [0.02, 0.05, 0.4] {
            let passes = passes_with(hanging, mean);
            println!("{hanging} hangs beside answers of {mean} s: {passes} of 20 pass");
            let most = if hanging < 0.05 { 4 } else { 0 };
            assert!(passes <= most, "{hanging} {mean}: {passes}");
        }
    }
}
