//! How many requests may hang, as far as counts can show. It decides nothing.
//!
//! Requests in flight have not shown whether they are bad. Long answers keep many in flight, and no number of looks ends
//! that. Requests that hang differ: they pile up. So the requests in flight are compared with those of an earlier look of
//! the same step, the mark. A version of which a share h hangs grows by h of its arrivals, however long its answers take.
//!
//! A mark counts once as many requests have ended since as are in flight now. By Little's law this takes as long as a mean
//! answer, so most of what was in flight at the mark could end. There are marks after 4, 6, 8, 12, 16, 24, … counted
//! intervals, and the last but one is compared. So at least a quarter of the step lies between it and now.
//!
//! Chance moves the numbers of both looks. One standard deviation of their difference counts as growth, so that waiting for
//! a lucky look rarely passes.
//!
//! Simulated with 20 requests per second at weight 100, a limit of 1 % and 20 seeds. Answers of a minute pass after 5 to
//! 12 minutes, and answers of three minutes after 16 to 28. Of versions with answers of a minute of which 2 % hang, 3 of 20
//! pass within an hour. With 5 % and more, none does.
//!
//! What hung before the mark and never again is not found; it ends with the timeout of its callers.

use serde::{Deserialize, Serialize};

use crate::share::Share;

/// The last two marks of a step.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    pub older: Mark,
    pub newer: Mark,
}

/// Requests of the candidate at one look.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Since the step began.
    pub ended: u64,
    pub in_flight: u64,
}

/// The first mark: a minute at an interval of 15 s.
const FIRST: u32 = 4;

impl Marks {
    /// After so many counted intervals.
    #[must_use]
    pub(crate) fn with(self, counted: u32, now: Mark) -> Self {
        // 4, 6, 8, 12, 16, 24, …: a power of two, or three times one.
        let is_mark = counted >= FIRST && matches!(counted >> counted.trailing_zeros(), 1 | 3);
        if is_mark { Self { older: self.newer, newer: now } } else { self }
    }

    /// How many more requests must end until those in flight cannot be too many: 0 if they cannot now, `None` if no number
    /// helps. `allowed`: the share of requests that may be bad.
    pub(crate) fn missing(&self, now: Mark, allowed: Share) -> Option<u64> {
        let of_step = ended_for(now.in_flight, allowed).map(|needed| needed.saturating_sub(now.ended));
        // One standard deviation of a difference of two Poisson numbers.
        let chance = now.in_flight.saturating_add(self.older.in_flight).isqrt();
        let growth = now.in_flight.saturating_add(chance).saturating_sub(self.older.in_flight);
        let since = now.ended.saturating_sub(self.older.ended);
        let of_mark =
            ended_for(growth, allowed).map(|needed| needed.max(now.in_flight).saturating_sub(since));
        of_step.into_iter().chain(of_mark).min()
    }
}

/// Of so many ended requests, these in flight are the allowed share.
fn ended_for(in_flight: u64, allowed: Share) -> Option<u64> {
    if in_flight == 0 {
        return Some(0);
    }
    let share = u128::from(allowed.millionths());
    let parts = u128::from(in_flight) * u128::from(Share::ALL.millionths());
    (share > 0).then(|| parts.div_ceil(share)).and_then(|needed| u64::try_from(needed).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Share = Share::tenths_of_percent(100);

    fn mark(ended: u64, in_flight: u64) -> Mark {
        Mark { ended, in_flight }
    }

    #[test]
    fn without_a_mark_those_in_flight_are_compared_with_all_that_ended() {
        assert_eq!(Marks::default().missing(mark(300, 30), TENTH), Some(0));
        assert_eq!(Marks::default().missing(mark(300, 31), TENTH), Some(10));
        assert_eq!(Marks::default().missing(mark(300, 31), Share::NONE), None);
        assert_eq!(Marks::default().missing(mark(300, 0), Share::NONE), Some(0));
    }

    #[test]
    fn those_in_flight_that_grow_no_more_are_few() {
        let marks = Marks { older: mark(1_000, 200), newer: mark(1_100, 200) };
        // √400 = 20 is chance, and a tenth of what ended may be bad.
        assert_eq!(marks.missing(mark(1_200, 200), TENTH), Some(0));
        assert_eq!(marks.missing(mark(1_199, 200), TENTH), Some(1));
        assert_eq!(marks.missing(mark(1_300, 210), TENTH), Some(0));
        assert_eq!(marks.missing(mark(1_300, 211), TENTH), Some(10));
        // 20 and those of a mean answer.
        let falling = Marks { older: mark(1_000, 300), newer: mark(1_100, 300) };
        assert_eq!(falling.missing(mark(1_199, 200), TENTH), Some(1), "a mean answer takes longer");
    }

    #[test]
    fn the_last_mark_but_one_is_compared() {
        let after = |looks: u32| {
            (1..=looks).fold(Marks::default(), |marks, look| {
                marks.with(look, mark(u64::from(look) * 10, u64::from(look)))
            })
        };
        let older = [5, 6, 8, 11, 12].map(|looks| after(looks).older);
        assert_eq!(older, [mark(0, 0), mark(40, 4), mark(60, 6), mark(60, 6), mark(80, 8)]);
        assert_eq!(after(12).newer, mark(120, 12));
    }
}
