//! How often each verdict is given, by simulation with a fixed seed. The tolerance is four points: more than three
//! standard deviations of two thousand runs.

#![cfg(test)]

use std::time::{Duration, Instant};

use comparison::{Budget, Confidence, Counts, Evidence, Rules, Verdict, compare};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore as _, SeedableRng as _},
};

const RUNS: u32 = 2_000;
const TOLERANCE: f64 = 0.04;
/// Unoptimized, with room for a busy machine.
const LONGEST: Duration = Duration::from_secs(10);

/// How many of so many events happen: it jumps from one that happens to the next.
fn of_many(random: &mut ChaCha8Rng, events: u64, chance: f64) -> u64 {
    if chance <= 0.0 {
        return 0;
    }
    let per_jump = (1.0 - chance).ln();
    let (mut at, mut happened) = (0.0, 0);
    loop {
        let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        at += ((1.0 - uniform).ln() / per_jump).floor() + 1.0;
        if at > events as f64 {
            return happened;
        }
        happened += 1;
    }
}

/// The shares of runs that pass and that regress, with ten percent of discordant questions.
fn shares(n: u64, budget: &str, loss: f64) -> (f64, f64) {
    let mut random = ChaCha8Rng::seed_from_u64(42);
    let rules =
        Rules { budget: Budget::parse(budget).unwrap(), confidence: Confidence::DEFAULT, minimum: None };
    let discordance = 0.1;
    let (mut passed, mut regressed) = (0, 0);
    for _ in 0..RUNS {
        let discordant = of_many(&mut random, n, discordance);
        let only_baseline = of_many(&mut random, discordant, f64::midpoint(1.0, loss / discordance));
        let only_candidate = discordant - only_baseline;
        let counts = Counts { both_right: n - discordant, only_baseline, only_candidate, both_wrong: 0 };
        match compare(&Evidence::Binary(counts), &rules).verdict {
            Verdict::Passed => passed += 1,
            Verdict::Regressed => regressed += 1,
            Verdict::Inconclusive => {}
        }
    }
    (f64::from(passed) / f64::from(RUNS), f64::from(regressed) / f64::from(RUNS))
}

#[test]
fn verdicts_are_as_frequent_as_the_reference_says() {
    let began = Instant::now();
    let table = [
        (1_500, "2.0", [(0.0, 0.79, 0.012), (0.02, 0.042, 0.47), (0.04, 0.0, 0.995)]),
        (3_000, "1.5", [(0.0, 0.83, 0.007), (0.015, 0.053, 0.50), (0.03, 0.0, 0.997)]),
    ];
    for (n, budget, rows) in table {
        for (loss, passes, regresses) in rows {
            let (passed, regressed) = shares(n, budget, loss);
            println!("n {n}, budget {budget}, loss {loss}: passed {passed:.3}, regressed {regressed:.3}");
            assert!((passed - passes).abs() < TOLERANCE, "{n} {loss}: passed {passed} instead of {passes}");
            assert!(
                (regressed - regresses).abs() < TOLERANCE,
                "{n} {loss}: regressed {regressed} instead of {regresses}"
            );
        }
    }
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
}
