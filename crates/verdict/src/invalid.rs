//! Numbers that cannot be. They are refused where they enter, so that no later step meets them.

/// Why a number was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("{bad} of {requests} requests are bad")]
    MoreBadThanRequests { requests: u64, bad: u64 },
    #[error("more than {most}")]
    TooLarge { most: u64 },
    #[error("not a finite number")]
    NotFinite,
    #[error("negative")]
    Negative,
    #[error("not in the allowed range")]
    OutOfRange,
}

/// Finite and not negative.
pub(crate) fn not_negative(value: f64) -> Result<f64, Invalid> {
    if !value.is_finite() {
        return Err(Invalid::NotFinite);
    }
    if value < 0.0 {
        return Err(Invalid::Negative);
    }
    Ok(value)
}

/// A value in parts of its unit, if it rounds to a count within the range.
pub(crate) fn parts(value: f64, per_unit: u32, range: std::ops::RangeInclusive<u32>) -> Result<u32, Invalid> {
    let count = (not_negative(value)? * f64::from(per_unit)).round();
    if count < f64::from(*range.start()) || count > f64::from(*range.end()) {
        return Err(Invalid::OutOfRange);
    }
    // Within the range of the type, as just checked.
    Ok(count as u32)
}
