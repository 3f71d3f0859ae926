//! What decisions need of the past: recommendations and scale events within the windows of the behavior, cold starts,
//! and the last values of each metric. Serializable and bounded, so that a status can keep it over a restart.
//!
//! Recommendations that can no longer be the smallest or the largest of any window are dropped, which changes no
//! result. If more than 64 remain, those within one thirtieth of the longest window are merged. Their smallest and
//! their largest value stay until the last of them would have left the window. So a change comes up to one thirtieth of
//! the window later than with all recommendations, never sooner. Scale events are merged alike, in thirtieths of the
//! longest period: for up to that long a rate allows less than it would, never more.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Window},
    cold_start::ColdStarts,
    constancy::Band,
    policy::{MetricName, MissingMetrics},
    time::elapsed,
};

/// The past of one target. An empty one is that of a target that was never decided on.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// At most 64, in the order of time.
    pub recommendations: Vec<Recommendation>,
    /// At most 64, in the order of time.
    pub scale_events: Vec<ScaleEvent>,
    /// The replicas at the first decision after a pause. They count as a recommendation in the window of a scale-down
    /// alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_pause: Option<Recommendation>,
    /// When replicas were last added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raised: Option<Timestamp>,
    pub cold_starts: ColdStarts,
    /// One per metric of the policy.
    pub metrics: Vec<MetricPast>,
}

/// Replicas that the metrics asked for, before windows, rates and bounds.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    pub time: Timestamp,
    pub replicas: i32,
}

/// Changes that were written, of one direction.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ScaleEvent {
    /// Of the first of several merged changes; absent if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Of the last change.
    pub time: Timestamp,
    /// Replicas added, or removed if negative.
    pub change: i32,
}

/// The past of one metric.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MetricPast {
    pub name: MetricName,
    /// When the metric last had a usable value, or when it was first asked for.
    pub measured: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) band: Option<Band>,
}

/// Recommendations, and scale events. A window touches 31 of its thirtieths, each of which keeps two at most.
pub const MOST: usize = 64;
const PARTS: u32 = 30;
/// Decisions of the default period are never that far apart, so with a shorter window they are no pause.
const SHORTEST_PAUSE: Duration = Duration::from_mins(1);
/// As long as any window of samples: those of before a removal of replicas remove none again.
const REMOVAL_KNOWN_FOR: Duration = Duration::from_mins(1);
/// More than a policy has.
const MOST_METRICS: usize = 16;

impl History {
    /// Without what no window of the behavior can reach. Repairs what a status may hold: times in the future become
    /// now, so a clock that was set back delays nothing for longer than a window.
    pub(crate) fn recalled(&self, behavior: &Behavior, now: Timestamp) -> Self {
        let mut recalled = self.clone();
        recalled.metrics.truncate(MOST_METRICS);
        for past in &mut recalled.metrics {
            past.measured = past.measured.min(now);
        }
        recalled.raised = self.raised.map(|raised| raised.min(now));
        let History { recommendations, after_pause, .. } = &mut recalled;
        for recommendation in recommendations.iter_mut().chain(after_pause) {
            recommendation.time = recommendation.time.min(now);
            recommendation.replicas = recommendation.replicas.max(0);
        }
        for event in &mut recalled.scale_events {
            event.time = event.time.min(now);
            event.since = event.since.filter(|since| *since < event.time);
        }
        recalled.thin(behavior, now);
        recalled
    }

    /// The first recommendation of a target is its replicas: HPA v2, `recordInitialRecommendation`. With
    /// `RecommendPresent` they count again after a pause of deciding that outlasted the window of a scale-down.
    pub(crate) fn begin(
        &mut self,
        replicas: i32,
        missing: MissingMetrics,
        behavior: &Behavior,
        now: Timestamp,
    ) {
        let present = Recommendation { time: now, replicas };
        let Some(last) = self.recommendations.last() else {
            self.recommendations.push(present);
            return;
        };
        let pause = behavior.down.window.duration().max(SHORTEST_PAUSE);
        // Where each decision is that late, every second one may remove replicas.
        let has_just_begun = self.after_pause.is_some_and(|known| known.time == last.time);
        let has_paused = elapsed(last.time, now) >= pause && !has_just_begun;
        if missing == MissingMetrics::RecommendPresent && has_paused {
            self.after_pause = Some(present);
        }
    }

    pub(crate) fn recommend(&mut self, replicas: i32, behavior: &Behavior, now: Timestamp) {
        self.recommendations.push(Recommendation { time: now, replicas });
        self.thin(behavior, now);
    }

    /// For what waits: replicas that are kept for half a window of a scale-down.
    pub(crate) fn recommend_for_a_burst(&mut self, replicas: i32, behavior: &Behavior, now: Timestamp) {
        let time = now.checked_sub(behavior.down.window.duration() / 2).unwrap_or(now);
        self.recommendations.push(Recommendation { time, replicas });
        self.thin(behavior, now);
    }

    /// With a change of the replicas that was written. Without it the rates would allow the same change again.
    #[must_use]
    pub fn scaled(mut self, from: i32, to: i32, behavior: &Behavior, now: Timestamp) -> Self {
        let change = to.saturating_sub(from);
        if change == 0 {
            return self;
        }
        if change > 0 {
            self.raised = Some(now);
        }
        self.scale_events.push(ScaleEvent { since: None, time: now, change });
        self.thin(behavior, now);
        self
    }

    /// Whether a status that holds `written` may be left as it is: a target at rest repeats its last recommendation,
    /// and [`History::resumed`] makes up for it. What is too old by now is dropped again when it is read.
    pub fn differs_only_in_time(&self, written: &Self) -> bool {
        let recommended = |history: &Self| -> Vec<i32> {
            history.recommendations.iter().map(|known| known.replicas).collect()
        };
        let suspected = |history: &Self| -> Vec<(MetricName, bool)> {
            let of = |past: &MetricPast| (past.name.clone(), past.band.is_some_and(Band::has_load_changed));
            history.metrics.iter().map(of).collect()
        };
        let replicas = |known: Recommendation| known.replicas;
        recommended(written).ends_with(&recommended(self))
            && self.after_pause.map(replicas) == written.after_pause.map(replicas)
            && suspected(self) == suspected(written)
            && written.scale_events.ends_with(&self.scale_events)
            && self.raised == written.raised
            && self.cold_starts == written.cold_starts
    }

    /// For the first decision of a process, from the history of a status. Since it was written the last recommendation
    /// has been repeated, and metrics may have been measured: fallbacks come later than without a restart, never
    /// sooner.
    #[must_use]
    pub fn resumed(mut self, now: Timestamp) -> Self {
        if let Some(last) = self.recommendations.last().copied() {
            self.recommendations.push(Recommendation { time: now, ..last });
        }
        self.unread(now)
    }

    /// After a time in which no metric was read: none of them has been missing.
    #[must_use]
    pub fn unread(mut self, now: Timestamp) -> Self {
        for past in &mut self.metrics {
            past.measured = now;
        }
        self
    }

    /// The smallest recommendation within a window.
    pub(crate) fn lowest(&self, window: Window, now: Timestamp) -> Option<i32> {
        self.within(window, now).min()
    }

    /// The largest recommendation within a window, or the replicas after a pause.
    pub(crate) fn highest(&self, window: Window, now: Timestamp) -> Option<i32> {
        let after_pause = self.after_pause.filter(|known| known.is_within(window, now));
        self.within(window, now).chain(after_pause.map(|known| known.replicas)).max()
    }

    fn within(&self, window: Window, now: Timestamp) -> impl Iterator<Item = i32> {
        let recent = self.recommendations.iter().filter(move |known| known.is_within(window, now));
        recent.map(|known| known.replicas)
    }

    pub(crate) fn metric(&self, name: &MetricName) -> Option<&MetricPast> {
        self.metrics.iter().find(|past| past.name == *name)
    }

    fn thin(&mut self, behavior: &Behavior, now: Timestamp) {
        let (window, period) = (behavior.longest_window(), behavior.longest_period().max(REMOVAL_KNOWN_FOR));
        self.recommendations.sort_by_key(|known| known.time);
        // The last one stays: an empty list is that of a target that was never decided on.
        let last = self.recommendations.last().copied();
        self.recommendations.retain(|known| elapsed(known.time, now) < window || Some(*known) == last);
        self.recommendations = extremes(&self.recommendations);
        if self.recommendations.len() > MOST {
            self.recommendations = extremes(&merged_recommendations(&self.recommendations, window));
        }
        self.scale_events.retain(|event| elapsed(event.time, now) < period && event.change != 0);
        self.scale_events.sort_by_key(|event| event.time);
        if self.scale_events.len() > MOST {
            self.scale_events = merged_events(&self.scale_events, period);
        }
    }
}

impl Recommendation {
    /// As in HPA, a recommendation of exactly the start of the window is outside.
    fn is_within(self, window: Window, now: Timestamp) -> bool {
        elapsed(self.time, now) < window.duration()
    }
}

impl ScaleEvent {
    /// Whether every change of this event is within the period before `now`.
    pub(crate) fn is_within(&self, period: Duration, now: Timestamp) -> bool {
        elapsed(self.since.unwrap_or(self.time), now) < period
    }

    /// Whether a change of this event is within the period before `now`.
    pub(crate) fn reaches_into(&self, period: Duration, now: Timestamp) -> bool {
        elapsed(self.time, now) < period
    }
}

/// Recommendations that are smaller or larger than all later ones. The others cannot be the result of any window.
fn extremes(sorted: &[Recommendation]) -> Vec<Recommendation> {
    let mut kept: Vec<Recommendation> = Vec::new();
    let mut range: Option<(i32, i32)> = None;
    for known in sorted.iter().rev() {
        let (low, high) = range.unwrap_or((i32::MAX, i32::MIN));
        if known.replicas < low || known.replicas > high {
            kept.push(*known);
        }
        range = Some((low.min(known.replicas), high.max(known.replicas)));
    }
    kept.reverse();
    kept
}

/// The smallest and the largest of each part of the window, with the time of the last one of that part.
fn merged_recommendations(sorted: &[Recommendation], window: Duration) -> Vec<Recommendation> {
    let mut parts: BTreeMap<i128, (Timestamp, BTreeSet<i32>)> = BTreeMap::new();
    for known in sorted {
        let (last, values) = parts.entry(part(known.time, window)).or_insert((known.time, BTreeSet::new()));
        *last = known.time;
        values.insert(known.replicas);
    }
    let of_part = |(last, values): (Timestamp, BTreeSet<i32>)| {
        let both = [values.first().copied(), values.last().copied()];
        both.into_iter().flatten().map(move |replicas| Recommendation { time: last, replicas })
    };
    parts.into_values().flat_map(of_part).collect()
}

/// One event per direction and part of the period.
fn merged_events(sorted: &[ScaleEvent], period: Duration) -> Vec<ScaleEvent> {
    let mut parts: BTreeMap<(i128, bool), ScaleEvent> = BTreeMap::new();
    for event in sorted {
        let merge = |known: &mut ScaleEvent| {
            let since = known.since.unwrap_or(known.time).min(event.since.unwrap_or(event.time));
            known.time = event.time;
            known.since = Some(since).filter(|since| *since < known.time);
            known.change = known.change.saturating_add(event.change);
        };
        parts.entry((part(event.time, period), event.change > 0)).and_modify(merge).or_insert(*event);
    }
    let mut events: Vec<ScaleEvent> = parts.into_values().collect();
    events.sort_by_key(|event| event.time);
    events
}

/// The number of a part of a window. Parts do not move with the time, so merged entries stay in their part.
fn part(time: Timestamp, window: Duration) -> i128 {
    let width = i128::try_from((window / PARTS).as_nanos()).unwrap_or(i128::MAX).max(1);
    time.as_nanosecond().div_euclid(width)
}

#[cfg(test)]
mod tests;
