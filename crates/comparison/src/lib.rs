//! Compares two models by their answers to the same questions. Pure: no clock, no network, no environment, no async, no
//! types of Kubernetes.
//!
//! The baseline and the candidate answer the same test set, so each question is its own control. A question on which
//! both are right, or both are wrong, says nothing about the difference. What is left are two counts: questions that
//! only the baseline answers right, and questions that only the candidate answers right.
//!
//! The verdict depends on the counts, a budget and a confidence:
//!
//! - Passed: the loss of the candidate is smaller than the budget, with the confidence.
//! - Regressed: the measured loss exceeds the budget, and the candidate is worse than the baseline, with the
//!   confidence.
//! - Inconclusive: neither is shown. [`Comparison::needed`] is how many questions would probably suffice.
//!
//! A loss is baseline minus candidate, in points: hundredths of a right answer. What is shown is the difference,
//! which is candidate minus baseline, so that a loss is negative. All results are decimal strings or integers.
//!
//! Assumption: questions are independent. A test set that asks a question several times is compared by [`bootstrap`],
//! which keeps the answers to one question together.
//!
//! Files:
//!
//! - `counts.rs`: the four counts of a comparison.
//! - `rules.rs`: budget, confidence and minimum.
//! - `decimal.rs`: decimal numbers as text.
//! - `normal.rs`: the normal distribution.
//! - `tango.rs`: the score statistic of a paired difference, and its interval.
//! - `mcnemar.rs`: the exact test of equal shares.
//! - `wilson.rs`: the interval of one share.
//! - `bootstrap.rs`: scores that are not only right or wrong.
//! - `graded.rs`: the result of a bootstrap as decimal strings.
//! - `compare.rs`: the verdict of one test set.
//! - `conclude.rs`: the verdict over several test sets, and the null control.

#![forbid(unsafe_code)]

pub mod bootstrap;
mod compare;
mod conclude;
mod counts;
mod decimal;
mod graded;
mod mcnemar;
mod normal;
mod rules;
mod tango;
mod wilson;

pub use compare::{Comparison, Evidence, Shown, Verdict, compare};
pub use conclude::{Conclusion, conclude, is_unstable};
pub use counts::Counts;
pub use decimal::Invalid;
pub use graded::{Graded, Millionths};
pub use rules::{Budget, Confidence, Minimum, Rules};
