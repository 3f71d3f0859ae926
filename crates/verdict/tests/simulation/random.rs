//! Seeded chance: the same seed gives the same events on every machine.

/// SplitMix64 of S. Vigna.
pub(crate) struct Random(u64);

impl Random {
    /// The seed is mixed: the states of one seed must not be those of the next one a step later.
    pub(crate) fn of(seed: u64) -> Self {
        Self(mixed(seed ^ 0x5DEE_CE66_D1CE_4E5B))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// From 0 to below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn happens(&mut self, chance: f64) -> bool {
        self.uniform() < chance
    }

    /// How many of so many events happen. It jumps from one that happens to the next.
    pub(crate) fn of_many(&mut self, events: u64, chance: f64) -> u64 {
        let per_jump = (1.0 - chance).ln();
        let (mut at, mut happened) = (0.0, 0);
        loop {
            at += ((1.0 - self.uniform()).ln() / per_jump).floor() + 1.0;
            if at > events as f64 {
                return happened;
            }
            happened += 1;
        }
    }
}

fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// A Poisson distribution, as the chances of at most 0, 1, … events.
pub(crate) struct Poisson(Vec<f64>);

impl Poisson {
    pub(crate) fn of(mean: f64) -> Self {
        let (mut chance, mut sum) = ((-mean).exp(), 0.0);
        let most = (mean + 10.0 * mean.sqrt() + 10.0) as u32;
        let sums = (1..=most).map(|events| {
            sum += chance;
            chance *= mean / f64::from(events);
            sum
        });
        Self(sums.collect())
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let uniform = random.uniform();
        self.0.partition_point(|sum| *sum <= uniform) as u64
    }
}
