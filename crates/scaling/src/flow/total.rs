//! The requests of a target as one server knows them for all pods together: how many are in hand, and how many are finished
//! per second. It does not say how many of them wait.

use std::{collections::VecDeque, time::Duration};

use jiff::Timestamp;

use super::{Flow, Meter, Totals};
use crate::{behavior::Window, policy::TargetValue, time::elapsed};

/// A look at all requests of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TotalCounts {
    /// Requests that wait or run.
    pub in_hand: f64,
    pub finished_per_second: f64,
    /// Replicas that serve.
    pub ready: u32,
}

/// A [`Meter`] of such looks.
///
/// Up to the target of each replica, what is in hand runs; what is beyond waits. While nothing waits, the time of a request is
/// what is in hand over what is finished per second. Replicas that later finish more than their target in that time are known
/// to work on more at a time.
#[derive(Clone, Debug, Default)]
pub struct TotalMeter {
    finished: f64,
    last: Option<Timestamp>,
    /// Of looks at which none waited.
    calm: Served,
    all: Served,
    /// Replicas that served in the last minute, the oldest first. Those that stop serving go on with what they have in hand, and
    /// what the server knows is as old as its last scrape.
    ready: VecDeque<(Timestamp, u32)>,
    meter: Meter,
}

/// In seconds: how long the time of a request is averaged over.
const AVERAGED_OVER: f64 = 120.0;
/// Fewer give no time of a request.
const LEAST_ENDED: f64 = 3.0;
/// No target has so many.
const MOST_IN_HAND: f64 = 1e9;
/// After it, nothing is known of what came between.
const LONGEST: Duration = Duration::from_mins(1);

impl TotalMeter {
    /// What it says of the requests now; `None` while too little is known. `window`: that of scaleDown.
    pub fn observe(
        &mut self,
        counts: TotalCounts,
        target: TargetValue,
        window: Window,
        now: Timestamp,
    ) -> Option<Flow> {
        let is_count = |count: f64| (0.0..=MOST_IN_HAND).contains(&count);
        if !is_count(counts.in_hand) || !is_count(counts.finished_per_second) {
            return None;
        }
        let serves = counts.ready > 0;
        let pause = self.last.map_or(Duration::ZERO, |last| elapsed(last, now));
        let is_first = self.last.is_none_or(|last| last > now) || pause > LONGEST;
        self.last = Some(now);
        let seconds = if is_first { 0.0 } else { pause.as_secs_f64() };
        while self.ready.front().is_some_and(|(at, _)| *at > now || elapsed(*at, now) > LONGEST) {
            self.ready.pop_front();
        }
        self.ready.push_back((now, counts.ready));
        let ready = self.ready.iter().map(|(_, ready)| *ready).max().unwrap_or_default();
        let counts = TotalCounts { ready, ..counts };
        let (running, finished) = self.running(counts, target, seconds);
        self.finished += finished * seconds;
        let totals = Totals {
            arrived: self.finished + counts.in_hand,
            finished: self.finished,
            waiting: counts.in_hand - running,
            running,
            replicas: counts.ready,
            full: None,
            tokens: 0.0,
        };
        self.meter.observe(totals, now);
        // Nothing is known of how they serve.
        self.meter.flow(window).filter(|_| serves)
    }

    /// What runs, and how many requests are finished per second. The server's rate is that of a minute. Beside a queue that
    /// is known to the second, it would make phantom arrivals when replicas become Ready. So what runs, over the time of a
    /// request, takes its place.
    fn running(&mut self, counts: TotalCounts, target: TargetValue, seconds: f64) -> (f64, f64) {
        let TotalCounts { in_hand, finished_per_second: rate, ready } = counts;
        let at_target = target.milli().count() as f64 / 1_000.0 * f64::from(ready);
        let nothing_waits = in_hand <= at_target;
        let of_calm = self.calm.takes();
        let running = if nothing_waits {
            in_hand
        } else {
            (of_calm.unwrap_or_default() * rate).clamp(at_target, in_hand)
        };
        self.all.add(running, rate, seconds, true);
        self.calm.add(running, rate, seconds, nothing_waits);
        let finished = match of_calm.or(self.all.takes()) {
            Some(takes) if takes > 0.0 => running / takes,
            Some(_) | None => rate,
        };
        (running, finished)
    }
}

/// Requests that have run and were finished, lately.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    run: f64,
    ended: f64,
}

impl Served {
    fn add(&mut self, running: f64, rate: f64, seconds: f64, counts: bool) {
        let kept = (-seconds / AVERAGED_OVER).exp();
        let seconds = if counts { seconds } else { 0.0 };
        self.run = self.run * kept + running * seconds;
        self.ended = self.ended * kept + rate * seconds;
    }

    /// Seconds that a request runs.
    fn takes(self) -> Option<f64> {
        (self.ended >= LEAST_ENDED).then(|| self.run / self.ended)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// Looks every 5 s, with a target of 5.
    #[derive(Default)]
    struct Looks {
        meter: TotalMeter,
        seconds: i64,
    }

    impl Looks {
        fn look(&mut self, in_hand: f64, finished_per_second: f64, ready: u32) -> Option<Flow> {
            self.seconds += 5;
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + self.seconds);
            let target = TargetValue::units(5).unwrap();
            let counts = TotalCounts { in_hand, finished_per_second, ready };
            self.meter.observe(counts, target, Window::FIVE_MINUTES, now)
        }

        fn steady(&mut self, looks: u32, in_hand: f64, finished_per_second: f64, ready: u32) -> Option<Flow> {
            (0..looks).fold(None, |_, _| self.look(in_hand, finished_per_second, ready))
        }
    }

    fn whole(value: crate::reading::Milli) -> i64 {
        (value.count() + 500) / 1_000
    }

    #[test]
    fn a_load_below_its_target_has_its_rate_and_its_time() {
        let flow = Looks::default().steady(40, 16.0, 4.0, 4).unwrap();
        assert_eq!([whole(flow.rate), whole(flow.takes), whole(flow.waiting)], [4, 4, 0]);
        assert!(!flow.is_full && !flow.is_rough);
    }

    #[test]
    fn what_is_beyond_the_target_waits_and_has_arrived() {
        let mut looks = Looks::default();
        looks.steady(40, 20.0, 4.0, 4);
        // Twice as many arrive as are finished.
        let grown = (1..=12).fold(None, |_, look| looks.look(20.0 + f64::from(look) * 20.0, 4.0, 4)).unwrap();
        assert_eq!([whole(grown.recent_rate), whole(grown.takes)], [8, 5]);
        assert_eq!([whole(grown.running), whole(grown.waiting)], [20, 240]);
        assert_eq!(whole(grown.at_a_time), 5);
    }

    #[test]
    fn replicas_that_finish_more_than_their_target_work_on_more() {
        let mut looks = Looks::default();
        looks.steady(40, 16.0, 4.0, 4);
        // Requests take 4 s still.
        let flow = looks.steady(60, 80.0, 20.0, 4).unwrap();
        assert_eq!([whole(flow.running), whole(flow.waiting), whole(flow.at_a_time)], [80, 0, 20]);
        assert_eq!([whole(flow.rate), whole(flow.takes)], [20, 4]);
    }

    #[test]
    fn a_time_that_grows_under_load_is_followed() {
        let mut looks = Looks::default();
        looks.steady(40, 16.0, 4.0, 4);
        // A new model takes three times as long, with a queue from the first second on.
        let flow = looks.steady(600, 200.0, 20.0 / 12.0, 4).unwrap();
        assert_eq!([whole(flow.takes), whole(flow.running)], [12, 20]);
    }

    #[test]
    fn replicas_that_do_not_serve_for_a_moment_teach_no_capacity() {
        let mut looks = Looks::default();
        looks.steady(40, 48.0, 9.6, 10);
        assert_eq!(looks.look(48.0, 9.6, 0), None, "nothing is known of how they serve");
        let flow = looks.steady(5, 48.0, 9.6, 4).unwrap();
        assert_eq!([whole(flow.waiting), whole(flow.at_a_time)], [0, 5], "the others go on with theirs");
        let flow = looks.steady(3, 48.0, 9.6, 10).unwrap();
        assert_eq!(whole(flow.at_a_time), 5);
    }

    #[test]
    fn a_pause_begins_anew_and_numbers_that_cannot_be_are_left_out() {
        let mut looks = Looks::default();
        assert!(looks.steady(40, 16.0, 4.0, 4).is_some());
        for unsound in [f64::NAN, -1.0, f64::INFINITY] {
            assert_eq!(looks.look(unsound, 4.0, 4), None);
            assert_eq!(looks.look(16.0, unsound, 4), None);
        }
        assert!(looks.look(16.0, 4.0, 4).is_some());
        looks.seconds += 61;
        assert_eq!(looks.look(500.0, 4.0, 4), None, "what came between is not known");
        looks.seconds -= 3_600;
        assert_eq!(looks.look(16.0, 4.0, 4), None, "the clock was set back");
        assert!(looks.steady(40, 16.0, 4.0, 4).is_some());
    }
}
