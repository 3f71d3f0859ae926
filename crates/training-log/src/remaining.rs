//! Reads durations as ms-swift prints them: `1d 2h 3m 4s`, without leading units that are zero.

use std::time::Duration;

/// Units in their order, with their seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
/// Digits of one unit: enough for centuries of seconds.
const MOST_DIGITS: usize = 10;

/// Values above 59 are valid: ms-swift 4.0 rounds to `1m 60s`.
pub(crate) fn remaining(text: &str) -> Option<Duration> {
    let mut units = UNITS.iter();
    let mut seconds = None;
    for word in text.split_ascii_whitespace() {
        let (length, unit) = word.char_indices().next_back()?;
        let digits = &word[..length];
        let is_count =
            (1..=MOST_DIGITS).contains(&length) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let (_, each) = units.find(|(name, _)| *name == unit).filter(|_| is_count)?;
        let count: u64 = digits.parse().ok()?;
        seconds = Some(seconds.unwrap_or(0) + count * each);
    }
    seconds.map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_added() {
        for (text, seconds) in [
            ("0s", 0),
            ("14s", 14),
            ("22m 23s", 1_343),
            ("1h 0m 5s", 3_605),
            ("1d 2h 3m 4s", 93_784),
            ("1m 60s", 120),
            ("2h", 7_200),
            ("9999999999d 9999999999h 9999999999m 9999999999s", 900_609_999_909_939),
        ] {
            assert_eq!(remaining(text), Some(Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_absent() {
        for text in
            ["", " ", "s", "5", "-5s", "5 s", "1.5s", "4s 3m", "3m 3m", "1w", "5é", "00000000001s", "1h x"]
        {
            assert_eq!(remaining(text), None, "{text}");
        }
    }
}
