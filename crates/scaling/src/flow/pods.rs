//! The requests of a target, added up over its pods: pods come and go, begin anew, and do not always answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Flow, Meter, Totals};
use crate::{behavior::Window, time::elapsed};

/// Requests of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodCounts {
    pub uid: String,
    /// Since the pod began. A count that falls has begun anew.
    pub finished: f64,
    pub waiting: f64,
    pub running: f64,
    /// Tokens that were processed since the pod began; 0 where they are not counted.
    pub tokens: f64,
}

/// A [`Meter`] of pods, at most 2000. A look counts only if all Ready pods have answered it. The requests of some pods are not
/// those of the target. What a silent pod has done is no burst of the moment in which it answers again.
#[derive(Clone, Debug, Default)]
pub struct PodMeter {
    /// By uid.
    pods: BTreeMap<Box<str>, Known>,
    /// Since the first look.
    arrived: f64,
    finished: f64,
    tokens: f64,
    meter: Meter,
    /// When all Ready pods answered last.
    complete: Option<Timestamp>,
    now: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    finished: f64,
    /// The count before it fell. If it is reached again, some series were away and have not begun anew.
    highest: f64,
    tokens: f64,
    /// As `highest`, of tokens.
    most_tokens: f64,
    in_hand: f64,
    /// Mean of what waits, over a minute.
    queue: f64,
    first: Timestamp,
    at: Timestamp,
}

/// Between two looks at a pod.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    finished: f64,
    more_in_hand: f64,
    tokens: f64,
}

/// More than a target has during a rollout.
const MOST_PODS: usize = 2_000;
/// No engine has so many.
const MOST_IN_HAND: f64 = 1e6;
/// A pod that is not Ready for a moment goes on from its count. What it has done later is not known.
const GOES_ON_FOR: Duration = Duration::from_mins(1);
/// Later it is a new pod, and what it has in hand has arrived.
const KNOWN_FOR: Duration = Duration::from_mins(15);
/// In seconds. A request that waits for a moment shows no full pod: engines have other reasons, such as a long prompt.
const QUEUE_OVER: f64 = 60.0;
/// A new pod begins its first requests one after the other, however many wait.
const FILLED_WITHIN: Duration = Duration::from_secs(30);
/// Of what a full pod works on, so much waits.
const FULL_QUEUE: f64 = 0.1;
/// Without a complete look for so long, nothing is known of the present.
const FRESH: Duration = Duration::from_secs(20);

impl PodMeter {
    /// `answered`: pods that were read now. `ready`: uids of all Ready pods.
    pub fn observe(&mut self, answered: &[PodCounts], ready: &BTreeSet<&str>, now: Timestamp) {
        self.look(answered, 0.0, ready, now);
    }

    /// As `observe`, of workers whose tasks go to others when they end: those of a pod that is not `live` any more are taken
    /// back. `shared`: tasks that wait for all workers together, beside those that wait for each of them.
    pub fn observe_pool(
        &mut self,
        answered: &[PodCounts],
        shared: f64,
        ready: &BTreeSet<&str>,
        live: &BTreeSet<&str>,
        now: Timestamp,
    ) {
        let gone = self.pods.extract_if(.., |uid, _| !live.contains(&**uid));
        self.arrived -= gone.map(|(_, pod)| pod.in_hand).sum::<f64>();
        self.look(answered, shared, ready, now);
    }

    fn look(&mut self, answered: &[PodCounts], shared: f64, ready: &BTreeSet<&str>, now: Timestamp) {
        self.now = Some(now);
        // The clock was set back.
        self.complete = self.complete.filter(|complete| *complete <= now);
        let sound: Vec<&PodCounts> = answered.iter().filter(|pod| pod.is_sound()).collect();
        let is_complete =
            sound.len() == ready.len() && sound.iter().all(|pod| ready.contains(pod.uid.as_str()));
        let is_sound = (0.0..=MOST_IN_HAND).contains(&shared);
        if ready.is_empty() || !is_complete || !is_sound || ready.len() > MOST_PODS {
            return;
        }
        let mut full: Option<f64> = None;
        for pod in &sound {
            let before = self.pods.get(pod.uid.as_str()).copied();
            let (known, Gain { finished, more_in_hand, tokens }) = pod.since(before, now);
            self.finished += finished;
            self.tokens += tokens;
            self.arrived += finished + more_in_hand;
            let is_busy = elapsed(known.first, now) >= FILLED_WITHIN && pod.running > 0.0;
            if is_busy && pod.waiting >= 1.0 && known.queue >= (FULL_QUEUE * pod.running).max(1.0) {
                full = Some(full.map_or(pod.running, |most| most.max(pod.running)));
            }
            match self.pods.get_mut(pod.uid.as_str()) {
                Some(before) => *before = known,
                None => {
                    self.pods.insert(pod.uid.as_str().into(), known);
                }
            }
        }
        self.pods.retain(|_, pod| elapsed(pod.at, now) <= KNOWN_FOR);
        while self.pods.len() > MOST_PODS {
            let oldest = self.pods.iter().min_by_key(|(_, pod)| pod.at).map(|(uid, _)| uid.clone());
            oldest.and_then(|uid| self.pods.remove(&uid));
        }
        self.complete = Some(now);
        let totals = Totals {
            arrived: self.arrived + shared,
            finished: self.finished,
            waiting: shared + sound.iter().map(|pod| pod.waiting).sum::<f64>(),
            running: sound.iter().map(|pod| pod.running).sum(),
            replicas: u32::try_from(sound.len()).unwrap_or(u32::MAX),
            full,
            tokens: self.tokens,
        };
        self.meter.observe(totals, now);
    }

    /// `None` while too little is known, and while a Ready pod has not answered for 20 s. Rough from the first such look on.
    /// `window`: that of scaleDown.
    pub fn flow(&self, window: Window) -> Option<Flow> {
        let since = elapsed(self.complete?, self.now?);
        let flow = self.meter.flow(window).filter(|_| since <= FRESH)?;
        Some(Flow { is_rough: flow.is_rough || !since.is_zero(), ..flow })
    }
}

impl PodCounts {
    /// What is known now, and what came since.
    fn since(&self, before: Option<Known>, now: Timestamp) -> (Known, Gain) {
        let in_hand = self.waiting + self.running;
        let known = Known {
            finished: self.finished,
            highest: self.finished,
            tokens: self.tokens,
            most_tokens: self.tokens,
            in_hand,
            queue: before.map_or(0.0, |before| before.queue),
            first: now,
            at: now,
        };
        let Some(before) = before else {
            // Before its first look a pod has finished few requests.
            return (known, Gain { more_in_hand: in_hand, ..Gain::default() });
        };
        let pause = elapsed(before.at, now);
        if pause > GOES_ON_FOR {
            return (Known { queue: 0.0, ..known }, Gain::default());
        }
        let kept = (-pause.as_secs_f64() / QUEUE_OVER).exp();
        let queue = before.queue * kept + self.waiting * (1.0 - kept);
        let is_back = self.finished >= before.highest;
        let finished = if is_back { self.finished - before.highest } else { self.finished - before.finished };
        let highest = if is_back { self.finished } else { before.highest };
        let have_tokens_returned = self.tokens >= before.most_tokens;
        let counted_from = if have_tokens_returned { before.most_tokens } else { before.tokens };
        let tokens = self.tokens - counted_from;
        let most_tokens = if have_tokens_returned { self.tokens } else { before.most_tokens };
        let gain = Gain {
            finished: finished.max(0.0),
            more_in_hand: in_hand - before.in_hand,
            tokens: tokens.max(0.0),
        };
        (Known { queue, highest, most_tokens, first: before.first, ..known }, gain)
    }

    fn is_sound(&self) -> bool {
        let is_count = |count: f64, most: f64| (0.0..=most).contains(&count);
        is_count(self.finished, f64::MAX)
            && is_count(self.tokens, f64::MAX)
            && is_count(self.waiting, MOST_IN_HAND)
            && is_count(self.running, MOST_IN_HAND)
    }
}
