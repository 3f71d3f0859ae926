//! The exact test of equal shares. Q. McNemar, "Note on the sampling error of the difference between correlated
//! proportions or percentages", Psychometrika 12 (1947).

use crate::counts::Counts;

/// The chance of at least so many questions that only the baseline answers right, if each discordant question is as
/// likely to be that of either model: P(Bin(b + c, ½) ≥ b). From 0 to 1.
pub(crate) fn p_value(counts: &Counts) -> f64 {
    let (all, b) = (counts.flips(), counts.only_baseline);
    if b == 0 {
        return 1.0;
    }
    // The shorter of both tails; by symmetry, P(X ≥ b) = P(X ≤ all − b).
    let others = all - b;
    if b > others { lower_tail(all, others) } else { 1.0 - lower_tail(all, b - 1) }
}

/// P(Bin(n, ½) ≤ k), for k below n/2. The terms fall from k on, so the sum ends where they no longer count.
fn lower_tail(n: u64, k: u64) -> f64 {
    let ln_choose: f64 = (1..=k).map(|i| ((n - k + i) as f64 / i as f64).ln()).sum();
    let largest = (ln_choose - n as f64 * std::f64::consts::LN_2).exp();
    let (mut term, mut sum) = (1.0, 0.0);
    for i in (0..=k).rev() {
        sum += term;
        term *= i as f64 / (n - i + 1) as f64;
        if term < f64::EPSILON * sum {
            break;
        }
    }
    (largest * sum).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(only_baseline: u64, only_candidate: u64) -> f64 {
        p_value(&Counts { only_baseline, only_candidate, ..Counts::default() })
    }

    #[test]
    fn few_questions_are_counted_by_hand() {
        let known =
            [((0, 0), 1.0), ((0, 5), 1.0), ((1, 0), 0.5), ((2, 0), 0.25), ((1, 1), 0.75), ((3, 1), 0.3125)];
        for ((b, c), expected) in known {
            assert!((p(b, c) - expected).abs() < 1e-12, "{b} {c}: {}", p(b, c));
        }
    }

    #[test]
    fn both_tails_overlap_in_one_term() {
        for (b, c) in [(7_u64, 7_u64), (8, 5), (60, 45), (640, 520), (100_000, 99_000)] {
            let both = p(b, c) + p(c + 1, b - 1);
            assert!((both - 1.0).abs() < 1e-9, "{b} {c}: {both}");
        }
    }
}
