//! What a user may set about a comparison. The values are checked here, so that no later step meets a wrong one.

use crate::{
    decimal::{self, Invalid},
    normal,
};

/// The rules of one test set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub budget: Budget,
    pub confidence: Confidence,
    pub minimum: Option<Minimum>,
}

/// The loss that is still acceptable, in points: from 0.01 to 100, with at most two digits after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget(u32);

/// The confidence of one side, from 0.90 to 0.99, with at most three digits after the point. The interval that is
/// shown has such a bound on each side: 0.95 gives the two-sided interval of 90 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Confidence(u32);

/// The least score of the candidate, in points: from 0 to 100 of right answers, with at most two digits after the
/// point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minimum(u32);

impl Budget {
    /// One point.
    pub const DEFAULT: Self = Self(100);

    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let units = decimal::parse(text, 2, "1.0")?;
        in_range(units, 1..=10_000, text, ["0.01", "100"]).map(Self)
    }

    /// In points, with two digits.
    pub fn shown(self) -> String {
        decimal::of_units(i64::from(self.0), 2)
    }

    /// As a share of right answers.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

impl Confidence {
    pub const DEFAULT: Self = Self(950);

    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let units = decimal::parse(text, 3, "0.95")?;
        in_range(units, 900..=990, text, ["0.90", "0.99"]).map(Self)
    }

    /// The chance of a wrong claim on one side.
    pub(crate) fn alpha(self) -> f64 {
        f64::from(1_000 - self.0) / 1_000.0
    }

    /// How many standard deviations the bound is away.
    pub(crate) fn z(self) -> f64 {
        normal::upper_quantile(self.alpha())
    }
}

impl Minimum {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let units = decimal::parse(text, 2, "70.0")?;
        in_range(units, 0..=10_000, text, ["0", "100"]).map(Self)
    }

    pub(crate) fn share(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

fn in_range(
    units: i64,
    range: std::ops::RangeInclusive<u32>,
    text: &str,
    [least, most]: [&'static str; 2],
) -> Result<u32, Invalid> {
    let number = u32::try_from(units).ok().filter(|units| range.contains(units));
    number.ok_or_else(|| Invalid::OutOfRange { text: text.to_owned(), least, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused() {
        for text in ["0", "0.00", "-1", "100.01", "0.001"] {
            assert!(Budget::parse(text).is_err(), "{text}");
        }
        for text in ["0.89", "0.991", "1", "95", "-0.95"] {
            assert!(Confidence::parse(text).is_err(), "{text}");
        }
        for text in ["-0.01", "100.01"] {
            assert!(Minimum::parse(text).is_err(), "{text}");
        }
        assert_eq!(Budget::parse("1.0"), Ok(Budget::DEFAULT));
        assert_eq!(Confidence::parse("0.95"), Ok(Confidence::DEFAULT));
        assert_eq!(Budget::DEFAULT.shown(), "1.00");
        let message = Budget::parse("0").unwrap_err().to_string();
        assert_eq!(message, "\"0\" is not from 0.01 to 100");
    }

    #[test]
    fn confidences_have_the_quantiles_of_the_tables() {
        let z = |text| Confidence::parse(text).unwrap().z();
        for (text, expected) in
            [("0.90", 1.281_552), ("0.95", 1.644_854), ("0.975", 1.959_964), ("0.99", 2.326_348)]
        {
            assert!((z(text) - expected).abs() < 1e-6, "{text}: {}", z(text));
        }
    }
}
