//! Adds up the tokens of the pods of a pool. The total never decreases, and no token is counted twice.
//!
//! The status lists the tokens of each present or recently deleted pod, and has the sum of all earlier pods. A deleted
//! pod stays in the list for a while, so that the cache of each replica of the controller receives that list. When a
//! listed pod is no longer listed, its tokens are part of the sum, and its note in memory is dropped.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    aidispatcher::{AIDispatcher, PodTokens, Tokens},
    monitor::Message,
};
use jiff::Timestamp;
use runtime::{watch::cache::Cache, write::conditions::whole_seconds};
use workload::{faults::container::last_end, time::elapsed, views::pod::PodView};

use super::revisions::{Revision, Revisions};
use crate::names::MONITOR;

/// Longer than the time after which a silent watch is detected.
const LISTED_FOR: Duration = Duration::from_secs(120);
/// The schema of the status accepts no more.
const MOST_LISTED: usize = 2_000;
/// Of all objects of the process.
const MOST_NOTES: usize = 50_000;
/// Entries of `deleted` without a note, beside as many as there are notes.
const SPARE: usize = 64;
/// Of a deleted pod of no AIDispatcher that is known. Its ReplicaSet can become known after the pod.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// The tokens of each pod by its uid. Kept for the lifetime of the process.
#[derive(Default)]
pub(crate) struct TokenNotes {
    notes: Mutex<Notes>,
    revisions: Arc<Revisions>,
}

#[derive(Debug, Default)]
struct Notes {
    of: HashMap<Arc<str>, Note>,
    /// The pods that have a note.
    by_revision: HashMap<Revision, BTreeSet<Arc<str>>>,
    /// The pods of the cache, with a note or without.
    existing: HashSet<Arc<str>>,
    /// In the order of their deletion.
    deleted: VecDeque<Deleted>,
}

#[derive(Clone, Debug, PartialEq)]
struct Note {
    tokens: u64,
    /// By which a pod that is deleted still belongs to an AIDispatcher.
    revision: Revision,
    is_deleted: bool,
    /// Whether a status had it.
    was_listed: bool,
}

/// A deleted pod that had a note.
#[derive(Debug)]
struct Deleted {
    uid: Arc<str>,
    /// The first reconcile of any object after the deletion.
    seen: Option<Timestamp>,
}

/// The recorded tokens of the pods of an AIDispatcher, and which of them exist.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Noted {
    pub(crate) tokens: BTreeMap<String, u64>,
    /// Those of the pods that are noted or listed, whichever object owns them now.
    pub(crate) existing: BTreeSet<String>,
}

impl TokenNotes {
    /// Notes what monitors leave when they end, which pods exist, and which are listed, on a standby too.
    pub(crate) fn tracked(
        pods: &Cache<PodView>,
        dispatchers: &Cache<AIDispatcher>,
        revisions: Arc<Revisions>,
    ) -> Arc<Self> {
        let notes = Arc::new(Self { notes: Mutex::default(), revisions });
        let kept = Arc::clone(&notes);
        pods.subscribe(move |change| {
            if let Some(pod) = change.new {
                kept.lock().existing.insert(pod.uid().into());
                left_by(pod).into_iter().for_each(|tokens| kept.note(pod, tokens));
            }
            if let Some(pod) = change.gone() {
                kept.lock().mark_deleted(pod.uid());
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

    /// Tokens never fall. Those of a pod that no ReplicaSet controls belong to no AIDispatcher.
    pub(crate) fn note(&self, pod: &PodView, tokens: u64) {
        if let Some(revision) = Revision::of(pod) {
            self.lock().note(pod.uid(), revision, tokens);
        }
    }

    fn listed(&self, before: &Tokens, now: &Tokens) {
        let uids = |tokens: &Tokens| tokens.pods.iter().map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>();
        let (before, now) = (uids(before), uids(now));
        let mut notes = self.lock();
        for uid in &now {
            if let Some(note) = notes.of.get_mut(&**uid) {
                note.was_listed = true;
            }
        }
        // They were added to the number.
        for uid in before.difference(&now) {
            notes.remove(uid);
        }
    }

    /// What is known of the pods of these ReplicaSets that a status may not have yet, and of the listed ones.
    pub(crate) fn of(&self, revisions: &BTreeSet<Revision>, listed: &Tokens, now: Timestamp) -> Noted {
        let mut notes = self.lock();
        notes.drop_old(&self.revisions, now);
        let mut noted = Noted::default();
        for uid in listed.pods.iter().map(|pod| &*pod.uid) {
            if notes.existing.contains(uid) {
                noted.existing.insert(uid.to_owned());
            }
            if let Some(note) = notes.of.get(uid) {
                noted.tokens.insert(uid.to_owned(), note.tokens);
            }
        }
        for uid in revisions.iter().filter_map(|revision| notes.by_revision.get(revision)).flatten() {
            let Some(note) = notes.of.get(uid) else { continue };
            if note.is_deleted && note.was_listed {
                continue;
            }
            noted.tokens.insert((**uid).to_owned(), note.tokens);
            if !note.is_deleted {
                noted.existing.insert((**uid).to_owned());
            }
        }
        noted
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    fn note(&mut self, uid: &str, revision: Revision, tokens: u64) {
        if let Some(note) = self.of.get_mut(uid) {
            note.tokens = note.tokens.max(tokens);
            if note.revision != revision {
                // A ReplicaSet can adopt a pod that another one has released.
                let (tokens, was_listed) = (note.tokens, note.was_listed);
                self.remove(uid);
                self.add(uid, Note { tokens, revision, is_deleted: false, was_listed });
            }
            return;
        }
        while self.of.len() >= MOST_NOTES
            && let Some(oldest) = self.deleted.pop_front()
        {
            self.remove(&oldest.uid);
        }
        self.add(uid, Note { tokens, revision, is_deleted: false, was_listed: false });
    }

    fn add(&mut self, uid: &str, mut note: Note) {
        let uid: Arc<str> = uid.into();
        // The last reading of a stream can arrive after the pod is deleted.
        note.is_deleted = !self.existing.contains(&uid);
        let is_deleted = note.is_deleted;
        self.by_revision.entry(note.revision.clone()).or_default().insert(Arc::clone(&uid));
        self.of.insert(Arc::clone(&uid), note);
        if is_deleted {
            self.push_deleted(uid);
        }
    }

    /// A standby reconciles nothing, so that `drop_old` is never called there: entries without a note go here.
    fn push_deleted(&mut self, uid: Arc<str>) {
        self.deleted.push_back(Deleted { uid, seen: None });
        if self.deleted.len() > 2 * self.of.len() + SPARE {
            let of = &self.of;
            self.deleted.retain(|pod| of.get(&pod.uid).is_some_and(|note| note.is_deleted));
        }
    }

    fn remove(&mut self, uid: &str) {
        let Some(Note { revision, .. }) = self.of.remove(uid) else { return };
        if let Some(pods) = self.by_revision.get_mut(&revision) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_revision.remove(&revision);
            }
        }
    }

    fn mark_deleted(&mut self, uid: &str) {
        self.existing.remove(uid);
        match self.of.get_mut(uid) {
            Some(Note { tokens: 0, .. }) => self.remove(uid),
            Some(note) => {
                note.is_deleted = true;
                self.push_deleted(uid.into());
            }
            None => {}
        }
    }

    /// Drops the notes of pods that were deleted long ago, that no status lists and that none will list.
    fn drop_old(&mut self, revisions: &Revisions, now: Timestamp) {
        self.deleted
            .iter_mut()
            .rev()
            .take_while(|pod| pod.seen.is_none())
            .for_each(|pod| pod.seen = Some(now));
        let is_old = |pod: &mut Deleted| pod.seen.is_some_and(|seen| elapsed(seen, now) >= KEPT_FOR);
        while let Some(pod) = self.deleted.pop_front_if(is_old) {
            let Some(note) = self.of.get(&pod.uid).filter(|note| note.is_deleted && !note.was_listed) else {
                continue;
            };
            if revisions.have(&note.revision) {
                self.deleted.push_back(Deleted { seen: Some(now), ..pod });
            } else {
                self.remove(&pod.uid);
            }
        }
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
    // What was new is listed from now on. A list that is sorted by that would be written twice.
    kept.sort_by_cached_key(|pod| (pod.deleted_time.as_ref().map(|gone| Reverse(gone.0)), pod.uid.clone()));
    Tokens { ended, pods: kept }
}

/// `status.tokenUsage`.
pub(crate) fn total(tokens: &Tokens) -> i64 {
    tokens.pods.iter().fold(tokens.ended, |sum, pod| sum.saturating_add(pod.tokens))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{
        records::revisions::tests::Caches,
        tests::{at, pod},
    };

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

    /// Otherwise a worker that is read a little later would cost a second write of the status.
    #[test]
    fn the_list_has_the_same_order_once_all_its_pods_are_stored() {
        let (noted, present) = (noted(&[("a", 5), ("b", 5)]), BTreeSet::from(["a", "b"]));
        let both = counted(&list(&[("b", 5)]), &noted, &present, at(0));
        assert_eq!(counted(&both, &noted, &present, at(10)), both);
        let gone = counted(&list(&[("b", 5)]), &noted, &BTreeSet::new(), at(20));
        assert_eq!(counted(&gone, &noted, &BTreeSet::new(), at(30)), gone);
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

    /// A pod of the ReplicaSet `set`, whose monitor has left so many tokens.
    fn left(name: &str, tokens: u64) -> PodView {
        let message = format!("{{\\\"tokens\\\": {tokens}}}");
        pod(&format!(
            "{{name: {name}, replicaSet: set, init: [{{name: monitor, \
             state: {{terminated: {{exitCode: 0, message: \"{message}\"}}}}}}]}}"
        ))
    }

    fn set() -> BTreeSet<Revision> {
        BTreeSet::from([Revision::new("demo", "set")])
    }

    fn list(pods: &[(&str, i64)]) -> Tokens {
        let pod = |(uid, tokens): &(&str, i64)| PodTokens {
            uid: (*uid).to_owned(),
            tokens: *tokens,
            ..PodTokens::default()
        };
        Tokens { ended: 0, pods: pods.iter().map(pod).collect() }
    }

    #[test]
    fn what_a_monitor_leaves_is_noted_and_an_older_reading_changes_nothing() {
        let ended = left("coder-0", 90);
        let pods = Cache::default();
        let notes = TokenNotes::tracked(&pods, &Cache::default(), Arc::default());
        pods.upsert(ended.clone());
        assert_eq!(notes.lock().of["coder-0"].tokens, 90);
        notes.note(&ended, 80);
        assert_eq!(notes.lock().of["coder-0"].tokens, 90);
    }

    #[test]
    fn a_note_of_a_pod_that_was_added_to_the_number_is_dropped() {
        let pods = Cache::default();
        let notes = TokenNotes::tracked(&pods, &Cache::default(), Arc::default());
        let view = left("coder-0", 5);
        pods.upsert(view.clone());
        let tokens = |listed: &Tokens| notes.of(&set(), listed, at(0)).tokens;
        assert_eq!(tokens(&Tokens::default()), noted(&[("coder-0", 5)]));
        let listed = list(&[("coder-0", 5)]);
        notes.listed(&Tokens::default(), &listed);
        pods.remove(&view.metadata);
        assert!(tokens(&Tokens::default()).is_empty(), "it may have been added by another process");
        assert_eq!(tokens(&listed), noted(&[("coder-0", 5)]));
        notes.listed(&listed, &Tokens { ended: 5, pods: Vec::new() });
        let notes = notes.lock();
        assert!(notes.of.is_empty() && notes.by_revision.is_empty(), "{notes:?}");
    }

    #[test]
    fn a_pod_that_names_a_replica_set_of_another_namespace_is_not_counted() {
        let notes = TokenNotes::default();
        notes.note(&left("coder-0", 5), 5);
        for another in [Revision::new("demo", "another"), Revision::new("another", "set")] {
            assert_eq!(notes.of(&BTreeSet::from([another]), &Tokens::default(), at(0)), Noted::default());
        }
        let unowned = TokenNotes::default();
        unowned.note(&pod("{}"), 5);
        assert!(unowned.lock().of.is_empty());
    }

    #[test]
    fn a_deleted_pod_that_no_status_lists_is_forgotten_after_a_while() {
        let pods = Cache::default();
        let notes = TokenNotes::tracked(&pods, &Cache::default(), Arc::default());
        for name in ["coder-0", "coder-1"] {
            let view = left(name, 5);
            pods.upsert(view.clone());
            pods.remove(&view.metadata);
        }
        // Its stream has read it before it was deleted.
        notes.note(&left("coder-2", 5), 5);
        notes.listed(&Tokens::default(), &list(&[("coder-1", 5)]));
        let count = |seconds: i64| {
            notes.of(&BTreeSet::new(), &Tokens::default(), at(seconds));
            notes.lock().of.len()
        };
        assert_eq!((count(0), count(599), count(600)), (3, 3, 1));
        notes.listed(&list(&[("coder-1", 5)]), &Tokens::default());
        let notes = notes.lock();
        assert!(notes.of.is_empty() && notes.by_revision.is_empty() && notes.deleted.is_empty(), "{notes:?}");
        assert!(notes.existing.is_empty());
    }

    /// A standby reconciles nothing, and receives from the watches what the leader has done.
    #[test]
    fn on_a_standby_pods_that_are_gone_leave_nothing() {
        let pods = Cache::default();
        let notes = TokenNotes::tracked(&pods, &Cache::default(), Arc::default());
        for number in 0..1_000 {
            let uid = format!("coder-{number}");
            let (view, listed) = (left(&uid, 5), list(&[(&uid, 5)]));
            pods.upsert(view.clone());
            notes.listed(&Tokens::default(), &listed);
            pods.remove(&view.metadata);
            notes.listed(&listed, &Tokens { ended: 5, pods: Vec::new() });
        }
        let notes = notes.lock();
        assert!(notes.of.is_empty() && notes.existing.is_empty());
        assert!(notes.deleted.len() <= SPARE + 1, "{}", notes.deleted.len());
    }

    #[test]
    fn a_deleted_pod_of_an_aidispatcher_is_noted_until_its_status_lists_it_or_the_object_is_gone() {
        let (pods, caches) = (Cache::default(), Caches::of_coder("set"));
        let notes = TokenNotes::tracked(&pods, &caches.dispatchers, caches.tracked());
        let view = left("coder-0", 5);
        pods.upsert(view.clone());
        pods.remove(&view.metadata);
        let count = |seconds: i64| {
            notes.of(&set(), &Tokens::default(), at(seconds));
            notes.lock().of.len()
        };
        assert_eq!((count(0), count(900)), (1, 1), "each write of the status has failed");
        caches.remove_dispatcher();
        assert_eq!((count(1_000), count(1_500)), (1, 0));
    }

    /// Its Deployment was deleted or has lost its owner.
    #[test]
    fn a_pod_that_exists_stays_listed_whoever_owns_it() {
        let pods = Cache::default();
        let notes = TokenNotes::tracked(&pods, &Cache::default(), Arc::default());
        pods.upsert(left("coder-0", 5));
        let mut stored = list(&[("coder-0", 5)]);
        for seconds in [0, 200, 400] {
            let noted = notes.of(&BTreeSet::new(), &stored, at(seconds));
            let present = noted.existing.iter().map(String::as_str).collect();
            stored = counted(&stored, &noted.tokens, &present, at(seconds));
        }
        assert_eq!(stored, list(&[("coder-0", 5)]));
    }

    proptest! {
        /// Pods come, use tokens and go; statuses are written or lost, and at times no ReplicaSet of the pods is known.
        #[test]
        fn the_total_is_the_sum_of_all_pods_and_never_falls(
            steps in prop::collection::vec((0usize..6, 0u64..100, 0u8..7), 1..80),
        ) {
            let (pods, caches) = (Cache::default(), Caches::of_coder("set"));
            let notes = TokenNotes::tracked(&pods, &Cache::default(), caches.tracked());
            let mut used: BTreeMap<usize, u64> = BTreeMap::new();
            let mut gone: BTreeSet<usize> = BTreeSet::new();
            let mut stored = Tokens::default();
            let (mut now, mut last, mut is_owned) = (0, 0, true);
            let view = |index: usize| pod(&format!("{{name: pod-{index}, replicaSet: set}}"));
            for (index, tokens, what) in steps {
                now += 45;
                match what {
                    0..=2 if !gone.contains(&index) => {
                        *used.entry(index).or_default() += tokens;
                        pods.upsert(view(index));
                        notes.note(&view(index), used[&index]);
                    }
                    3 if used.contains_key(&index) => {
                        gone.insert(index);
                        pods.remove(&view(index).metadata);
                    }
                    6 => is_owned = !is_owned,
                    _ => {}
                }
                let known = if is_owned { set() } else { BTreeSet::new() };
                let noted = notes.of(&known, &stored, at(now));
                let present = noted.existing.iter().map(String::as_str).collect();
                let planned = counted(&stored, &noted.tokens, &present, at(now));
                let sum = used.values().sum::<u64>() as i64;
                prop_assert!(total(&planned) <= sum);
                // Of pods that are not listed yet, nothing is known meanwhile.
                prop_assert!(!is_owned || total(&planned) == sum);
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
