//! Turns successive scrapes of pods into samples: rates of counters, percentiles of what histograms have gained. Pure.
//!
//! It holds what the rates need and no more: of each pod up to five points within the window, until the pod is forgotten. It
//! holds at most 2000 pods, and no more bytes than its share. A counter that falls has begun anew, and counts from zero. It
//! must not invent values: without a first scrape, and after a pause, there is a fault instead.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use engine_metrics::histogram::Buckets;
use jiff::{SignedDuration, Timestamp};
use prometheus_api::Fault as ServerFault;

use crate::sources::{
    Fault, Sample,
    engines::{InFlight, MillisecondsPerUnit, Scraped},
    pods::kept::{Reserved, Share},
};

/// An AIScaler has at most 1000 replicas; twice that during a rollout.
pub const MOST_PODS: usize = 2_000;
/// Over less, a rate or a percentile is chance: few requests end within it.
const LEAST_SPAN: SignedDuration = SignedDuration::from_secs(10);
/// Points of a window. More would be more exact, and take more memory.
const POINTS: i32 = 4;
const PERCENTILE: f64 = 0.95;
const SECONDS_PER_MINUTE: f64 = 60.0;

/// The scrapes of one metric of one target.
#[derive(Debug)]
pub struct Scrapes {
    window: Duration,
    share: Share,
    /// By uid.
    pods: BTreeMap<String, Pod>,
}

/// The points of one pod.
#[derive(Debug)]
struct Pod {
    points: VecDeque<Point>,
    /// Room for as many points as there can be.
    _room: Reserved,
}

/// A sample of one pod. The latency of an engine without requests is 0: it has no load.
#[derive(Clone, Debug, PartialEq)]
pub struct ScrapedPod {
    pub sample: Sample,
    /// For a latency: what the sample is the percentile of. Percentiles of pods cannot be added or averaged; [`combined`]
    /// has the one of all pods.
    pub times: Option<Times>,
}

/// Observations of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    gained: Buckets,
    unit: MillisecondsPerUnit,
}

/// A scrape. Counts are those since the first scrape: they do not fall when an engine begins anew.
#[derive(Clone, Debug)]
struct Point {
    at: Timestamp,
    /// As the pod says it. Only of the last point: the others take half the memory without it.
    reading: Option<Scraped>,
    gained: Gain,
}

#[derive(Clone, Debug)]
enum Gain {
    None,
    Count(f64),
    Times(Buckets),
}

impl Scrapes {
    /// `window`: over which rates and percentiles are computed; at least the time between two scrapes.
    pub fn new(window: Duration) -> Self {
        Self::within(window, Share::alone())
    }

    /// As `new`, with room for what this share has.
    pub fn within(window: Duration, share: Share) -> Self {
        Self { window, share, pods: BTreeMap::new() }
    }

    /// Adds a scrape and returns the sample of the pod. `uid`: of the pod; `pod` and `metric`: for messages; `now`: when it
    /// was scraped. A scrape whose time is not later than the last one replaces those of the pod.
    pub fn record(
        &mut self,
        uid: &str,
        pod: &str,
        metric: &str,
        reading: Scraped,
        now: Timestamp,
    ) -> Result<ScrapedPod, Fault> {
        let level = match &reading {
            Scraped::Level(value) => Some(*value),
            Scraped::Count(_) | Scraped::Times(..) => None,
        };
        if let Some(value) = level {
            self.pods.remove(uid);
            return Ok(ScrapedPod { sample: Sample { value, at: now, caution: None }, times: None });
        }
        if self.pods.len() >= MOST_PODS && !self.pods.contains_key(uid) {
            return Err(Fault::TooManyPods { pod: pod.to_owned(), limit: MOST_PODS });
        }
        let first = || Fault::FirstScrape { pod: pod.to_owned(), metric: metric.to_owned() };
        let known = self.pods.get_mut(uid);
        let latest = known.as_ref().and_then(|known| next(&known.points, &reading, now, self.window));
        let (Some(Pod { points, .. }), Some(latest)) = (known, latest) else {
            self.pods.remove(uid);
            let room = self.share.reserve(most_bytes(uid, &reading));
            let room = room.map_err(|full| Fault::TooMuchKept { pod: pod.to_owned(), full })?;
            let points = VecDeque::from([first_point(reading, now)]);
            self.pods.insert(uid.to_owned(), Pod { points, _room: room });
            return Err(first());
        };
        trim(points, now, self.window);
        let oldest = points.front().ok_or_else(first)?;
        let span = now.duration_since(oldest.at);
        if span < LEAST_SPAN {
            return Err(first());
        }
        let sampled = sample(oldest, &latest, span, pod, metric);
        keep(points, latest, self.window);
        sampled
    }

    /// Forgets the pods that are not among these.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.pods.retain(|uid, _| is_there(uid));
    }

    /// Number of pods that are remembered.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// The 95th percentile of all pods in milliseconds: of their observations together, so that a busy pod counts more than an
/// idle one. Pods whose buckets differ, as during a rollout, are compared: the highest percentile is used. `None` without
/// observations.
pub fn combined<'t>(pods: impl IntoIterator<Item = &'t Times>) -> Option<f64> {
    let mut groups: Vec<Times> = Vec::new();
    for times in pods {
        let added = groups.iter_mut().find_map(|group| {
            let sum = (group.unit == times.unit).then(|| group.gained.and(&times.gained)).flatten()?;
            group.gained = sum;
            Some(())
        });
        if added.is_none() {
            groups.push(times.clone());
        }
    }
    groups.iter().filter_map(Times::percentile).max_by(f64::total_cmp)
}

impl Times {
    fn is_empty(&self) -> bool {
        self.gained.total() <= 0.0
    }

    fn percentile(&self) -> Option<f64> {
        self.gained.quantile(PERCENTILE).map(|value| value * self.unit.0).filter(|value| value.is_finite())
    }
}

/// What the points of one pod take at most. Each has as many buckets as the first one, and the last one twice. Scrapes at
/// uneven times leave more points than even ones.
fn most_bytes(uid: &str, reading: &Scraped) -> usize {
    const MOST_POINTS: usize = POINTS as usize + 4;
    /// Of the map, its nodes, and what allocations take beside what they give.
    const BESIDE: usize = 256;
    let buckets = match reading {
        Scraped::Times(buckets, ..) => buckets.bytes(),
        Scraped::Level(_) | Scraped::Count(_) => 0,
    };
    let points = MOST_POINTS.next_power_of_two() * size_of::<Point>();
    uid.len() + size_of::<Pod>() + BESIDE + points + (MOST_POINTS + 1) * buckets
}

fn first_point(reading: Scraped, at: Timestamp) -> Point {
    let gained = match &reading {
        Scraped::Level(_) => Gain::None,
        Scraped::Count(_) => Gain::Count(0.0),
        Scraped::Times(buckets, ..) => buckets.since(buckets).map_or(Gain::None, Gain::Times),
    };
    Point { at, reading: Some(reading), gained }
}

/// The point after those that are kept. `None` if nothing can be computed from them: there are none, the clock went back,
/// the last one is older than the window allows, or the metric has changed.
fn next(points: &VecDeque<Point>, reading: &Scraped, now: Timestamp, window: Duration) -> Option<Point> {
    let last = points.back()?;
    let pause = now.duration_since(last.at);
    // One missed scrape or two make the value less exact; after more it would describe the past.
    let longest = signed(window).saturating_mul(2);
    if pause <= SignedDuration::ZERO || pause > longest {
        return None;
    }
    let gained = match (&last.gained, &last.reading, reading) {
        (Gain::Count(gained), Some(Scraped::Count(before)), Scraped::Count(count)) => {
            let growth = if count < before { *count } else { count - before };
            Gain::Count(gained + growth)
        }
        (Gain::Times(gained), Some(Scraped::Times(before, unit, _)), Scraped::Times(times, now, _))
            if unit == now =>
        {
            Gain::Times(gained.and(&times.since(before)?)?)
        }
        _ => return None,
    };
    Some(Point { at: now, reading: Some(reading.clone()), gained })
}

fn sample(
    oldest: &Point,
    latest: &Point,
    span: SignedDuration,
    pod: &str,
    metric: &str,
) -> Result<ScrapedPod, Fault> {
    let at = latest.at;
    match (&oldest.gained, &latest.gained, &latest.reading) {
        (Gain::Count(before), Gain::Count(now), _) => {
            let value = (now - before) / span.as_secs_f64() * SECONDS_PER_MINUTE;
            if !value.is_finite() {
                return Err(
                    ServerFault::NotANumber { origin: format!("the rate of {metric} of pod {pod}") }.into()
                );
            }
            Ok(ScrapedPod { sample: Sample { value, at, caution: None }, times: None })
        }
        (Gain::Times(before), Gain::Times(now), Some(Scraped::Times(_, unit, in_flight))) => {
            let gained = now.since(before);
            let times = gained.map(|gained| Times { gained, unit: *unit });
            let value = times.as_ref().and_then(Times::percentile);
            let within = span.unsigned_abs();
            // No request has ended, and none is under way: an engine that hangs has some.
            let is_idle = *in_flight == InFlight::None && times.as_ref().is_some_and(Times::is_empty);
            let unknown = || Fault::NoRequests { pod: pod.to_owned(), metric: metric.to_owned(), within };
            let value = value.or_else(|| is_idle.then_some(0.0)).ok_or_else(unknown)?;
            Ok(ScrapedPod { sample: Sample { value, at, caution: None }, times })
        }
        _ => Err(Fault::FirstScrape { pod: pod.to_owned(), metric: metric.to_owned() }),
    }
}

/// Drops what the window does not need: one point that is as old as the window stays.
fn trim(points: &mut VecDeque<Point>, now: Timestamp, window: Duration) {
    let window = signed(window);
    while points.get(1).is_some_and(|second| now.duration_since(second.at) >= window) {
        points.pop_front();
    }
}

/// Adds a point. The last one is replaced while it is near the one before it, so that fast scrapes take no more memory.
fn keep(points: &mut VecDeque<Point>, latest: Point, window: Duration) {
    let spacing = signed(window) / POINTS;
    let is_near = match (points.back(), points.iter().rev().nth(1)) {
        (Some(last), Some(before)) => last.at.duration_since(before.at) < spacing,
        _ => false,
    };
    if is_near {
        points.pop_back();
    }
    if let Some(before) = points.back_mut() {
        before.reading = None;
    }
    points.push_back(latest);
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests;
