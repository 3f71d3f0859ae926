//! What is remembered of a target, and how its AIScaler's status keeps it for a controller that starts anew. Pure.

use api::aiscaler::{
    AIScalerStatus, Decision, History as Stored, Recommendation as StoredRecommendation,
    ScaleEvent as StoredEvent,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use scaling::history::{History, Recommendation, ScaleEvent};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use attempt::Attempt;
use contest::Contest;
use first_look::FirstLook;

pub(crate) mod attempt;
pub(crate) mod contest;
pub(crate) mod first_look;

/// The past of one target.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Past {
    /// Uid of the target; `None` before the first decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    pub(crate) contest: Contest,
    pub(crate) first_look: FirstLook,
    #[serde(flatten)]
    pub(crate) scaling: History,
}

/// Of a rate, as in `autoscaling/v2`.
const LONGEST_PERIOD: SignedDuration = SignedDuration::from_mins(30);

impl Past {
    /// The past of this target. That of another one, also of one that was deleted and had the same name, is dropped: its
    /// pods, its load and its replicas were others. Without a past the present replicas are the first recommendation, so
    /// replicas are removed no sooner than a whole window from now.
    #[must_use]
    pub(crate) fn of_target(&self, uid: &str) -> Self {
        let known = if self.is_of_another(uid) { Self::default() } else { self.clone() };
        Self { target: Some(uid.to_owned()), ..known }
    }

    pub(crate) fn is_of_another(&self, uid: &str) -> bool {
        self.target.as_deref().is_some_and(|known| known != uid)
    }

    /// With a write that has taken effect although its answer was lost.
    #[must_use]
    pub(crate) fn carried_out(mut self, Attempt { at, decision, .. }: &Attempt) -> Self {
        let change = decision.to.saturating_sub(decision.from);
        self.contest = self.contest.written(decision.to);
        self.scaling.scale_events.push(ScaleEvent { since: None, time: *at, change });
        if change > 0 {
            self.scaling.raised = Some(*at);
        }
        self
    }

    /// With what has changed since the process before wrote its last status: by a write of that process, or by another. It
    /// counts as a change of now that began before every period, by which rates allow less, never more.
    #[must_use]
    pub(crate) fn with_unseen(mut self, replicas: i32, now: Timestamp) -> Self {
        let change = self.contest.known().map_or(0, |known| replicas.saturating_sub(known));
        if change != 0 {
            let since = now.checked_sub(LONGEST_PERIOD).ok();
            self.scaling.scale_events.push(ScaleEvent { since, time: now, change });
        }
        self
    }

    /// For the first decision of a process.
    #[must_use]
    pub(crate) fn resumed(self, now: Timestamp) -> Self {
        Self { scaling: self.scaling.resumed(now), ..self }
    }

    /// Whether a status that holds `written` may be left as it is.
    pub(crate) fn differs_only_in_time(&self, written: &Self) -> bool {
        self.has_same_writers(written) && self.scaling.differs_only_in_time(&written.scaling)
    }

    /// Whether a write of the status can wait, as far as others are concerned: who has set the replicas is not to be learnt
    /// again after a restart.
    pub(crate) fn has_same_writers(&self, written: &Self) -> bool {
        self.target == written.target
            && self.contest == written.contest
            && self.first_look == written.first_look
    }
}

/// The past that a status has. What cannot be read is as if it had never been: without recommendations the present
/// replicas are the first one, which delays a scale-down by a window and allows none.
pub(crate) fn stored(status: &AIScalerStatus) -> Past {
    let Some(known) = &status.history else { return Past::default() };
    let learned = known.learned.as_deref().map(readable).unwrap_or_default();
    let recommendation = |known: &StoredRecommendation| {
        Some(Recommendation { time: known.time.as_ref()?.0, replicas: known.replicas })
    };
    let event = |known: &StoredEvent| {
        let since = known.since.as_ref().map(|since| since.0);
        Some(ScaleEvent { since, time: known.time.as_ref()?.0, change: known.change })
    };
    let scaling = History {
        recommendations: known.recommendations.iter().filter_map(recommendation).collect(),
        scale_events: known.scale_events.iter().filter_map(event).collect(),
        ..learned.scaling
    };
    Past { scaling, ..learned }
}

/// Each field by itself: what a later release has changed costs only itself when that release is rolled back.
fn readable(learned: &str) -> Past {
    let fields: Map<String, Value> = serde_json::from_str(learned).unwrap_or_default();
    let is_readable = |(name, value): &(String, Value)| {
        let alone = Map::from_iter([(name.clone(), value.clone())]);
        serde_json::from_value::<Past>(alone.into()).is_ok()
    };
    let readable: Map<String, Value> = fields.into_iter().filter(is_readable).collect();
    serde_json::from_value(readable.into()).unwrap_or_default()
}

/// Entries of `status.decisions`.
const DECISIONS: usize = 10;

/// Appends to `status.decisions`.
pub(crate) fn record(known: &mut Vec<Decision>, entry: Decision) {
    known.push(entry);
    let surplus = known.len().saturating_sub(DECISIONS);
    known.drain(..surplus);
}

/// As a status has it.
pub(crate) fn to_store(past: &Past) -> Stored {
    let History { recommendations, scale_events, .. } = &past.scaling;
    let mut learned = past.clone();
    learned.scaling.recommendations.clear();
    learned.scaling.scale_events.clear();
    Stored {
        recommendations: recommendations
            .iter()
            .map(|known| StoredRecommendation {
                time: Some(next_second(known.time)),
                replicas: known.replicas,
            })
            .collect(),
        scale_events: scale_events
            .iter()
            .map(|known| StoredEvent {
                since: known.since.map(next_second),
                time: Some(next_second(known.time)),
                change: known.change,
            })
            .collect(),
        // Numbers and short words, which serialize.
        learned: serde_json::to_string(&learned).ok(),
    }
}

/// A status has whole seconds. Rounded up, a window never ends sooner than it would without a restart.
fn next_second(time: Timestamp) -> Time {
    let up = i64::from(time.subsec_nanosecond() > 0);
    Time(Timestamp::from_second(time.as_second() + up).unwrap_or(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn past() -> Past {
        let scaling = History {
            recommendations: vec![Recommendation { time: at(1), replicas: 4 }],
            scale_events: vec![ScaleEvent { since: None, time: at(2), change: 2 }],
            raised: Some(at(2)),
            ..History::default()
        };
        Past { scaling, contest: Contest::default().written(4), ..Past::default() }.of_target("a")
    }

    #[test]
    fn what_a_status_keeps_is_read_again() {
        let status = AIScalerStatus { history: Some(to_store(&past())), ..AIScalerStatus::default() };
        assert_eq!(stored(&status), past());
    }

    #[test]
    fn what_cannot_be_read_is_no_past() {
        let mut kept = to_store(&past());
        kept.learned = Some("{".into());
        let status = AIScalerStatus { history: Some(kept), ..AIScalerStatus::default() };
        let read = stored(&status);
        assert_eq!((read.target, read.scaling.recommendations.len()), (None, 1));
        assert_eq!(stored(&AIScalerStatus::default()), Past::default());
    }

    /// As version 0.2.0 writes it; later versions must read it, or they no longer know who set the replicas.
    const LEARNED: &str = r#"{"target":"a","contest":{"known":0,"foreign":["2026-01-01T11:59:00Z"],
        "ofHour":["2026-01-01T11:59:00Z"],"pause":{"until":"2026-01-01T12:05:00Z","seconds":300,"replicas":9},
        "isStopped":true},"firstLook":{"accepted":7,"announced":[8,"2026-01-01T11:58:00Z"]},"recommendations":[],
        "scaleEvents":[],"afterPause":{"time":"2026-01-01T11:57:00Z","replicas":3},"raised":"2026-01-01T12:00:02Z",
        "coldStarts":{"seconds":[40,95],"countedPods":[11]},
        "metrics":[{"name":"queue_depth","measured":"2026-01-01T11:59:30Z","band":{"low":1000,"high":2000,"ready":2,
        "loadChanged":"2026-01-01T11:56:00Z"}}]}"#;

    fn read(learned: &str) -> Past {
        let history = Stored { learned: Some(learned.to_owned()), ..Stored::default() };
        stored(&AIScalerStatus { history: Some(history), ..AIScalerStatus::default() })
    }

    #[test]
    fn what_a_release_has_written_is_read_to_the_last_field() {
        let again: Value = serde_json::from_str(&to_store(&read(LEARNED)).learned.unwrap()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(LEARNED).unwrap());
    }

    #[test]
    fn what_a_later_release_has_added_or_changed_costs_only_itself() {
        let mut fields: Map<String, Value> = serde_json::from_str(LEARNED).unwrap();
        fields.insert("novelty".into(), 1.into());
        fields["contest"]["novelty"] = 1.into();
        let known = |fields: &Map<String, Value>| read(&serde_json::to_string(fields).unwrap());
        assert_eq!(known(&fields), read(LEARNED), "what is new is left aside");
        for name in ["target", "contest", "firstLook", "afterPause", "raised", "coldStarts", "metrics"] {
            let mut changed = fields.clone();
            changed[name] = serde_json::json!({"of": "another type"});
            if matches!(name, "contest" | "firstLook" | "coldStarts") {
                changed[name] = "of another type".into();
            }
            let mut without: Map<String, Value> = serde_json::from_str(LEARNED).unwrap();
            without.remove(name);
            assert_eq!(known(&changed), known(&without), "{name}");
            assert_ne!(known(&changed), read(LEARNED), "{name}");
        }
    }

    #[test]
    fn the_past_of_another_target_is_dropped() {
        assert_eq!(past().of_target("a"), past());
        assert_eq!(past().of_target("b"), Past { target: Some("b".into()), ..Past::default() });
        assert_eq!(Past::default().of_target("b").target.as_deref(), Some("b"));
    }
}
