//! Whether a metric has only ever risen, as a counter does where a gauge was meant. Pure.
//!
//! A load that grows rises too, but not with every sample for ten minutes. What is found is said, and changes no decision.

use jiff::{SignedDuration, Timestamp};
use scaling::reading::{Milli, Reading};

/// The values of one metric since it last stayed or fell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trend(Option<Rising>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rising {
    since: Timestamp,
    at: Timestamp,
    value: Milli,
    rises: u32,
}

/// Samples of which each was above the one before, and the time that they span.
const RISES: u32 = 20;
const SPAN: SignedDuration = SignedDuration::from_mins(10);

impl Trend {
    /// A sample that was seen before, and a missing one, say nothing.
    pub(crate) fn note(&mut self, reading: &Reading) {
        let Some((value, at)) = total(reading) else { return };
        let begun = Rising { since: at, at, value, rises: 0 };
        self.0 = Some(match self.0 {
            Some(known) if at <= known.at => known,
            Some(known) if value > known.value => Rising { at, value, rises: known.rises + 1, ..known },
            Some(_) | None => begun,
        });
    }

    pub(crate) fn only_grows_since(&self) -> Option<Timestamp> {
        let Rising { since, at, rises, .. } = self.0?;
        (rises >= RISES && at.duration_since(since) >= SPAN).then_some(since)
    }
}

/// The sum over pods, and the time of the newest sample.
fn total(reading: &Reading) -> Option<(Milli, Timestamp)> {
    match reading {
        Reading::Total { value, at } | Reading::PartialTotal { value, at } => Some((*value, *at)),
        Reading::Pods(samples) => {
            let newest = samples.iter().map(|sample| sample.at).max()?;
            Some((samples.iter().fold(Milli::ZERO, |sum, sample| sum.plus(sample.value)), newest))
        }
        Reading::Missing(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    /// One value per 30 s.
    fn grows(values: impl IntoIterator<Item = i64>) -> bool {
        let mut trend = Trend::default();
        for (value, time) in values.into_iter().zip((0..).step_by(30)) {
            let reading = Reading::Total { value: Milli::units(value), at: at(time) };
            trend.note(&reading);
            trend.note(&reading);
        }
        trend.only_grows_since().is_some()
    }

    #[test]
    fn a_counter_only_grows() {
        assert!(grows((0..=20).map(|sample| 1_000 + sample * 7)));
        assert!(!grows((0..20).map(|sample| 1_000 + sample * 7)), "too few samples");
    }

    #[test]
    fn a_gauge_that_stays_or_falls_once_does_not() {
        assert!(!grows((0..30).map(|sample| if sample == 15 { 0 } else { sample })));
        assert!(!grows([5; 40]));
    }

    #[test]
    fn a_missing_sample_interrupts_nothing() {
        let mut trend = Trend::default();
        for time in 0..=20 {
            trend.note(&Reading::Total { value: Milli::units(time), at: at(time * 30) });
            trend.note(&Reading::Missing(scaling::reading::Fault::Slow));
        }
        assert_eq!(trend.only_grows_since(), Some(at(0)));
    }
}
