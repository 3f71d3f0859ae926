//! What the counters of pods add since the last look, for one metric. Counters live in containers: they begin anew when a
//! container does. It judges nothing.
//!
//! | what is seen of a pod | what it adds |
//! |---|---|
//! | the container of the last look | the difference |
//! | a later start of the container, or a counter that fell | all of its counts, as they began at 0 |
//! | the first look, the container started after `since` | all of its counts |
//! | the first look otherwise | nothing: some of its counts may be older than the step, or are counted already |
//! | no more | nothing; what it counted after the last look is lost |
//!
//! If a pod gives no counters, the interval counts for no track, and every pod keeps its last reading. The next complete look
//! then adds the counts of the gap for both tracks at once. Otherwise a fault in the gap would be counted for one track only.
//! After [`MISSING_AFTER`] such looks in a row the readings are dropped, because so long a gap is no interval.

use std::collections::BTreeMap;

use crate::interval::{Counts, Tracks};

/// The last counters of all pods. Bounded: at most [`MOST_PODS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pods: BTreeMap<String, Reading>,
    missed: u32,
}

/// One look at one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// The UID of the pod.
    pub pod: String,
    pub track: Track,
    /// When the container of the engine started, in Unix seconds.
    pub started: i64,
    /// Since the start of the process; `None` if the pod or this metric did not answer.
    pub counts: Option<Counts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    Stable,
    Candidate,
}

/// Why a look counts for no track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    #[error("a pod gave no counters")]
    NoCounters,
    #[error("two scrapes are of one pod")]
    SamePodTwice,
    #[error("more than {MOST_PODS} pods")]
    TooManyPods,
}

/// Far more than two versions of one model have.
pub const MOST_PODS: usize = 2_000;

/// One lost scrape is nothing, two can be bad luck.
pub const MISSING_AFTER: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    started: i64,
    counts: Counts,
    /// A counter fell while the start stayed. The status of a pod may be older than its counters, so the next later start
    /// may be that of the same restart.
    fell: bool,
}

impl Counters {
    /// What both tracks add since the last complete look. `scrapes`: of every pod that has been Ready, since one that loads
    /// its model has no counters. `since`: Unix seconds up to which everything is counted. That is the time of the last
    /// counted look, which a restart of the caller must not lose, or the start of the step.
    pub fn advance(&mut self, scrapes: &[Scrape], since: i64) -> Result<Tracks<Counts>, Gap> {
        match self.added(scrapes, since) {
            Ok((added, pods)) => {
                *self = Self { pods, missed: 0 };
                Ok(added)
            }
            Err(gap) => {
                self.missed = self.missed.saturating_add(1);
                if self.missed >= MISSING_AFTER {
                    self.pods.clear();
                }
                Err(gap)
            }
        }
    }

    fn added(
        &self,
        scrapes: &[Scrape],
        since: i64,
    ) -> Result<(Tracks<Counts>, BTreeMap<String, Reading>), Gap> {
        if scrapes.len() > MOST_PODS {
            return Err(Gap::TooManyPods);
        }
        let mut added = Tracks::<Counts>::default();
        let mut pods = BTreeMap::new();
        for scrape in scrapes {
            let counts = scrape.counts.ok_or(Gap::NoCounters)?;
            let (more, reading) = match self.pods.get(&scrape.pod) {
                Some(last) => last.next(scrape.started, counts),
                None => Reading::first(scrape.started, counts, since),
            };
            match scrape.track {
                Track::Stable => added.stable = added.stable.plus(more),
                Track::Candidate => added.candidate = added.candidate.plus(more),
            }
            if pods.insert(scrape.pod.clone(), reading).is_some() {
                return Err(Gap::SamePodTwice);
            }
        }
        Ok((added, pods))
    }
}

impl Reading {
    fn first(started: i64, counts: Counts, since: i64) -> (Counts, Self) {
        let added = if started > since { counts } else { Counts::default() };
        (added, Self { started, counts, fell: false })
    }

    fn next(self, started: i64, counts: Counts) -> (Counts, Self) {
        let difference = counts.since(self.counts);
        let is_later = started > self.started;
        let is_known = self.fell || !is_later;
        let added = difference.filter(|_| is_known).unwrap_or(counts);
        let fell = !is_later && (self.fell || difference.is_none());
        // An older start is an older status of the pod.
        (added, Self { started: started.max(self.started), counts, fell })
    }
}

#[cfg(test)]
mod tests;
