//! How many requests arrive and how long they take, from the counters of the pods.
//!
//! A queue says how much was missed. The rate of arrivals says how much is needed, also while replicas start. It follows
//! from three numbers of each pod: requests that it has finished, that wait, and that it works on.
//!
//! - What has arrived is what was finished, plus the change of what waits and runs.
//! - The time of a request is the time that requests have run, divided by those that were finished (Little's law).
//! - A replica can work on as many requests at a time as one with a standing queue, or as the most that were seen.
//!
//! [`PodMeter`] adds up the counts of pods, [`Meter`] follows the sums. Their result is a [`Flow`]: a few numbers, from which
//! replicas are computed.

use std::{collections::VecDeque, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use pods::{PodCounts, PodMeter};
pub use total::{TotalCounts, TotalMeter};

use crate::{
    behavior::Window,
    policy::{Kind, TargetValue},
    reading::Milli,
};

mod pods;
mod total;

/// The requests of a target at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Since any beginning. Arrivals may fall a little: gauges lag behind counters.
    pub arrived: f64,
    pub finished: f64,
    pub waiting: f64,
    pub running: f64,
    /// Replicas that were counted.
    pub replicas: u32,
    /// Requests that a replica works on while others wait for it; `None` while none waits.
    pub full: Option<f64>,
    /// Tokens that were processed, since any beginning; 0 where they are not counted.
    pub tokens: f64,
}

/// The requests of a target over the last minutes. Bounded: 64 intervals and 62 bins.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<(Totals, Timestamp)>,
    /// Those of the last four minutes.
    intervals: VecDeque<Interval>,
    /// Arrivals of each quarter of a minute, with two that are remembered for changes alone.
    bins: VecDeque<f32>,
    bin: Bin,
    /// Seconds that requests have run, and requests that were finished. Both lose their weight over five minutes.
    run: f64,
    finished: f64,
    /// Tokens of the same time.
    tokens: f64,
    /// Whether enough were finished to know how long a request takes.
    knows_time: bool,
    /// The most requests that a replica has worked on, forgotten over half an hour: it can do at least that.
    most_at_a_time: f64,
    /// What a replica with a queue works on, and for how many seconds there was no queue.
    full: Option<Full>,
}

#[derive(Clone, Copy, Debug)]
struct Full {
    at_a_time: f64,
    seconds_ago: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    seconds: f32,
    arrived: f32,
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    seconds: f32,
    arrived: f32,
    /// Requests of each replica at its end.
    in_hand_each: f32,
}

/// Requests of a target. All numbers are in thousandths of their unit.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Flow {
    /// Arrivals per second over four minutes, or over the window of scaleDown if that is less.
    pub rate: Milli,
    /// The same over twenty seconds, if that is more.
    pub recent_rate: Milli,
    /// Seconds that a request runs.
    pub takes: Milli,
    /// Requests that a replica can work on at a time: measured while some waited, else the most that were seen.
    pub at_a_time: Milli,
    /// Whether some have waited: a replica can do no more than `at_a_time`.
    pub is_full: bool,
    /// Whether the rate is of so short a time, or without a pod that is silent, that it may add replicas and remove none.
    #[serde(skip_serializing_if = "is_false")]
    pub is_rough: bool,
    /// How unevenly requests arrive: variance over mean of the arrivals of a quarter of a minute. The variance is half the mean
    /// square of what differs from each to the next (von Neumann). The largest rise and the largest fall that have lasted do not
    /// count. If requests arrive each by itself, it is 1.
    pub dispersion: Milli,
    pub waiting: Milli,
    pub running: Milli,
    /// Tokens that a request has, of its prompt and of its answer; 0 where they are not counted.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: Milli,
    /// The most requests that each replica had in hand, of the time that latencies show: half a minute, and two requests. A
    /// mean over the replicas, so that no single hot one counts.
    pub in_hand_lately: Milli,
    /// Whether none has waited for half an hour: `at_a_time` is a guess then, and no latency can be computed from it.
    #[serde(skip_serializing_if = "is_false")]
    pub is_guessed: bool,
}

/// Replicas that serve, not rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// For what arrives, with a margin for chance.
    pub arrivals: f64,
    /// For what waits too, or will wait when ordered replicas are Ready.
    pub backlog: f64,
}

const MOST_INTERVALS: usize = 64;
/// Closer looks are left out, so that the intervals cover the long window.
const SHORTEST: Duration = Duration::from_secs(4);
/// After it, nothing is known of what came between.
const LONGEST: Duration = Duration::from_mins(1);
// What half and twice of each number below does was measured with `replay --quality`, on the arrivals of two real services
// (Azure's traces of 2023), target 5. Shares of an HPA with the same target are given as 99th percentile of the wait, and
// replica-minutes: 0.54 and 0.79 with the numbers as they are.

/// Half: 0.46 and 0.86, and 1.18 of the replica-minutes in the worst case. Twice: 0.62 and 0.78. Less with a shorter window of
/// scaleDown, whose user wants replicas to go soon.
const LONG: f32 = 240.0;
/// Four looks. Half: 0.52 and 0.80, and up to 16 more changes of direction than an HPA on other loads. Twice: 0.56 and 0.77, and
/// 1.22 of the wait in the worst case.
const SHORT: f32 = 20.0;
/// A rollout that changes the time of a request is followed within minutes. Half or twice: no share moves by more than
/// 0.01.
const SERVICE: f64 = 300.0;
/// Half or twice: no share moves by more than 0.01. A new engine that can do less, and has no queue, is known so much later.
const AT_A_TIME_KNOWN_FOR: f64 = 1_800.0;
/// Longer prompts let an engine work on fewer requests at a time; within a minute or two that is known. Half or twice: no
/// share moves by more than 0.01.
const FULL_FOLLOWED: f64 = 60.0;
/// Prompts do not become so much longer within seconds.
const FULL_REPLACED: f64 = 2.0;
/// When nothing has waited for half an hour, a pod may do more than it did: two percent of it for each minute.
const FULL_FORGOTTEN: f64 = 3_000.0;
/// Of a second.
const MILLISECONDS: f64 = 1_000.0;
const SECONDS_PER_MINUTE: f64 = 60.0;
/// No engine does.
const MOST_AT_A_TIME: f64 = 1e6;
/// A rate over less than this, or less than two requests take, is chance. Half: 0.58 and 0.79. Twice: 0.63 and 0.79, and 1.27 of
/// the wait in the worst case.
const SHORTEST_COVERED: f64 = 60.0;
/// One period of an HPA. Half: 0.56 and 0.77. Twice: 0.66 and 0.79, and 1.27 of the wait in the worst case.
const BIN: f32 = 15.0;
/// Bursts are remembered for so many windows of scaleDown.
const WINDOWS: f32 = 3.0;
/// A quarter of an hour.
const BINS: usize = 60;
/// Fewer bins say nothing of their variance.
const LEAST_BINS: usize = 4;
/// How many show that a change of the load has lasted.
const BEFORE_A_STEP: usize = 2;
/// A change of the load is no chance if it is larger than so many times what differs before and after it. Half: 0.54 and 0.78.
/// Twice: no share moves by more than 0.01.
const STEP_UNLIKE: f64 = 2.0;
/// And larger than so many standard deviations of arrivals that come each by itself: by chance, one of 30 000 is. Half or twice:
/// no share moves by more than 0.01.
const STEP_BY_CHANCE: f64 = 4.0;
/// Requests of code assistants reach it. Half: 0.76 and 0.71. Twice: 0.38 and 0.88.
const MOST_DISPERSED: f64 = 100.0;
/// Fewer finished requests give no time of service.
const LEAST_FINISHED: f64 = 3.0;
/// The 95th percentile of what arrives by chance, in standard deviations. Half: 0.95 and 0.67. Twice: 0.32 and 1.08.
const DEVIATIONS: f64 = 1.65;
/// Seconds in which what waits is worked off: one period of an HPA. Half: 0.50 and 0.81. Twice: 0.57 and 0.78,
/// and 1.30 of the wait in the worst case.
const DRAINED_WITHIN: f64 = 15.0;
/// Replicas that come after a long cold start and leave at once would cost more than they serve. Half or twice: no share moves
/// by more than 0.02 with cold starts of two minutes; with five, 43 replicas are the most where an HPA has 373.
const DRAINED_WITHIN_COLD_STARTS: f64 = 0.25;
/// As `DRAINED_WITHIN`, of tasks, which may wait, and of workers, which are not removed while they are busy. The longer of it
/// and a cold start. Measured on the load of `tests/rules/pool.rs` with a cold start of 30 s, beside the queue's rule: waiting
/// of 0.43 and replica-minutes of 0.99. Half: 0.40 and 1.09. Twice: 0.55 and 0.92.
const TASKS_DRAINED_WITHIN: f64 = 60.0;
/// In seconds. Latencies are percentiles of half a minute. What has waited runs after that, some of it for twice the mean.
const LATENCY_SHOWS: f64 = 30.0;
const LATENCY_SHOWS_REQUESTS: f64 = 2.0;
/// In seconds: a quarter of the long window. Half or twice: no share moves by more than 0.01.
const LONG_REQUEST: f64 = 60.0;

impl Meter {
    pub fn observe(&mut self, totals: Totals, now: Timestamp) {
        let Some((before, last)) = self.last else {
            self.last = Some((totals, now));
            return;
        };
        let Ok(pause) = Duration::try_from(now.duration_since(last)) else {
            // The clock was set back.
            *self = self.begun_anew(totals, now);
            return;
        };
        if pause < SHORTEST {
            return;
        }
        if pause > LONGEST {
            *self = self.begun_anew(totals, now);
            return;
        }
        let finished = (totals.finished - before.finished).max(0.0);
        let arrived = totals.arrived - before.arrived;
        self.tokens = decayed(self.tokens, pause.as_secs_f64()) + (totals.tokens - before.tokens).max(0.0);
        self.served(pause.as_secs_f64(), finished, (before.running + totals.running) / 2.0);
        let in_hand_each = (totals.waiting + totals.running) / f64::from(totals.replicas.max(1));
        self.arrived(Interval {
            seconds: pause.as_secs_f32(),
            arrived: arrived as f32,
            in_hand_each: in_hand_each as f32,
        });
        self.learn_at_a_time(&totals, before.full, pause.as_secs_f64());
        // While far more runs than has ended, the time that is yet to come would count as that of the others. A few requests
        // more or less must not change the rule each time.
        let least = LEAST_FINISHED.max(totals.running / 3.0);
        self.knows_time = self.finished >= if self.knows_time { least / 2.0 } else { least };
        self.last = Some((totals, now));
    }

    fn begun_anew(&self, totals: Totals, now: Timestamp) -> Self {
        let Self { most_at_a_time, full, .. } = *self;
        Self { most_at_a_time, full, last: Some((totals, now)), ..Self::default() }
    }

    /// `before`: what a full replica worked on at the look before.
    fn learn_at_a_time(&mut self, totals: &Totals, before: Option<f64>, seconds: f64) {
        let busy = totals.running / f64::from(totals.replicas.max(1));
        self.most_at_a_time = (self.most_at_a_time * (-seconds / AT_A_TIME_KNOWN_FOR).exp()).max(busy);
        self.full = match (self.full, totals.full) {
            // After half an hour without a queue it was a guess.
            (Some(Full { seconds_ago, .. }), Some(now)) if seconds_ago >= AT_A_TIME_KNOWN_FOR => {
                Some(Full { at_a_time: now, seconds_ago: 0.0 })
            }
            (Some(Full { at_a_time, .. }), Some(now)) => {
                let kept = (-seconds / FULL_FOLLOWED).exp();
                let followed = at_a_time * kept + now * (1.0 - kept);
                // Of one look, the requests of a batch may have ended together.
                let of_two_looks = before.map(|before| now.max(before));
                let of_another_model = of_two_looks.filter(|seen| at_a_time > seen * FULL_REPLACED);
                Some(Full { at_a_time: of_another_model.unwrap_or(followed), seconds_ago: 0.0 })
            }
            (None, Some(now)) => Some(Full { at_a_time: now, seconds_ago: 0.0 }),
            (Some(Full { at_a_time, seconds_ago }), None) => {
                let is_forgotten = seconds_ago >= AT_A_TIME_KNOWN_FOR;
                let grown = if is_forgotten { (seconds / FULL_FORGOTTEN).exp() } else { 1.0 };
                let at_a_time = (at_a_time * grown).min(MOST_AT_A_TIME);
                Some(Full { at_a_time, seconds_ago: seconds_ago + seconds })
            }
            (None, None) => None,
        };
        if let Some(full) = &mut self.full {
            // It does more than it was thought to.
            full.at_a_time = full.at_a_time.max(busy);
        }
    }

    /// `running`: the mean of both ends of the interval.
    fn served(&mut self, seconds: f64, finished: f64, running: f64) {
        self.run = decayed(self.run, seconds) + running * seconds;
        self.finished = decayed(self.finished, seconds) + finished;
    }

    fn arrived(&mut self, interval: Interval) {
        self.intervals.push_back(interval);
        let mut known: f32 = self.intervals.iter().map(|interval| interval.seconds).sum();
        while let Some(first) = self.intervals.front()
            && (known - first.seconds >= LONG || self.intervals.len() > MOST_INTERVALS)
        {
            known -= first.seconds;
            self.intervals.pop_front();
        }
        self.bin.seconds += interval.seconds;
        self.bin.arrived += interval.arrived;
        if self.bin.seconds >= BIN {
            // A look that came late covers more than one bin.
            self.bins.push_back((self.bin.arrived * BIN / self.bin.seconds).max(0.0));
            self.bin = Bin::default();
        }
        if self.bins.len() > BINS + BEFORE_A_STEP {
            self.bins.pop_front();
        }
    }

    /// `None` while too little is known. `window`: that of scaleDown.
    pub fn flow(&self, window: Window) -> Option<Flow> {
        let (totals, _) = self.last?;
        if !self.knows_time {
            return None;
        }
        let takes = self.run / self.finished;
        let covered: f64 = self.intervals.iter().map(|interval| f64::from(interval.seconds)).sum();
        let is_rough = covered < (2.0 * takes).clamp(SHORTEST_COVERED, f64::from(LONG));
        // What waits cannot wait for a better rate.
        if is_rough && totals.waiting < 1.0 {
            return None;
        }
        // Over less than two requests take, a rate is chance.
        let long = window.duration().as_secs_f64().max(2.0 * takes).clamp(SHORTEST_COVERED, LONG.into());
        let rate = self.rate(long as f32)?;
        let milli = |value: f64| Milli::parse(value).ok();
        Some(Flow {
            rate: milli(rate)?,
            recent_rate: milli(self.rate(SHORT)?.max(rate))?,
            // Requests that take no time are not those that were counted.
            takes: milli(takes).filter(|takes| *takes > Milli::ZERO)?,
            at_a_time: milli(self.full.map_or(self.most_at_a_time, |full| full.at_a_time))?,
            is_full: self.full.is_some(),
            is_rough,
            dispersion: milli(self.dispersion(window))?,
            waiting: milli(totals.waiting)?,
            running: milli(totals.running)?,
            tokens: milli(self.tokens / self.finished)?,
            in_hand_lately: milli(self.most_in_hand(LATENCY_SHOWS + LATENCY_SHOWS_REQUESTS * takes))?,
            is_guessed: self.full.is_some_and(|full| full.seconds_ago >= AT_A_TIME_KNOWN_FOR),
        })
    }

    /// Arrivals per second over the last intervals that cover this time, or over what is known.
    fn rate(&self, within: f32) -> Option<f64> {
        let (mut seconds, mut arrived) = (0.0_f32, 0.0_f32);
        for interval in self.last(within) {
            seconds += interval.seconds;
            arrived += interval.arrived;
        }
        (seconds > 0.0).then(|| f64::from(arrived.max(0.0) / seconds))
    }

    /// Requests of each replica, within this time.
    fn most_in_hand(&self, within: f64) -> f64 {
        self.last(within as f32).map(|interval| interval.in_hand_each).fold(0.0, f32::max).into()
    }

    /// The last intervals that cover this time, the newest first.
    fn last(&self, within: f32) -> impl Iterator<Item = &Interval> {
        let mut covered = 0.0;
        self.intervals.iter().rev().take_while(move |interval| {
            let is_within = covered < within;
            covered += interval.seconds;
            is_within
        })
    }

    fn dispersion(&self, window: Window) -> f64 {
        if self.bins.len() < LEAST_BINS {
            return 1.0;
        }
        let remembered = (WINDOWS * window.duration().as_secs_f32() / BIN) as usize;
        let first = self.bins.len().saturating_sub(remembered.clamp(LEAST_BINS, BINS));
        // A change is seen as one until it is forgotten.
        let seen = first.saturating_sub(BEFORE_A_STEP);
        let bins: Vec<f64> = self.bins.range(seen..).map(|bin| f64::from(*bin)).collect();
        // Of fewer bins, too few would be left.
        let has_enough = self.bins.len() - first >= 2 * LEAST_BINS;
        let steps = [1.0, -1.0].map(|direction| largest_step(&bins, direction).filter(|_| has_enough));
        let (mut squares, mut means) = (0.0, 0.0);
        for (number, pair) in bins.windows(2).enumerate().skip(first - seen) {
            let [before, bin] = *pair else { continue };
            if steps.iter().flatten().any(|step| (*step..step + 2).contains(&number)) {
                continue;
            }
            squares += (bin - before).powi(2) / 2.0;
            means += (bin + before) / 2.0;
        }
        if means > 0.0 { (squares / means).clamp(1.0, MOST_DISPERSED) } else { 1.0 }
    }
}

impl Needs {
    pub fn replicas(self) -> f64 {
        self.arrivals.max(self.backlog)
    }
}

impl Flow {
    /// Requests that a replica has in hand when it is at its target, by Little's law. `None` if that is not known.
    ///
    /// - Of a queue it is the target.
    /// - A replica that works on so many requests at a time keeps a latency with as many in hand as end within it, or with one.
    /// - Tokens per minute are requests per minute, of so many tokens each.
    pub fn in_hand_at_target(self, kind: Kind, target: TargetValue) -> Option<f64> {
        let (target, takes) = (units(target.milli()), units(self.takes));
        let in_hand = match kind {
            Kind::QueueDepth | Kind::TasksAndBusyWorkers => target,
            Kind::Latency if self.is_full && !self.is_guessed => {
                // A replica that has less to do is no faster.
                (units(self.at_a_time).max(1.0) * target / MILLISECONDS / takes).max(1.0)
            }
            Kind::TokensPerMinute => target / SECONDS_PER_MINUTE * takes / units(self.tokens),
            Kind::Latency | Kind::GpuUtil | Kind::GpuMemory | Kind::Custom | Kind::TasksOnly => return None,
        };
        (in_hand.is_finite() && in_hand > 0.0).then_some(in_hand)
    }

    /// Whether the queue is the reason of a latency above its target: replicas had more in hand than ends within it. The
    /// promise of the flow is one of the mean, so a percentile above its target may have other reasons. Of other metrics the
    /// queue is always the reason.
    pub(crate) fn explains(self, kind: Kind, target: TargetValue) -> bool {
        let at_target = self.in_hand_at_target(kind, target);
        kind != Kind::Latency || at_target.is_some_and(|at_target| units(self.in_hand_lately) > at_target)
    }

    /// `target`: requests that a replica should have in hand. `ready`: replicas that serve. `cold_start`: seconds until an
    /// ordered one does.
    pub(crate) fn needs(self, target: f64, ready: u32, cold_start: f64) -> Needs {
        let known = units(self.at_a_time);
        let at_a_time = if self.is_full { known.max(1.0) } else { known.max(target) };
        let in_hand = self.in_hand();
        let dispersion = units(self.dispersion).max(1.0);
        // A request more than usual is a whole one, and needs no more than one replica.
        let for_chance = target.max(1.0);
        let arrivals = in_hand / target + in_hand.sqrt() / for_chance;
        // Of what may wait, as much as arrives meanwhile comes by chance.
        let meanwhile = in_hand * (target / at_a_time).max(1.0);
        let bursts = in_hand / at_a_time + DEVIATIONS * (dispersion * meanwhile).sqrt() / for_chance;
        // When arrivals end, long requests run on after their rate is forgotten.
        let begun = if units(self.takes) >= LONG_REQUEST { units(self.running) / at_a_time } else { 0.0 };
        let drained_within = DRAINED_WITHIN.max(cold_start * DRAINED_WITHIN_COLD_STARTS);
        let waits = self.waits(at_a_time, ready, cold_start, drained_within);
        // More replicas than requests that wait work off nothing sooner.
        let backlog = waits * (units(self.takes) / drained_within).min(1.0);
        Needs { arrivals: arrivals.max(bursts).max(begun), backlog: (self.will_run() + backlog) / at_a_time }
    }

    /// Of workers of a pool. `target`: tasks that may wait for each of them.
    pub(crate) fn needs_of_tasks(self, target: f64, ready: u32, cold_start: f64) -> Needs {
        let at_a_time = units(self.at_a_time).max(1.0);
        let in_hand = self.in_hand();
        let drained_within = TASKS_DRAINED_WITHIN.max(cold_start);
        let waits = self.waits(at_a_time, ready, cold_start, drained_within);
        let share = (units(self.takes) / drained_within).min(1.0 / target);
        // Of tasks that take minutes, few arrive, and their rate is chance: no more are in hand than there are and will come.
        let coming = (units(self.rate) + self.rise()) * cold_start;
        let most = units(self.running) + units(self.waiting) + coming;
        Needs {
            // Without a margin for chance: the target says how many may wait.
            arrivals: in_hand.min(most) / at_a_time,
            backlog: (self.will_run() + waits * share).min(most) / at_a_time,
        }
    }

    /// What arrives, while it runs.
    fn in_hand(&self) -> f64 {
        units(self.rate) * units(self.takes)
    }

    /// The same with what arrives beyond the rate of the long window.
    fn will_run(&self) -> f64 {
        self.in_hand() + self.rise() * units(self.takes).min(f64::from(SHORT))
    }

    fn rise(&self) -> f64 {
        (units(self.recent_rate) - units(self.rate)).max(0.0)
    }

    /// What waits, or will wait when ordered replicas are Ready, less what is worked off without more of them.
    fn waits(&self, at_a_time: f64, ready: u32, cold_start: f64, drained_within: f64) -> f64 {
        let (takes, waiting) = (units(self.takes), units(self.waiting));
        // Requests that so many replicas finish per second when all of them are busy.
        let served = if takes > 0.0 { at_a_time * f64::from(ready) / takes } else { 0.0 };
        let more = units(self.rate) + self.rise() - served;
        let will_wait = waiting + more * cold_start;
        let is_not_drained = waiting.min(waiting + more * drained_within);
        will_wait.max(is_not_drained).max(0.0)
    }
}

/// The number of the bin before the largest change in this direction that has lasted. The change happens in one bin. Two bins
/// before it are like each other, and so are two bins after it.
fn largest_step(bins: &[f64], direction: f64) -> Option<usize> {
    let steps = bins.windows(5).zip(1..).filter_map(|(bins, number)| {
        let [a, b, _, c, d] = *bins else { return None };
        let height = (c + d - a - b) / 2.0 * direction;
        let unlike = (b - a).abs() + (d - c).abs();
        let by_chance = ((a + b + c + d) / 4.0).sqrt();
        (height > STEP_UNLIKE * unlike && height > STEP_BY_CHANCE * by_chance).then_some((number, height))
    });
    steps.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(number, _)| number)
}

fn is_false(is: &bool) -> bool {
    !is
}

fn is_zero(value: &Milli) -> bool {
    *value == Milli::ZERO
}

/// What remains of a sum that loses its weight.
fn decayed(sum: f64, seconds: f64) -> f64 {
    sum * (-seconds / SERVICE).exp()
}

fn units(value: Milli) -> f64 {
    value.count() as f64 / 1_000.0
}

#[cfg(test)]
mod tests;
