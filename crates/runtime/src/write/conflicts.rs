//! Versions that the API server has refused to write to, because the object has a newer one: what is decided on such a
//! version once more is refused once more. It sends nothing, and knows no object.
//!
//! The next write of an object waits until the cache has another version of it, which starts a reconcile at once. A watch
//! may be silent for long, and a conflict may have another cause. So the same version is tried again after a pause, which
//! doubles with each refusal.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    backoff::{doubled, spread},
    key::Key,
};

/// A watch brings the newer version within milliseconds.
const FIRST: Duration = Duration::from_millis(500);
/// A watch that is silent for longer is opened anew.
const LONGEST: Duration = Duration::from_secs(30);
/// Objects that conflict together get apart.
const JITTER: f64 = 0.1;
/// With more objects than these, some writes are refused once more.
const MOST: usize = 1_024;

/// The last refused version of each object, of all kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conflicts(Arc<Mutex<HashMap<(&'static str, Key), Refused>>>);

#[derive(Debug)]
struct Refused {
    /// `None`: the object was to be created.
    version: Option<String>,
    /// In a row.
    times: u32,
    until: Instant,
}

impl Conflicts {
    /// Whether a write to this version waits.
    pub(crate) fn holds(&self, kind: &'static str, key: &Key, version: Option<&str>, now: Instant) -> bool {
        let all = self.lock();
        let refused = all.get(&(kind, key.clone()));
        refused.is_some_and(|refused| refused.version.as_deref() == version && now < refused.until)
    }

    /// The API server has refused a write to this version.
    pub(crate) fn note(&self, kind: &'static str, key: &Key, version: Option<&str>, now: Instant) {
        let mut all = self.lock();
        let entry = (kind, key.clone());
        let before = all.get(&entry).filter(|refused| refused.version.as_deref() == version);
        let times = before.map_or(1, |refused| refused.times.saturating_add(1));
        let until = now + spread(doubled(FIRST, LONGEST, times), JITTER);
        if all.len() >= MOST && !all.contains_key(&entry) {
            all.retain(|_, refused| now < refused.until);
            if all.len() >= MOST {
                all.clear();
            }
        }
        all.insert(entry, Refused { version: version.map(str::to_owned), times, until });
    }

    /// A write has succeeded: its object has another version now.
    pub(crate) fn forget(&self, kind: &'static str, key: &Key) {
        self.lock().remove(&(kind, key.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(&'static str, Key), Refused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("demo", "a")
    }

    #[test]
    fn a_refused_version_waits_ever_longer_and_another_one_does_not() {
        let (conflicts, begin) = (Conflicts::default(), Instant::now());
        let mut now = begin;
        let mut tries = 0;
        // A watch that brings nothing for ten seconds, and a reconcile each 5 ms.
        while now < begin + Duration::from_secs(10) {
            if !conflicts.holds("Pod", &key(), Some("7"), now) {
                conflicts.note("Pod", &key(), Some("7"), now);
                tries += 1;
            }
            assert!(!conflicts.holds("Pod", &key(), Some("8"), now));
            assert!(!conflicts.holds("Job", &key(), Some("7"), now));
            now += Duration::from_millis(5);
        }
        assert!((4..=5).contains(&tries), "{tries}");
        conflicts.note("Pod", &key(), Some("8"), now);
        assert!(
            !conflicts.holds("Pod", &key(), Some("8"), now + Duration::from_millis(600)),
            "it begins anew"
        );
        conflicts.forget("Pod", &key());
        assert!(conflicts.lock().is_empty());
    }

    #[test]
    fn the_longest_pause_is_half_a_minute() {
        let (conflicts, now) = (Conflicts::default(), Instant::now());
        (0..100).for_each(|_| conflicts.note("Pod", &key(), None, now));
        assert!(conflicts.holds("Pod", &key(), None, now + Duration::from_secs(29)));
        assert!(!conflicts.holds("Pod", &key(), None, now + Duration::from_secs(34)));
    }

    #[test]
    fn there_are_never_more_than_the_bound() {
        let (conflicts, now) = (Conflicts::default(), Instant::now());
        for number in 0..3 * MOST {
            conflicts.note("Pod", &Key::new("demo", &number.to_string()), Some("7"), now);
            assert!(conflicts.lock().len() <= MOST);
        }
    }
}
