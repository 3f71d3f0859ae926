//! Chooses the state that a new worker restores, from the listing of the storage. Pure. Each `interval` is that of
//! heartbeats.

use std::{
    cmp::Reverse,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{Duration, SystemTime},
};

use super::{BEATS, Heartbeat};

/// All that a storage has of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) uid: String,
    /// The newest complete checkpoint.
    pub(crate) newest: Option<Newest>,
    pub(crate) heartbeat: Option<Beat>,
    /// The claim with the largest number.
    pub(crate) claim: Option<Claimed>,
    /// There is no checkpoint, not even an incomplete one.
    pub(crate) is_empty: bool,
    /// It cannot be restored: this loader has tried it, or it has an odd entry.
    pub(crate) is_useless: bool,
    /// The odd entry, until it is named in the log.
    pub(crate) odd: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub(crate) number: u64,
    /// How long ago it was written, by the clock of the storage.
    pub(crate) age: Duration,
    pub(crate) is_final: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    /// By the clock of the storage, as the age.
    pub(crate) written: SystemTime,
    pub(crate) age: Duration,
    /// For how long the new worker has seen this one and no later one, by its own clock.
    pub(crate) watched: Duration,
    pub(crate) is_ending: bool,
    /// The keys of the bucket are those of a Secret, which can change while workers run.
    has_keys: bool,
    /// It was written with other keys than those of the new worker.
    has_other_keys: bool,
    interval: Duration,
    grace: Duration,
}

impl Beat {
    /// Not watched yet. `own_keys`: those of the new worker, as in the heartbeat.
    pub(crate) fn of(
        heartbeat: &Heartbeat,
        written: SystemTime,
        age: Duration,
        own_keys: Option<&str>,
    ) -> Self {
        Self {
            written,
            age,
            watched: Duration::ZERO,
            is_ending: heartbeat.ending,
            has_keys: own_keys.is_some(),
            has_other_keys: own_keys.is_some() && heartbeat.keys.as_deref() != own_keys,
            interval: heartbeat.interval(),
            grace: heartbeat.grace(),
        }
    }

    /// Its worker runs, and does not end.
    pub(crate) fn is_of_a_running_worker(&self, interval: Duration) -> bool {
        !self.is_ending && !is_late(self, interval)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) number: u32,
    pub(crate) by: String,
    /// Name of that pod.
    pub(crate) pod: String,
    /// By the clock of the storage, as the age.
    pub(crate) written: SystemTime,
    pub(crate) age: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Claim one of these, the first one first, and restore it.
    Claim(Vec<Candidate>),
    /// The heartbeat of this worker is late: wait until there is one, or the worker is lost after this time.
    AwaitHeartbeat { uid: String, within: Duration },
    /// None now; workers run, of which one may be about to end.
    None { others_run: bool },
}

/// A state that may be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) uid: String,
    /// Number of the claim that is to be created.
    pub(crate) claim: u32,
    /// When the claim was written that it replaces; `None`: there is none.
    pub(crate) replaces: Option<SystemTime>,
    /// The worker is about to end: wait for its last checkpoint for at most so long.
    pub(crate) within: Option<Duration>,
}

/// The states without a valid claim, the oldest first.
pub(crate) fn choice(lineages: &[Lineage], own: &str, interval: Duration) -> Choice {
    let free: Vec<&Lineage> = lineages
        .iter()
        .filter(|lineage| lineage.uid != own && !lineage.is_useless)
        .filter(|lineage| !is_taken(lineage, lineages, own, interval))
        .collect();
    let ended = free.iter().copied().filter(|lineage| has_ended_or_is_lost(lineage, interval));
    let ended = ended.filter_map(|lineage| Some((lineage.newest?.age, candidate(lineage, None))));
    let ending = free.iter().copied().filter_map(|lineage| awaited(lineage, interval));
    for candidates in [ended.collect(), ending.collect::<Vec<_>>()] {
        if !candidates.is_empty() {
            return Choice::Claim(oldest_first(candidates));
        }
    }
    let late = lineages.iter().filter(|lineage| lineage.uid != own && !lineage.is_useless).find(|lineage| {
        let may_leave_a_state = lineage.newest.is_some() && !is_taken(lineage, lineages, own, interval)
            || lineage.newest.is_none() && lineages.iter().any(|other| is_claimed_by(other, &lineage.uid));
        may_leave_a_state && lineage.heartbeat.is_some_and(|beat| is_late(&beat, interval))
    });
    match late.and_then(|lineage| Some((lineage, lineage.heartbeat?))) {
        Some((lineage, beat)) => {
            Choice::AwaitHeartbeat { uid: lineage.uid.clone(), within: lost_within(&beat, interval) }
        }
        None => Choice::None { others_run: free.iter().any(|lineage| lineage.heartbeat.is_some()) },
    }
}

fn is_claimed_by(lineage: &Lineage, uid: &str) -> bool {
    lineage.newest.is_some() && lineage.claim.as_ref().is_some_and(|claim| claim.by == uid)
}

/// How many states of workers that have ended or are lost no worker has claimed.
pub(crate) fn unclaimed(lineages: &[Lineage], own: &str, interval: Duration) -> u64 {
    match choice(lineages, own, interval) {
        Choice::Claim(candidates) => candidates.iter().filter(|one| one.within.is_none()).count() as u64,
        Choice::AwaitHeartbeat { .. } | Choice::None { .. } => 0,
    }
}

fn candidate(lineage: &Lineage, within: Option<Duration>) -> Candidate {
    let claim = lineage.claim.as_ref().map_or(0, |claim| claim.number.saturating_add(1));
    let replaces = lineage.claim.as_ref().map(|claim| claim.written);
    Candidate { uid: lineage.uid.clone(), claim, replaces, within }
}

/// With its age.
fn awaited(lineage: &Lineage, interval: Duration) -> Option<(Duration, Candidate)> {
    let beat = lineage.heartbeat.filter(|beat| beat.is_ending)?;
    let within = beat.grace + lost_after(beat.interval.max(interval)) * 2;
    if lineage.newest.is_none() && beat.age > within {
        // It ended without a checkpoint, and its heartbeat could not be removed.
        return None;
    }
    let age = lineage.newest.map(|newest| newest.age).unwrap_or_default();
    Some((age, candidate(lineage, Some(within))))
}

/// Of several that are as old, always in the same order.
fn oldest_first(mut candidates: Vec<(Duration, Candidate)>) -> Vec<Candidate> {
    candidates.sort_by_key(|(age, candidate)| Reverse((*age, candidate.uid.clone())));
    candidates.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The order in which a loader tries to claim states: the first one, then those from a position that depends on its
/// uid, because other loaders that fail to create the same claim continue at the same time.
pub(crate) fn spread(mut candidates: Vec<Candidate>, own: &str) -> Vec<Candidate> {
    if let [_, rest @ ..] = candidates.as_mut_slice()
        && !rest.is_empty()
    {
        let mut hash = DefaultHasher::new();
        own.hash(&mut hash);
        let place = hash.finish() % rest.len() as u64;
        rest.rotate_left(usize::try_from(place).unwrap_or(0));
    }
    candidates
}

/// Workers that have left only a heartbeat, long ago.
pub(crate) fn remains(lineages: &[Lineage]) -> impl Iterator<Item = &str> {
    let is_old = |beat: Beat| beat.age > REMAINS_AFTER;
    let remains =
        lineages.iter().filter(move |lineage| lineage.is_empty && lineage.heartbeat.is_some_and(is_old));
    remains.map(|lineage| &*lineage.uid).take(MOST_REMAINS)
}

/// Far longer than any outage for which a worker is expected to come back.
const REMAINS_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Limit for one survey, so that a loader is not delayed.
const MOST_REMAINS: usize = 20;

/// Whether the worker has ended or is lost.
pub(crate) fn has_ended_or_is_lost(lineage: &Lineage, interval: Duration) -> bool {
    let is_final = lineage.newest.is_some_and(|newest| newest.is_final);
    is_final || lineage.heartbeat.is_none_or(|beat| is_lost(&beat, interval))
}

/// Whether a heartbeat is missing.
fn is_late(beat: &Beat, interval: Duration) -> bool {
    beat.age > late_after(beat.interval.max(interval))
}

/// Whether three heartbeats are missing, one of them since the new worker started its search. After an outage of the
/// storage all heartbeats are old, and running workers write a new one in this time; if the keys may have changed since the
/// last heartbeat, once they have the new ones.
fn is_lost(beat: &Beat, interval: Duration) -> bool {
    beat.age > lost_after(beat.interval.max(interval)) && beat.watched > watch_for(beat, interval)
}

/// The time until a heartbeat that stays the last one is that of a lost worker.
fn lost_within(beat: &Beat, interval: Duration) -> Duration {
    let old_within = lost_after(beat.interval.max(interval)).saturating_sub(beat.age);
    let watched_within = watch_for(beat, interval).saturating_sub(beat.watched);
    // Both limits are to be exceeded.
    old_within.max(watched_within) + Duration::from_millis(1)
}

fn watch_for(beat: &Beat, interval: Duration) -> Duration {
    let watch = late_after(beat.interval.max(interval));
    // Keys that were wrong for some time and were then put back are those of the heartbeat again.
    let was_old = beat.age.saturating_sub(beat.watched) > KEYS_RENEWED_WITHIN;
    let may_lack_keys = beat.has_other_keys || beat.has_keys && was_old;
    if may_lack_keys { watch.max(KEYS_RENEWED_WITHIN) } else { watch }
}

/// Until all running monitors use changed keys. A new worker has them when it starts; the kubelet updates the files of a
/// Secret with each sync of a pod (up to 90 s), from a cache of its own (up to 60 s), and then the next heartbeat is written.
/// <https://kubernetes.io/docs/concepts/configuration/secret/#using-secrets-as-files-from-a-pod>
pub(crate) const KEYS_RENEWED_WITHIN: Duration = Duration::from_secs(180);

/// Of a request that is slow.
const SLACK: Duration = Duration::from_secs(1);

fn late_after(interval: Duration) -> Duration {
    interval / BEATS + interval / 8 + SLACK
}

fn lost_after(interval: Duration) -> Duration {
    interval / BEATS * 3 + SLACK
}

/// A claim is written again as often as a heartbeat, by the loader while it waits and copies, and by the sidecar until the
/// worker has saved its first checkpoint.
fn is_abandoned(claim: &Claimed, interval: Duration) -> bool {
    claim.age > interval.saturating_mul(3)
}

/// Whether another worker has the state or is about to have it. A claim is final once its worker has saved a state of its
/// own. One that is not final, and old, was left by a pod that is gone, unless that has heartbeats.
fn is_taken(lineage: &Lineage, lineages: &[Lineage], own: &str, interval: Duration) -> bool {
    let Some(claim) = &lineage.claim else { return false };
    if claim.by == own {
        // Of this loader, with a request that had no answer.
        return false;
    }
    let claimer = lineages.iter().find(|other| other.uid == claim.by);
    // After an outage of the storage every claim is old, as every heartbeat is.
    let is_kept = claimer.is_some_and(|claimer| {
        claimer.newest.is_some() || claimer.heartbeat.is_some_and(|beat| !is_lost(&beat, interval))
    });
    is_kept || !is_abandoned(claim, interval)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn beat(age: u64, ending: bool) -> Beat {
        let heartbeat = Heartbeat { ending, interval_seconds: 60, grace_seconds: 90, ..Heartbeat::default() };
        Beat { watched: seconds(39), ..Beat::of(&heartbeat, SystemTime::UNIX_EPOCH, seconds(age), None) }
    }

    fn lineage(uid: &str, age: u64, is_final: bool, of: Option<(u64, bool)>) -> Lineage {
        Lineage {
            uid: uid.to_owned(),
            newest: Some(Newest { number: 1, age: seconds(age), is_final }),
            heartbeat: of.map(|(age, ending)| beat(age, ending)),
            ..Lineage::default()
        }
    }

    fn claimed(lineage: Lineage, number: u32, by: &str, age: u64) -> Lineage {
        Lineage {
            claim: Some(Claimed {
                number,
                by: by.to_owned(),
                pod: String::new(),
                written: SystemTime::UNIX_EPOCH,
                age: seconds(age),
            }),
            ..lineage
        }
    }

    fn claim(uid: &str, claim: u32, within: Option<Duration>) -> Candidate {
        let replaces = (claim > 0).then_some(SystemTime::UNIX_EPOCH);
        Candidate { uid: uid.to_owned(), claim, replaces, within }
    }

    fn awaits(uid: &str, milliseconds: u64) -> Choice {
        Choice::AwaitHeartbeat { uid: uid.to_owned(), within: Duration::from_millis(milliseconds) }
    }

    fn restore(uid: &str, number: u32) -> Choice {
        Choice::Claim(vec![claim(uid, number, None)])
    }

    #[test]
    fn the_oldest_state_of_a_worker_that_is_gone_is_restored() {
        let lineages = [
            lineage("live", 900, false, Some((30, false))),
            lineage("young", 20, true, Some((20, true))),
            lineage("old", 300, true, None),
            lineage("lost", 200, false, Some((200, false))),
        ];
        let all = ["old", "lost", "young"].map(|uid| claim(uid, 0, None));
        assert_eq!(choice(&lineages, "me", MINUTE), Choice::Claim(all.into()));
        assert_eq!(choice(&lineages[..2], "me", MINUTE), restore("young", 0));
        assert_eq!(choice(&lineages[..1], "me", MINUTE), Choice::None { others_run: true });
        assert_eq!(choice(&lineages[3..], "me", MINUTE), restore("lost", 0));
        assert_eq!(choice(&[], "me", MINUTE), Choice::None { others_run: false });
    }

    #[test]
    fn a_worker_is_lost_after_three_heartbeats_of_which_the_new_worker_has_missed_one() {
        let of = |age, watched| {
            let mut late = lineage("late", 500, false, Some((age, false)));
            late.heartbeat.as_mut().unwrap().watched = seconds(watched);
            choice(&[late], "me", MINUTE)
        };
        let watch = |milliseconds| awaits("late", milliseconds);
        assert_eq!(of(38, 0), Choice::None { others_run: true });
        assert_eq!(
            (of(39, 0), of(91, 39), of(900, 38)),
            (watch(52_001), watch(1), watch(501)),
            "both the age and the time of the watch count"
        );
        assert_eq!(of(92, 39), restore("late", 0));
    }

    /// A loader has the new keys when it starts, and a monitor that runs gets them later.
    #[test]
    fn after_a_change_of_keys_running_workers_have_time_to_get_the_new_ones() {
        let of = |own_keys: Option<&str>, age, watched| {
            let mut late = lineage("late", 9_000, false, None);
            let keys = Some("old".to_owned());
            let heartbeat = Heartbeat { interval_seconds: 60, keys, ..Heartbeat::default() };
            let beat = Beat::of(&heartbeat, SystemTime::UNIX_EPOCH, seconds(age), own_keys);
            late.heartbeat = Some(Beat { watched: seconds(watched), ..beat });
            choice(&[late, lineage("punctual", 900, false, Some((3, false)))], "me", MINUTE)
        };
        assert_eq!(of(Some("new"), 92, 39), awaits("late", 141_001));
        assert_eq!(of(Some("new"), 1_980, 180), awaits("late", 1));
        assert_eq!(of(Some("new"), 1_981, 181), restore("late", 0));
        // Wrong keys were put back, and the monitors do not have them again yet.
        assert_eq!(
            (of(Some("old"), 220, 39), of(Some("old"), 361, 181)),
            (awaits("late", 141_001), restore("late", 0))
        );
        for (same, age) in [(Some("old"), 219), (None, 1_839)] {
            assert_eq!(of(same, age, 39), restore("late", 0), "its node died");
        }
    }

    /// It has restored a state and could not save since then, as while the storage was away.
    #[test]
    fn a_claim_of_a_worker_with_heartbeats_is_not_abandoned() {
        let of = |age: u64, watched: u64| {
            let mut claimer = Lineage { newest: None, ..lineage("w", 0, false, Some((age, false))) };
            claimer.heartbeat.as_mut().unwrap().watched = seconds(watched);
            choice(&[claimed(lineage("old", 500, true, None), 0, "w", 400), claimer], "me", MINUTE)
        };
        assert_eq!(of(10, 0), Choice::None { others_run: true });
        assert_eq!(of(400, 0), awaits("w", 38_501));
        assert_eq!(of(400, 39), restore("old", 1));
    }

    #[test]
    fn a_worker_without_state_is_not_waited_for() {
        let empty = Lineage { newest: None, ..lineage("late", 0, false, Some((60, false))) };
        assert_eq!(choice(&[empty], "me", MINUTE), Choice::None { others_run: true });
    }

    /// Its node was switched off before it could remove the announcement.
    #[test]
    fn an_announced_end_without_a_checkpoint_is_not_waited_for_once_it_is_over() {
        let of = |age| {
            let ending = Lineage { newest: None, ..lineage("ending", 0, false, Some((age, true))) };
            choice(&[ending], "me", MINUTE)
        };
        let within = 90 + 2 * 91;
        assert_eq!(of(within), Choice::Claim(vec![claim("ending", 0, Some(seconds(within)))]));
        assert_eq!(of(within + 1), Choice::None { others_run: true });
    }

    #[test]
    fn a_worker_that_is_about_to_end_is_waited_for() {
        let lineages = [lineage("ending", 10, false, Some((1, true)))];
        let within = seconds(90 + 2 * 91);
        let awaited = Choice::Claim(vec![claim("ending", 0, Some(within))]);
        assert_eq!(choice(&lineages, "me", MINUTE), awaited);
    }

    #[test]
    fn a_claimed_state_is_free_again_only_if_its_claimer_is_gone_before_it_saved() {
        let of = |age| claimed(lineage("old", 500, true, None), 2, "other", age);
        assert_eq!(choice(&[of(10)], "me", MINUTE), Choice::None { others_run: false });
        assert_eq!(choice(&[of(200)], "me", MINUTE), restore("old", 3));
        let saved = lineage("other", 100, false, Some((5, false)));
        assert_eq!(choice(&[of(200), saved], "me", MINUTE), Choice::None { others_run: true });
        assert_eq!(choice(&[of(10)], "other", MINUTE), restore("old", 3), "a loader that runs again");
    }

    #[test]
    fn loaders_that_lose_the_oldest_state_go_on_at_different_ones() {
        let all: Vec<Candidate> = (0..60).map(|number| claim(&number.to_string(), 0, None)).collect();
        let tried = |own: u32| spread(all.clone(), &format!("pod-{own}"));
        let seconds: std::collections::HashSet<String> =
            (0..60).map(|own| tried(own)[1].uid.clone()).collect();
        assert!(seconds.len() > 20, "{}", seconds.len());
        let mut sorted = tried(7);
        assert_eq!(sorted[0].uid, "0");
        sorted.sort_by_key(|candidate| candidate.uid.parse::<u32>().unwrap());
        assert_eq!(sorted, all);
        assert_eq!(spread(Vec::new(), "me"), []);
    }

    #[test]
    fn a_useless_state_still_says_whose_worker_has_saved() {
        let useless = Lineage { is_useless: true, ..lineage("heir", 100, true, None) };
        let before = claimed(lineage("before", 500, true, None), 0, "heir", 900);
        assert_eq!(choice(&[useless, before], "me", MINUTE), Choice::None { others_run: false });
    }

    #[test]
    fn only_workers_that_have_left_nothing_but_an_old_heartbeat_are_removed() {
        let empty = |uid: &str, age| Lineage {
            newest: None,
            is_empty: true,
            ..lineage(uid, 0, false, Some((age, false)))
        };
        let day = 24 * 60 * 60;
        let lineages = [
            empty("young", day),
            empty("old", day + 1),
            Lineage { is_empty: false, ..empty("incomplete", day + 1) },
            lineage("saved", 5, false, Some((day + 1, false))),
            Lineage { is_empty: true, ..Lineage::default() },
        ];
        assert_eq!(remains(&lineages).collect::<Vec<_>>(), ["old"]);
        let many: Vec<Lineage> = (0..100).map(|number| empty(&number.to_string(), day + 1)).collect();
        assert_eq!(remains(&many).count(), MOST_REMAINS);
    }

    proptest! {
        /// A storage may hold any numbers.
        #[test]
        fn any_heartbeat_gives_a_choice_that_waits_for_hours_at_most(
            (ending, has_keys, interval_seconds, grace_seconds) in any::<(bool, bool, u64, u64)>(),
            (age, watched, own_interval) in (any::<Duration>(), any::<Duration>(), 1..=3_600_u64),
            (saved, claimed) in (any::<Option<(Duration, bool)>>(), any::<Option<(u32, bool, Duration)>>()),
        ) {
            let heartbeat = Heartbeat { ending, interval_seconds, grace_seconds, ..Heartbeat::default() };
            let own_keys = has_keys.then_some("keys");
            let beat = Beat { watched, ..Beat::of(&heartbeat, SystemTime::UNIX_EPOCH, age, own_keys) };
            let lineage = Lineage {
                uid: "other".to_owned(),
                newest: saved.map(|(age, is_final)| Newest { number: 0, age, is_final }),
                heartbeat: Some(beat),
                claim: claimed.map(|(number, is_own, age)| {
                    let by = if is_own { "me" } else { "third" };
                    let written = SystemTime::UNIX_EPOCH;
                    Claimed { number, by: by.to_owned(), pod: String::new(), written, age }
                }),
                ..Lineage::default()
            };
            let chosen = choice(&[lineage], "me", seconds(own_interval));
            if let Choice::Claim(candidates) = chosen {
                for Candidate { within, .. } in candidates {
                    prop_assert!(within.unwrap_or_default() < seconds(5 * 3_600));
                }
            }
        }
    }
}
