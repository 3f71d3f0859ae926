//! What the counters of pods add since the last look, for one metric. Counters live in containers: they begin anew when a
//! container does. It judges nothing.
//!
//! | what is seen of a pod | what it adds |
//! |---|---|
//! | the container of the last look | the difference |
//! | a later start of the container, or `ended` fell | all of its counts, as they began at 0 |
//! | only `bad` fell | the ended requests, none of them bad, until `bad` is above its largest value again |
//! | `ended` fell a second time, with the same start | the look is a gap |
//! | the first look, the container started after `since` | all of its counts |
//! | the first look otherwise | nothing: some of its counts may be older than the step, or are counted already |
//! | no more | nothing; what it counted after the last look is lost |
//!
//! The arrivals of a pod are its ended requests and the change of its requests in flight. The two numbers are not read at one
//! instant, so the sum can be negative. A negative sum counts as 0 and is subtracted from the arrivals of the next look.
//! Requests in flight at a restart have arrived and never end. Such a flow says that a container began anew.
//!
//! A pod that is not Ready may be silent: it adds nothing, and keeps its last reading. What it has counted meanwhile is added when it
//! answers again.
//!
//! If another pod gives no counters, the interval counts for no track, and every pod keeps its last reading. The next complete look
//! then adds the counts of the gap for both tracks at once. Otherwise a fault in the gap would be counted for one track only.
//! After [`MISSING_AFTER`] such looks in a row the readings are dropped, because so long a gap is no interval.
//!
//! Bad requests of a latency depend on the bound. With another bound than that of the last look, all readings are dropped.

use std::collections::BTreeMap;

use crate::{
    bucket::Bound,
    interval::{Counts, Flow, Tracks},
};

/// The last counters of all pods. Bounded: at most [`MOST_PODS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    bound: Option<Bound>,
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
    /// `None` if the pod or this metric did not answer.
    pub numbers: Option<Numbers>,
    /// Whether it may be silent, because it is not Ready.
    pub may_be_silent: bool,
}

/// What a pod gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Ended requests and bad ones since the start of the process.
    pub ended: Counts,
    /// Requests that run or wait now.
    pub in_flight: u64,
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
    #[error("the counters of a pod fell twice without a new start of its container")]
    FellTwice,
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
    numbers: Numbers,
    /// Arrivals that were counted too many, because a sum was negative.
    surplus: u64,
    /// A counter fell while the start stayed. The status of a pod may be older than its counters, so the next later start
    /// may be that of the same restart.
    fell: bool,
}

impl Counters {
    /// What both tracks add since the last complete look. `scrapes`: of every pod that has been Ready, since one that loads
    /// its model has no counters. `since`: Unix seconds up to which everything is counted. That is the time of the last
    /// counted look, which a restart of the caller must not lose, or the start of the step. `bound`: that of a latency, with
    /// which `bad` was counted.
    pub fn advance(
        &mut self,
        scrapes: &[Scrape],
        since: i64,
        bound: Option<Bound>,
    ) -> Result<Tracks<Flow>, Gap> {
        if bound != self.bound {
            *self = Self { bound, ..Self::default() };
        }
        match self.added(scrapes, since) {
            Ok((added, pods)) => {
                *self = Self { bound, pods, missed: 0 };
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
    ) -> Result<(Tracks<Flow>, BTreeMap<String, Reading>), Gap> {
        if scrapes.len() > MOST_PODS {
            return Err(Gap::TooManyPods);
        }
        let mut added = Tracks::<Flow>::default();
        let mut pods = BTreeMap::new();
        for scrape in scrapes {
            let Some(numbers) = scrape.numbers else {
                if !scrape.may_be_silent {
                    return Err(Gap::NoCounters);
                }
                pods.extend(self.pods.get(&scrape.pod).map(|last| (scrape.pod.clone(), *last)));
                continue;
            };
            let (more, reading) = match self.pods.get(&scrape.pod) {
                Some(last) => last.next(scrape.started, numbers)?,
                None => Reading::first(scrape.started, numbers, since),
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
    fn first(started: i64, numbers: Numbers, since: i64) -> (Flow, Self) {
        let reading = Self { started, numbers, surplus: 0, fell: false };
        let nothing = Flow { in_flight: numbers.in_flight, ..Flow::default() };
        (if started > since { since_start(numbers) } else { nothing }, reading)
    }

    fn next(self, started: i64, numbers: Numbers) -> Result<(Flow, Self), Gap> {
        let is_later = started > self.started;
        let has_fallen = numbers.ended.requests() < self.numbers.ended.requests();
        // An older start is an older status of the pod.
        let started = started.max(self.started);
        if has_fallen && !is_later && self.fell {
            return Err(Gap::FellTwice);
        }
        if has_fallen || (is_later && !self.fell) {
            let fell = has_fallen && !is_later;
            return Ok((restarted(numbers), Self { started, numbers, surplus: 0, fell }));
        }
        let fell = self.fell && !is_later;
        let (added, numbers, surplus) = self.difference(numbers);
        Ok((added, Self { started, numbers, surplus, fell }))
    }

    /// The flow since this reading, the numbers to keep, and the new surplus of arrivals. Ended requests did not fall.
    fn difference(self, numbers: Numbers) -> (Flow, Numbers, u64) {
        let (before, now) = (self.numbers.ended, numbers.ended);
        let ended = now.added_to(before);
        let arrived = ended.requests().saturating_add(numbers.in_flight);
        let known = self.numbers.in_flight.saturating_add(self.surplus);
        let arrivals = arrived.saturating_sub(known);
        let flow = Flow { arrivals, ended, in_flight: numbers.in_flight, restarts: 0 };
        let kept = Numbers { ended: now.with_most_bad(before), ..numbers };
        (flow, kept, known.saturating_sub(arrived))
    }
}

/// Of a process that began with counters of 0.
fn since_start(numbers: Numbers) -> Flow {
    let Numbers { ended, in_flight } = numbers;
    Flow { arrivals: ended.requests().saturating_add(in_flight), ended, in_flight, restarts: 0 }
}

fn restarted(numbers: Numbers) -> Flow {
    Flow { restarts: 1, ..since_start(numbers) }
}

#[cfg(test)]
mod tests;
