//! The time that decisions rest on. It is the wall clock of this machine while something vouches for it: the monotonic clock
//! of this process, or the `Date` of an answer of the API server. A clock that has jumped is not followed: what a controller
//! deletes or ends because a time is over would be lost by mistake, of all objects at once. So neither is a jump of the API
//! server's clock that no other clock confirms.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

/// The times of machines differ by seconds, and an answer is seconds old when it is read.
const TOLERANCE: Duration = Duration::from_secs(60);

/// What time it is. Clones share what they know.
#[derive(Clone)]
pub struct Clock {
    read: Arc<dyn Fn() -> Reading + Send + Sync>,
    known: Arc<Mutex<Known>>,
}

/// Both clocks of this machine at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub wall: Timestamp,
    /// It never jumps.
    pub monotonic: Instant,
}

#[derive(Debug, Default)]
struct Known {
    /// A time that something vouched for. The first one is that of the start: of the wall clock, or of an answer that
    /// contradicts it.
    vouched: Option<Reading>,
    /// The newest answer of the API server: its time, and when it came.
    answered: Option<Reading>,
    is_distrusted: bool,
}

impl Default for Clock {
    fn default() -> Self {
        Self::of(|| Reading { wall: Timestamp::now(), monotonic: Instant::now() })
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Clock {
    /// A clock that reads the time so.
    pub fn of(read: impl Fn() -> Reading + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), known: Arc::default() }
    }

    /// The clock of this machine, also if nothing vouches for it: only to compare with the clock of a third machine.
    pub fn wall(&self) -> Timestamp {
        (self.read)().wall
    }

    /// The time, as far as something vouches for it.
    pub fn now(&self) -> Timestamp {
        let reading = (self.read)();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).judge(reading)
    }

    /// The API server has answered with this value of the header `Date`.
    pub(crate) fn answered(&self, date: &str) {
        if let Ok(date) = jiff::fmt::rfc2822::parse(date) {
            let answered = Reading { wall: date.timestamp(), ..(self.read)() };
            self.known.lock().unwrap_or_else(PoisonError::into_inner).answered = Some(answered);
        }
    }
}

impl Known {
    fn judge(&mut self, now: Reading) -> Timestamp {
        let of_server = self.answered.map(|answered| answered.later(now.monotonic));
        let of_process = self.vouched.map(|vouched| vouched.later(now.monotonic));
        let agrees = |time: Timestamp| is_near(now.wall, time);
        if of_server.is_some_and(agrees) {
            self.vouched = Some(now);
        } else if !of_process.is_some_and(agrees)
            // Right after the start nothing vouches for the wall clock, and only an answer may contradict it.
            && let Some(time) = without_wall(of_server, of_process)
        {
            // Two clocks that agree also confirm each other: the monotonic one drifts by seconds within weeks.
            let confirmed =
                of_server.zip(of_process).is_some_and(|(server, process)| is_near(server, process));
            if confirmed || self.vouched.is_none() {
                self.vouched = Some(Reading { wall: time, ..now });
            }
            self.distrust(now.wall, time);
            return time;
        }
        self.vouched.get_or_insert(now);
        if self.is_distrusted {
            self.is_distrusted = false;
            info!("the clock of this machine is right again");
        }
        now.wall
    }

    fn distrust(&mut self, wall: Timestamp, time: Timestamp) {
        if !self.is_distrusted {
            self.is_distrusted = true;
            let ahead_s = wall.duration_since(time).as_secs();
            warn!(ahead_s, %time, "the clock of this machine is wrong; the time of the API server, or what has elapsed, counts");
        }
    }
}

/// The time while the wall clock is wrong. A jump of the API server's clock is not followed either.
fn without_wall(of_server: Option<Timestamp>, of_process: Option<Timestamp>) -> Option<Timestamp> {
    match (of_server, of_process) {
        (Some(server), Some(process)) if is_near(server, process) => Some(server),
        (_, Some(process)) => Some(process),
        (server, None) => server,
    }
}

fn is_near(one: Timestamp, other: Timestamp) -> bool {
    one.duration_since(other).unsigned_abs() <= TOLERANCE
}

impl Reading {
    /// The time at a later moment.
    fn later(self, monotonic: Instant) -> Timestamp {
        let elapsed = monotonic.saturating_duration_since(self.monotonic);
        let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
        self.wall.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAYS: i64 = 86_400;

    /// Both clocks of a machine, which a test moves.
    #[derive(Clone)]
    struct Machine(Arc<Mutex<Reading>>);

    impl Machine {
        fn new() -> (Self, Clock) {
            let wall = Timestamp::from_second(1_767_268_800).unwrap();
            let machine = Self(Arc::new(Mutex::new(Reading { wall, monotonic: Instant::now() })));
            let shown = machine.clone();
            (machine, Clock::of(move || *shown.0.lock().unwrap()))
        }

        fn passes(&self, wall: i64, monotonic: u64) {
            let mut reading = self.0.lock().unwrap();
            reading.wall += SignedDuration::from_secs(wall);
            reading.monotonic += Duration::from_secs(monotonic);
        }

        /// The value of the header `Date` of a server whose clock is so far ahead.
        fn date(&self, ahead: i64) -> String {
            let time = self.0.lock().unwrap().wall + SignedDuration::from_secs(ahead);
            time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
        }
    }

    /// Seconds since the start of the story.
    fn seconds(clock: &Clock) -> i64 {
        clock.now().as_second() - 1_767_268_800
    }

    #[test]
    fn a_clock_that_jumps_forward_is_not_followed_and_days_that_pass_are() {
        let (machine, clock) = Machine::new();
        assert_eq!(seconds(&clock), 0);
        machine.passes(8 * DAYS, 1);
        assert_eq!(seconds(&clock), 1, "only a second has passed");
        machine.passes(-8 * DAYS, 0);
        machine.passes(8 * DAYS, 8 * 86_400);
        assert_eq!(seconds(&clock), 8 * DAYS);
    }

    #[test]
    fn a_monotonic_clock_that_drifts_for_weeks_is_corrected_by_the_api_server() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(-300));
        assert_eq!(seconds(&clock), -300);
        for week in 1..=4 {
            // The monotonic clock loses 40 s in a week.
            machine.passes(7 * DAYS, 7 * 86_400 - 40);
            clock.answered(&machine.date(-300));
            assert_eq!(seconds(&clock), week * 7 * DAYS - 300);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_is_not_followed() {
        let (machine, clock) = Machine::new();
        clock.now();
        machine.passes(-8 * DAYS, 10);
        assert_eq!(seconds(&clock), 10);
    }

    #[test]
    fn a_jump_that_the_api_server_confirms_is_followed() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(0));
        clock.now();
        // A machine that sleeps has a monotonic clock that stands still.
        machine.passes(8 * DAYS, 1);
        assert_eq!(seconds(&clock), 1);
        clock.answered(&machine.date(2));
        assert_eq!(seconds(&clock), 8 * DAYS);
        machine.passes(5, 5);
        assert_eq!(seconds(&clock), 8 * DAYS + 5);
    }

    #[test]
    fn right_after_the_start_the_api_server_knows_better() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(-8 * DAYS));
        assert_eq!(seconds(&clock), -8 * DAYS);
        machine.passes(30, 30);
        assert_eq!(seconds(&clock), -8 * DAYS + 30);
        machine.passes(-8 * DAYS, 1);
        assert_eq!(seconds(&clock), -8 * DAYS + 30, "it was set right");
    }

    #[test]
    fn an_api_server_whose_clock_jumps_moves_nothing() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(0));
        clock.now();
        machine.passes(10, 10);
        clock.answered(&machine.date(8 * DAYS));
        assert_eq!(seconds(&clock), 10);
    }

    #[test]
    fn an_api_server_that_was_not_confirmed_at_the_start_moves_nothing_when_it_jumps() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(-8 * DAYS));
        assert_eq!(seconds(&clock), -8 * DAYS);
        machine.passes(10, 10);
        clock.answered(&machine.date(80 * DAYS));
        assert_eq!(seconds(&clock), -8 * DAYS + 10, "as much has passed as the process says");
        clock.answered(&machine.date(-8 * DAYS + 5));
        assert_eq!(seconds(&clock), -8 * DAYS + 15, "seconds are no jump");
        machine.passes(10, 10);
        clock.answered(&machine.date(0));
        assert_eq!(seconds(&clock), 20, "two clocks agree");
    }

    #[test]
    fn of_three_clocks_that_disagree_the_one_counts_that_never_jumps() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(0));
        clock.now();
        machine.passes(8 * DAYS, 10);
        clock.answered(&machine.date(80 * DAYS));
        assert_eq!(seconds(&clock), 10);
        assert_eq!(clock.wall().as_second() - 1_767_268_800, 8 * DAYS);
    }

    #[test]
    fn clocks_that_differ_by_seconds_are_trusted() {
        let (machine, clock) = Machine::new();
        clock.answered(&machine.date(-40));
        assert_eq!(seconds(&clock), 0);
        machine.passes(25, 0);
        assert_eq!(seconds(&clock), 25, "as time services step it");
        clock.answered("yesterday");
        assert_eq!(seconds(&clock), 25);
    }
}
