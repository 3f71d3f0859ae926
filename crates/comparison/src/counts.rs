//! The four counts of two models on the same questions.

/// Questions by which of the two models is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub both_right: u64,
    pub only_baseline: u64,
    pub only_candidate: u64,
    pub both_wrong: u64,
}

impl Counts {
    /// All questions.
    pub fn n(&self) -> u64 {
        let Self { both_right, only_baseline, only_candidate, both_wrong } = *self;
        [both_right, only_baseline, only_candidate, both_wrong].into_iter().fold(0, u64::saturating_add)
    }

    /// Questions on which exactly one model is right. Of a null control, the answers that change on a rerun.
    pub fn flips(&self) -> u64 {
        self.only_baseline.saturating_add(self.only_candidate)
    }

    /// The sum of the points of the baseline, in right answers.
    pub(crate) fn baseline(&self) -> u64 {
        self.both_right.saturating_add(self.only_baseline)
    }

    pub(crate) fn candidate(&self) -> u64 {
        self.both_right.saturating_add(self.only_candidate)
    }

    /// Baseline minus candidate, from −1 to 1; 0 without questions.
    pub(crate) fn loss(&self) -> f64 {
        match self.n() {
            0 => 0.0,
            n => (self.only_baseline as f64 - self.only_candidate as f64) / n as f64,
        }
    }
}
