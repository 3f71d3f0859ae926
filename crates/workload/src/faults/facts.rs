//! Since when a fact about an object has been true, where no API object has a timestamp for it. Kept in memory only: after
//! a restart of the process every time starts again, so actions that depend on it happen later, never sooner.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// By uid of the object: the facts of its last plan, and since when each has been true.
#[derive(Debug, Default)]
pub struct FactTimes(Mutex<HashMap<String, BTreeMap<String, Timestamp>>>);

/// Deleted objects are not removed one by one; at this number all entries are dropped and the times start again.
const MOST: usize = 10_000;

impl FactTimes {
    pub fn of(&self, uid: &str) -> BTreeMap<String, Timestamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned().unwrap_or_default()
    }

    /// Replaces the facts of an object. A fact that was true before keeps its time.
    pub fn note(&self, uid: &str, facts: &[String], now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.remove(uid).unwrap_or_default();
        if facts.is_empty() {
            return;
        }
        if known.len() >= MOST {
            known.clear();
        }
        // A clock that was set back makes no fact one of the future.
        let since = |fact: &String| (fact.clone(), before.get(fact).copied().unwrap_or(now).min(now));
        known.insert(uid.to_owned(), facts.iter().map(since).collect());
    }

    /// Ends one fact of an object.
    pub fn end(&self, uid: &str, fact: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = known.get_mut(uid) {
            facts.remove(fact);
            if facts.is_empty() {
                known.remove(uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    #[test]
    fn a_fact_keeps_its_time_while_it_stays_true() {
        let times = FactTimes::default();
        let note = |facts: &[&str], seconds| {
            let facts: Vec<String> = facts.iter().map(|&fact| fact.to_owned()).collect();
            times.note("chat", &facts, at(seconds));
            times.of("chat").into_values().collect::<Vec<_>>()
        };
        assert_eq!(note(&["a"], 0), [at(0)]);
        assert_eq!(note(&["a", "b"], 5), [at(0), at(5)]);
        assert_eq!(note(&["b"], 7), [at(5)]);
        assert_eq!(note(&["a", "b"], 9), [at(9), at(5)], "it was not true in between");
        times.end("chat", "a");
        times.end("chat", "no fact");
        assert_eq!(note(&["b"], 10), [at(5)]);
        times.end("chat", "b");
        assert!(times.0.lock().unwrap().is_empty());
        assert_eq!(note(&["b"], 11), [at(11)]);
        assert_eq!(note(&[], 11), []);
        assert!(times.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_clock_that_is_set_back_delays_nothing() {
        let times = FactTimes::default();
        times.note("chat", &["a".to_owned()], at(3_600));
        times.note("chat", &["a".to_owned()], at(0));
        assert_eq!(times.of("chat")["a"], at(0));
    }

    #[test]
    fn entries_of_deleted_objects_are_bounded() {
        let times = FactTimes::default();
        for uid in 0..=MOST {
            times.note(&uid.to_string(), &["a".to_owned()], at(0));
        }
        assert_eq!(times.0.lock().unwrap().len(), 1);
    }
}
