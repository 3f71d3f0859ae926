//! Which state a new worker restores, from what the storage lists. Pure.

use std::time::{Duration, SystemTime};

use super::BEATS;

/// All that a storage has of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) uid: String,
    /// The newest complete checkpoint.
    pub(crate) newest: Option<Newest>,
    pub(crate) heartbeat: Option<Beat>,
    /// The claim with the largest number.
    pub(crate) claim: Option<Claimed>,
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
    pub(crate) interval: Duration,
    pub(crate) grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) number: u32,
    pub(crate) by: String,
    /// Name of that pod.
    pub(crate) pod: String,
    pub(crate) age: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Claim it with this number, and restore it.
    Restore { uid: String, claim: u32 },
    /// Claim it with this number, and wait for its last checkpoint for at most so long.
    Await { uid: String, claim: u32, within: Duration },
    /// The heartbeat of this worker is late: wait until there is one, or the worker is lost.
    Watch { uid: String },
    /// None now; workers live, of which one may be about to end.
    None { others_live: bool },
}

/// The oldest state without a valid claim. `own`: the uid of the new worker.
pub(crate) fn choice(lineages: &[Lineage], own: &str, interval: Duration) -> Choice {
    let next = |lineage: &Lineage| lineage.claim.as_ref().map_or(0, |claim| claim.number + 1);
    let free = || {
        lineages.iter().filter(|lineage| lineage.uid != own && !is_taken(lineage, lineages, own, interval))
    };
    let gone = free().filter(|lineage| is_gone(lineage, interval));
    let oldest =
        gone.filter_map(|lineage| Some((lineage.newest?, lineage))).max_by_key(|(newest, lineage)| {
            // Of two that are as old, any, and always the same.
            (newest.age, lineage.uid.clone())
        });
    if let Some((_, lineage)) = oldest {
        return Choice::Restore { uid: lineage.uid.clone(), claim: next(lineage) };
    }
    let ending = free().find_map(|lineage| {
        let beat = lineage.heartbeat.filter(|beat| beat.is_ending)?;
        Some((lineage, beat))
    });
    if let Some((lineage, beat)) = ending {
        let within = beat.grace + lost_after(beat.interval.max(interval)) * 2;
        return Choice::Await { uid: lineage.uid.clone(), claim: next(lineage), within };
    }
    let late = free().find(|lineage| {
        lineage.newest.is_some() && lineage.heartbeat.is_some_and(|beat| is_late(&beat, interval))
    });
    match late {
        Some(lineage) => Choice::Watch { uid: lineage.uid.clone() },
        None => Choice::None { others_live: free().any(|lineage| lineage.heartbeat.is_some()) },
    }
}

/// Whether the worker has ended or is lost.
pub(crate) fn is_gone(lineage: &Lineage, interval: Duration) -> bool {
    let is_final = lineage.newest.is_some_and(|newest| newest.is_final);
    is_final || lineage.heartbeat.is_none_or(|beat| is_lost(&beat, interval))
}

/// Whether a heartbeat is missing.
pub(crate) fn is_late(beat: &Beat, interval: Duration) -> bool {
    beat.age > late_after(beat.interval.max(interval))
}

/// Three heartbeats are missing, and one of them since the new worker looks. After an outage of the storage all heartbeats
/// are old, and those of the workers that live come in this time.
fn is_lost(beat: &Beat, interval: Duration) -> bool {
    let interval = beat.interval.max(interval);
    beat.age > lost_after(interval) && beat.watched > late_after(interval)
}

/// Of a request that is slow.
const SLACK: Duration = Duration::from_secs(1);

fn late_after(interval: Duration) -> Duration {
    interval / BEATS + interval / 8 + SLACK
}

fn lost_after(interval: Duration) -> Duration {
    interval / BEATS * 3 + SLACK
}

/// A claim is written again in each interval until the worker of its pod saves.
fn is_abandoned(claim: &Claimed, interval: Duration) -> bool {
    claim.age > interval.saturating_mul(3)
}

/// Whether another worker has the state or is about to have it. A claim is final once its worker has saved a state of its
/// own; one that is not, and old, was left by a pod that is gone.
fn is_taken(lineage: &Lineage, lineages: &[Lineage], own: &str, interval: Duration) -> bool {
    let Some(claim) = &lineage.claim else { return false };
    if claim.by == own {
        // Of an earlier run of this loader.
        return false;
    }
    let has_saved = lineages.iter().any(|other| other.uid == claim.by && other.newest.is_some());
    has_saved || !is_abandoned(claim, interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lineage(uid: &str, age: u64, is_final: bool, beat: Option<(u64, bool)>) -> Lineage {
        Lineage {
            uid: uid.to_owned(),
            newest: Some(Newest { number: 1, age: seconds(age), is_final }),
            heartbeat: beat.map(|(age, is_ending)| Beat {
                written: SystemTime::UNIX_EPOCH,
                age: seconds(age),
                watched: seconds(39),
                is_ending,
                interval: MINUTE,
                grace: seconds(90),
            }),
            claim: None,
        }
    }

    fn claimed(lineage: Lineage, number: u32, by: &str, age: u64) -> Lineage {
        Lineage {
            claim: Some(Claimed { number, by: by.to_owned(), pod: String::new(), age: seconds(age) }),
            ..lineage
        }
    }

    fn restore(uid: &str, claim: u32) -> Choice {
        Choice::Restore { uid: uid.to_owned(), claim }
    }

    #[test]
    fn the_oldest_state_of_a_worker_that_is_gone_is_restored() {
        let lineages = [
            lineage("live", 900, false, Some((30, false))),
            lineage("young", 20, true, Some((20, true))),
            lineage("old", 300, true, None),
            lineage("lost", 200, false, Some((200, false))),
        ];
        assert_eq!(choice(&lineages, "me", MINUTE), restore("old", 0));
        assert_eq!(choice(&lineages[..2], "me", MINUTE), restore("young", 0));
        assert_eq!(choice(&lineages[..1], "me", MINUTE), Choice::None { others_live: true });
        assert_eq!(choice(&lineages[3..], "me", MINUTE), restore("lost", 0));
        assert_eq!(choice(&[], "me", MINUTE), Choice::None { others_live: false });
    }

    #[test]
    fn a_worker_is_lost_after_three_heartbeats_of_which_the_new_worker_has_missed_one() {
        let of = |age, watched| {
            let mut late = lineage("late", 500, false, Some((age, false)));
            late.heartbeat.as_mut().unwrap().watched = seconds(watched);
            choice(&[late], "me", MINUTE)
        };
        let watch = Choice::Watch { uid: "late".to_owned() };
        assert_eq!(of(38, 0), Choice::None { others_live: true });
        assert_eq!((of(39, 0), of(91, 39), of(900, 38)), (watch.clone(), watch.clone(), watch));
        assert_eq!(of(92, 39), restore("late", 0));
    }

    #[test]
    fn a_worker_without_state_is_not_waited_for() {
        let empty = Lineage { newest: None, ..lineage("late", 0, false, Some((60, false))) };
        assert_eq!(choice(&[empty], "me", MINUTE), Choice::None { others_live: true });
    }

    #[test]
    fn a_worker_that_is_about_to_end_is_waited_for() {
        let lineages = [lineage("ending", 10, false, Some((1, true)))];
        let within = seconds(90 + 2 * 91);
        let awaited = Choice::Await { uid: "ending".to_owned(), claim: 0, within };
        assert_eq!(choice(&lineages, "me", MINUTE), awaited);
    }

    #[test]
    fn a_claimed_state_is_free_again_only_if_its_claimer_is_gone_before_it_saved() {
        let of = |age| claimed(lineage("old", 500, true, None), 2, "other", age);
        assert_eq!(choice(&[of(10)], "me", MINUTE), Choice::None { others_live: false });
        assert_eq!(choice(&[of(200)], "me", MINUTE), restore("old", 3));
        let saved = lineage("other", 100, false, Some((5, false)));
        assert_eq!(choice(&[of(200), saved], "me", MINUTE), Choice::None { others_live: true });
        assert_eq!(choice(&[of(10)], "other", MINUTE), restore("old", 3), "a loader that runs again");
    }
}
