//! The test on simulated traffic: how soon it finds a worse candidate, and how often it accuses an equal one. The expected
//! figures are those of another program. Each has its own chance, so they agree within what 200 runs allow.

#![cfg(test)]

mod clusters;
mod durations;
mod random;

use random::{Poisson, Random};
use verdict::{
    evidence::Evidence,
    interval::{Counts, Flow, Interval, Sample, Tracks},
    judge::{Earlier, Inputs, Judged, Step, Verdict, judge},
    metric::{Alpha, Kind, Metric, Mode, Ratio},
    share::Share,
};

/// The evidence of an alarm at alpha 0.01, in thousandths.
const NEEDED: u64 = 100_000;

fn metric() -> Metric {
    Metric {
        name: "errorRate".to_owned(),
        kind: Kind::Failure,
        mode: Mode::Enforce,
        tolerated: Ratio::ONE,
        limit: Some(Share::from_percent(1.0).unwrap()),
        warmup_seconds: None,
    }
}

/// Requests and bad ones of the stable version, and of the candidate.
fn interval(stable: (u64, u64), candidate: (u64, u64)) -> Interval {
    let flow = |(requests, bad)| Flow {
        arrivals: requests,
        ended: Counts::new(requests, bad).unwrap(),
        in_flight: 0,
        restarts: 0,
    };
    Interval::Complete(Sample {
        flows: Tracks { stable: flow(stable), candidate: flow(candidate) },
        ready_pods: Tracks { stable: 1, candidate: 1 },
        age_seconds: 0,
    })
}

/// Intervals with one bad event each, of a candidate with `percent` of the requests and `ratio` times the bad ones. The
/// number of events until the alarm.
fn events_until_alarm(percent: u64, ratio: f64, (most, needed): (u32, u64), seed: u64) -> Option<u32> {
    let mut random = Random::of(seed);
    let metric = metric();
    let [of_stable, of_candidate] = [(1, 0), (0, 1)]
        .map(|(stable, candidate)| interval((1_000 - percent * 10, stable), (percent * 10, candidate)));
    let share = percent as f64 / 100.0;
    let chance = share * ratio / (share * ratio + 1.0 - share);
    let mut evidence = Evidence::default();
    (1..=most).find(|_| {
        let interval = if random.happens(chance) { &of_candidate } else { &of_stable };
        evidence = evidence.observe(interval, &metric);
        evidence.is_alarm(needed, None)
    })
}

/// Median and p90 of 200 runs, those without an alarm left out, and the percentage with one.
fn table(percent: u64, ratio: f64, needed: u64) -> (u32, u32, usize) {
    let mut events: Vec<u32> = (0..200)
        .filter_map(|seed| events_until_alarm(percent, ratio, (1_500, needed), seed * 31 + percent))
        .collect();
    events.sort_unstable();
    (events[events.len() / 2], events[events.len() * 9 / 10], events.len() / 2)
}

/// Within a part of what is expected, and two events.
fn is_near(found: u32, expected: u32, part: f64) -> bool {
    (f64::from(found) - f64::from(expected)).abs() <= f64::from(expected) * part + 2.0
}

#[test]
fn a_worse_candidate_is_found_after_as_many_events_as_in_the_table() {
    let rows = [
        (5, [(1.5, 745, 1_303), (2.0, 287, 662), (3.0, 82, 191), (5.0, 35, 73), (10.0, 13, 25)]),
        (10, [(1.5, 549, 1_092), (2.0, 143, 301), (3.0, 47, 109), (5.0, 19, 40), (10.0, 9, 19)]),
        (50, [(1.5, 261, 559), (2.0, 80, 169), (3.0, 33, 73), (5.0, 17, 36), (10.0, 14, 20)]),
    ];
    for (percent, row) in rows {
        for (ratio, median, p90) in row {
            let (found_median, found_p90, found) = table(percent, ratio, NEEDED);
            println!("{percent} % x{ratio}: {found_median} / {found_p90}, {found} % found");
            assert!(is_near(found_median, median, 0.25), "{percent} % x{ratio}: {found_median} of {median}");
            assert!(is_near(found_p90, p90, 0.3), "{percent} % x{ratio}: p90 {found_p90} of {p90}");
        }
    }
}

/// The docs of `metric.rs` have these figures.
#[test]
fn more_steps_need_as_many_more_events_as_the_docs_say() {
    for (percent, ratio) in [(10, 3.0), (10, 5.0), (50, 2.0), (50, 3.0)] {
        let [one, four, sixteen] = [1, 4, 16].map(|steps| table(percent, ratio, NEEDED * steps).0);
        println!(
            "{percent} % x{ratio}: {one} events with one step, {four} with four, {sixteen} with sixteen"
        );
        let times = |events: u32| f64::from(events) / f64::from(one);
        assert!((1.1..=1.6).contains(&times(four)), "{}", times(four));
        assert!((1.3..=2.0).contains(&times(sixteen)), "{}", times(sixteen));
    }
}

#[test]
fn an_equal_candidate_is_accused_in_one_of_a_hundred_runs_at_most() {
    for (percent, expected) in [(10, 11), (50, 22)] {
        let alarms = (0..2_000)
            .filter(|seed| events_until_alarm(percent, 1.0, (300, NEEDED), *seed).is_some())
            .count();
        println!("{percent} %: {alarms} of 2000 runs");
        // 20 of 2000 are one of a hundred; three deviations of chance are 13 more.
        assert!(alarms <= 33, "{percent} %: {alarms}");
        assert!(alarms.abs_diff(expected) <= 13, "{percent} %: {alarms} of {expected}");
    }
}

/// Requests of one interval by the hour of the day, in tens.
const HOURS: [f64; 24] = [
    2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 9.0, 9.0, 8.0, 7.0, 8.0, 9.0, 9.0, 8.0, 7.0, 6.0, 6.0, 5.0,
    4.0, 3.0, 2.0,
];

/// Alarms in a day of 5760 intervals in each of 100 seeds. Both versions are equally bad, more so when there is much traffic.
fn alarms_of_equal_versions(weight: f64) -> usize {
    let metric = metric();
    let hours: Vec<[Poisson; 2]> = HOURS
        .iter()
        .map(|tens| [1.0 - weight, weight].map(|share| Poisson::of(tens * 10.0 * share)))
        .collect();
    let runs = (0..100).filter(|seed| {
        let mut random = Random::of(1_000 + seed);
        let mut evidence = Evidence::default();
        (0..5_760_usize).any(|look| {
            let hour = look / 240;
            let bad = 0.002 + HOURS[hour] * 0.001;
            let [stable, candidate] = [&hours[hour][0], &hours[hour][1]].map(|requests| {
                let requests = requests.draw(&mut random);
                (requests, random.of_many(requests, bad))
            });
            evidence = evidence.observe(&interval(stable, candidate), &metric);
            evidence.is_alarm(NEEDED, None)
        })
    });
    runs.count()
}

#[test]
fn a_day_of_equal_versions_gives_at_most_three_alarms_in_a_hundred_seeds() {
    for weight in [0.1, 0.5] {
        let alarms = alarms_of_equal_versions(weight);
        println!("weight {weight}: {alarms} of 100 days");
        assert!(alarms <= 3, "weight {weight}: {alarms}");
    }
}

/// Per cent of 1000 steps of an hour that pass. The candidate has one request per second and a limit of 1 %, the stable
/// version has none that is bad. Each 15 s are judged.
fn passes(percent_bad: f64) -> f64 {
    let runs = (0..1_000).filter(|seed| {
        let mut random = Random::of(5_000 + seed);
        let mut judged = Judged::begin(metric(), None, Earlier::default(), 300);
        (1..=240).any(|look| {
            let bad = random.of_many(15, percent_bad / 100.0);
            // Without a control, so that only the bound decides.
            judged = judged.clone().observe(&interval((0, 0), (15, bad)), None);
            let step = Step {
                seconds: look * 15,
                min_seconds: 300,
                min_requests: 300,
                interval_seconds: 15,
                alpha: Alpha::ONE_PERCENT,
                steps: 1,
            };
            judge(&Inputs { step, metrics: vec![judged.clone()] }).verdict == Verdict::Pass
        })
    });
    runs.count() as f64 / 10.0
}

/// The docs of `judge.rs` have these figures.
#[test]
fn looking_until_the_bound_is_low_enough_passes_as_often_as_the_docs_say() {
    let [good, at_the_limit, worse, twice] = [0.1, 1.0, 1.5, 2.0].map(passes);
    println!("pass: {good} % at 0.1, {at_the_limit} % at 1, {worse} % at 1.5, {twice} % at 2 % bad");
    assert!(good >= 99.0, "{good}");
    assert!((18.0..=26.0).contains(&at_the_limit), "{at_the_limit}");
    assert!(worse <= 4.0, "{worse}");
    assert!(twice <= 2.0, "{twice}");
}
