//! Amounts of bytes as Kubernetes writes them: `1073741824`, `1Gi`, `1.5G`, `1e9`. Pure.

use std::str::FromStr;

/// Whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no amount of bytes: write 1073741824, 1Gi or 1.5G")]
pub(crate) struct NoAmount(String);

const UNITS: [(&str, u128); 14] = [
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
    ("E", 1_000_000_000_000_000_000),
    // Thousandths, which the API server writes where a fraction of a byte was asked for.
    ("m", 0),
];

impl FromStr for Bytes {
    type Err = NoAmount;

    fn from_str(text: &str) -> Result<Self, NoAmount> {
        amount(text).map(Self).ok_or_else(|| NoAmount(text.to_owned()))
    }
}

/// Rounded down: a limit is never made larger.
fn amount(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Nine digits are nano, the finest that Kubernetes keeps.
    let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let mut divisor = 10_u128.pow(places);
    let factor = match UNITS.into_iter().find(|(known, _)| *known == unit) {
        Some((_, 0)) => {
            divisor *= 1000;
            1
        }
        Some((_, factor)) => factor,
        None => {
            let exponent: u32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
            10_u128.checked_pow(exponent)?
        }
    };
    u64::try_from(digits.checked_mul(factor)? / divisor).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_of_kubernetes_is_understood() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("64Mi", 64 << 20),
            ("1.5Gi", 3 << 29),
            ("2G", 2_000_000_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("5000m", 5),
            (".5Ki", 512),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for nonsense in ["", "Gi", "-1Gi", "1 Gi", "1Xi", "1.2.3", "99999999999Ei", "1e99"] {
            assert_eq!(nonsense.parse::<Bytes>(), Err(NoAmount(nonsense.to_owned())));
        }
    }
}
