//! The scaling policies: an AIScaler, a HorizontalPodAutoscaler with the same numbers, or a fixed number of replicas.

use std::collections::VecDeque;

use anyhow::{Context as _, bail};
use api::aiscaler::{AIScalerSpec, MetricType};
use jiff::{SignedDuration, Timestamp};
use scaling::{
    behavior::Window,
    decide::{PERIOD, decide},
    flow::{Flow, Meter, TotalCounts, TotalMeter, Totals},
    history::History,
    policy::{Bounds, Extras, Kind, Metric, Policy as Rules, TargetValue},
    reading::{Milli, Reading},
    target::{Pod, PodState, Target, Work},
};

use crate::model::{Decide, Replica, Seen};

/// A manifest of an AIScaler.
#[derive(Debug)]
pub(crate) struct Scaler {
    pub(crate) name: String,
    spec: AIScalerSpec,
}

/// A scaling policy.
#[derive(Debug)]
pub(crate) enum Policy {
    Fixed(i32),
    Rules { kind: &'static str, rules: Box<Rules>, history: Box<History>, counts: Counts, period: u32 },
}

/// Who counts what arrives.
#[derive(Debug)]
pub(crate) enum Counts {
    /// Engines, pod by pod.
    Engines(Box<Meter>),
    /// A Prometheus server, with a `completionsQuery`.
    Server(Box<Server>),
    None,
}

/// In seconds: a third of the default of `--sample-period`, as the controller reads what arrives.
const ARRIVALS_PERIOD: u32 = 5;
/// The default of `--sample-period`.
const SAMPLE_PERIOD: u32 = 15;
/// In seconds. Many servers scrape that often.
const SCRAPED_EVERY: u32 = 15;
/// In seconds: the window of the rate of finished requests.
const RATE_WINDOW: u32 = 60;
/// As the API server accepts it.
const MOST_REPLICAS: i32 = 1_000;

#[cfg(test)]
pub(crate) const SAMPLE: &str = "apiVersion: ai.infra.example.com/v1\nkind: AIScaler\nmetadata: {name: chat}\nspec: {deploymentName: chat, \
                                 metricType: queue_depth, targetValue: 5, minReplicas: 2, maxReplicas: 64}\n";

/// `name`: of its rows.
pub(crate) fn scaler_of(text: &str, name: &str) -> anyhow::Result<Scaler> {
    let manifest: serde_json::Value = serde_saphyr::from_str(text).context("it is no YAML of one object")?;
    if manifest["kind"] != "AIScaler" {
        bail!("it is no AIScaler");
    }
    let spec: AIScalerSpec =
        serde_json::from_value(manifest["spec"].clone()).context("its spec is not valid")?;
    let is_told = matches!(spec.metric_type, MetricType::QueueDepth | MetricType::Latency);
    if !is_told || !spec.additional_metrics.is_empty() {
        bail!("its metric cannot be replayed: arrivals tell one queue_depth or latency");
    }
    if spec.max_replicas > MOST_REPLICAS {
        bail!("spec.maxReplicas is above {MOST_REPLICAS}");
    }
    Ok(Scaler { name: name.to_owned(), spec })
}

/// A Prometheus server that knows the target as it was at its last scrape.
#[derive(Debug, Default)]
pub(crate) struct Server {
    meter: TotalMeter,
    /// The last, and those before it that rates are computed over.
    scrapes: VecDeque<Scrape>,
}

#[derive(Clone, Copy, Debug)]
struct Scrape {
    at: u32,
    in_hand: f64,
    finished: u32,
}

impl Policy {
    pub(crate) fn scaler(scaler: &Scaler) -> anyhow::Result<Self> {
        let server = scaler.spec.source.as_ref().and_then(|source| source.prometheus.as_ref());
        let (counts, period) = match server.map(|server| &server.completions_query) {
            None => (Counts::Engines(Box::default()), ARRIVALS_PERIOD),
            Some(Some(_)) => (Counts::Server(Box::default()), ARRIVALS_PERIOD),
            Some(None) => (Counts::None, SAMPLE_PERIOD),
        };
        Self::of("AIScaler", scaler, Extras::all(), counts, period)
    }

    /// A HorizontalPodAutoscaler with an external metric of the type AverageValue.
    pub(crate) fn hpa(scaler: &Scaler) -> anyhow::Result<Self> {
        let period = u32::try_from(PERIOD.as_secs()).unwrap_or(u32::MAX);
        Self::of("HPA", scaler, Extras::none(), Counts::None, period)
    }

    /// `period`: between two decisions, as their controllers have it by default.
    fn of(
        kind: &'static str,
        scaler: &Scaler,
        extras: Extras,
        counts: Counts,
        period: u32,
    ) -> anyhow::Result<Self> {
        let spec = &scaler.spec;
        let target = scaling::spec::target_value(&spec.target_value.0).context("spec.targetValue")?;
        let metric = match spec.metric_type {
            MetricType::Latency => Kind::Latency,
            _ => Kind::QueueDepth,
        };
        let rules = Rules {
            bounds: Bounds::new(spec.min_replicas, spec.max_replicas)?,
            metrics: vec![Metric::new("load", metric, target)],
            behavior: scaling::spec::behavior(spec.behavior.as_ref()).context("spec.behavior")?,
            fallback: None,
            extras,
        };
        Ok(Self::Rules { kind, rules: Box::new(rules), history: Box::default(), counts, period })
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed",
            Self::Rules { kind, .. } => kind,
        }
    }
}

impl Decide for Policy {
    fn least(&self) -> usize {
        let least = match self {
            Self::Fixed(replicas) => *replicas,
            Self::Rules { rules, .. } => rules.bounds.min(),
        };
        usize::try_from(least).unwrap_or_default()
    }

    fn period(&self) -> u32 {
        match self {
            Self::Fixed(_) => u32::MAX,
            Self::Rules { period, .. } => *period,
        }
    }

    fn decide(&mut self, seen: &Seen<'_>) -> usize {
        let Self::Rules { rules, history, counts, .. } = self else { return seen.replicas.len() };
        let now = at(i64::from(seen.now));
        let flow = rules
            .metrics
            .first()
            .and_then(|metric| counts.flow(seen, metric.target, rules.behavior.down.window, now));
        let target = Target { flows: vec![flow], ..target(seen) };
        let in_hand = Milli::units(i64::from(seen.waiting) + i64::from(seen.running));
        let is_latency = rules.metrics.iter().any(|metric| metric.kind == Kind::Latency);
        let value = if is_latency { Milli::parse(seen.latency).unwrap_or(Milli::MAX) } else { in_hand };
        let reading = Reading::Total { value, at: now };
        let decision = decide(rules, &target, &[reading], history, now);
        let to = decision.record.to;
        **history = decision.written(rules);
        usize::try_from(to).unwrap_or_default()
    }
}

impl Counts {
    fn flow(&mut self, seen: &Seen<'_>, target: TargetValue, window: Window, now: Timestamp) -> Option<Flow> {
        let ready = seen.replicas.iter().filter(|replica| replica.ready <= i64::from(seen.now)).count();
        let replicas = u32::try_from(ready).unwrap_or(u32::MAX);
        match self {
            Self::Engines(meter) => {
                let in_hand = f64::from(seen.waiting) + f64::from(seen.running);
                // Those that begin to serve now have nothing in hand yet.
                let serving = seen.replicas.iter().filter(|replica| replica.ready < i64::from(seen.now));
                let full = f64::from(seen.running) / serving.count() as f64;
                let totals = Totals {
                    arrived: f64::from(seen.finished) + in_hand,
                    finished: seen.finished.into(),
                    waiting: seen.waiting.into(),
                    running: seen.running.into(),
                    replicas,
                    full: (seen.waiting > 0 && full.is_finite()).then_some(full),
                    tokens: 0.0,
                };
                meter.observe(totals, now);
                meter.flow(window)
            }
            Self::Server(server) => server
                .observe(seen, replicas)
                .and_then(|counts| server.meter.observe(counts, target, window, now)),
            Self::None => None,
        }
    }
}

impl Server {
    fn observe(&mut self, seen: &Seen<'_>, ready: u32) -> Option<TotalCounts> {
        if self.scrapes.back().is_none_or(|last| last.at + SCRAPED_EVERY <= seen.now) {
            let in_hand = f64::from(seen.waiting) + f64::from(seen.running);
            self.scrapes.push_back(Scrape { at: seen.now, in_hand, finished: seen.finished });
        }
        while self.scrapes.front().is_some_and(|first| first.at + RATE_WINDOW < seen.now) {
            self.scrapes.pop_front();
        }
        let (first, last) = (self.scrapes.front()?, self.scrapes.back()?);
        let (seconds, finished) = (last.at - first.at, last.finished.saturating_sub(first.finished));
        let finished_per_second = if seconds > 0 { f64::from(finished) / f64::from(seconds) } else { 0.0 };
        Some(TotalCounts { in_hand: last.in_hand, finished_per_second, ready })
    }
}

fn target(seen: &Seen<'_>) -> Target {
    let pod = |replica: &Replica| Pod {
        uid: replica.id.to_string(),
        created: at(replica.created),
        began: Some(at(replica.created)),
        ordinal: None,
        state: if replica.ready <= i64::from(seen.now) {
            PodState::Ready { since: at(replica.ready) }
        } else {
            PodState::Starting { since: at(replica.created) }
        },
        work: Work::Unknown,
    };
    let replicas = i32::try_from(seen.replicas.len()).unwrap_or(i32::MAX);
    Target {
        replicas,
        status_replicas: replicas,
        pods: seen.replicas.iter().map(pod).collect(),
        cold_start: None,
        flows: Vec::new(),
    }
}

/// Any moment will do.
fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH
        .saturating_add(SignedDuration::from_secs(1_700_000_000 + seconds))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        arrivals::Request,
        model::{self, ColdStart, Model, Outcome},
        quality::SHAPES,
    };

    #[test]
    fn a_manifest_is_refused_with_the_reason() {
        assert_eq!(scaler_of(SAMPLE, "five").unwrap().name, "five");
        for (from, to, words) in [
            ("kind: AIScaler", "kind: AIInference", "no AIScaler"),
            ("queue_depth", "gpu_util", "cannot be replayed"),
            ("queue_depth", "queue", "spec is not valid"),
            ("targetValue: 5", "targetValue: -5", "spec.targetValue"),
            ("minReplicas: 2", "minReplicas: 65", "the minimum of 65"),
            ("maxReplicas: 64", "maxReplicas: 1001", "above 1000"),
        ] {
            let text = SAMPLE.replace(from, to);
            let built = scaler_of(&text, "five").and_then(|scaler| Policy::scaler(&scaler).map(drop));
            let error = format!("{:#}", built.unwrap_err());
            assert!(error.contains(words), "{to}: {error}");
        }
    }

    #[test]
    fn requests_wait_less_for_a_latency_by_what_arrives_than_by_its_value() {
        let manifest = SAMPLE.replace("queue_depth, targetValue: 5", "latency, targetValue: 15000");
        let by_value = manifest
            .replace("deploymentName: chat", "deploymentName: chat, source: {prometheus: {query: x}}");
        let (mut shares, mut minutes) = (Vec::new(), Vec::new());
        for shape in SHAPES.iter() {
            let run = |manifest: &str| {
                let policy = Policy::scaler(&scaler_of(manifest, "latency").unwrap()).unwrap();
                model::run(&shape.model(60), &shape.requests(7), policy)
            };
            let (arrivals, value) = (run(&manifest), run(&by_value));
            let late = |outcome: &Outcome| outcome.beyond(10.0).max(0.001);
            let what = format!("{}: {} of {}", shape.name, late(&arrivals), late(&value));
            assert!(late(&arrivals) <= late(&value) * 1.25, "{what}");
            assert!(
                arrivals.turns <= value.turns + 20,
                "{what}: {} of {} turns",
                arrivals.turns,
                value.turns
            );
            shares.push(late(&arrivals) / late(&value));
            minutes.push(arrivals.replica_minutes / value.replica_minutes);
        }
        let mean = |of: &[f64]| (of.iter().map(|share| share.ln()).sum::<f64>() / of.len() as f64).exp();
        assert!(mean(&shares) <= 0.3 && mean(&minutes) <= 1.2, "{shares:?} {minutes:?}");
    }

    #[test]
    fn both_follow_a_burst_within_their_bounds_and_come_back() {
        let burst = |second: u32| if (300..420).contains(&second) { 12 } else { 2 };
        let of_second =
            |second| (0..burst(second)).map(move |_| Request { at: f64::from(second), takes: 5.0 });
        let requests: Vec<Request> = (0..900).flat_map(of_second).collect();
        let model = Model { slots: 5, cold_start: ColdStart::of(30), slowdown: 0.0 };
        let scaler = scaler_of(SAMPLE, "five").unwrap();
        for policy in [Policy::scaler(&scaler).unwrap(), Policy::hpa(&scaler).unwrap()] {
            let kind = policy.kind();
            let outcome = model::run(&model, &requests, policy);
            assert!((12..=64).contains(&outcome.most), "{kind}: {}", outcome.most);
            assert!(
                outcome.percentile(1.0) < 300.0 && outcome.turns >= 1,
                "{kind}: {}",
                outcome.percentile(1.0)
            );
            assert!(outcome.replica_minutes < 64.0 * 30.0, "{kind}: {}", outcome.replica_minutes);
        }
    }
}
