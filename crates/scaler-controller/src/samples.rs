//! What this process knows of each AIScaler and no object says. `collect` writes what the sources answered last. `apply`
//! writes what has become of its own writes of replicas and statuses. `observe` reads both. It decides nothing.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::aiscaler::{AIScalerSpec, AIScalerStatus, MetricType, Source};
use jiff::Timestamp;
use runtime::write::refusal::Refusal;

use crate::{
    history::{
        Past,
        attempt::{Attempt, Unwritten},
    },
    sources::answer::Answer,
    target::{Reference, other_kinds::ScaleRead},
};
use trend::Trend;

mod trend;

/// By uid of the AIScaler. An entry goes with its object.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<HashMap<String, Sampled>>);

/// The answers for one AIScaler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampled {
    /// One per metric, in the order of the spec.
    pub(crate) answers: Vec<Answer>,
    /// What was asked.
    pub(crate) question: Option<Question>,
    /// Of the values of each metric.
    trends: Vec<Trend>,
    /// The past after the last decision; newer than that of the status.
    past: Option<Past>,
    /// The version of the object in whose status that past began.
    resumed_from: Option<String>,
    /// The API server has confirmed once that this process has the newest version of the object.
    is_confirmed: bool,
    /// The API server has said since that there is a newer one.
    is_doubted: bool,
    /// The scale of a target whose kind is not watched.
    pub(crate) scale: Option<(Reference, ScaleRead)>,
    /// The write of replicas that has had no answer yet, or none in time.
    pub(crate) attempted: Option<Attempt>,
    /// When the status was last written.
    pub(crate) written: Option<Timestamp>,
    /// What was carried out, and is in no written status yet.
    pub(crate) unwritten: Option<Unwritten>,
    pub(crate) refused: Option<RefusedWrite>,
    pub(crate) outdated: Option<Outdated>,
}

/// The replicas that the API server has last refused to write, of which target, and when.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RefusedWrite {
    target: String,
    to: i32,
    refusal: Refusal,
    at: Timestamp,
}

/// The version of the target that the API server has last called outdated, and when.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outdated {
    version: String,
    at: Timestamp,
}

/// Target and sources of a spec. Its bounds and rates change no answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    target: Reference,
    metrics: Vec<(MetricType, Option<Source>)>,
}

/// The watch brings a newer version long before; after a conflict of another cause the write is tried again.
pub(crate) const OUTDATED_FOR: Duration = Duration::from_secs(2);

impl RefusedWrite {
    /// The refusal of the same write less than a period ago. Whatever sees to it that it is taken, it is not so urgent that
    /// every sample should send it again.
    pub(crate) fn of(&self, target: &str, to: i32, period: Duration, now: Timestamp) -> Option<&Refusal> {
        let is_recent = now.duration_since(self.at).unsigned_abs() < period;
        (self.target == target && self.to == to && is_recent).then_some(&self.refusal)
    }
}

impl Outdated {
    /// Only a write of a newer version can succeed.
    pub(crate) fn is_of(&self, version: &str) -> bool {
        self.version == version
    }

    /// The watch has had no time to bring the newer version.
    pub(crate) fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).unsigned_abs() < OUTDATED_FOR
    }
}

impl Question {
    pub(crate) fn of(spec: &AIScalerSpec) -> Self {
        let others = spec.additional_metrics.iter().map(|metric| (metric.metric_type, metric.source.clone()));
        let first = (spec.metric_type, spec.source.clone());
        Self { target: Reference::of(spec), metrics: std::iter::once(first).chain(others).collect() }
    }
}

impl Sampled {
    /// The past after the last decision on this version. Until the API server has confirmed a version, the one that was
    /// decided on may have been out of date, and its status too.
    pub(crate) fn past_at(&self, version: Option<&str>) -> Option<&Past> {
        self.past.as_ref().filter(|_| self.is_confirmed || self.resumed_from.as_deref() == version)
    }

    /// Whether replicas may be written by the version of the object that is known.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed && !self.is_doubted
    }

    /// The API server has no newer version of the object than this one. A past that began with another is out of date.
    fn confirmed(&mut self, version: Option<&str>) {
        if self.past_at(version).is_none() {
            self.past = None;
        }
        (self.is_confirmed, self.is_doubted) = (true, false);
    }

    /// The object has the status that was planned.
    fn has_status(&mut self, now: Timestamp) {
        self.written = Some(now);
        self.unwritten = None;
    }
}

impl Samples {
    pub(crate) fn of(&self, uid: &str) -> Sampled {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// The answer for the metric of this index. Answers to another question are dropped.
    pub(crate) fn note(&self, uid: &str, question: &Question, index: usize, mut answer: Answer) {
        let mut all = self.lock();
        let sampled = all.entry(uid.to_owned()).or_default();
        if sampled.question.as_ref() != Some(question) {
            sampled.question = Some(question.clone());
            sampled.answers = vec![Answer::pending(); question.metrics.len()];
            sampled.trends = vec![Trend::default(); question.metrics.len()];
        }
        if let (Some(known), Some(trend)) = (sampled.answers.get_mut(index), sampled.trends.get_mut(index)) {
            trend.note(&answer.reading);
            answer.only_grows_since = trend.only_grows_since();
            *known = answer;
        }
    }

    /// What was read before is out of date when the metrics are read again.
    pub(crate) fn withhold(&self, uid: &str) {
        if let Some(sampled) = self.lock().get_mut(uid) {
            (sampled.question, sampled.answers, sampled.trends) = (None, Vec::new(), Vec::new());
        }
    }

    pub(crate) fn note_scale(&self, uid: &str, target: &Reference, read: ScaleRead) {
        let mut all = self.lock();
        let sampled = all.entry(uid.to_owned()).or_default();
        sampled.scale = Some((target.clone(), read));
        sampled.outdated = None;
    }

    /// What was read, unless a write has answered since `before` was known: its answer is newer.
    pub(crate) fn note_read_scale(
        &self,
        uid: &str,
        target: &Reference,
        read: ScaleRead,
        before: Option<&(Reference, ScaleRead)>,
    ) {
        let mut all = self.lock();
        let sampled = all.entry(uid.to_owned()).or_default();
        if sampled.scale.as_ref() == before {
            sampled.scale = Some((target.clone(), read));
            sampled.outdated = None;
        }
    }

    /// `version`: of the object that was decided on.
    pub(crate) fn remember(&self, uid: &str, past: Past, version: Option<&str>) {
        let mut all = self.lock();
        let sampled = all.entry(uid.to_owned()).or_default();
        sampled.past = Some(past);
        if !sampled.is_confirmed {
            sampled.resumed_from = version.map(str::to_owned);
        }
    }

    /// The API server says that there is no newer version of the object than this one.
    pub(crate) fn confirm(&self, uid: &str, version: Option<&str>) {
        self.lock().entry(uid.to_owned()).or_default().confirmed(version);
    }

    /// The API server has refused a write because there is a newer version of the object.
    pub(crate) fn doubt(&self, uid: &str) {
        self.lock().entry(uid.to_owned()).or_default().is_doubted = true;
    }

    /// A write that is about to be sent; `None` once the API server has answered.
    pub(crate) fn attempt(&self, uid: &str, attempt: Option<Attempt>) {
        self.lock().entry(uid.to_owned()).or_default().attempted = attempt;
    }

    /// The attempted write has taken effect.
    pub(crate) fn settle(&self, uid: &str, past: Past, unwritten: Unwritten) {
        let mut all = self.lock();
        let sampled = all.entry(uid.to_owned()).or_default();
        sampled.attempted = None;
        sampled.past = Some(past);
        sampled.unwritten = Some(unwritten);
    }

    /// The API server has accepted the status for exactly this version of the object, so there was no newer one.
    pub(crate) fn note_written(&self, uid: &str, version: Option<&str>, now: Timestamp) {
        let mut all = self.lock();
        let sampled = all.entry(uid.to_owned()).or_default();
        sampled.has_status(now);
        sampled.confirmed(version);
    }

    /// The known version has this status already. There may be a newer one.
    pub(crate) fn note_unchanged(&self, uid: &str, now: Timestamp) {
        self.lock().entry(uid.to_owned()).or_default().has_status(now);
    }

    /// Replicas were written, and the status that says so is about to be.
    pub(crate) fn note_carried_out(&self, uid: &str, status: &AIScalerStatus) {
        let unwritten = Unwritten {
            decisions: status.decisions.clone(),
            last_scale_time: status.last_scale_time.clone(),
        };
        self.lock().entry(uid.to_owned()).or_default().unwritten = Some(unwritten);
    }

    pub(crate) fn note_refused(&self, uid: &str, target: &str, to: i32, refusal: &Refusal, now: Timestamp) {
        let refused = RefusedWrite { target: target.to_owned(), to, refusal: refusal.clone(), at: now };
        self.lock().entry(uid.to_owned()).or_default().refused = Some(refused);
    }

    pub(crate) fn note_outdated(&self, uid: &str, version: &str, now: Timestamp) {
        let outdated = Outdated { version: version.to_owned(), at: now };
        self.lock().entry(uid.to_owned()).or_default().outdated = Some(outdated);
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Of how many objects anything is kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Sampled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use api::aiscaler::Decision;
    use scaling::reading::Reading;

    use super::*;

    fn answer(value: f64) -> Answer {
        Answer::new(Reading::total(value, jiff::Timestamp::UNIX_EPOCH), String::new())
    }

    fn question(more: &str) -> Question {
        let text = format!(
            "{{deploymentName: chat, metricType: queue_depth, targetValue: 5, maxReplicas: 4,
              additionalMetrics: [{{metricType: latency, targetValue: 900}}], {more}}}"
        );
        Question::of(&serde_saphyr::from_str(&text).unwrap())
    }

    #[test]
    fn what_was_carried_out_is_kept_until_a_status_has_it() {
        let samples = Samples::default();
        let status = AIScalerStatus { decisions: vec![Decision::default()], ..AIScalerStatus::default() };
        samples.note_carried_out("a", &status);
        assert_eq!(samples.of("a").unwritten.unwrap().decisions, status.decisions);
        samples.note_written("a", Some("1"), Timestamp::UNIX_EPOCH);
        assert_eq!(samples.of("a").unwritten, None);
    }

    #[test]
    fn a_past_that_began_with_another_version_ends_when_a_status_is_written() {
        let samples = Samples::default();
        samples.remember("a", Past::default(), Some("1"));
        samples.note_written("a", Some("2"), Timestamp::UNIX_EPOCH);
        assert_eq!(samples.of("a").past_at(Some("2")), None);
        samples.remember("b", Past::default(), Some("1"));
        samples.note_written("b", Some("1"), Timestamp::UNIX_EPOCH);
        assert!(samples.of("b").past_at(Some("2")).is_some(), "it began with the version that was confirmed");
    }

    #[test]
    fn a_past_that_began_with_an_outdated_version_ends_when_a_newer_one_is_confirmed() {
        let samples = Samples::default();
        samples.remember("a", Past::default(), Some("1"));
        samples.confirm("a", Some("2"));
        assert_eq!(samples.of("a").past_at(Some("2")), None);
        samples.remember("a", Past::default(), Some("2"));
        samples.confirm("a", Some("3"));
        assert!(samples.of("a").past_at(Some("3")).is_some(), "the API server had confirmed that version");
    }

    #[test]
    fn a_refused_version_is_not_written_again_for_a_moment() {
        let (samples, begin) = (Samples::default(), Timestamp::UNIX_EPOCH);
        samples.note_outdated("a", "7", begin);
        let outdated = samples.of("a").outdated.unwrap();
        assert!(outdated.is_of("7") && !outdated.is_of("8") && samples.of("b").outdated.is_none());
        assert!(outdated.is_recent(begin + Duration::from_secs(1)));
        assert!(!outdated.is_recent(begin + OUTDATED_FOR), "the conflict had another cause");
    }

    #[test]
    fn answers_to_another_question_are_dropped() {
        let samples = Samples::default();
        let asked = question("minReplicas: 1");
        samples.note("a", &asked, 0, answer(1.0));
        samples.note("a", &asked, 1, answer(2.0));
        assert_eq!(samples.of("a").answers, [answer(1.0), answer(2.0)]);
        let other = question("source: {pods: {port: 80, metric: waiting}}");
        samples.note("a", &other, 1, answer(3.0));
        assert_eq!(samples.of("a").answers, [Answer::pending(), answer(3.0)]);
        samples.note("a", &other, 7, answer(4.0));
        samples.forget("a");
        assert!(samples.of("a").answers.is_empty());
    }

    #[test]
    fn other_bounds_are_no_other_question() {
        assert_eq!(question("minReplicas: 1"), question("minReplicas: 3, paused: true"));
    }
}
