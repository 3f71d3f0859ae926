//! The result of a comparison of scores that are not only right or wrong, as decimal strings carry it.

use std::fmt;

use crate::decimal::{self, Invalid};

/// A number in millionths. Its text has six digits after the point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millionths(i64);

const DIGITS: usize = 6;

/// Means over all questions, in the unit of the score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Graded {
    /// Answers of each side.
    pub n: u64,
    /// Different questions. Answers to one question are one group.
    pub groups: u64,
    pub baseline: Millionths,
    pub candidate: Millionths,
    /// Candidate minus baseline: negative is a loss.
    pub difference: Millionths,
    /// Bounds of the difference, each with the confidence of one side.
    pub low: Millionths,
    pub high: Millionths,
    /// The lower bound of the candidate's mean.
    pub candidate_low: Millionths,
    /// The chance of such a loss between equal models, from 0 to 1.
    pub p_value: Millionths,
}

impl Millionths {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        decimal::parse(text, DIGITS, "0.412345").map(Self)
    }

    pub fn new(millionths: i64) -> Self {
        Self(millionths)
    }

    /// Rounded. Not a number is 0.
    pub(crate) fn rounded(value: f64) -> Self {
        // The conversion ends at both ends of the type.
        Self((value * 1e6).round() as i64)
    }

    pub(crate) fn value(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Millionths {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&decimal::of_units(self.0, DIGITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_number_is_read_back() {
        for millionths in [0, 1, -1, 412_345, -2_346, 10_000_000, i64::from(i32::MIN)] {
            let number = Millionths::new(millionths);
            assert_eq!(Millionths::parse(&number.to_string()), Ok(number));
        }
        assert_eq!(Millionths::rounded(-0.002_346_4).to_string(), "-0.002346");
        assert!(Millionths::parse("0.1234567").is_err());
    }
}
