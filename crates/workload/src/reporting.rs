//! How soon a status is written that differs from the stored one only in details: measured numbers, counts of new pods, and
//! the first status of an object. Pure.
//!
//! That a status is not written yet is a fact. It is noted until the stored status changes, also after the wait is over: if
//! the write fails, the next try comes at once and counts as a try.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{time::remaining, views::pod::PodView};

/// In this time a pod is scheduled unless there is a fault.
const NEW_FOR: Duration = Duration::from_secs(5);
/// The fact that no status has been written yet.
const UNREPORTED: &str = "unreported";

/// A status that is not written yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub fact: String,
    /// How long the write may still be delayed.
    pub wait: Option<Duration>,
}

impl Unwritten {
    /// A status that differs from the stored one only in measured values. The name of the fact has a hash of the stored values,
    /// so the fact ends when other values are written.
    pub fn measured(
        numbers: impl Hash,
        conditions: &[Condition],
        every: Duration,
        facts: &BTreeMap<String, Timestamp>,
        now: Timestamp,
    ) -> Self {
        let mut hash = DefaultHasher::new();
        numbers.hash(&mut hash);
        conditions.iter().for_each(|condition| condition.message.hash(&mut hash));
        Self::new(format!("measured since {:x}", hash.finish()), every, facts, now)
    }

    /// The first status of an object.
    pub fn first(delay: Duration, facts: &BTreeMap<String, Timestamp>, now: Timestamp) -> Self {
        Self::new(UNREPORTED.to_owned(), delay, facts, now)
    }

    fn new(fact: String, delay: Duration, facts: &BTreeMap<String, Timestamp>, now: Timestamp) -> Self {
        let since = facts.get(&fact).copied().unwrap_or(now);
        Self { fact, wait: remaining(delay, since, now) }
    }
}

/// How long counts of pods may be delayed, which change often while pods are new.
pub fn delay_of_counts<'p>(pods: impl Iterator<Item = &'p PodView>, now: Timestamp) -> Option<Duration> {
    let (mut newest, mut unready): (Option<Timestamp>, Option<Timestamp>) = (None, None);
    for (pod, created) in pods.filter_map(|pod| Some((pod, pod.created()?))) {
        newest = newest.max(Some(created));
        if !pod.is_ready {
            unready = unready.into_iter().chain([created]).min();
        }
    }
    // The oldest pod that is not ready, so that frequent replacements cannot delay the write without limit.
    // Clock skew can put the creation into the future; then nothing is delayed.
    let age = Duration::try_from(now.duration_since(unready.or(newest)?)).ok()?;
    NEW_FOR.checked_sub(age).filter(|wait| !wait.is_zero())
}

/// The conditions with other messages.
pub fn with_messages(conditions: &[Condition], map: impl Fn(&str) -> String) -> Vec<Condition> {
    let with_message = |known: &Condition| Condition { message: map(&known.message), ..known.clone() };
    conditions.iter().map(with_message).collect()
}

/// Removes words that are numbers; a digit in a name stays.
pub fn without_numbers(message: &str) -> String {
    let is_number = |word: &&str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
    };
    message.split(' ').filter(|word| !is_number(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds)
    }

    fn condition(message: &str) -> Condition {
        serde_json::from_value(serde_json::json!({
            "type": "Ready", "status": "True", "reason": "Ready", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn the_wait_counts_from_the_first_plan_and_begins_again_when_others_are_stored() {
        let every = Duration::from_secs(10);
        let stored = [condition("3 of 4 GPUs are free")];
        let first = Unwritten::measured(1, &stored, every, &BTreeMap::new(), at(0));
        assert_eq!(first.wait, Some(every));
        let facts = [(first.fact.clone(), at(0))].into();
        let of = |number: i32, conditions: &[Condition], seconds: i64| {
            Unwritten::measured(number, conditions, every, &facts, at(seconds)).wait
        };
        assert_eq!(of(1, &stored, 9), Some(Duration::from_secs(1)));
        assert_eq!(of(1, &stored, 10), None);
        assert_eq!(of(2, &stored, 10), Some(every));
        assert_eq!(of(1, &[condition("2 of 4 GPUs are free")], 10), Some(every));
    }

    #[test]
    fn counts_are_delayed_while_the_oldest_pod_that_is_not_ready_is_new() {
        let pod = |created: i64, is_ready: bool| PodView {
            metadata: ObjectMeta { creation_timestamp: Some(Time(at(created))), ..ObjectMeta::default() },
            is_ready,
            ..PodView::default()
        };
        let delay = |pods: &[PodView]| delay_of_counts(pods.iter(), at(0)).map(|wait| wait.as_secs());
        assert_eq!(delay(&[]), None);
        assert_eq!(delay(&[pod(-1, true), pod(-60, true)]), Some(4));
        assert_eq!(delay(&[pod(-1, true), pod(-60, false)]), None, "replacements come often");
        assert_eq!(delay(&[pod(-5, false)]), None);
        assert_eq!(delay(&[pod(60, false)]), None, "another clock");
    }

    #[test]
    fn only_words_that_are_numbers_are_removed() {
        assert_eq!(without_numbers("3 of (4) GPUs of gpu-7 are free, 12."), "of GPUs of gpu-7 are free,");
    }
}
