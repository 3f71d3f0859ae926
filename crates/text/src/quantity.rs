//! Kubernetes quantities (`1.5Gi`, `500m`, `2e3`): parsing, comparison by value, addition. Pure.
//!
//! The notation is that of `resource.Quantity` in the Kubernetes API.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u128);

/// A non-negative fraction.
#[derive(Clone, Copy)]
struct Exact {
    dividend: u128,
    divisor: u128,
}

/// 2⁶³ bytes: the API server stores quantities of memory as signed 64-bit numbers.
const MAX: u128 = 1 << 63;

const SUFFIXES: [(&str, u128); 12] = [
    ("", 1),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
];

impl Bytes {
    pub const fn mebibytes(count: u128) -> Self {
        Self(count << 20)
    }

    /// Parses a quantity of memory, rounded up to whole bytes; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let Exact { dividend, divisor } = exact(text)?;
        Self::stored(dividend.div_ceil(divisor))
    }

    /// Parses a limit, rounded down to whole bytes, because rounding must not raise it.
    pub fn parse_limit(text: &str) -> Option<Self> {
        let Exact { dividend, divisor } = exact(text)?;
        Self::stored(dividend / divisor)
    }

    fn stored(bytes: u128) -> Option<Self> {
        (bytes <= MAX).then_some(Self(bytes))
    }

    pub fn count(self) -> u128 {
        self.0
    }

    pub fn plus(self, other: Self) -> Self {
        Self((self.0 + other.0).min(MAX))
    }

    pub fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// The canonical text, as the API server stores it.
    pub fn quantity(self) -> Quantity {
        const BINARY: [(&str, u128); 4] =
            [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
        let fits = |(_, unit): &(&str, u128)| self.0 != 0 && self.0.is_multiple_of(*unit);
        match BINARY.into_iter().find(fits) {
            Some((suffix, unit)) => Quantity(format!("{}{suffix}", self.0 / unit)),
            None => Quantity(self.0.to_string()),
        }
    }
}

/// Parses a whole number, as extended resources require; `None` if it is not one.
pub fn whole(text: &str) -> Option<i64> {
    let Exact { dividend, divisor } = exact(text)?;
    dividend.is_multiple_of(divisor).then(|| i64::try_from(dividend / divisor).ok())?
}

/// A ratio, such as `0.05` or `50m`; `None` if the text is no quantity. Exact to about 15 digits.
pub fn ratio(text: &str) -> Option<f64> {
    let Exact { dividend, divisor } = exact(text)?;
    Some(dividend as f64 / divisor as f64)
}

/// Whether two texts are the same amount, such as `1024Mi` and `1Gi`. False if one is invalid.
pub fn is_same(one: &str, other: &str) -> bool {
    compared(one, other) == Some(Ordering::Equal)
}

/// Whether `one` is less than `other`. False if one is invalid.
pub fn is_less(one: &str, other: &str) -> bool {
    compared(one, other) == Some(Ordering::Less)
}

fn compared(one: &str, other: &str) -> Option<Ordering> {
    let (one, other) = (exact(one)?, exact(other)?);
    let product = |dividend: u128, divisor: u128| dividend.checked_mul(divisor);
    Some(product(one.dividend, other.divisor)?.cmp(&product(other.dividend, one.divisor)?))
}

fn exact(text: &str) -> Option<Exact> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // Nine digits are nano, the smallest unit of Kubernetes.
    let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, divisor) = scale(suffix)?;
    Some(Exact { dividend: digits.checked_mul(factor)?, divisor: divisor.checked_mul(10_u128.pow(places))? })
}

/// Factor and divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    if let Some((_, factor)) = SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Some((*factor, 1));
    }
    match suffix {
        "m" => Some((1, 1_000)),
        "u" => Some((1, 1_000_000)),
        "n" => Some((1, 1_000_000_000)),
        "E" => Some((10_u128.pow(18), 1)),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_u128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.abs() <= 18)?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ratio_is_a_fraction() {
        assert_eq!(ratio("0.05"), Some(0.05));
        assert_eq!(ratio("50m"), Some(0.05));
        assert_eq!(ratio("2"), Some(2.0));
        assert_eq!(ratio("a tenth"), None);
    }

    #[test]
    fn every_notation_of_kubernetes_is_parsed() {
        for (text, bytes) in [
            ("1024", 1024),
            ("1Ki", 1024),
            ("1.5Gi", 3 << 29),
            ("2G", 2_000_000_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("5000m", 5),
            ("1m", 1),
            (".5Ki", 512),
        ] {
            assert_eq!(Bytes::parse(text), Some(Bytes(bytes)), "{text}");
        }
        assert_eq!([Bytes::parse("1500m"), Bytes::parse_limit("1500m")], [Some(Bytes(2)), Some(Bytes(1))]);
        for invalid in ["", "Gi", "-1Gi", "1 Gi", "1Xi", "1.2.3", "99999999999Ei", "1e99"] {
            assert_eq!(Bytes::parse(invalid), None, "{invalid}");
            assert_eq!(Bytes::parse_limit(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn devices_are_counted_in_whole_numbers() {
        assert_eq!(["8", "1k", "2000m", "0"].map(whole), [Some(8), Some(1_000), Some(2), Some(0)]);
        assert_eq!(["500m", "", "x", "-1"].map(whole), [None; 4]);
    }

    #[test]
    fn amounts_are_the_same_by_value() {
        for (one, other) in [("1Gi", "1024Mi"), ("500m", "0.5"), ("2", "2000m"), ("0", "0Gi")] {
            assert!(is_same(one, other) && is_same(other, one), "{one} {other}");
        }
        for (one, other) in [("1G", "1Gi"), ("1", "x"), ("", "")] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn amounts_of_different_units_are_compared() {
        for (less, more) in [("50m", "0.1"), ("100M", "128Mi"), ("1023Mi", "1Gi"), ("0", "1n")] {
            assert!(is_less(less, more) && !is_less(more, less), "{less} and {more}");
        }
        for (one, other) in [("1Gi", "1024Mi"), ("much", "1"), ("1", "")] {
            assert!(!is_less(one, other), "{one} and {other}");
        }
    }

    proptest! {
        #[test]
        fn quantity_and_parse_are_inverse(bytes in 0..MAX) {
            prop_assert_eq!(Bytes::parse(&Bytes(bytes).quantity().0), Some(Bytes(bytes)));
        }
    }
}
