//! What the requests of both versions say of the candidate, in one step. Pure.
//!
//! The status has the record that a verdict is computed from. Looks that are newer than the record are added to it; the verdict
//! follows from the record alone, so it can be computed again from the status. A record that cannot be read, of another
//! release, begins anew: the step then waits for requests again.

use api::aiinference::{
    analysis::{Analysis, AnalysisMetric, AnalysisMetricStatus, AnalysisStatus, MetricName, RequestCounts},
    traffic::{Canary, CanaryStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use verdict::{
    bucket::Bound,
    interval::{Counts, Interval, Sample, Tracks},
    judge::{Earlier, Inputs, Judged, Judgement, MetricResult, Reason, Step, Verdict, judge},
    metric::{Alpha, Kind, Metric, Mode, Ratio},
    share::Share,
};

use crate::looks::{Found, Look, is_latency};

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
    /// When the candidate's share rose from 0.
    shared_since: i64,
    /// Up to when requests are counted.
    until: i64,
    inputs: Inputs,
}

const FORMAT: u32 = 1;

/// The evidence of a step.
#[derive(Clone, Debug)]
pub(super) struct Analysed {
    record: Record,
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
    let mut record = record.with_settings(canary, analysis, before.step);
    for look in looks.iter().filter(|look| look.step_since == since) {
        if look.at > record.until {
            record = record.with(look);
        }
    }
    let judgement = judge(&record.inputs);
    Some(Analysed { record, judgement })
}

fn begun(
    before: &CanaryStatus,
    since: i64,
    earlier: Option<Record>,
    canary: &Canary,
    analysis: &Analysis,
) -> Record {
    // The share rose from the one of the step before, and not from 0.
    let is_next = |record: &&Record| record.step.checked_add(1) == Some(before.step);
    let shared_since = earlier.as_ref().filter(is_next).map_or(since, |record| record.shared_since);
    let metrics = earlier.into_iter().flat_map(|record| record.inputs.metrics).map(|judged| {
        let earlier = of_stable(&judged);
        let evidence =
            Judged::begin(judged.metric.clone(), judged.bound, earlier, min_requests(canary, before.step));
        // The bound is chosen anew, with what stable is now.
        Judged { bound: None, ..evidence }
    });
    let record = Record {
        format: FORMAT,
        revision: before.revision.clone(),
        stable: before.stable_revision.clone(),
        step: before.step,
        since,
        shared_since,
        until: since,
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
            match known {
                Some(judged) if given.is_none() || judged.bound.is_none() || given == judged.bound => {
                    Judged { metric, ..judged.clone() }
                }
                Some(_) | None => Judged::begin(metric, given, Earlier::default(), min_requests),
            }
        });
        let step = Step { seconds: self.inputs.step.seconds, ..settings(canary, analysis, step) };
        Self { inputs: Inputs { metrics: metrics.collect(), step }, ..self }
    }

    fn with(self, look: &Look) -> Self {
        let age = u64::try_from(self.until.saturating_sub(self.shared_since)).unwrap_or_default();
        let Tracks { stable, candidate } = look.ready_pods;
        let ready_pods = Tracks { stable, candidate };
        let min_requests = self.inputs.step.min_requests;
        let metrics = self.inputs.metrics.into_iter().map(|judged| {
            let found = name_of(&judged.metric.name).and_then(|name| look.metrics.get(&name));
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
                Some(Found::Incomplete) | None => judged.observe(&Interval::Incomplete, None),
                Some(Found::BucketMismatch) => judged.observe(&Interval::BucketMismatch, None),
            }
        });
        let metrics = metrics.collect();
        let seconds = u64::try_from(look.at.saturating_sub(self.since)).unwrap_or_default();
        let step = Step { seconds, ..self.inputs.step };
        Self { until: look.at, inputs: Inputs { step, metrics }, ..self }
    }
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
        MetricName::ErrorRate | MetricName::RepetitionRate => Kind::Failure,
        MetricName::AbortRate => Kind::Abort,
        MetricName::Ttft | MetricName::Tpot | MetricName::E2e => Kind::Latency,
    };
    let ratio = wanted.max_ratio.as_deref().and_then(number).and_then(|ratio| Ratio::new(ratio).ok());
    let limit = wanted.limit_percent.as_deref().and_then(number);
    Metric {
        name: name(wanted.name).to_owned(),
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

const NAMES: [(MetricName, &str); 6] = [
    (MetricName::ErrorRate, "errorRate"),
    (MetricName::AbortRate, "abortRate"),
    (MetricName::RepetitionRate, "repetitionRate"),
    (MetricName::Ttft, "ttft"),
    (MetricName::Tpot, "tpot"),
    (MetricName::E2e, "e2e"),
];

fn name(metric: MetricName) -> &'static str {
    let [error, abort, repetition, ttft, tpot, e2e] = NAMES;
    match metric {
        MetricName::ErrorRate => error.1,
        MetricName::AbortRate => abort.1,
        MetricName::RepetitionRate => repetition.1,
        MetricName::Ttft => ttft.1,
        MetricName::Tpot => tpot.1,
        MetricName::E2e => e2e.1,
    }
}

fn name_of(metric: &str) -> Option<MetricName> {
    NAMES.iter().find(|(_, name)| *name == metric).map(|(metric, _)| *metric)
}

impl Analysed {
    pub(super) fn until(&self) -> i64 {
        self.record.until
    }

    pub(super) fn since(&self) -> i64 {
        self.record.since
    }

    /// For the next look: what the step was counted with.
    pub(super) fn bound(&self, metric: MetricName) -> Option<Bound> {
        let mut metrics = self.record.inputs.metrics.iter();
        metrics.find(|judged| judged.metric.name == name(metric)).and_then(|judged| judged.bound)
    }

    pub(super) fn status(&self) -> AnalysisStatus {
        let judged = self.record.inputs.metrics.iter().zip(&self.judgement.metrics);
        AnalysisStatus {
            verdict: word(self.judgement.verdict).to_owned(),
            reason: reason_word(self.judgement.reason).to_owned(),
            counted_until: Timestamp::from_second(self.record.until).ok().map(Time),
            metrics: judged.map(|(judged, result)| metric_status(judged, result)).collect(),
            record: serde_json::to_string(&self.record).unwrap_or_default(),
        }
    }

    /// What was found, for conditions and events.
    pub(super) fn message(&self) -> String {
        let Judgement { verdict, reason, missing, metrics } = &self.judgement;
        let worst =
            metrics.iter().find(|metric| metric.reason == *reason && metric.verdict == Some(*verdict));
        let of = worst.map(shares).unwrap_or_default();
        let what = worst.map_or("the analysis", |metric| &*metric.name);
        let step = &self.record.inputs.step;
        match reason {
            Reason::Alarm => format!(
                "{what} is worse than with stable: {of}; evidence {} of {}",
                thousandths(worst.map_or(0, |metric| metric.e_value)),
                thousandths(worst.map_or(0, |metric| metric.e_value_needed)),
            ),
            Reason::MetricsMissing => "three looks in a row gave no numbers of all pods".to_owned(),
            Reason::BucketMismatch => format!(
                "{what}: no bucket of both versions ends where a request becomes slow; set thresholdMillis to one that does"
            ),
            Reason::InFlight => format!("{what}: many requests of the candidate have not ended yet"),
            Reason::LoadMismatch => {
                format!("{what}: a pod of one version gets more than twice the requests of one of the other")
            }
            Reason::ShareTooHigh => format!("{what} is not surely good enough: {of}"),
            Reason::NoControl => format!("{what}: stable has no requests to compare with; set limitPercent"),
            Reason::WarmingUp => format!("{what} is counted from two minutes after the share rose from 0"),
            Reason::TooFewRequests => {
                let missing = missing.unwrap_or_default();
                let minutes = missing
                    .seconds
                    .map(|seconds| format!(", about {} min at this rate", seconds.div_ceil(60)));
                let needed = [(missing.requests, "the candidate"), (missing.stable_requests, "stable")];
                let needed = needed.iter().filter(|(requests, _)| *requests > 0);
                let needed: Vec<String> =
                    needed.map(|(requests, of)| format!("{requests} more requests of {of}")).collect();
                let needed =
                    if needed.is_empty() { "more requests".to_owned() } else { needed.join(" and ") };
                format!("needs {needed}{}", minutes.unwrap_or_default())
            }
            Reason::TooEarly => format!("passes after {} s", step.min_seconds),
            Reason::NothingJudged => "nothing is counted yet".to_owned(),
            Reason::Passing => "the candidate is good enough".to_owned(),
        }
    }
}

/// `1.9 % of 120 requests, stable 0.8 % of 1080; below 3.1 % surely, allowed 1.5 %`.
fn shares(metric: &MetricResult) -> String {
    let share = |share: Option<Share>| share.map_or("none".to_owned(), |share| share.to_string());
    let bound = match (metric.upper_bound, metric.allowed) {
        (Some(bound), Some(allowed)) => format!("; with 95 % confidence below {bound}, allowed is {allowed}"),
        (Some(_) | None, _) => String::new(),
    };
    format!(
        "{} of the candidate's requests, {} of stable's{bound}",
        share(metric.shares.candidate),
        share(metric.shares.stable)
    )
}

fn metric_status(judged: &Judged, result: &MetricResult) -> AnalysisMetricStatus {
    let Tracks { stable, candidate } = judged.evidence.totals;
    AnalysisMetricStatus {
        name: judged.metric.name.clone(),
        verdict: result.verdict.map(word).unwrap_or_default().to_owned(),
        reason: reason_word(result.reason).to_owned(),
        stable: counts(stable, result.shares.stable),
        candidate: counts(candidate, result.shares.candidate),
        upper_bound_percent: result.upper_bound.map(percent),
        allowed_percent: result.allowed.map(percent),
        evidence: thousandths(result.e_value),
        evidence_needed: thousandths(result.e_value_needed),
        threshold_millis: judged.bound.map(|bound| thousandths(bound.microseconds())),
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

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "Pass",
        Verdict::Fail => "Fail",
        Verdict::Inconclusive => "Inconclusive",
    }
}

fn reason_word(reason: Reason) -> &'static str {
    match reason {
        Reason::Alarm => "Alarm",
        Reason::MetricsMissing => "MetricsMissing",
        Reason::BucketMismatch => "BucketMismatch",
        Reason::InFlight => "InFlight",
        Reason::LoadMismatch => "LoadMismatch",
        Reason::ShareTooHigh => "ShareTooHigh",
        Reason::NoControl => "NoControl",
        Reason::WarmingUp => "WarmingUp",
        Reason::TooFewRequests => "TooFewRequests",
        Reason::TooEarly => "TooEarly",
        Reason::NothingJudged => "NothingJudged",
        Reason::Passing => "Passing",
    }
}

#[cfg(test)]
mod tests;
