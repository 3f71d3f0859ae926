//! Faults that come in clusters: a crash fails a whole batch at once, in the track of one of its requests. Both versions
//! crash equally often for their share of the requests.

use verdict::{evidence::Evidence, metric::Metric};

use crate::{
    NEEDED, interval, metric,
    random::{Poisson, Random},
};

/// Intervals of a day.
const DAY: usize = 5_760;

/// 20 requests per second.
const REQUESTS: f64 = 300.0;

/// Alarms in a day with so many crashes in each of 100 seeds, at a weight of the candidate. Each crash fails 20 to 200 requests;
/// one of three spans two looks. Of the other requests, `bad` fail one by one.
fn alarms(weight: f64, crashes: f64, bad: f64) -> usize {
    let metric = metric();
    let [stable, candidate] = [1.0 - weight, weight].map(|share| Poisson::of(REQUESTS * share));
    let runs = (0..100).filter(|seed| {
        let mut random = Random::of(40_000 + seed);
        let mut late = [0, 0];
        let mut evidence = Evidence::default();
        (0..DAY).any(|_| {
            let mut flows = [&stable, &candidate].map(|requests| {
                let requests = requests.draw(&mut random);
                (requests, random.of_many(requests, bad))
            });
            let mut add =
                |track: usize, bad: u64| flows[track] = (flows[track].0 + bad, flows[track].1 + bad);
            add(0, std::mem::take(&mut late[0]));
            add(1, std::mem::take(&mut late[1]));
            if random.happens(crashes / DAY as f64) {
                let track = usize::from(random.happens(weight));
                let batch = 20 + (random.uniform() * 181.0) as u64;
                let now = if random.happens(1.0 / 3.0) { batch / 2 } else { batch };
                add(track, now);
                late[track] = batch - now;
            }
            evidence = evidence.observe(&interval(flows[0], flows[1]), &metric);
            evidence.is_alarm(NEEDED, None)
        })
    });
    runs.count()
}

#[test]
fn a_day_with_crashes_of_equal_versions_gives_at_most_three_alarms_in_a_hundred_seeds() {
    for (crashes, bad) in [(12.0, 1e-6), (48.0, 0.001), (144.0, 0.01)] {
        for weight in [0.05, 0.1, 0.5] {
            let alarms = alarms(weight, crashes, bad);
            println!("{crashes} crashes and {bad} bad at {weight}: {alarms} of 100 days");
            assert!(alarms <= 3, "{crashes} crashes, {bad} bad at {weight}: {alarms}");
        }
    }
}

/// Intervals of 15 s until a candidate of which every request fails is found.
fn until_found(weight: f64, metric: &Metric) -> Option<u32> {
    let candidate = (REQUESTS * weight) as u64;
    let interval = interval((REQUESTS as u64 - candidate, 0), (candidate, candidate));
    let mut evidence = Evidence::default();
    (1..=20).find(|_| {
        evidence = evidence.observe(&interval, metric);
        evidence.is_alarm(NEEDED, None)
    })
}

/// A burst that goes on is no cluster.
#[test]
fn a_candidate_that_fails_every_request_is_found_within_five_intervals() {
    for weight in [0.05, 0.1, 0.5] {
        let found = until_found(weight, &metric());
        println!("broken at {weight}: found after {found:?} intervals");
        assert!(found.is_some_and(|found| found <= 5), "{weight}: {found:?}");
    }
}
