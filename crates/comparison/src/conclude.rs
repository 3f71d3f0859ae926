//! The verdict over several test sets, and what the null control says about the measurement.

use crate::{
    compare::{Comparison, Evidence, Verdict, chance, exceeds, has_passed, is_worse, judged},
    counts::Counts,
    rules::{Confidence, Rules},
};

/// The verdict of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    pub verdict: Verdict,
    /// In the order of the test sets. A set has regressed if it has after the correction for the number of sets.
    pub sets: Vec<Comparison>,
}

/// Passed if all sets have passed: that needs no correction, because each of them must. Regressed if any set has
/// regressed.
///
/// Of equal models, one in twenty sets would seem worse. So the confidence that a set is worse is corrected for the
/// number of sets, by S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
/// Statistics 6 (1979). If the measurement is unstable (see [`is_unstable`]), or there is no set, everything is
/// inconclusive.
pub fn conclude(sets: &[(Evidence, Rules)], is_unstable: bool) -> Conclusion {
    let worse = worse(sets);
    let compared = sets.iter().zip(worse).map(|((evidence, rules), is_worse)| {
        let verdict = if is_unstable {
            Verdict::Inconclusive
        } else if has_passed(evidence, rules) {
            Verdict::Passed
        } else if is_worse && exceeds(evidence, rules.budget) {
            Verdict::Regressed
        } else {
            Verdict::Inconclusive
        };
        judged(evidence, rules, verdict)
    });
    let sets: Vec<Comparison> = compared.collect();
    let has = |verdict| sets.iter().any(|set: &Comparison| set.verdict == verdict);
    let verdict = if has(Verdict::Regressed) {
        Verdict::Regressed
    } else if has(Verdict::Inconclusive) || sets.is_empty() {
        Verdict::Inconclusive
    } else {
        Verdict::Passed
    };
    Conclusion { verdict, sets }
}

/// Whether a model differs from itself. Answers that change at random change in both directions, and are already part
/// of every interval. Only answers that change in one direction make a comparison wrong.
pub fn is_unstable(control: &Evidence, confidence: Confidence) -> bool {
    match control {
        Evidence::Binary(counts) => {
            let turned = Counts {
                only_baseline: counts.only_candidate,
                only_candidate: counts.only_baseline,
                ..*counts
            };
            let alpha = confidence.alpha();
            is_worse(control, alpha) || is_worse(&Evidence::Binary(turned), alpha)
        }
        Evidence::Graded(graded) => graded.low.value() > 0.0 || graded.high.value() < 0.0,
    }
}

/// Which sets are worse after Holm's correction. The least chance must be below alpha over the number of sets, the next
/// one below alpha over one less. It ends with the first that is not.
fn worse(sets: &[(Evidence, Rules)]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..sets.len()).collect();
    order.sort_by(|one, other| chance(&sets[*one].0).total_cmp(&chance(&sets[*other].0)));
    let mut worse = vec![false; sets.len()];
    for (rank, at) in order.into_iter().enumerate() {
        let (evidence, rules) = &sets[at];
        if !is_worse(evidence, rules.confidence.alpha() / (sets.len() - rank) as f64) {
            break;
        }
        worse[at] = true;
    }
    worse
}
