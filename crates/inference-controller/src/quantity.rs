//! Amounts of memory, as far as we must add them. Pure.
//!
//! Everything else that users write as a quantity is handed on as they wrote it.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(u128);

/// 2⁶³ bytes: the API server keeps quantities of memory as signed 64-bit numbers.
const MOST: u128 = 1 << 63;

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
    pub(crate) const fn mebibytes(count: u128) -> Self {
        Self(count << 20)
    }

    /// What a quantity of memory says, rounded up to whole bytes; `None` if it says nothing sensible.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        // Nine digits are nano, the finest that Kubernetes keeps.
        let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?;
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let (factor, divisor) = scale(suffix)?;
        let divisor = divisor.checked_mul(10_u128.pow(places))?;
        let bytes = digits.checked_mul(factor)?.div_ceil(divisor);
        (bytes <= MOST).then_some(Self(bytes))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self((self.0 + other.0).min(MOST))
    }

    /// Always the same text for the same amount, and the one that the API server would keep.
    pub(crate) fn quantity(self) -> Quantity {
        const BINARY: [(&str, u128); 4] =
            [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
        let fits = |(_, unit): &(&str, u128)| self.0 != 0 && self.0.is_multiple_of(*unit);
        match BINARY.into_iter().find(fits) {
            Some((suffix, unit)) => Quantity(format!("{}{suffix}", self.0 / unit)),
            None => Quantity(self.0.to_string()),
        }
    }
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
    fn every_notation_of_kubernetes_is_understood() {
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
        for nonsense in ["", "Gi", "-1Gi", "1 Gi", "1Xi", "1.2.3", "99999999999Ei"] {
            assert_eq!(Bytes::parse(nonsense), None, "{nonsense}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(bytes in 0..MOST) {
            prop_assert_eq!(Bytes::parse(&Bytes(bytes).quantity().0), Some(Bytes(bytes)));
        }
    }
}
