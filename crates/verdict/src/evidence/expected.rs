//! The expected factor of an interval, enumerated over all its outcomes. At most 1 makes a test martingale.

use super::*;

/// The chance of each number of events.
fn binomial(n: u64, chance: f64) -> Vec<f64> {
    let mut all = vec![1.0];
    for _ in 0..n {
        let mut next = vec![0.0; all.len() + 1];
        for (events, of) in all.iter().enumerate() {
            next[events] += of * (1.0 - chance);
            next[events + 1] += of * chance;
        }
        all = next;
    }
    all
}

/// The factor of each ratio in the first interval.
fn factors(test: EProcess) -> [f64; 5] {
    match test.intervals {
        0 => [1.0; 5],
        _ => test.log_sums.map(|log| 2.0 * (log as f64 / 1e6).exp()),
    }
}

/// The expected factors over all outcomes: `of` gives the test after an outcome.
fn expected(stable: &[f64], candidate: &[f64], of: impl Fn(u64, u64) -> EProcess) -> [f64; 5] {
    let mut sums = [0.0; 5];
    for (ks, of_stable) in (0..).zip(stable) {
        for (kc, of_candidate) in (0..).zip(candidate) {
            for (sum, factor) in sums.iter_mut().zip(factors(of(ks, kc))) {
                *sum += of_stable * of_candidate * factor;
            }
        }
    }
    sums
}

#[test]
fn the_expected_factor_is_at_most_one_while_the_candidate_is_not_worse() {
    let flow = |requests, bad| Flow {
        arrivals: requests,
        ended: Counts::new(requests, bad).unwrap(),
        in_flight: 0,
        restarts: 0,
    };
    for (ns, nc) in [(1, 1), (9, 1), (1, 9), (5, 5), (18, 12), (24, 24)] {
        for ratio in [1.0, 1.25, 2.0] {
            for theta in [0.001, 0.02, 0.1, 0.3, 0.5] {
                let tolerated = Ratio::new(ratio).unwrap();
                let sums = expected(&binomial(ns, theta), &binomial(nc, theta * ratio), |ks, kc| {
                    let flows = Tracks { stable: flow(ns, ks), candidate: flow(nc, kc) };
                    against_stable(EProcess::default(), flows, tolerated, Usual::default().weight(ks + kc))
                });
                // With large shares and a large ratio, events of both tracks are not quite independent of their sum.
                let most = if ratio > 1.25 { 1.005 } else { 1.0 + 1e-9 };
                assert!(sums.iter().all(|sum| *sum <= most), "{ns} {nc} {ratio} {theta}: {sums:?}");
            }
        }
    }
}

#[test]
fn the_expected_factor_against_a_fixed_share_is_at_most_one() {
    let flow = |requests, bad| Flow {
        arrivals: requests,
        ended: Counts::new(requests, bad).unwrap(),
        in_flight: 0,
        restarts: 0,
    };
    for n in [1, 3, 20, 60] {
        for share in [0.1, 1.0, 5.0, 30.0, 90.0] {
            for part in [0.1, 0.5, 1.0] {
                let sums = expected(&[1.0], &binomial(n, share / 100.0 * part), |_, kc| {
                    let flows = Tracks { stable: flow(0, 0), candidate: flow(n, kc) };
                    against_fixed(
                        EProcess::default(),
                        flows,
                        Share::from_percent(share).ok(),
                        Usual::default(),
                    )
                });
                assert!(sums.iter().all(|sum| *sum <= 1.0 + 1e-9), "{n} {share} {part}: {sums:?}");
            }
        }
    }
}
