//! What the requests of both versions say of the candidate, in one step. Pure.
//!
//! The status has the record that a verdict is computed from. Looks that are newer than the record are added to it. The
//! verdict follows from the record alone, so it can be computed again from the status. A record that cannot be read, of
//! another release, begins anew: the step then waits for requests again.

use std::{collections::BTreeSet, time::Duration};

use api::aiinference::{
    analysis::{
        Analysis, AnalysisMetric, AnalysisMetricStatus, AnalysisMode, AnalysisStatus, MetricName,
        OnInconclusive, RequestCounts, TokenCounts,
    },
    traffic::{Canary, CanaryPhase, CanaryStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use verdict::{
    bucket::Bound,
    interval::{Counts, Interval, MOST_REQUESTS, Sample, Tracks},
    judge::{Earlier, Inputs, Judged, Judgement, MetricResult, Step, Verdict, judge},
    metric::{Alpha, Kind, Metric, Mode, Ratio},
    share::Share,
};

use crate::looks::{Found, Look, hash, is_latency};

mod words;

/// What a status holds. Another version of this format is not read.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    format: u32,
    /// Hashes of both versions.
    revision: String,
    stable: String,
    step: i32,
    /// When the step began, in Unix seconds.
    since: i64,
    /// When the candidate's share rose from 0, and how often it had been lost then.
    shared_since: i64,
    lost: i32,
    /// Up to when requests are counted.
    until: i64,
    /// Seconds of looks without a verdict, since the last pass and since the least time of the step was over.
    waited: i64,
    /// Metrics whose bound or limit the user has given.
    given: BTreeSet<MetricName>,
    /// Of what the metric custom asks: other queries count something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queries: Option<u64>,
    /// Since the step began. Absent until an engine has said how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Tracks<u64>>,
    inputs: Inputs,
}

const FORMAT: u32 = 1;

/// The evidence of a step.
#[derive(Clone, Debug)]
pub(super) struct Analysed {
    /// What the status gets.
    record: Record,
    /// With all looks, for the next one.
    newest: Record,
    pub(super) judgement: Judgement,
}

/// With what is known of the step that the status is in; `None` without analysis, and before the step begins.
pub(super) fn analysed(before: &CanaryStatus, canary: &Canary, looks: &[Look]) -> Option<Analysed> {
    let analysis = canary.analysis.as_ref()?;
    let since = before.step_started_at.as_ref()?.0.as_second();
    let stored =
        before.analysis.as_ref().and_then(|stored| serde_json::from_str::<Record>(&stored.record).ok());
    let of_versions = |record: &Record| {
        record.format == FORMAT
            && record.revision == before.revision
            && record.stable == before.stable_revision
    };
    let stored = stored.filter(of_versions);
    let record = match stored {
        Some(record) if record.step == before.step && record.since == since => record,
        other => begun(before, since, other, canary, analysis),
    };
    let mut known = record.with_settings(canary, analysis, before.step);
    let waits = waits_for_verdict(before, canary, analysis);
    known.waited = if waits { known.waited } else { 0 };
    let mut record = known.clone();
    for look in looks.iter().filter(|look| look.step_since == since) {
        if look.at > record.until {
            record = record.with(look);
        }
    }
    record.waited = if waits { record.waited } else { 0 };
    let judgement = judge(&record.inputs);
    // The numbers of a long step change slowly: one write a minute is enough.
    let is_new =
        |before: &Judgement| (before.verdict, before.reason) != (judgement.verdict, judgement.reason);
    let is_young = record.until.saturating_sub(since) <= WRITTEN_AT_ONCE;
    let is_recent = record.until.saturating_sub(known.until) < WRITTEN_EACH;
    let before = judge(&known.inputs);
    if !is_young && is_recent && !is_new(&before) {
        return Some(Analysed { record: known, newest: record, judgement: before });
    }
    Some(Analysed { newest: record.clone(), record, judgement })
}

/// Whether something follows only when there is a verdict. A fixed share lasts until its promotion is approved, and a step that
/// has passed waits for an approval.
fn waits_for_verdict(before: &CanaryStatus, canary: &Canary, analysis: &Analysis) -> bool {
    let is_asked = !canary.steps.is_empty() || canary.approved_steps > 0;
    // With Promote, the time is over once: the approval that it waits for must not begin it anew.
    let has_passed = before.phase == Some(CanaryPhase::AwaitingApproval)
        && analysis.on_inconclusive != OnInconclusive::Promote;
    is_asked && analysis.mode == AnalysisMode::Enforce && !has_passed
}

/// When the candidate's share rose from 0, as the record of its last step says.
pub(super) fn shared_since(before: &CanaryStatus) -> Option<Timestamp> {
    let record: Record = serde_json::from_str(&before.analysis.as_ref()?.record).ok()?;
    let is_same = record.format == FORMAT && record.revision == before.revision;
    Timestamp::from_second(record.shared_since).ok().filter(|_| is_same)
}

/// In the first seconds of a step, the status has each look. Later it has one of so many seconds, unless the verdict changes.
const WRITTEN_AT_ONCE: i64 = 600;
const WRITTEN_EACH: i64 = 60;

fn begun(
    before: &CanaryStatus,
    since: i64,
    earlier: Option<Record>,
    canary: &Canary,
    analysis: &Analysis,
) -> Record {
    // The share rose from the one of the step before, and not from 0.
    let is_next =
        |record: &&Record| record.step.checked_add(1) == Some(before.step) && record.lost == before.lost;
    let shared_since = earlier.as_ref().filter(is_next).map_or(since, |record| record.shared_since);
    let given = earlier.as_ref().map_or_else(|| of_users(analysis), |record| record.given.clone());
    let queries = earlier.as_ref().map_or_else(|| hash_of(analysis), |record| record.queries);
    // A step that begins again has looks of before.
    let until = earlier.as_ref().map_or(since, |record| record.until.max(since));
    let metrics = earlier.into_iter().flat_map(|record| record.inputs.metrics).map(|judged| {
        let earlier = of_stable(&judged);
        // With the bound of the step before: at weight 100, stable has no requests by which one could be chosen.
        Judged::begin(judged.metric.clone(), judged.bound, earlier, min_requests(canary, before.step))
    });
    let record = Record {
        format: FORMAT,
        revision: before.revision.clone(),
        stable: before.stable_revision.clone(),
        step: before.step,
        since,
        shared_since,
        lost: before.lost,
        until,
        waited: 0,
        given,
        queries,
        tokens: None,
        inputs: Inputs { step: settings(canary, analysis, before.step), metrics: metrics.collect() },
    };
    record.with_settings(canary, analysis, before.step)
}

/// The requests of stable in this step and those before.
fn of_stable(judged: &Judged) -> Earlier {
    let Judged { evidence, bound, earlier, .. } = judged;
    let counts = evidence.totals.stable;
    let counts = if earlier.bound == *bound { counts.plus(earlier.counts) } else { counts };
    Earlier { counts, bound: *bound }
}

impl Record {
    /// With the settings of now. What is counted stays, unless what makes a request a bad one has changed.
    fn with_settings(self, canary: &Canary, analysis: &Analysis, step: i32) -> Self {
        let min_requests = min_requests(canary, step);
        let metrics = analysis.metrics.iter().map(|wanted| {
            let metric = metric_of(wanted);
            let given = given(wanted);
            let known = self.inputs.metrics.iter().find(|judged| judged.metric.name == metric.name);
            // Without the number that the user gave, it is judged by stable's requests.
            let is_taken_back = self.given.contains(&wanted.name) && !is_of_user(wanted);
            let is_other = wanted.name == MetricName::Custom && self.queries != hash_of(analysis);
            match known.filter(|_| !is_taken_back && !is_other) {
                Some(judged) if given.is_none() || judged.bound.is_none() || given == judged.bound => {
                    Judged { metric, ..judged.clone() }
                }
                Some(_) | None => Judged::begin(metric, given, Earlier::default(), min_requests),
            }
        });
        let step = Step { seconds: self.inputs.step.seconds, ..settings(canary, analysis, step) };
        let inputs = Inputs { metrics: metrics.collect(), step };
        Self { inputs, given: of_users(analysis), queries: hash_of(analysis), ..self }
    }

    fn with(self, look: &Look) -> Self {
        let age = u64::try_from(self.until.saturating_sub(self.shared_since)).unwrap_or_default();
        let Tracks { stable, candidate } = look.ready_pods;
        let ready_pods = Tracks { stable, candidate };
        let min_requests = self.inputs.step.min_requests;
        let metrics = self.inputs.metrics.into_iter().map(|judged| {
            let name = name_of(&judged.metric.name);
            // What other queries have counted, which the user has corrected since.
            let asked = look.of_queries.as_ref().map(|queries| queries.hash);
            let is_other = name == Some(MetricName::Custom) && asked != self.queries;
            let found = name.and_then(|name| look.metrics.get(&name)).filter(|_| !is_other);
            match found {
                Some(Found::Counted { flows, bound }) => {
                    let sample = Sample { flows: *flows, ready_pods, age_seconds: age };
                    let is_first = judged.bound.is_none() && judged.evidence.counted == 0;
                    let judged = match is_first && bound.is_some() {
                        // What earlier steps say is that of their bound.
                        true => Judged::begin(judged.metric, *bound, judged.earlier, min_requests),
                        false => judged,
                    };
                    judged.observe(&Interval::Complete(sample), *bound)
                }
                Some(Found::NoRequests) => judged,
                None if is_other => judged,
                Some(Found::Pooled) => judged.pooled(),
                Some(Found::Incomplete) | None => judged.observe(&Interval::Incomplete, None),
                Some(Found::BucketMismatch) => judged.observe(&Interval::BucketMismatch, None),
            }
        });
        let metrics = metrics.collect();
        let seconds = u64::try_from(look.at.saturating_sub(self.since)).unwrap_or_default();
        let step = Step { seconds, ..self.inputs.step };
        let inputs = Inputs { step, metrics };
        // Time without looks, such as a restart of the controller, does not count.
        let most = i64::from(step.interval_seconds).saturating_mul(2);
        let more = look.at.saturating_sub(self.until).min(most);
        let waited = match judge(&inputs).verdict {
            Verdict::Pass => 0,
            Verdict::Fail | Verdict::Inconclusive if seconds < step.min_seconds.into() => 0,
            Verdict::Fail | Verdict::Inconclusive => self.waited.saturating_add(more),
        };
        let tokens = look.tokens.map(|more| {
            let known = self.tokens.unwrap_or_default();
            let sum = |known: u64, more: u64| known.saturating_add(more).min(MOST_REQUESTS);
            Tracks { stable: sum(known.stable, more.stable), candidate: sum(known.candidate, more.candidate) }
        });
        Self { until: look.at, waited, tokens: tokens.or(self.tokens), inputs, ..self }
    }
}

fn is_of_user(wanted: &AnalysisMetric) -> bool {
    wanted.limit_percent.is_some() || given(wanted).is_some()
}

fn of_users(analysis: &Analysis) -> BTreeSet<MetricName> {
    analysis.metrics.iter().filter(|wanted| is_of_user(wanted)).map(|wanted| wanted.name).collect()
}

fn hash_of(analysis: &Analysis) -> Option<u64> {
    analysis.prometheus.as_deref().map(hash)
}

fn settings(canary: &Canary, analysis: &Analysis, step: i32) -> Step {
    let of_step = step_of(canary, step);
    Step {
        seconds: 0,
        min_seconds: of_step.map_or(0, |step| step.min_seconds.unsigned_abs()),
        min_requests: min_requests(canary, step),
        interval_seconds: analysis.interval_seconds.unsigned_abs(),
        // The API server has checked it; an object that is older than the rule has the default.
        alpha: number(&analysis.alpha).and_then(|alpha| Alpha::new(alpha).ok()).unwrap_or(Alpha::ONE_PERCENT),
        steps: u32::try_from(canary.steps.len()).unwrap_or(u32::MAX).max(1),
    }
}

fn step_of(canary: &Canary, step: i32) -> Option<&api::aiinference::traffic::CanaryStep> {
    let index = usize::try_from(step).ok()?.checked_sub(1)?;
    canary.steps.get(index).or(canary.steps.last())
}

fn min_requests(canary: &Canary, step: i32) -> u32 {
    let requests = step_of(canary, step).map(|step| step.min_requests);
    requests.unwrap_or(api::aiinference::analysis::DEFAULT_STEP_REQUESTS).unsigned_abs()
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

fn metric_of(wanted: &AnalysisMetric) -> Metric {
    let kind = match wanted.name {
        MetricName::ErrorRate | MetricName::RepetitionRate | MetricName::Custom => Kind::Failure,
        MetricName::AbortRate => Kind::Abort,
        MetricName::Ttft | MetricName::Tpot | MetricName::E2e => Kind::Latency,
    };
    let ratio = wanted.max_ratio.as_deref().and_then(number).and_then(|ratio| Ratio::new(ratio).ok());
    let limit = wanted.limit_percent.as_deref().and_then(number);
    Metric {
        name: wanted.name.as_str().to_owned(),
        kind,
        // All of them decide, or none does: analysis.mode.
        mode: Mode::Enforce,
        tolerated: ratio.unwrap_or(kind.tolerated()),
        limit: limit.and_then(|percent| Share::from_percent(percent).ok()),
        warmup_seconds: None,
    }
}

pub(super) fn given(wanted: &AnalysisMetric) -> Option<Bound> {
    let millis = wanted.threshold_millis.filter(|_| is_latency(wanted.name))?;
    Bound::from_millis(millis.unsigned_abs()).ok()
}

fn name_of(metric: &str) -> Option<MetricName> {
    MetricName::ALL.into_iter().find(|known| known.as_str() == metric)
}

impl Analysed {
    pub(super) fn until(&self) -> i64 {
        self.newest.until
    }

    /// For how long it has waited for a verdict, after the least time of the step.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.record.waited).unwrap_or_default())
    }

    /// All looks of the step at the engines were counted, for so many seconds at least, and none has found a request. What
    /// queries of the user find is not of the engines.
    pub(super) fn has_seen_no_request(&self, seconds: i64) -> bool {
        let Inputs { metrics, step } = &self.record.inputs;
        let interval = i64::from(step.interval_seconds);
        // A look more or less, and those of the warm-up, which are no reason for a longer silence.
        let lasted = self.record.until.saturating_sub(self.record.since).saturating_sub(2 * interval);
        let is_silent = |judged: &Judged| {
            let Tracks { stable, candidate } = judged.evidence.totals;
            judged.evidence.skipped == 0 && stable.requests() == 0 && candidate.requests() == 0
        };
        let is_counted = |judged: &Judged| {
            let counted = i64::from(judged.evidence.counted).saturating_mul(interval);
            counted >= seconds && counted >= lasted
        };
        let of_engines = || metrics.iter().filter(|judged| judged.metric.name != MetricName::Custom.as_str());
        of_engines().all(is_silent) && of_engines().any(is_counted)
    }

    pub(super) fn since(&self) -> i64 {
        self.record.since
    }

    /// For the next look: what the step was counted with.
    pub(super) fn bound(&self, metric: MetricName) -> Option<Bound> {
        let mut metrics = self.newest.inputs.metrics.iter();
        metrics.find(|judged| judged.metric.name == metric.as_str()).and_then(|judged| judged.bound)
    }

    pub(super) fn status(&self) -> AnalysisStatus {
        let judged = self.record.inputs.metrics.iter().zip(&self.judgement.metrics);
        AnalysisStatus {
            verdict: self.judgement.verdict.as_str().to_owned(),
            reason: self.judgement.reason.as_str().to_owned(),
            counted_until: Timestamp::from_second(self.record.until).ok().map(Time),
            metrics: judged.map(|(judged, result)| metric_status(judged, result)).collect(),
            tokens: self.record.tokens.map(|Tracks { stable, candidate }| {
                let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
                TokenCounts { stable: count(stable), candidate: count(candidate) }
            }),
            record: serde_json::to_string(&self.record).unwrap_or_default(),
        }
    }
}

fn metric_status(judged: &Judged, result: &MetricResult) -> AnalysisMetricStatus {
    let Tracks { stable, candidate } = judged.evidence.totals;
    AnalysisMetricStatus {
        name: judged.metric.name.clone(),
        verdict: result.verdict.map(Verdict::as_str).unwrap_or_default().to_owned(),
        reason: result.reason.as_str().to_owned(),
        stable: counts(stable, result.shares.stable),
        candidate: counts(candidate, result.shares.candidate),
        upper_bound_percent: result.upper_bound.map(percent),
        allowed_percent: result.allowed.map(percent),
        evidence: thousandths(result.e_value),
        evidence_needed: thousandths(result.e_value_needed),
        threshold_millis: judged.bound.map(Bound::millis),
    }
}

fn counts(counts: Counts, share: Option<Share>) -> RequestCounts {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    RequestCounts {
        ended: count(counts.requests()),
        bad: count(counts.bad()),
        bad_percent: share.map(percent),
    }
}

fn percent(share: Share) -> String {
    share.to_string().trim_end_matches('%').to_owned()
}

/// `12.4` of 12 400.
fn thousandths(number: u64) -> String {
    let (whole, part) = (number / 1_000, number % 1_000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:03}").trim_end_matches('0').to_owned() }
}

#[cfg(test)]
mod tests;
