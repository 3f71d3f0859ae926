//! Durations as Go writes them, which is how the settings of a pod have them: `300ms`, `5s`, `1m30s`, `1.5h`. Pure.

use std::time::Duration;

/// Units in the order in which they are tried: `ms` before `m`.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];

/// `None`: Go would refuse it, or it is negative.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at(end);
        let (unit, size) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        seconds += number.parse::<f64>().ok()? * size;
        rest = &after[unit.len()..];
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_added() {
        for (text, millis) in [("300ms", 300), ("5s", 5_000), ("1m30s", 90_000), ("1.5h", 5_400_000)] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "5 s", "1d"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
