//! Writes that another manager takes back each time.
//!
//! A field that was changed is restored at once. If two managers both do that, they would alternate at the pace of the
//! network. So the same write of the same child is repeated a few times at once, and then ever more rarely. It only
//! counts and computes waits; it sees no object.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{backoff::doubled, key::Key};

/// A person who edits a child by hand tries more than once.
const AT_ONCE: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longer than the usual intervals at which GitOps tools apply again: from three minutes to an hour.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2 * 60 * 60);
/// Writes that are remembered beside one for each child of the cache. Children that come and go take these.
const BESIDE_THE_CHILDREN: usize = 1_024;

/// Of the children of one kind.
#[derive(Default)]
pub(crate) struct Contests(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    contests: HashMap<Key, RepeatedWrite>,
    /// The most children that the cache has had at once. A child whose labels are taken off leaves the cache for a
    /// moment, so the number of now would be too small in a contest about labels.
    most_children: usize,
}

struct RepeatedWrite {
    /// Of what was written.
    hash: Box<str>,
    /// How often it was written in a row.
    times: u32,
    last: Instant,
    is_reported: bool,
}

impl Contests {
    /// How long a write of this hash has to wait; `None`: not at all.
    pub(crate) fn wait(&self, key: &Key, hash: &str, now: Instant) -> Option<Duration> {
        let remembered = self.lock();
        let repeated = remembered.contests.get(key).filter(|repeated| *repeated.hash == *hash)?;
        let repetitions = repeated.times.checked_sub(AT_ONCE)?;
        if !repeated.is_reported {
            // So slow a contest needs no wait. It is held back once, to be reported.
            return Some(FIRST_WAIT);
        }
        let wait = doubled(FIRST_WAIT, LONGEST_WAIT, repetitions.saturating_add(1));
        let left = wait.checked_sub(now.saturating_duration_since(repeated.last))?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether it has not been reported yet that writes of this hash are held back.
    pub(crate) fn is_new(&self, key: &Key, hash: &str) -> bool {
        self.lock().contests.get(key).is_some_and(|repeated| *repeated.hash == *hash && !repeated.is_reported)
    }

    pub(crate) fn reported(&self, key: &Key, hash: &str) {
        if let Some(repeated) = self.lock().contests.get_mut(key).filter(|repeated| *repeated.hash == *hash) {
            repeated.is_reported = true;
        }
    }

    /// A write of this hash was sent. `children`: how many the cache has. If each of them is contested about at the same
    /// time, each is remembered.
    pub(crate) fn forced(&self, key: &Key, hash: &str, now: Instant, children: usize) {
        let mut remembered = self.lock();
        remembered.most_children = remembered.most_children.max(children);
        if let Some(repeated) = remembered.contests.get_mut(key)
            && *repeated.hash == *hash
            && now.saturating_duration_since(repeated.last) < FORGOTTEN_AFTER
        {
            repeated.times = repeated.times.saturating_add(1);
            repeated.last = now;
            return;
        }
        remembered.make_room(now);
        let repeated = RepeatedWrite { hash: hash.into(), times: 1, last: now, is_reported: false };
        remembered.contests.insert(key.clone(), repeated);
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    /// Forgets what is over, and if that is not enough, the oldest eighth: so the search is rare.
    fn make_room(&mut self, now: Instant) {
        let most = BESIDE_THE_CHILDREN.saturating_add(self.most_children);
        if self.contests.len() < most {
            return;
        }
        self.contests.retain(|_, repeated| now.saturating_duration_since(repeated.last) < FORGOTTEN_AFTER);
        if self.contests.len() < most {
            return;
        }
        let mut by_age: Vec<(Instant, Key)> =
            self.contests.iter().map(|(key, repeated)| (repeated.last, key.clone())).collect();
        by_age.sort_unstable();
        for (_, oldest) in by_age.iter().take(most.div_ceil(8)) {
            self.contests.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("demo", "chat")
    }

    #[test]
    fn the_same_write_is_repeated_a_few_times_at_once_and_then_ever_more_rarely() {
        let (contests, mut now) = (Contests::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = contests.wait(&key(), "a", now).unwrap_or_default();
            contests.reported(&key(), "a");
            waits.push(wait.as_secs());
            now += wait;
            contests.forced(&key(), "a", now, 1);
        }
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(contests.wait(&key(), "b", now), None, "another write is no repetition");
    }

    #[test]
    fn a_contest_is_reported_once_and_forgotten_after_two_quiet_hours() {
        let (contests, now) = (Contests::default(), Instant::now());
        for _ in 0..AT_ONCE {
            contests.forced(&key(), "a", now, 1);
        }
        assert!(contests.wait(&key(), "a", now).is_some());
        assert!(contests.is_new(&key(), "a"));
        contests.reported(&key(), "a");
        assert!(!contests.is_new(&key(), "a"));
        let later = now + FORGOTTEN_AFTER;
        contests.forced(&key(), "a", later, 1);
        assert_eq!(contests.wait(&key(), "a", later), None);
    }

    /// A GitOps tool that applies each ten minutes.
    #[test]
    fn a_slow_contest_is_reported_too() {
        const INTERVAL: Duration = Duration::from_secs(600);
        let (contests, mut now) = (Contests::default(), Instant::now());
        for _ in 0..AT_ONCE {
            assert_eq!(contests.wait(&key(), "a", now), None);
            contests.forced(&key(), "a", now, 1);
            now += INTERVAL;
        }
        assert_eq!(contests.wait(&key(), "a", now), Some(FIRST_WAIT));
        assert!(contests.is_new(&key(), "a"));
        contests.reported(&key(), "a");
        assert_eq!(contests.wait(&key(), "a", now), None, "the wait since the last write is over");
    }

    #[test]
    fn two_thousand_children_that_are_fought_about_at_once_are_all_held_back() {
        const CHILDREN: usize = 2_000;
        let (contests, now) = (Contests::default(), Instant::now());
        let keys: Vec<Key> = (0..CHILDREN).map(|number| Key::new("demo", &number.to_string())).collect();
        for round in 0..AT_ONCE {
            // In the last round, most children have left the cache for a moment.
            let known = if round + 1 == AT_ONCE { 1 } else { CHILDREN };
            for key in &keys {
                assert_eq!(contests.wait(key, "a", now), None);
                contests.forced(key, "a", now, known);
            }
        }
        let held_back = keys.iter().filter(|key| contests.wait(key, "a", now).is_some()).count();
        assert_eq!(held_back, CHILDREN);
    }

    #[test]
    fn the_oldest_writes_are_forgotten_when_many_children_come_and_go() {
        let (contests, mut now) = (Contests::default(), Instant::now());
        let contested = Key::new("demo", "contested-about");
        for number in 0..10 * BESIDE_THE_CHILDREN {
            if number % 500 == 0 {
                contests.forced(&contested, "a", now, 1);
            }
            now += Duration::from_millis(1);
            contests.forced(&Key::new("demo", &number.to_string()), "a", now, 1);
            assert!(contests.lock().contests.len() <= BESIDE_THE_CHILDREN + 1);
        }
        assert!(
            contests.wait(&contested, "a", now).is_some(),
            "a contest that goes on is not among the oldest"
        );
    }
}
