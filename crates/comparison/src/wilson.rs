//! The interval of one share. E. B. Wilson, "Probable inference", Journal of the American Statistical Association 22
//! (1927).

/// The least share of right answers that is less than `z` standard deviations below the observed one. 0 without
/// questions.
pub(crate) fn lower_bound(right: u64, n: u64, z: f64) -> f64 {
    if n == 0 {
        return 0.0;
    }
    let (share, n) = (right as f64 / n as f64, n as f64);
    let spread = (share * (1.0 - share) / n + z * z / (4.0 * n * n)).max(0.0).sqrt();
    ((share + z * z / (2.0 * n) - z * spread) / (1.0 + z * z / n)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_below_the_share_and_comes_closer() {
        assert_eq!(lower_bound(0, 0, 1.645), 0.0);
        assert_eq!(lower_bound(0, 50, 1.645), 0.0);
        assert!((lower_bound(70, 100, 1.959_964) - 0.604_1).abs() < 1e-3);
        assert!(lower_bound(700, 1_000, 1.645) > lower_bound(70, 100, 1.645));
        assert!(lower_bound(50, 50, 1.645) > 0.94);
    }
}
