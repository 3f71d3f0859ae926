//! Pods whose deletion was accepted because their nodes are lost, until a status that was written has them.
//!
//! The write of a status can meet a conflict, and the pod itself does not say who deleted it. So what was deleted is kept
//! in memory, and every plan records it until it is recorded. A restart of the process between the deletion and the
//! write of the status loses the record; the event of the deletion is there.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// A pod that has left a lost node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    pub pod: String,
    pub node: String,
    pub reason: &'static str,
    pub time: Timestamp,
}

/// By the uid of the object that owns the pods, oldest first.
#[derive(Debug, Default)]
pub struct Departures(Mutex<HashMap<String, Vec<Departure>>>);

/// Of one object; a status has no more. The newest are kept.
pub const MOST_OF_ONE: usize = 10;
/// Objects that were deleted before their status was written are forgotten with all others.
const MOST: usize = 10_000;

impl Departures {
    pub fn note(&self, uid: &str, departure: Departure) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(uid) {
            known.clear();
        }
        let of_one = known.entry(uid.to_owned()).or_default();
        of_one.push(departure);
        let surplus = of_one.len().saturating_sub(MOST_OF_ONE);
        of_one.drain(..surplus);
    }

    /// Those that are not recorded yet; the others are forgotten.
    pub fn unrecorded(&self, uid: &str, is_recorded: impl Fn(&Departure) -> bool) -> Vec<Departure> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut of_one) = known.remove(uid) else { return Vec::new() };
        of_one.retain(|departure| !is_recorded(departure));
        if !of_one.is_empty() {
            known.insert(uid.to_owned(), of_one.clone());
        }
        of_one
    }
}

#[cfg(test)]
mod tests {
    use api::reasons;

    use super::*;

    fn departure(pod: &str) -> Departure {
        let time = Timestamp::from_second(1_767_268_800).unwrap();
        Departure { pod: pod.to_owned(), node: "gpu-1".to_owned(), reason: reasons::NODE_DELETED, time }
    }

    fn pods(departures: &[Departure]) -> Vec<&str> {
        departures.iter().map(|departure| departure.pod.as_str()).collect()
    }

    #[test]
    fn a_departure_is_known_until_it_is_recorded_and_no_longer() {
        let departures = Departures::default();
        departures.note("chat", departure("a"));
        departures.note("chat", departure("b"));
        assert_eq!(departures.unrecorded("another", |_| false), []);
        // The status write met a conflict.
        assert_eq!(pods(&departures.unrecorded("chat", |_| false)), ["a", "b"]);
        assert_eq!(pods(&departures.unrecorded("chat", |known| known.pod == "a")), ["b"]);
        assert_eq!(departures.unrecorded("chat", |_| true), []);
        assert_eq!(departures.unrecorded("chat", |_| false), [], "the list of a status is short: not again");
        assert!(departures.0.lock().unwrap().is_empty());
    }

    #[test]
    fn departures_do_not_add_up() {
        let departures = Departures::default();
        for pod in 0..MOST_OF_ONE + 2 {
            departures.note("chat", departure(&pod.to_string()));
        }
        let kept = departures.unrecorded("chat", |_| false);
        assert_eq!((kept.len(), kept[0].pod.as_str()), (MOST_OF_ONE, "2"));
        for uid in 0..MOST {
            departures.note(&uid.to_string(), departure("a"));
        }
        assert_eq!(departures.0.lock().unwrap().len(), 1);
    }
}
