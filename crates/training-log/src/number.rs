//! Numbers as short decimal texts, ready for a status.
//!
//! What the trainer prints is kept if it is short and plain, so that a status shows the same digits as the log.

/// In bytes: the longest shortest text of a 64-bit float, `-1.2345678901234567e-300`.
pub(crate) const LONGEST: usize = 24;
/// Bytes of a printed number; a longer text is none.
const LONGEST_PRINTED: usize = 400;

/// A number as Python prints it, also as `np.float64(0.5)` or `tensor(0.5, device='cuda:0')`.
pub(crate) fn decimal(text: &str) -> Option<String> {
    let text = unwrapped(text.trim_ascii());
    let value = value(text)?;
    if value.is_finite() && text.len() <= LONGEST && is_plain(text) {
        return Some(text.to_owned());
    }
    Some(shortest(value))
}

/// One through a printed number, with six digits.
pub(crate) fn reciprocal(text: &str) -> Option<String> {
    let value = 1.0 / value(unwrapped(text.trim_ascii()))?;
    value.is_finite().then(|| rounded(value))
}

/// A printed number of milliseconds in seconds, with six digits.
pub(crate) fn thousandth(text: &str) -> Option<String> {
    let value = value(text.trim_ascii())? / 1_000.0;
    value.is_finite().then(|| rounded(value))
}

fn unwrapped(text: &str) -> &str {
    let inside = text.strip_suffix(')').and_then(|text| text.split_once('('));
    inside.map_or(text, |(_, inside)| inside.split_once(',').map_or(inside, |(number, _)| number))
}

fn value(text: &str) -> Option<f64> {
    (text.len() <= LONGEST_PRINTED).then(|| text.parse().ok())?
}

/// `-1.5e-05`: a form that every reader of numbers knows.
fn is_plain(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) =
        text.split_once('e').map_or((text, None), |(mantissa, exponent)| (mantissa, Some(exponent)));
    let (whole, fraction) =
        mantissa.split_once('.').map_or((mantissa, None), |(whole, fraction)| (whole, Some(fraction)));
    is_digits(whole)
        && fraction.is_none_or(is_digits)
        && exponent.is_none_or(|exponent| is_digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)))
}

fn rounded(value: f64) -> String {
    shortest(format!("{value:.5e}").parse().unwrap_or(value))
}

/// The shortest text that reads as the same value.
fn shortest(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Inf" } else { "-Inf" }.to_owned();
    }
    let is_moderate = value == 0.0 || (1e-5..1e16).contains(&value.abs());
    if is_moderate { format!("{value}") } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_numbers_stay_as_they_are_printed() {
        for text in ["6.449", "8.23e-06", "0", "0.0", "-0.004613", "6.51321936", "4", "1e+20"] {
            assert_eq!(decimal(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn other_numbers_become_short() {
        for (text, expected) in [
            ("nan", "NaN"),
            ("inf", "Inf"),
            ("-inf", "-Inf"),
            ("1e999", "Inf"),
            ("+5", "5"),
            (".5", "0.5"),
            ("1.234500E+00", "1.2345"),
            ("0.33333333333333333333333333333", "0.3333333333333333"),
            ("1e-0000000000000000000000000300", "1e-300"),
            ("0.00000012345678901234567", "1.2345678901234566e-7"),
            ("1234567890123456789012345", "1.2345678901234568e24"),
            ("np.float64(0.5)", "0.5"),
            ("tensor(0.5, device='cuda:0')", "0.5"),
        ] {
            assert_eq!(decimal(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "None", "True", "5%", "1_000", "0x10", "- 5", "five", "5)", "(", &"1".repeat(401)] {
            assert_eq!(decimal(text), None, "{text}");
        }
    }

    #[test]
    fn speeds_are_converted_to_seconds_per_step() {
        for (text, expected) in [
            ("0.25", Some("4")),
            ("3", Some("0.333333")),
            ("1e-300", Some("1e300")),
            ("0", None),
            ("nan", None),
        ] {
            assert_eq!(reciprocal(text).as_deref(), expected, "{text}");
        }
        assert_eq!(thousandth("1234.5").as_deref(), Some("1.2345"));
    }

    proptest! {
        #[test]
        fn every_number_is_short_and_keeps_its_value(value in any::<f64>()) {
            for printed in [format!("{value}"), format!("{value:e}"), format!("{value:.30}")] {
                let Some(text) = decimal(&printed) else { continue };
                prop_assert!(text.len() <= LONGEST, "{}", text);
                let (read, expected): (f64, f64) = (text.parse().unwrap(), printed.parse().unwrap());
                prop_assert!(read.is_nan() && value.is_nan() || read == expected, "{} {}", printed, text);
            }
        }
    }
}
