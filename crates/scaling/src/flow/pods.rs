//! The requests of a target, added up over its pods: pods come and go, begin anew, and do not always answer.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{Flow, Meter, Totals};
use crate::time::elapsed;

/// What one pod says of its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct PodCounts {
    pub uid: String,
    /// Since the pod began. A count that falls has begun anew.
    pub finished: f64,
    pub waiting: f64,
    pub running: f64,
}

/// A [`Meter`] of pods, at most 2000.
#[derive(Clone, Debug, Default)]
pub struct PodMeter {
    /// By uid.
    pods: BTreeMap<Box<str>, Known>,
    /// Since the first look.
    finished: f64,
    meter: Meter,
    is_silent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    finished: f64,
    waiting: f64,
    running: f64,
    at: Timestamp,
}

/// More than a target has during a rollout.
const MOST_PODS: usize = 2_000;
/// What a pod has said last stands for it so long.
const SILENT: Duration = Duration::from_mins(1);

impl PodMeter {
    /// `answered`: pods that were read now. `is_there`: whether a pod of this uid is still Ready. What a pod that is gone had
    /// in hand counts as finished; if it was lost, clients send it again.
    pub fn observe(&mut self, answered: &[PodCounts], is_there: impl Fn(&str) -> bool, now: Timestamp) {
        let Self { pods, finished, .. } = self;
        pods.retain(|uid, pod| {
            let stays = is_there(uid);
            if !stays {
                *finished += pod.waiting + pod.running;
            }
            stays
        });
        for pod in answered.iter().filter(|pod| pod.is_sound()) {
            let has_room = pods.len() < MOST_PODS;
            let known = Known { finished: pod.finished, waiting: pod.waiting, running: pod.running, at: now };
            match pods.get_mut(pod.uid.as_str()) {
                Some(before) => {
                    let grown = pod.finished - before.finished;
                    *finished += if grown < 0.0 { pod.finished } else { grown };
                    *before = known;
                }
                None if has_room => {
                    pods.insert(pod.uid.as_str().into(), known);
                }
                None => {}
            }
        }
        self.is_silent = pods.values().any(|pod| elapsed(pod.at, now) > SILENT);
        let totals = Totals {
            finished: *finished,
            waiting: pods.values().map(|pod| pod.waiting).sum(),
            running: pods.values().map(|pod| pod.running).sum(),
            replicas: u32::try_from(pods.len()).unwrap_or(u32::MAX),
        };
        self.meter.observe(totals, now);
    }

    /// `None` while too little is known, if a pod has been silent for a minute, and without pods.
    pub fn flow(&self) -> Option<Flow> {
        let is_known = !self.pods.is_empty() && !self.is_silent;
        is_known.then(|| self.meter.flow()).flatten()
    }
}

impl PodCounts {
    fn is_sound(&self) -> bool {
        [self.finished, self.waiting, self.running].iter().all(|count| count.is_finite() && *count >= 0.0)
    }
}
