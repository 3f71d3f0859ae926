//! Tokens of a pool: from what each pod has used to a total that never falls and counts nothing twice.
//!
//! The status has the tokens of each pod that was there lately, and those of all others in one number. A pod that is gone
//! stays in the list for a while, so that each process sees it there before it becomes part of the number: what was noted in
//! memory of a pod that was listed once and is listed no more has been added.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    aidispatcher::{AIDispatcher, PodTokens, Tokens},
    monitor::Message,
};
use jiff::Timestamp;
use runtime::{
    cache::{Cache, controller_of},
    conditions::whole_seconds,
};
use workload::{container::last_end, pod::PodView, time::elapsed};

use crate::plan::MONITOR;

/// Longer than any watch is silent without being noticed.
const LISTED_FOR: Duration = Duration::from_secs(120);
/// The schema of the status accepts no more.
const MOST_LISTED: usize = 2_000;
/// Of all objects of the process.
const MOST_NOTES: usize = 50_000;

/// What each pod has used, by its uid. It lives as long as the process.
#[derive(Debug, Default)]
pub(crate) struct TokenNotes(Mutex<HashMap<String, Note>>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Note {
    tokens: u64,
    /// The uid of its ReplicaSet, by which a pod that is gone still belongs to an AIDispatcher.
    replica_set: String,
    is_gone: bool,
    /// Whether a status had it.
    was_listed: bool,
}

impl TokenNotes {
    /// Notes what monitors leave when they end, and which pods are listed, on a standby too.
    pub(crate) fn tracked(pods: &Cache<PodView>, dispatchers: &Cache<AIDispatcher>) -> Arc<Self> {
        let notes = Arc::<Self>::default();
        let kept = Arc::clone(&notes);
        pods.subscribe(move |change| {
            if let Some(pod) = change.new {
                left_by(pod).into_iter().for_each(|tokens| kept.note(pod, tokens));
            }
            let deleted = change.old.filter(|old| change.new.is_none_or(|new| new.uid() != old.uid()));
            if let Some(pod) = deleted {
                kept.gone(pod.uid());
            }
        });
        let kept = Arc::clone(&notes);
        dispatchers.subscribe(move |change| {
            let tokens = |dispatcher: &Arc<AIDispatcher>| {
                dispatcher.status.as_ref().and_then(|status| status.tokens.clone()).unwrap_or_default()
            };
            kept.listed(
                &change.old.map(tokens).unwrap_or_default(),
                &change.new.map(tokens).unwrap_or_default(),
            );
        });
        notes
    }

    /// Tokens never fall.
    pub(crate) fn note(&self, pod: &PodView, tokens: u64) {
        let mut notes = self.lock();
        if !notes.contains_key(pod.uid()) && notes.len() >= MOST_NOTES {
            // Left by objects that were deleted: nobody lists them.
            notes.retain(|_, note| !note.is_gone);
        }
        let note = notes.entry(pod.uid().to_owned()).or_default();
        note.tokens = note.tokens.max(tokens);
        if let Some(owner) = controller_of(pod) {
            note.replica_set.clone_from(&owner.uid);
        }
    }

    fn gone(&self, uid: &str) {
        let mut notes = self.lock();
        match notes.get_mut(uid) {
            Some(Note { tokens: 0, .. }) => drop(notes.remove(uid)),
            Some(note) => note.is_gone = true,
            None => {}
        }
    }

    fn listed(&self, before: &Tokens, now: &Tokens) {
        let uids = |tokens: &Tokens| tokens.pods.iter().map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>();
        let (before, now) = (uids(before), uids(now));
        let mut notes = self.lock();
        for uid in &now {
            if let Some(note) = notes.get_mut(uid) {
                note.was_listed = true;
            }
        }
        // They were added to the number.
        for uid in before.difference(&now) {
            notes.remove(uid);
        }
    }

    /// What is known of the pods of these ReplicaSets that a status may not have yet.
    pub(crate) fn of(&self, replica_sets: &BTreeSet<&str>, listed: &Tokens) -> BTreeMap<String, u64> {
        let notes = self.lock();
        let listed: BTreeSet<&str> = listed.pods.iter().map(|pod| &*pod.uid).collect();
        let is_counted = |uid: &str, note: &Note| {
            listed.contains(uid)
                || replica_sets.contains(&*note.replica_set) && !(note.is_gone && note.was_listed)
        };
        let counted = notes.iter().filter(|(uid, note)| is_counted(uid, note));
        counted.map(|(uid, note)| (uid.clone(), note.tokens)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the monitor of a pod has left that has ended, and is not started again.
pub(crate) fn last_message_of(pod: &PodView) -> Option<Message> {
    let ended = pod.init_container(MONITOR)?.state.terminated.as_ref()?;
    serde_json::from_str(&ended.message).ok()
}

/// What the last monitor of a pod has left.
pub(crate) fn message_of(pod: &PodView) -> Option<Message> {
    let ended = last_end(pod.init_container(MONITOR)?)?;
    serde_json::from_str(&ended.message).ok()
}

fn left_by(pod: &PodView) -> Option<u64> {
    message_of(pod).map(|message| message.tokens)
}

/// The tokens to be stored, from the stored ones, what is noted of pods, and the uids of those that are there.
pub(crate) fn counted(
    stored: &Tokens,
    noted: &BTreeMap<String, u64>,
    present: &BTreeSet<&str>,
    now: Timestamp,
) -> Tokens {
    let mut pods: BTreeMap<&str, PodTokens> =
        stored.pods.iter().map(|pod| (&*pod.uid, pod.clone())).collect();
    for (uid, tokens) in noted {
        let tokens = i64::try_from(*tokens).unwrap_or(i64::MAX);
        let pod = pods.entry(uid).or_insert_with(|| PodTokens { uid: uid.clone(), ..PodTokens::default() });
        pod.tokens = pod.tokens.max(tokens);
    }
    for pod in pods.values_mut() {
        let is_present = present.contains(&*pod.uid);
        pod.deleted_time =
            if is_present { None } else { pod.deleted_time.take().or_else(|| Some(whole_seconds(now))) };
    }
    let mut pods: Vec<PodTokens> = pods.into_values().filter(|pod| pod.tokens > 0).collect();
    // Only those that the status has are taken out of the list.
    let was_listed: BTreeSet<&str> = stored.pods.iter().map(|pod| &*pod.uid).collect();
    // Those that are there first, then those that went last; of both, first those that are listed.
    pods.sort_by_cached_key(|pod| {
        let is_new = !was_listed.contains(&*pod.uid);
        let gone = pod.deleted_time.as_ref().map(|gone| Reverse(gone.0));
        (gone.is_some(), is_new, gone, pod.uid.clone())
    });
    let is_old =
        |pod: &PodTokens| pod.deleted_time.as_ref().is_some_and(|gone| elapsed(gone.0, now) >= LISTED_FOR);
    let mut ended = stored.ended;
    let mut kept = Vec::new();
    for (index, pod) in pods.into_iter().enumerate() {
        let (is_listed, is_over) = (was_listed.contains(&*pod.uid), index >= MOST_LISTED);
        if is_listed && (is_old(&pod) || is_over) {
            ended = ended.saturating_add(pod.tokens);
        } else if !is_over {
            // The others are counted once there is room: a note that was never listed is counted again each time.
            kept.push(pod);
        }
    }
    Tokens { ended, pods: kept }
}

/// `status.tokenUsage`.
pub(crate) fn total(tokens: &Tokens) -> i64 {
    tokens.pods.iter().fold(tokens.ended, |sum, pod| sum.saturating_add(pod.tokens))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::tests::{at, pod};

    use super::*;

    fn noted(pods: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pods.iter().map(|(uid, tokens)| ((*uid).to_owned(), *tokens)).collect()
    }

    #[test]
    fn a_pod_that_is_gone_stays_listed_for_a_while() {
        let first = counted(&Tokens::default(), &noted(&[("a", 5)]), &BTreeSet::from(["a"]), at(0));
        assert_eq!((total(&first), first.pods.len()), (5, 1));
        let gone = counted(&first, &noted(&[("a", 7)]), &BTreeSet::new(), at(10));
        assert_eq!((total(&gone), gone.pods.len(), gone.ended), (7, 1, 0));
        let later = counted(&gone, &noted(&[("a", 7)]), &BTreeSet::new(), at(130));
        assert_eq!((total(&later), later.pods.len(), later.ended), (7, 0, 7));
    }

    #[test]
    fn pods_beyond_the_longest_list_are_counted_at_most_once() {
        let noted: BTreeMap<String, u64> = (0..=MOST_LISTED).map(|pod| (format!("{pod:04}"), 1)).collect();
        let present: BTreeSet<&str> = noted.keys().map(String::as_str).collect();
        let first = counted(&Tokens::default(), &noted, &present, at(0));
        let second = counted(&first, &noted, &present, at(10));
        let most = i64::try_from(MOST_LISTED).unwrap();
        assert_eq!((total(&first), total(&second), second.pods.len()), (most, most, MOST_LISTED));
        // One of them goes: then there is room.
        let left: BTreeSet<&str> = present.iter().copied().skip(1).collect();
        let gone = counted(&second, &noted, &left, at(20));
        let later = counted(&gone, &noted, &left, at(200));
        assert_eq!((total(&gone), total(&later)), (most + 1, most + 1));
    }

    #[test]
    fn what_a_monitor_leaves_is_noted_and_an_older_reading_changes_nothing() {
        let left = r#"'{"tokens": 90}'"#;
        let ended = pod(&format!(
            "{{init: [{{name: monitor, state: {{terminated: {{exitCode: 0, message: {left}}}}}}}]}}"
        ));
        let pods = Cache::default();
        let notes = TokenNotes::tracked(&pods, &Cache::default());
        pods.upsert(ended.clone());
        assert_eq!(notes.lock()["coder-0"].tokens, 90);
        notes.note(&ended, 80);
        assert_eq!(notes.lock()["coder-0"].tokens, 90);
    }

    #[test]
    fn a_note_of_a_pod_that_was_added_to_the_number_is_dropped() {
        let (pods, dispatchers) = (Cache::default(), Cache::default());
        let notes = TokenNotes::tracked(&pods, &dispatchers);
        notes.note(&pod("{replicaSet: set}"), 5);
        let sets = BTreeSet::from(["set"]);
        assert_eq!(notes.of(&sets, &Tokens::default()), noted(&[("coder-0", 5)]));
        assert!(notes.of(&BTreeSet::from(["another"]), &Tokens::default()).is_empty());
        let listed = counted(&Tokens::default(), &noted(&[("coder-0", 5)]), &BTreeSet::new(), at(0));
        notes.listed(&Tokens::default(), &listed);
        notes.gone("coder-0");
        assert!(notes.of(&sets, &Tokens::default()).is_empty(), "it may have been added by another process");
        assert_eq!(notes.of(&sets, &listed), noted(&[("coder-0", 5)]));
        notes.listed(&listed, &Tokens { ended: 5, pods: Vec::new() });
        assert!(notes.lock().is_empty());
    }

    proptest! {
        /// Pods come, use tokens and go; statuses are written or lost, and the process is started again in between.
        #[test]
        fn the_total_is_the_sum_of_all_pods_and_never_falls(
            steps in prop::collection::vec((0usize..6, 0u64..100, 0u8..6), 1..80),
        ) {
            let notes = TokenNotes::default();
            let mut used: BTreeMap<usize, u64> = BTreeMap::new();
            let mut gone: BTreeSet<usize> = BTreeSet::new();
            let mut stored = Tokens::default();
            let (mut now, mut last) = (0, 0);
            let name = |index: usize| format!("pod-{index}");
            let view = |index: usize| pod(&format!("{{name: {}, replicaSet: set}}", name(index)));
            for (index, tokens, what) in steps {
                now += 45;
                match what {
                    0..=2 if !gone.contains(&index) => {
                        *used.entry(index).or_default() += tokens;
                        notes.note(&view(index), used[&index]);
                    }
                    3 if used.contains_key(&index) => {
                        gone.insert(index);
                        notes.gone(&name(index));
                    }
                    _ => {}
                }
                let names: Vec<String> =
                    used.keys().filter(|index| !gone.contains(index)).map(|index| name(*index)).collect();
                let present: BTreeSet<&str> = names.iter().map(String::as_str).collect();
                let noted = notes.of(&BTreeSet::from(["set"]), &stored);
                let planned = counted(&stored, &noted, &present, at(now));
                prop_assert_eq!(total(&planned), used.values().sum::<u64>() as i64);
                prop_assert!(total(&planned) >= last);
                // A write that is lost changes nothing.
                if what != 5 {
                    notes.listed(&stored, &planned);
                    stored = planned;
                    last = total(&stored);
                }
            }
        }
    }
}
