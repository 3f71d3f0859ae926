//! The standard normal distribution, far more exact than any test set.

use std::f64::consts::{PI, SQRT_2};

/// The value that is exceeded with the chance `alpha`, from 1e-12 to 1 − 1e-12.
///
/// Bisection on [`upper_tail`]; it needs no table of coefficients.
pub(crate) fn upper_quantile(alpha: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    // Each step halves the interval; after 60 it is as narrow as the numbers are.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if upper_tail(middle) > alpha { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The chance of a value above `z`.
pub(crate) fn upper_tail(z: f64) -> f64 {
    erfc(z / SQRT_2) / 2.0
}

/// Where the series needs as many terms as the continued fraction.
const BORDER: f64 = 2.0;

/// The complementary error function: the series of erf near 0, and Laplace's continued fraction elsewhere. Formulas
/// 7.1.6 and 7.1.14 of Abramowitz and Stegun, "Handbook of mathematical functions" (1964).
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return 1.0;
    }
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < BORDER {
        let (mut term, mut sum) = (x, x);
        for n in 1..60_i32 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return 1.0 - 2.0 / PI.sqrt() * (-x * x).exp() * sum;
    }
    let mut fraction = x;
    for n in (1..120_i32).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    (-x * x).exp() / (PI.sqrt() * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_the_tables() {
        let known = [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457),
            (-1.0, 0.841_344_746_068_543),
            (1.959_963_984_540_054, 0.025),
            (4.0, 3.167_124_183_311_986e-5),
            (6.0, 9.865_876_450_376_98e-10),
        ];
        for (z, tail) in known {
            assert!((upper_tail(z) / tail - 1.0).abs() < 1e-7, "{z}: {} instead of {tail}", upper_tail(z));
        }
        // The series and the continued fraction meet.
        let [below, above] = [-1e-9, 1e-9].map(|distance| upper_tail(BORDER * SQRT_2 + distance));
        assert!(below > above && below / above < 1.0 + 1e-7, "{below} {above}");
        assert_eq!((upper_tail(f64::INFINITY), upper_tail(f64::NEG_INFINITY)), (0.0, 1.0));
    }

    #[test]
    fn the_quantile_is_the_inverse_of_the_tail() {
        for alpha in [0.000_01, 0.000_625, 0.01, 0.05, 0.1, 0.5, 0.8, 0.999] {
            assert!((upper_tail(upper_quantile(alpha)) / alpha - 1.0).abs() < 1e-9, "{alpha}");
        }
        assert!((upper_quantile(0.05) - 1.644_853_626_951_472_7).abs() < 1e-12);
        assert!((upper_quantile(0.2) - 0.841_621_233_572_914_2).abs() < 1e-12);
    }
}
