//! A queue in front of replicas. Pure.
//!
//! A replica works on a number of requests at a time. How long one takes may grow with how full the replicas are. Requests are begun
//! in the order of their arrival, each as soon as a slot is free. Replicas change once a second. Those that still start are
//! removed first; after a removal nothing begins until as many requests have ended as slots have gone.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
};

use crate::arrivals::Request;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Requests that a replica works on at a time.
    pub(crate) slots: u32,
    pub(crate) cold_start: ColdStart,
    /// How much longer a request takes if all slots are taken when it begins: 0.5 for half as long again.
    pub(crate) slowdown: f64,
}

/// Seconds from the order of a replica until it serves: each within these bounds is equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColdStart {
    shortest: u32,
    longest: u32,
}

impl ColdStart {
    const LONGEST: u32 = 7_200;

    pub(crate) const fn of(seconds: u32) -> Self {
        Self { shortest: seconds, longest: seconds }
    }

    /// `60`, or `30..120`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (shortest, longest) = text.split_once("..").unwrap_or((text, text));
        let seconds = |text: &str| text.parse().ok().filter(|seconds| (1..=Self::LONGEST).contains(seconds));
        match (seconds(shortest), seconds(longest)) {
            (Some(shortest), Some(longest)) if shortest <= longest => Ok(Self { shortest, longest }),
            _ => Err(format!(
                "{text:?} is neither seconds nor a range: write 60 or 30..120, 1 to {}",
                Self::LONGEST
            )),
        }
    }

    /// The same for the same number of a replica.
    fn of_replica(self, id: u32) -> i64 {
        let choices = u64::from(self.longest - self.shortest) + 1;
        // Fibonacci hashing spreads the numbers that follow each other.
        let spread = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        i64::from(self.shortest) + (spread % choices) as i64
    }
}

impl fmt::Display for ColdStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shortest == self.longest {
            true => write!(f, "{}", self.shortest),
            false => write!(f, "{}..{}", self.shortest, self.longest),
        }
    }
}

/// What an autoscaler sees.
#[derive(Clone, Debug)]
pub(crate) struct Seen<'a> {
    /// Seconds since the first request.
    pub(crate) now: u32,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    /// Since the beginning.
    pub(crate) finished: u32,
    /// Milliseconds, of whole requests: the 95th percentile of those that have ended in the last 30 s, or in the last 30 s in
    /// which any did. 0 while none is in hand.
    pub(crate) latency: f64,
    /// The youngest last.
    pub(crate) replicas: &'a [Replica],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) id: u32,
    /// Seconds since the first request; negative for those that were there before.
    pub(crate) created: i64,
    pub(crate) ready: i64,
}

/// A scaling policy.
pub(crate) trait Decide {
    /// Replicas at the beginning.
    fn least(&self) -> usize;
    /// Seconds between two decisions.
    fn period(&self) -> u32;
    fn decide(&mut self, seen: &Seen<'_>) -> usize;
}

/// What became of the requests, and what it cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Seconds, the shortest first.
    pub(crate) waits: Vec<f64>,
    pub(crate) replica_minutes: f64,
    pub(crate) most: usize,
    /// How often an addition followed a removal, or the reverse.
    pub(crate) turns: u32,
    /// A quarter of a minute apart.
    pub(crate) course: Vec<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) second: u32,
    pub(crate) waiting: usize,
    /// Those that start count.
    pub(crate) replicas: usize,
}

/// In seconds.
const MOMENTS_APART: u32 = 15;

/// Requests that have ended within 30 s.
#[derive(Debug, Default)]
struct Ended {
    /// When, and milliseconds from the arrival, the oldest first.
    requests: VecDeque<(u64, f64)>,
}

impl Ended {
    const WINDOW: f64 = 30.0;

    fn add(&mut self, Running { ends, arrived }: Running) {
        self.requests.push_back((ends, ends.saturating_sub(arrived) as f64 / 1_000.0));
    }

    fn latency(&mut self, now: f64) -> f64 {
        let newest = self.requests.back().map_or(0, |(ends, _)| *ends);
        let oldest = newest.min(micros(now)).saturating_sub(micros(Self::WINDOW));
        while self.requests.front().is_some_and(|(ends, _)| *ends < oldest) {
            self.requests.pop_front();
        }
        let mut latencies: Vec<f64> = self.requests.iter().map(|(_, latency)| *latency).collect();
        latencies.sort_by(f64::total_cmp);
        let rank = (latencies.len() as f64 * 0.95).ceil() as usize;
        latencies.get(rank.max(1) - 1).copied().unwrap_or_default()
    }
}

/// In microseconds. Those that end first are the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    ends: u64,
    arrived: u64,
}

/// After the last arrival, so that what a policy keeps counts as well.
const TAIL: u32 = 900;
/// Replicas that were there at the beginning have been there for long.
const LONG_AGO: i64 = -86_400;

pub(crate) fn run(model: &Model, requests: &[Request], mut policy: impl Decide) -> Outcome {
    let mut outcome = Outcome { waits: Vec::with_capacity(requests.len()), ..Outcome::default() };
    let mut next_id = 0;
    let mut new = |created: i64| {
        next_id += 1;
        Replica { id: next_id, created, ready: created + model.cold_start.of_replica(next_id) }
    };
    let mut replicas: Vec<Replica> = (0..policy.least()).map(|_| new(LONG_AGO)).collect();
    let mut running = BinaryHeap::<Reverse<Running>>::new();
    let mut ended = Ended::default();
    let mut waiting = VecDeque::<Request>::new();
    let mut arriving = requests.iter().copied().peekable();
    let last = requests.last().map_or(0.0, |last| last.at).ceil() as u32;
    let (mut next_decision, mut direction) = (0, 0);
    for now in 0..=last.saturating_add(TAIL) {
        let (at, clock) = (f64::from(now), i64::from(now));
        while let Some(request) = pop_before(&mut running, micros(at) + 1) {
            ended.add(request);
        }
        while let Some(request) = arriving.next_if(|request| request.at <= at) {
            waiting.push_back(request);
        }
        if now >= next_decision {
            next_decision = now.saturating_add(policy.period());
            let finished = outcome.waits.len() - running.len();
            let counts = [waiting.len(), running.len(), finished];
            let [waiting, running, finished] = counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            let latency = if waiting + running > 0 { ended.latency(at) } else { 0.0 };
            let wanted =
                policy.decide(&Seen { now, waiting, running, finished, latency, replicas: &replicas });
            let before = replicas.len();
            for _ in before..wanted {
                replicas.push(new(clock));
            }
            replicas.truncate(wanted);
            let step = wanted.cmp(&before) as i8;
            outcome.turns += u32::from(step != 0 && direction != 0 && step != direction);
            direction = if step == 0 { direction } else { step };
            outcome.most = outcome.most.max(wanted);
        }
        if now % MOMENTS_APART == 0 {
            let moment = Moment { second: now, waiting: waiting.len(), replicas: replicas.len() };
            outcome.course.push(moment);
        }
        outcome.replica_minutes += replicas.len() as f64 / 60.0;
        let ready = replicas.iter().filter(|replica| replica.ready <= clock).count();
        let slots = ready * model.slots as usize;
        let mut free_at = at;
        loop {
            while let Some(request) = arriving.next_if(|request| waiting.is_empty() && request.at < at + 1.0)
            {
                waiting.push_back(request);
            }
            let Some(request) = waiting.front().copied() else { break };
            if running.len() >= slots {
                // The next slot that becomes free within this step.
                let Some(request) = pop_before(&mut running, micros(at + 1.0)) else { break };
                ended.add(request);
                free_at = request.ends as f64 / MICROS;
                continue;
            }
            let begins = free_at.max(request.at);
            waiting.pop_front();
            outcome.waits.push(begins - request.at);
            let full = (running.len() as f64 / slots.max(1) as f64).min(1.0);
            let ends = micros(begins + request.takes * (1.0 + model.slowdown * full));
            running.push(Reverse(Running { ends, arrived: micros(request.at) }));
        }
    }
    // What was never begun has waited until the end.
    let end = f64::from(last.saturating_add(TAIL));
    outcome.waits.extend(waiting.iter().map(|request| end - request.at));
    outcome.waits.sort_by(f64::total_cmp);
    outcome
}

/// The next request that ends before this time.
fn pop_before(running: &mut BinaryHeap<Reverse<Running>>, time: u64) -> Option<Running> {
    running.peek().filter(|Reverse(request)| request.ends < time)?;
    running.pop().map(|Reverse(request)| request)
}

const MICROS: f64 = 1e6;

/// Whole numbers have an order.
fn micros(seconds: f64) -> u64 {
    (seconds * MICROS) as u64
}

impl Outcome {
    /// Of the nearest rank, 0 to 1.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let rank = (self.waits.len() as f64 * share).ceil() as usize;
        self.waits.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// The share of requests that waited longer, 0 to 1.
    pub(crate) fn beyond(&self, promise: f64) -> f64 {
        let late = self.waits.len() - self.waits.partition_point(|wait| *wait <= promise);
        late as f64 / self.waits.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(usize);

    impl Decide for Fixed {
        fn least(&self) -> usize {
            self.0
        }

        fn period(&self) -> u32 {
            15
        }

        fn decide(&mut self, _: &Seen<'_>) -> usize {
            self.0
        }
    }

    const MODEL: Model = Model { slots: 2, cold_start: ColdStart::of(30), slowdown: 0.0 };

    fn requests(count: u32, every: f64, takes: f64) -> Vec<Request> {
        (0..count).map(|index| Request { at: f64::from(index) * every, takes }).collect()
    }

    #[test]
    fn requests_wait_while_all_slots_are_taken() {
        // Two slots, and a request each second that takes three: a third of them cannot be served.
        let outcome = run(&MODEL, &requests(60, 1.0, 3.0), Fixed(1));
        assert_eq!(outcome.waits.len(), 60);
        assert_eq!(outcome.percentile(0.01), 0.0);
        assert!((25.0..=35.0).contains(&outcome.percentile(1.0)), "{}", outcome.percentile(1.0));
        // A slot is free as soon as its request has ended, also within a second.
        let short = run(&Model { slots: 1, ..MODEL }, &requests(40, 0.25, 0.25), Fixed(1));
        assert!(short.percentile(1.0) < 0.001, "{}", short.percentile(1.0));
        let enough = run(&MODEL, &requests(60, 1.0, 3.0), Fixed(2));
        assert_eq!((enough.percentile(1.0), enough.beyond(0.0)), (0.0, 0.0));
        assert_eq!((enough.most, enough.turns), (2, 0));
        let minutes = (59.0 + 900.0 + 1.0) * 2.0 / 60.0;
        assert!((enough.replica_minutes - minutes).abs() < 0.1, "{}", enough.replica_minutes);
    }

    #[test]
    fn cold_starts_of_a_range_are_all_taken() {
        assert_eq!(ColdStart::parse("60"), Ok(ColdStart::of(60)));
        let range = ColdStart::parse("30..33").unwrap();
        let mut taken: Vec<i64> = (0..100).map(|id| range.of_replica(id)).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken, [30, 31, 32, 33]);
        for text in ["", "0", "7201", "60..30", "a..b", "-1"] {
            assert!(ColdStart::parse(text).unwrap_err().contains("30..120"), "{text}");
        }
    }

    #[test]
    fn the_course_has_a_moment_for_each_quarter_of_a_minute() {
        let outcome = run(&MODEL, &requests(60, 1.0, 3.0), Fixed(1));
        let first = outcome.course[..3].iter().map(|moment| (moment.second, moment.replicas));
        assert_eq!(first.collect::<Vec<_>>(), [(0, 1), (15, 1), (30, 1)]);
        assert!(outcome.course[3].waiting > outcome.course[1].waiting, "{:?}", &outcome.course[..4]);
    }

    #[test]
    fn what_was_never_begun_has_waited_until_the_end() {
        let outcome = run(&MODEL, &requests(3, 0.0, 10_000.0), Fixed(1));
        assert_eq!(outcome.waits, [0.0, 0.0, 900.0]);
        assert!((outcome.beyond(10.0) - 1.0 / 3.0).abs() < 1e-9);
    }
}
