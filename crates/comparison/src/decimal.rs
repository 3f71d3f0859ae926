//! Decimal numbers as text. A status has no floating point numbers, because their text differs between programs.

/// Why a text is no number of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("{text:?} is not a decimal number such as {example:?}")]
    NotDecimal { text: String, example: &'static str },
    #[error("{text:?} has more than {most} digits after the point")]
    TooPrecise { text: String, most: usize },
    #[error("{text:?} is not from {least} to {most}")]
    OutOfRange { text: String, least: &'static str, most: &'static str },
}

/// More digits are no number of a test.
const LONGEST: usize = 20;

/// The number in units of its last allowed digit: `"1.5"` with two digits is 150.
pub(crate) fn parse(text: &str, digits: usize, example: &'static str) -> Result<i64, Invalid> {
    let invalid = || Invalid::NotDecimal { text: text.chars().take(LONGEST).collect(), example };
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let is_number =
        |part: &str| !part.is_empty() && part.len() <= LONGEST && part.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return Err(invalid());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > digits {
        return Err(Invalid::TooPrecise { text: text.to_owned(), most: digits });
    }
    let number = format!("{whole}{fraction:0<digits$}").parse::<i64>().map_err(|_| invalid())?;
    Ok(if unsigned.len() < text.len() { -number } else { number })
}

/// Rounded to so many digits, halves away from zero, and never `-0.00`.
pub(crate) fn shown(value: f64, digits: usize) -> String {
    let unit = 10_f64.powi(i32::try_from(digits).unwrap_or(0));
    // The conversion ends at both ends of the type.
    of_units((value * unit).round() as i64, digits)
}

/// The inverse of [`parse`].
pub(crate) fn of_units(units: i64, digits: usize) -> String {
    let sign = if units < 0 { "-" } else { "" };
    let text = format!("{:0>width$}", units.unsigned_abs(), width = digits + 1);
    let (whole, fraction) = text.split_at(text.len() - digits);
    let point = if digits == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_and_written_in_units_of_its_last_digit() {
        for (text, units) in
            [("1.50", 150), ("0.00", 0), ("-0.07", -7), ("100.00", 10_000), ("-12.30", -1_230)]
        {
            assert_eq!(parse(text, 2, "1.0"), Ok(units));
            assert_eq!(of_units(units, 2), text);
        }
        assert_eq!((parse("1", 2, "1.0"), parse("1.000", 2, "1.0")), (Ok(100), Ok(100)));
        assert_eq!(of_units(-5, 0), "-5");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "-", ".", "1.", ".5", "+1", "1e3", "1,0", " 1", "NaN", "inf", "1.0.0", "--1", "١"] {
            assert!(matches!(parse(text, 2, "1.0"), Err(Invalid::NotDecimal { .. })), "{text}");
        }
        assert!(parse(&"9".repeat(20), 2, "1.0").is_err());
        assert!(parse(&"9".repeat(999), 2, "1.0").is_err());
        assert!(matches!(parse("1.001", 2, "1.0"), Err(Invalid::TooPrecise { .. })));
    }

    #[test]
    fn a_small_loss_is_not_shown_as_negative_zero() {
        assert_eq!(
            [-0.001, 0.0, 0.005, -0.005].map(|value| shown(value, 2)),
            ["0.00", "0.00", "0.01", "-0.01"]
        );
        assert_eq!(shown(f64::NAN, 2), "0.00");
    }
}
