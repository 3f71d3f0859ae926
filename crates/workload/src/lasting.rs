//! Since when something has been true of an object, where no object of the API says it. Kept in memory only: after a
//! restart of the process the time begins anew, so what waits for it comes later, never sooner.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// By the uid of an object, what was true of it when it was planned last.
#[derive(Debug, Default)]
pub struct Lasting(Mutex<HashMap<String, BTreeMap<String, Timestamp>>>);

/// Objects that were deleted while something was true of them are forgotten with all others; the times begin anew.
const MOST: usize = 10_000;

impl Lasting {
    pub fn of(&self, uid: &str) -> BTreeMap<String, Timestamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned().unwrap_or_default()
    }

    /// This is true of the object now, and nothing else.
    pub fn note(&self, uid: &str, facts: &[String], now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.remove(uid).unwrap_or_default();
        if facts.is_empty() {
            return;
        }
        if known.len() >= MOST {
            known.clear();
        }
        let since = |fact: &String| (fact.clone(), before.get(fact).copied().unwrap_or(now));
        known.insert(uid.to_owned(), facts.iter().map(since).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    #[test]
    fn a_fact_lasts_from_when_it_was_first_true_until_it_is_not() {
        let lasting = Lasting::default();
        let note = |facts: &[&str], seconds| {
            let facts: Vec<String> = facts.iter().map(|&fact| fact.to_owned()).collect();
            lasting.note("chat", &facts, at(seconds));
            lasting.of("chat").into_values().collect::<Vec<_>>()
        };
        assert_eq!(note(&["a"], 0), [at(0)]);
        assert_eq!(note(&["a", "b"], 5), [at(0), at(5)]);
        assert_eq!(note(&["b"], 7), [at(5)]);
        assert_eq!(note(&["a", "b"], 9), [at(9), at(5)], "it was not true in between");
        assert_eq!(note(&[], 11), []);
        assert!(lasting.0.lock().unwrap().is_empty());
    }

    #[test]
    fn objects_that_are_gone_do_not_add_up() {
        let lasting = Lasting::default();
        for uid in 0..=MOST {
            lasting.note(&uid.to_string(), &["a".to_owned()], at(0));
        }
        assert_eq!(lasting.0.lock().unwrap().len(), 1);
    }
}
