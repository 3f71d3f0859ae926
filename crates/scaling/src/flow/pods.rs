//! The requests of a target, added up over its pods: pods come and go, begin anew, and do not always answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Flow, Meter, Totals};
use crate::time::elapsed;

/// Requests of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodCounts {
    pub uid: String,
    /// Since the pod began. A count that falls has begun anew.
    pub finished: f64,
    pub waiting: f64,
    pub running: f64,
}

/// A [`Meter`] of pods, at most 2000. A look counts only if all Ready pods have answered it: the requests of some are not
/// those of the target, and what a silent pod has done meanwhile is no burst of the moment in which it answers again.
#[derive(Clone, Debug, Default)]
pub struct PodMeter {
    /// By uid.
    pods: BTreeMap<Box<str>, Known>,
    /// Since the first look.
    arrived: f64,
    finished: f64,
    meter: Meter,
    /// When all Ready pods answered last.
    complete: Option<Timestamp>,
    now: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    finished: f64,
    in_hand: f64,
    at: Timestamp,
}

/// More than a target has during a rollout.
const MOST_PODS: usize = 2_000;
/// No engine has so many.
const MOST_IN_HAND: f64 = 1e6;
/// A pod that is not Ready for a moment goes on from its count; later it is a new one.
const KNOWN_FOR: Duration = Duration::from_mins(1);
/// Without a complete look for so long, nothing is known of the present.
const FRESH: Duration = Duration::from_secs(20);

impl PodMeter {
    /// `answered`: pods that were read now. `ready`: uids of all Ready pods.
    pub fn observe(&mut self, answered: &[PodCounts], ready: &BTreeSet<&str>, now: Timestamp) {
        self.now = Some(now);
        let sound: Vec<&PodCounts> = answered.iter().filter(|pod| pod.is_sound()).collect();
        let is_complete =
            sound.len() == ready.len() && sound.iter().all(|pod| ready.contains(pod.uid.as_str()));
        if ready.is_empty() || !is_complete || ready.len() > MOST_PODS {
            return;
        }
        for pod in &sound {
            let in_hand = pod.waiting + pod.running;
            let before = self.pods.get(pod.uid.as_str()).filter(|known| elapsed(known.at, now) <= KNOWN_FOR);
            let (finished, more_in_hand) = match before {
                // It has begun anew, or serves a part of its series alone.
                Some(before) if pod.finished < before.finished => (0.0, in_hand - before.in_hand),
                Some(before) => (pod.finished - before.finished, in_hand - before.in_hand),
                // Before its first look a pod has finished few requests.
                None => (0.0, in_hand),
            };
            self.finished += finished;
            self.arrived += finished + more_in_hand;
            let known = Known { finished: pod.finished, in_hand, at: now };
            match self.pods.get_mut(pod.uid.as_str()) {
                Some(before) => *before = known,
                None => {
                    self.pods.insert(pod.uid.as_str().into(), known);
                }
            }
        }
        self.pods.retain(|_, pod| elapsed(pod.at, now) <= KNOWN_FOR);
        self.complete = Some(now);
        let totals = Totals {
            arrived: self.arrived,
            finished: self.finished,
            waiting: sound.iter().map(|pod| pod.waiting).sum(),
            running: sound.iter().map(|pod| pod.running).sum(),
            replicas: u32::try_from(sound.len()).unwrap_or(u32::MAX),
            full: mean(sound.iter().filter(|pod| pod.waiting >= 1.0).map(|pod| pod.running)),
        };
        self.meter.observe(totals, now);
    }

    /// `None` while too little is known, and while a Ready pod has not answered for 20 s.
    pub fn flow(&self) -> Option<Flow> {
        let is_fresh = elapsed(self.complete?, self.now?) <= FRESH;
        is_fresh.then(|| self.meter.flow()).flatten()
    }
}

impl PodCounts {
    fn is_sound(&self) -> bool {
        let is_count = |count: f64, most: f64| (0.0..=most).contains(&count);
        is_count(self.finished, f64::MAX)
            && is_count(self.waiting, MOST_IN_HAND)
            && is_count(self.running, MOST_IN_HAND)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
