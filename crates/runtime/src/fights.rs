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

use crate::cache::Key;

/// A person who edits a child by hand tries more than once.
const AT_ONCE: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longer than the longest wait, so that a fight does not look new after it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Children whose writes are remembered; with more than these, the oldest are forgotten.
const MOST: usize = 1_024;

/// Of the children of one kind.
#[derive(Default)]
pub(crate) struct Fights(Mutex<HashMap<Key, Fight>>);

struct Fight {
    /// Of what was written.
    hash: Box<str>,
    /// How often it was written in a row.
    times: u32,
    last: Instant,
    is_reported: bool,
}

impl Fights {
    /// How long a write of this hash has to wait; `None`: not at all.
    pub(crate) fn wait(&self, key: &Key, hash: &str, now: Instant) -> Option<Duration> {
        let fights = self.lock();
        let fight = fights.get(key).filter(|fight| *fight.hash == *hash)?;
        let doublings = fight.times.checked_sub(AT_ONCE)?.min(16);
        let wait = FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT);
        let left = wait.checked_sub(now.saturating_duration_since(fight.last))?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether it has not been reported yet that writes of this hash are held back.
    pub(crate) fn is_new(&self, key: &Key, hash: &str) -> bool {
        self.lock().get(key).is_some_and(|fight| *fight.hash == *hash && !fight.is_reported)
    }

    pub(crate) fn reported(&self, key: &Key, hash: &str) {
        if let Some(fight) = self.lock().get_mut(key).filter(|fight| *fight.hash == *hash) {
            fight.is_reported = true;
        }
    }

    pub(crate) fn forced(&self, key: &Key, hash: &str, now: Instant) {
        let mut fights = self.lock();
        if let Some(fight) = fights.get_mut(key)
            && *fight.hash == *hash
            && now.saturating_duration_since(fight.last) < FORGOTTEN_AFTER
        {
            fight.times = fight.times.saturating_add(1);
            fight.last = now;
            return;
        }
        if fights.len() >= MOST {
            fights.retain(|_, fight| now.saturating_duration_since(fight.last) < FORGOTTEN_AFTER);
        }
        if fights.len() >= MOST
            && let Some(oldest) =
                fights.iter().min_by_key(|(_, fight)| fight.last).map(|(key, _)| key.clone())
        {
            fights.remove(&oldest);
        }
        fights.insert(key.clone(), Fight { hash: hash.into(), times: 1, last: now, is_reported: false });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Fight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (fights, mut now) = (Fights::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = fights.wait(&key(), "a", now).unwrap_or_default();
            waits.push(wait.as_secs());
            now += wait;
            fights.forced(&key(), "a", now);
        }
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(fights.wait(&key(), "b", now), None, "another write is no repetition");
    }

    #[test]
    fn a_fight_is_reported_once_and_forgotten_after_ten_quiet_minutes() {
        let (fights, now) = (Fights::default(), Instant::now());
        for _ in 0..AT_ONCE {
            fights.forced(&key(), "a", now);
        }
        assert!(fights.wait(&key(), "a", now).is_some());
        assert!(fights.is_new(&key(), "a"));
        fights.reported(&key(), "a");
        assert!(!fights.is_new(&key(), "a"));
        let later = now + FORGOTTEN_AFTER;
        fights.forced(&key(), "a", later);
        assert_eq!(fights.wait(&key(), "a", later), None);
    }

    #[test]
    fn only_so_many_children_are_remembered() {
        let (fights, now) = (Fights::default(), Instant::now());
        for number in 0..MOST + 10 {
            fights.forced(&Key::new("demo", &number.to_string()), "a", now);
        }
        assert_eq!(fights.lock().len(), MOST);
    }
}
