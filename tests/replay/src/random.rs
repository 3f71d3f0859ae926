//! Random numbers that are the same on every machine.

/// Xorshift: enough for arrivals, and the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Seconds. A short and a long part, as prompts and answers are.
    pub(crate) fn time_of_request(&mut self, mean: f64) -> f64 {
        mean * (0.3 + 0.7 * self.exponential(1.0))
    }

    /// Above 0, at most 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }
}
