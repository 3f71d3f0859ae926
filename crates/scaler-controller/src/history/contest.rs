//! Writes of the target's replicas by others, and when this controller stops to answer them. Pure.
//!
//! `kubectl scale` and a tool that applies a manifest with `spec.replicas` are such writes. Each is answered by the next
//! decision. The third one within 5 minutes is not: then nothing is written for 5 minutes, and for twice as long each time
//! that it happens again, up to 30 minutes. So within 5 minutes there are at most three writes against others. A tool that
//! writes less often is answered each time; the writes of an hour are counted, so that it can be named.
//!
//! It also keeps who has set 0 replicas. 0 by another is maintenance, and stays; 0 by this controller is an idle target, and
//! so is 0 at the first look at a target, of which nothing else is known. Of the two, only the 0 that this controller is known
//! to have set follows a minimum that is raised later.
//!
//! A process may end between its write of the replicas and that of the status. So what a new process finds changed is no
//! foreign write, and 0 replicas that it finds are those of an idle target if the target was idle for a whole window.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The replicas of one target, as this controller left them, and who has changed them since. A status keeps it, so that a
/// restart begins no contest anew.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Contest {
    /// Written by this controller, or seen by it. `None`: a difference would say nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<i32>,
    /// When others wrote within the last 5 minutes, at most three times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    foreign: Vec<Timestamp>,
    /// When others wrote within the last hour, at most 12 times; pauses keep their number low.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    of_hour: Vec<Timestamp>,
    /// The last one. It stays for an hour after its end, because the next one is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<Pause>,
    /// Another has set the present 0 replicas.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_stopped: bool,
    /// This controller has set the present 0 replicas. Never together with `is_stopped`; both are false at first sight.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_idle: bool,
}

/// Time without writes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pause {
    pub(crate) until: Timestamp,
    seconds: u32,
    /// What another has set last.
    pub(crate) replicas: i32,
}

/// Writes of others within [`WINDOW`] that begin a pause.
pub(crate) const MOST_FOREIGN: usize = 3;
pub(crate) const WINDOW: Duration = Duration::from_mins(5);
/// As long as the window: the first pause ends when its causes are forgotten.
const SHORTEST: u32 = 5 * 60;
/// Long enough for a tool that is never corrected: its pods change twice an hour.
const LONGEST: u32 = 30 * 60;
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);
/// More are not counted.
const MOST_OF_HOUR: usize = 12;
/// A person who tries replicas out by hand writes a few times; a tool goes on.
pub(crate) const MOST_OCCASIONAL: usize = 4;

impl Contest {
    /// With the replicas that the target has now, while this controller scales it.
    #[must_use]
    pub(crate) fn seen(&self, replicas: i32, now: Timestamp) -> Self {
        let mut next = self.recalled(now);
        let is_foreign = self.known.is_some_and(|known| known != replicas);
        // The end of a maintenance hands the target back, and contests nothing.
        if is_foreign && !self.is_stopped && next.pause(now).is_none() {
            next.foreign.push(now);
            next.of_hour.push(now);
            let surplus = next.of_hour.len().saturating_sub(MOST_OF_HOUR);
            next.of_hour.drain(..surplus);
        }
        if next.foreign.len() >= MOST_FOREIGN {
            next.begin_pause(replicas, now);
        }
        next.noted(replicas)
    }

    /// At the first look of a process. `was_idle`: the process before may have set 0 replicas.
    #[must_use]
    pub(crate) fn resumed(&self, replicas: i32, was_idle: bool, now: Timestamp) -> Self {
        let next = self.recalled(now).noted(replicas);
        let is_new = next.is_stopped && !self.is_stopped;
        Self {
            is_stopped: next.is_stopped && !(is_new && was_idle),
            is_idle: next.is_idle || is_new && was_idle,
            ..next
        }
    }

    /// While `spec.paused` is set: others may write what they like, and 0 stays 0 afterwards.
    #[must_use]
    pub(crate) fn seen_paused(&self, replicas: i32) -> Self {
        Self { foreign: Vec::new(), of_hour: Vec::new(), ..self.clone() }.noted(replicas)
    }

    /// With replicas that this controller has written.
    #[must_use]
    pub(crate) fn written(&self, replicas: i32) -> Self {
        Self { known: Some(replicas), is_stopped: false, is_idle: replicas == 0, ..self.clone() }
    }

    /// The replicas as this controller left them, or saw them last.
    pub(crate) fn known(&self) -> Option<i32> {
        self.known
    }

    /// Whether the replicas that were last seen are a write of others that this look has found.
    pub(crate) fn is_foreign(&self, now: Timestamp) -> bool {
        self.foreign.last() == Some(&now)
    }

    /// Writes of others within the last hour, where they are more than a person makes by hand.
    pub(crate) fn often(&self) -> Option<usize> {
        Some(self.of_hour.len()).filter(|count| *count > MOST_OCCASIONAL)
    }

    /// The pause that has not ended.
    pub(crate) fn pause(&self, now: Timestamp) -> Option<&Pause> {
        self.pause.as_ref().filter(|pause| now < pause.until)
    }

    /// Whether another has set the present 0 replicas.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether this controller has set the present 0 replicas.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle
    }

    fn noted(mut self, replicas: i32) -> Self {
        let is_changed = self.known.is_some_and(|known| known != replicas);
        self.is_stopped = replicas == 0 && (self.is_stopped || is_changed);
        self.is_idle = replicas == 0 && self.is_idle && !is_changed;
        self.known = Some(replicas);
        self
    }

    /// Repairs what a status may hold: times in the future become now, so a clock that was set back prolongs nothing.
    fn recalled(&self, now: Timestamp) -> Self {
        let window = SignedDuration::try_from(WINDOW).unwrap_or(SignedDuration::MAX);
        let recent = |written: &&Timestamp| now.duration_since(**written) < window;
        let foreign: Vec<Timestamp> =
            self.foreign.iter().filter(recent).map(|written| (*written).min(now)).collect();
        let pause = self.pause.filter(|pause| now.duration_since(pause.until) < REMEMBERED).map(|pause| {
            let seconds = pause.seconds.min(LONGEST);
            Pause { until: pause.until.min(after(now, seconds)), seconds, ..pause }
        });
        let of_hour = self.of_hour.iter().filter(|written| now.duration_since(**written) < REMEMBERED);
        let of_hour = of_hour.map(|written| (*written).min(now)).take(MOST_OF_HOUR).collect();
        Self { foreign: foreign.into_iter().take(MOST_FOREIGN).collect(), of_hour, pause, ..self.clone() }
    }

    fn begin_pause(&mut self, replicas: i32, now: Timestamp) {
        let seconds = self.pause.map_or(SHORTEST, |last| last.seconds.saturating_mul(2).min(LONGEST));
        self.pause = Some(Pause { until: after(now, seconds), seconds, replicas });
        self.foreign.clear();
    }
}

fn after(now: Timestamp, seconds: u32) -> Timestamp {
    now.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    /// Another sets 2 replicas at each of these times, and this controller answers with 5 unless it pauses. Its answers.
    fn answered(contest: &mut Contest, times: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut answers = Vec::new();
        for time in times {
            *contest = contest.seen(2, at(time));
            if contest.pause(at(time)).is_none() {
                answers.push(time);
                *contest = contest.written(5);
            }
        }
        answers
    }

    #[test]
    fn the_third_foreign_write_within_five_minutes_is_not_answered() {
        let mut contest = Contest::default().written(5);
        assert_eq!(answered(&mut contest, [0, 100, 299, 310, 598]), [0, 100]);
        assert_eq!(contest.pause(at(598)).map(|pause| pause.until), Some(at(599)));
        assert_eq!(answered(&mut contest, [599]), [599], "the pause is over");
    }

    #[test]
    fn writes_that_are_further_apart_are_answered() {
        let mut contest = Contest::default().written(5);
        assert_eq!(answered(&mut contest, [0, 150, 300, 450, 600]), [0, 150, 300, 450, 600]);
    }

    #[test]
    fn writes_that_go_on_for_an_hour_are_counted_and_forgotten_after_it() {
        let mut contest = Contest::default().written(5);
        answered(&mut contest, (0..4).map(|count| count * 600));
        assert_eq!(contest.often(), None);
        answered(&mut contest, [2_400]);
        assert_eq!(contest.often(), Some(5));
        assert!(
            contest.seen(5, at(2_401)).often().is_some() && !contest.seen(5, at(2_401)).is_foreign(at(2_401))
        );
        assert_eq!(contest.seen(5, at(3_600)).often(), None, "the first one is an hour old");
        answered(&mut contest, (0..1_000).map(|count| 3_000 + count * 160));
        assert!(contest.of_hour.len() <= MOST_OF_HOUR);
    }

    #[test]
    fn pauses_grow_to_half_an_hour_and_an_hour_of_peace_ends_that() {
        let mut contest = Contest::default().written(5);
        // One write per second until a pause begins, and when that ends.
        let paused = |contest: &mut Contest, from: i64| {
            let begin = (from..).find(|time| {
                answered(contest, [*time]);
                contest.pause(at(*time)).is_some()
            });
            let begin = begin.unwrap();
            let until = contest.pause(at(begin)).unwrap().until.duration_since(at(0)).as_secs();
            (until - begin, until)
        };
        let (mut lengths, mut now) = (Vec::new(), 0);
        for _ in 0..5 {
            let (length, until) = paused(&mut contest, now);
            lengths.push(length);
            now = until;
        }
        assert_eq!(lengths, [300, 600, 1_200, 1_800, 1_800]);
        assert_eq!(paused(&mut contest, now + 3_601).0, 300);
    }

    #[test]
    fn never_more_than_three_answers_within_five_minutes_however_others_write() {
        for step in [1, 7, 40, 99, 101, 149] {
            let mut contest = Contest::default().written(5);
            let answers = answered(&mut contest, (0..20_000).step_by(step));
            for window in answers.windows(4) {
                assert!(window[3] - window[0] >= 300, "every {step} s: {window:?}");
            }
        }
    }

    #[test]
    fn what_this_controller_wrote_is_no_foreign_write() {
        let mut contest = Contest::default();
        for (time, replicas) in [(0, 3), (1, 5), (2, 7), (3, 4), (4, 0)] {
            contest = contest.written(replicas).seen(replicas, at(time));
        }
        assert!(contest.pause(at(4)).is_none() && contest.foreign.is_empty() && !contest.is_stopped());
    }

    #[test]
    fn zero_by_another_is_a_stop_and_zero_by_this_controller_or_at_first_sight_is_none() {
        let by_another = Contest::default().written(3).seen(0, at(0));
        assert!(by_another.is_stopped());
        assert!(by_another.seen(0, at(1)).is_stopped(), "it stays one");
        assert!(!by_another.seen(2, at(2)).is_stopped());
        assert!(!Contest::default().written(0).seen(0, at(0)).is_stopped());
        assert!(!Contest::default().seen(0, at(0)).is_stopped());
        assert!(Contest::default().written(3).seen_paused(0).seen(0, at(9)).is_stopped());
    }

    #[test]
    fn zero_by_this_controller_is_known_until_the_replicas_change() {
        let idle = Contest::default().written(0).seen(0, at(0));
        assert!(idle.is_idle() && idle.resumed(0, true, at(1)).is_idle() && idle.seen_paused(0).is_idle());
        assert!(!idle.seen(2, at(1)).is_idle());
        assert!(!idle.seen(2, at(1)).seen(0, at(2)).is_idle());
        assert!(!Contest::default().seen(0, at(0)).is_idle(), "it may be maintenance");
        let older: Contest = serde_json::from_str(r#"{"known":0}"#).unwrap();
        assert!(!older.resumed(0, true, at(0)).is_idle(), "a status of a version that did not know");
    }

    #[test]
    fn maintenance_by_hand_is_counted_once_and_what_is_changed_during_a_pause_never() {
        let contest = Contest::default().written(3).seen(0, at(0)).seen(3, at(60));
        assert_eq!(contest.foreign, [at(0)]);
        let contest = Contest::default().written(3).seen_paused(4).seen_paused(6).seen(6, at(60));
        assert!(contest.foreign.is_empty());
    }

    #[test]
    fn what_a_new_process_finds_changed_is_no_foreign_write_and_its_zero_may_be_that_of_the_one_before() {
        let known = Contest::default().written(3);
        assert!(known.resumed(5, false, at(0)).foreign.is_empty());
        assert!(known.resumed(0, false, at(0)).is_stopped(), "the target was busy");
        assert!(!known.resumed(0, true, at(0)).is_stopped());
        let stopped = known.seen(0, at(0));
        assert!(stopped.resumed(0, true, at(9)).is_stopped(), "it was known before");
        assert!(!stopped.resumed(2, true, at(9)).is_stopped());
        assert!(known.resumed(0, true, at(0)).is_idle() && !known.resumed(0, false, at(0)).is_idle());
    }

    #[test]
    fn a_restart_goes_on_with_the_pause_and_a_clock_that_was_set_back_does_not_prolong_it() {
        let mut contest = Contest::default().written(5);
        answered(&mut contest, [0, 1, 2]);
        let text = serde_json::to_string(&contest).unwrap();
        let read: Contest = serde_json::from_str(&text).unwrap();
        assert_eq!(read, contest);
        assert!(read.seen(2, at(200)).pause(at(200)).is_some());
        let earlier = read.seen(2, at(-10_000));
        assert_eq!(earlier.pause(at(-10_000)).unwrap().until, at(-9_700));
    }
}
