//! The verdict of one test set.

use std::fmt;

use crate::{
    counts::Counts,
    decimal,
    graded::Graded,
    mcnemar, normal,
    rules::{Budget, Confidence, Rules},
    tango, wilson,
};

/// What two models answered to the same questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Each answer is right or wrong.
    Binary(Counts),
    /// Answers have scores between, or a question was asked several times.
    Graded(Graded),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Passed,
    Regressed,
    Inconclusive,
}

/// The verdict of one test set, with the numbers that explain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Answers of each side.
    pub n: u64,
    pub verdict: Verdict,
    /// Of an inconclusive comparison: the size of a test set that would probably pass a candidate as good as the
    /// baseline. `None` if this set is as large already.
    pub needed: Option<u64>,
    /// The lower bound of the candidate's score is below the minimum, so it cannot pass.
    pub is_below_minimum: bool,
    pub shown: Shown,
}

/// Decimal strings. Scores are in points with two digits: percent of right answers, or a hundred times a graded score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub baseline: String,
    pub candidate: String,
    /// Candidate minus baseline: negative is a loss.
    pub difference: String,
    /// Bounds of the difference, each with the confidence of one side.
    pub low: String,
    pub high: String,
    /// The chance of such a loss between equal models, with four digits.
    pub p_value: String,
}

/// Judges a test set as if it were the only one.
pub fn compare(evidence: &Evidence, rules: &Rules) -> Comparison {
    let verdict = if has_passed(evidence, rules) {
        Verdict::Passed
    } else if exceeds(evidence, rules.budget) && is_worse(evidence, rules.confidence.alpha()) {
        Verdict::Regressed
    } else {
        Verdict::Inconclusive
    };
    judged(evidence, rules, verdict)
}

/// The comparison with a given verdict.
pub(crate) fn judged(evidence: &Evidence, rules: &Rules, verdict: Verdict) -> Comparison {
    let n = evidence.n();
    let needed = match verdict {
        Verdict::Inconclusive => Some(needed(evidence, rules)).filter(|needed| *needed > n),
        Verdict::Passed | Verdict::Regressed => None,
    };
    let shown = shown(evidence, rules.confidence);
    Comparison { n, verdict, needed, is_below_minimum: is_below_minimum(evidence, rules), shown }
}

impl Evidence {
    pub fn n(&self) -> u64 {
        match self {
            Self::Binary(counts) => counts.n(),
            Self::Graded(graded) => graded.n,
        }
    }
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "Passed",
            Self::Regressed => "Regressed",
            Self::Inconclusive => "Inconclusive",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

pub(crate) fn has_passed(evidence: &Evidence, rules: &Rules) -> bool {
    let is_within = match evidence {
        // Without questions the statistic is 0.
        Evidence::Binary(counts) => tango::statistic(counts, rules.budget.share()) <= -rules.confidence.z(),
        Evidence::Graded(graded) => graded.n > 0 && graded.low.value() >= -rules.budget.share(),
    };
    is_within && !is_below_minimum(evidence, rules)
}

/// The measured loss is larger than the budget.
pub(crate) fn exceeds(evidence: &Evidence, budget: Budget) -> bool {
    match evidence {
        Evidence::Binary(counts) => counts.loss() > budget.share(),
        Evidence::Graded(graded) => -graded.difference.value() > budget.share(),
    }
}

/// The candidate is worse than the baseline, with a chance of at most `alpha` if it is not.
pub(crate) fn is_worse(evidence: &Evidence, alpha: f64) -> bool {
    match evidence {
        Evidence::Binary(counts) => tango::statistic(counts, 0.0) >= normal::upper_quantile(alpha),
        Evidence::Graded(graded) => graded.n > 0 && graded.p_value.value() <= alpha,
    }
}

/// The chance of such a loss between equal models, by the statistic of [`is_worse`].
pub(crate) fn chance(evidence: &Evidence) -> f64 {
    match evidence {
        Evidence::Binary(counts) => normal::upper_tail(tango::statistic(counts, 0.0)),
        Evidence::Graded(graded) => graded.p_value.value(),
    }
}

fn is_below_minimum(evidence: &Evidence, rules: &Rules) -> bool {
    let Some(minimum) = rules.minimum else { return false };
    let low = match evidence {
        Evidence::Binary(counts) => wilson::lower_bound(counts.candidate(), counts.n(), rules.confidence.z()),
        Evidence::Graded(graded) => graded.candidate_low.value(),
    };
    low < minimum.share()
}

/// The chance that a candidate as good as the baseline passes a set of the needed size.
const POWER: f64 = 0.8;

/// (z_alpha + z_power)² · d / budget², where d is the share of questions on which exactly one model is right. At
/// least the size with which a set without such a question passes.
fn needed(evidence: &Evidence, rules: &Rules) -> u64 {
    let (budget, z) = (rules.budget.share(), rules.confidence.z());
    let both = z + normal::upper_quantile(1.0 - POWER);
    let least = z * z * (1.0 - budget) / budget;
    let probable = match evidence {
        Evidence::Binary(counts) if counts.n() == 0 => 0.0,
        Evidence::Binary(counts) => {
            both * both * counts.flips() as f64 / counts.n() as f64 / (budget * budget)
        }
        // The width of the interval gives the standard deviation of the mean.
        Evidence::Graded(graded) => {
            let deviation = (graded.high.value() - graded.low.value()) / (2.0 * z);
            (both * deviation / budget).powi(2) * graded.n as f64
        }
    };
    // The conversion ends at the largest number.
    probable.max(least).ceil() as u64
}

fn shown(evidence: &Evidence, confidence: Confidence) -> Shown {
    let points = |share: f64| decimal::shown(share * 100.0, 2);
    match evidence {
        Evidence::Binary(counts) => {
            let (low, high) = tango::interval(counts, confidence.z());
            let share = |right: u64| if counts.n() == 0 { 0.0 } else { right as f64 / counts.n() as f64 };
            Shown {
                baseline: points(share(counts.baseline())),
                candidate: points(share(counts.candidate())),
                difference: points(-counts.loss()),
                low: points(-high),
                high: points(-low),
                p_value: decimal::shown(mcnemar::p_value(counts), 4),
            }
        }
        Evidence::Graded(graded) => Shown {
            baseline: points(graded.baseline.value()),
            candidate: points(graded.candidate.value()),
            difference: points(graded.difference.value()),
            low: points(graded.low.value()),
            high: points(graded.high.value()),
            p_value: decimal::shown(graded.p_value.value(), 4),
        },
    }
}
