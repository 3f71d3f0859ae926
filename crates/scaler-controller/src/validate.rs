//! From a spec to types that cannot be wrong, or to the condition that says what to correct. Pure.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use api::aiscaler::{AIScaler, Algorithm, MetricType, Mode, Source};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use prometheus_api::promql::{self, Query};
use scaling::{
    behavior::InvalidBehavior,
    policy::{Arrivals, Bounds, Extras, Fallback, InvalidPolicy, Kind, Metric, Policy},
};

use crate::{
    sources::{
        Fault,
        agents::GpuReading,
        engines::{Load, Meaning, Wanted},
    },
    target::Reference,
};

pub(crate) mod validities;

/// A spec whose values are in range and whose sources can be asked.
#[derive(Clone, Debug)]
pub(crate) struct ValidScaler {
    pub(crate) scaler: Arc<AIScaler>,
    pub(crate) reference: Reference,
    pub(crate) policy: Policy,
    /// One per metric of the policy.
    pub(crate) sources: Vec<MetricSource>,
    pub(crate) mode: Mode,
    pub(crate) is_paused: bool,
}

impl ValidScaler {
    /// Whether the metric of this number is a queue of which is known what arrives.
    pub(crate) fn follows_arrivals(&self, index: usize) -> bool {
        let counts = match self.sources.get(index) {
            Some(MetricSource::Pods { wanted, .. }) => wanted.may_count_requests(),
            Some(MetricSource::Prometheus(query)) => query.completions.is_some(),
            Some(MetricSource::Agents(_)) | None => false,
        };
        counts && self.counts_arrivals()
    }

    fn counts_arrivals(&self) -> bool {
        self.policy.extras.arrivals == Arrivals::Counted
    }

    /// Whether the metric of this number is a queue of which a server would know what arrives if it were asked.
    pub(crate) fn lacks_completions(&self, index: usize) -> bool {
        let is_queue = self.policy.metrics.get(index).is_some_and(|metric| metric.kind == Kind::QueueDepth);
        let is_asked = match self.sources.get(index) {
            Some(MetricSource::Prometheus(query)) => query.completions.is_some(),
            Some(MetricSource::Pods { .. } | MetricSource::Agents(_)) | None => true,
        };
        is_queue && !is_asked && self.counts_arrivals()
    }
}

/// Where the values of one metric come from.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum MetricSource {
    Prometheus(PrometheusQuery),
    Pods {
        port: ScrapePort,
        path: String,
        wanted: Wanted,
    },
    /// The metrics agents of the nodes.
    Agents(GpuReading),
}

impl MetricSource {
    /// The counters that a query, or else its completionsQuery, uses as if they were gauges.
    pub(crate) fn bare_counters(&self) -> &[String] {
        match self {
            Self::Prometheus(query) => match query.query.bare_counters() {
                [] => query.completions.as_ref().map_or(&[], Query::bare_counters),
                counters => counters,
            },
            Self::Pods { .. } | Self::Agents(_) => &[],
        }
    }

    /// What agents are to report, if they are the source.
    pub(crate) fn of_agents(&self) -> Option<GpuReading> {
        match self {
            Self::Agents(wanted) => Some(*wanted),
            Self::Prometheus(_) | Self::Pods { .. } => None,
        }
    }
}

/// A query to one server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrometheusQuery {
    /// `None`: the configured server.
    pub(crate) url: Option<String>,
    pub(crate) query: Query,
    /// Requests that are finished per second.
    pub(crate) completions: Option<Query>,
    pub(crate) secret: Option<String>,
    pub(crate) ca_secret: Option<String>,
}

/// Without `completions` as before there was such a field, so that the histories of before go on.
impl Hash for PrometheusQuery {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { url, query, completions, secret, ca_secret } = self;
        (url, query, secret, ca_secret).hash(state);
        if let Some(completions) = completions {
            completions.hash(state);
        }
    }
}

/// Where a pod serves its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScrapePort {
    Number(u16),
    /// The port that the engine has by convention: the one with a known name, or the first.
    OfEngine,
}

/// Why a spec cannot be used. Each message names the field and the fix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("spec: {0}; correct it")]
    Policy(#[from] InvalidPolicy),
    #[error("spec.behavior: {0}; correct it")]
    Behavior(#[from] InvalidBehavior),
    #[error("{field}: {fault}")]
    Source { field: String, fault: Fault },
    #[error("{field}: a metric of type custom needs a source; name one")]
    NoSource { field: String },
}

/// What the controller's configuration allows.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    /// Rules beyond those of the HorizontalPodAutoscaler.
    pub(crate) extras: Extras,
    pub(crate) scope: promql::Scope,
}

/// A server's clock may be two minutes behind (`prometheus_api::client::Limits`), and the sample is used until the next one.
const SERVER_AGE: Duration = Duration::from_mins(3);

pub(crate) fn validate(scaler: &Arc<AIScaler>, allowed: &Allowed) -> Result<ValidScaler, Invalid> {
    let spec = &scaler.spec;
    let reference = Reference::of(spec);
    let namespace = scaler.metadata.namespace.as_deref().unwrap_or_default();
    let target = promql::Target { namespace, name: &reference.name };
    let first = (spec.metric_type, &spec.target_value, spec.source.as_ref());
    let others = spec.additional_metrics.iter();
    let others = others.map(|metric| (metric.metric_type, &metric.target_value, metric.source.as_ref()));
    let mut metrics = Vec::new();
    let mut sources = Vec::new();
    for (index, (kind, value, source)) in std::iter::once(first).chain(others).enumerate() {
        let field = match index {
            0 => "spec.source".to_owned(),
            index => format!("spec.additionalMetrics[{}].source", index - 1),
        };
        let source = metric_source(kind, source, target, allowed, &field)?;
        metrics.push(named_metric(index, kind, value, &source, &reference)?);
        sources.push(source);
    }
    let policy = Policy {
        bounds: Bounds::new(spec.min_replicas, spec.max_replicas)?,
        metrics,
        behavior: scaling::spec::behavior(spec.behavior.as_ref())?,
        fallback: spec
            .fallback
            .as_ref()
            .map(|fallback| Fallback { after: seconds(fallback.after_seconds), replicas: fallback.replicas }),
        extras: match spec.algorithm {
            Algorithm::Auto => allowed.extras,
            Algorithm::Ratio => Extras::none(),
        },
    };
    let (mode, is_paused) = (spec.mode, spec.paused);
    Ok(ValidScaler { scaler: Arc::clone(scaler), reference, policy, sources, mode, is_paused })
}

/// The name is that of the history: a metric with another source, and one of another target, has another past. A release
/// that hashes differently begins it anew.
fn named_metric(
    index: usize,
    metric_type: MetricType,
    value: &Quantity,
    source: &MetricSource,
    target: &Reference,
) -> Result<Metric, Invalid> {
    let kind = match metric_type {
        MetricType::QueueDepth => Kind::QueueDepth,
        MetricType::GpuUtil => Kind::GpuUtil,
        MetricType::GpuMemory => Kind::GpuMemory,
        MetricType::Latency => Kind::Latency,
        MetricType::TokensPerMinute => Kind::TokensPerMinute,
        MetricType::Custom => Kind::Custom,
    };
    let mut hasher = DefaultHasher::new();
    (source, target.identity()).hash(&mut hasher);
    let name = format!("{index}:{}:{:08x}", word(kind), hasher.finish() as u32);
    let metric = Metric::new(&name, kind, scaling::spec::target_value(&value.0)?);
    Ok(match source {
        // Its time is the server's.
        MetricSource::Prometheus(_) => Metric { max_age: SERVER_AGE, ..metric },
        MetricSource::Pods { .. } | MetricSource::Agents(_) => metric,
    })
}

fn metric_source(
    kind: MetricType,
    source: Option<&Source>,
    target: promql::Target<'_>,
    allowed: &Allowed,
    field: &str,
) -> Result<MetricSource, Invalid> {
    let Some(source) = source else { return default_source(kind, field) };
    if let Some(prometheus) = &source.prometheus {
        let parse = |name: &str, text: &str| {
            Query::parse(text, target, allowed.scope).map_err(|refusal| Invalid::Source {
                field: format!("{field}.prometheus.{name}"),
                fault: Fault::Server(prometheus_api::Fault::InvalidQuery(refusal)),
            })
        };
        let completions = prometheus.completions_query.as_deref();
        return Ok(MetricSource::Prometheus(PrometheusQuery {
            url: prometheus.url.clone(),
            query: parse("query", &prometheus.query)?,
            completions: completions.map(|text| parse("completionsQuery", text)).transpose()?,
            secret: prometheus.secret_name.clone(),
            ca_secret: prometheus.ca_secret_name.clone(),
        }));
    }
    match &source.pods {
        Some(pods) => Ok(MetricSource::Pods {
            // The API server accepts 1 to 65535.
            port: u16::try_from(pods.port).map_or(ScrapePort::OfEngine, ScrapePort::Number),
            path: pods.path.clone(),
            wanted: Wanted::Named(pods.metric.clone(), meaning(kind)),
        }),
        None => default_source(kind, field),
    }
}

fn default_source(kind: MetricType, field: &str) -> Result<MetricSource, Invalid> {
    let engine = |load| {
        Ok(MetricSource::Pods {
            port: ScrapePort::OfEngine,
            path: "/metrics".to_owned(),
            wanted: Wanted::OfEngine(None, load),
        })
    };
    match kind {
        MetricType::GpuUtil => Ok(MetricSource::Agents(GpuReading::Utilization)),
        MetricType::GpuMemory => Ok(MetricSource::Agents(GpuReading::Memory)),
        MetricType::QueueDepth => engine(Load::QueueDepth),
        MetricType::Latency => engine(Load::Latency),
        MetricType::TokensPerMinute => engine(Load::TokensPerMinute),
        MetricType::Custom => Err(Invalid::NoSource { field: field.to_owned() }),
    }
}

/// As the spec has it.
pub(crate) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::QueueDepth => "queue_depth",
        Kind::GpuUtil => "gpu_util",
        Kind::GpuMemory => "gpu_memory",
        Kind::Latency => "latency",
        Kind::TokensPerMinute => "tokens_per_minute",
        Kind::Custom => "custom",
        // Of AIDispatchers, whose tasks are no metric of a spec.
        Kind::TasksAndBusyWorkers | Kind::TasksOnly => "tasks",
    }
}

/// How a metric that the user names is read.
fn meaning(kind: MetricType) -> Meaning {
    match kind {
        MetricType::QueueDepth | MetricType::GpuUtil | MetricType::GpuMemory | MetricType::Custom => {
            Meaning::Level
        }
        MetricType::TokensPerMinute => Meaning::PerMinute,
        MetricType::Latency => Meaning::P95Milliseconds,
    }
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Allowed = Allowed { extras: Extras::all(), scope: promql::Scope::Namespace };

    /// Which of the metrics follow arrivals.
    fn follows(fields: &str, allowed: &Allowed) -> Vec<bool> {
        let text = format!(
            "{{apiVersion: ai.infra.example.com/v1, kind: AIScaler, metadata: {{name: chat, namespace: demo}}, spec: \
             {{deploymentName: chat, targetValue: 5, maxReplicas: 10, {fields}}}}}"
        );
        let valid = validate(&Arc::new(serde_saphyr::from_str(&text).unwrap()), allowed).unwrap();
        (0..valid.sources.len()).map(|index| valid.follows_arrivals(index)).collect()
    }

    #[test]
    fn the_load_of_engines_follows_arrivals_unless_the_ratio_is_asked_for() {
        let more = "[{metricType: latency, targetValue: 900}, {metricType: tokens_per_minute, targetValue: 9000}, {metricType: \
                    gpu_util, targetValue: 80}]";
        let queue = format!("metricType: queue_depth, additionalMetrics: {more}");
        assert_eq!(follows(&queue, &ALLOWED), [true, true, true, false]);
        assert_eq!(follows(&format!("{queue}, algorithm: Auto"), &ALLOWED), [true, true, true, false]);
        assert_eq!(follows(&format!("{queue}, algorithm: Ratio"), &ALLOWED), [false; 4]);
        let hpa_alone = Allowed { extras: Extras::none(), ..ALLOWED };
        assert_eq!(follows(&queue, &hpa_alone), [false; 4]);
        for source in
            ["pods: {port: 80, path: /metrics, metric: waiting}", "prometheus: {query: sum(waiting)}"]
        {
            assert_eq!(
                follows(&format!("metricType: queue_depth, source: {{{source}}}"), &ALLOWED),
                [false],
                "{source}"
            );
        }
        let counted = "metricType: queue_depth, source: {prometheus: {query: sum(waiting), completionsQuery: sum(done)}}";
        assert_eq!(follows(counted, &ALLOWED), [true]);
        assert_eq!(follows(&format!("{counted}, algorithm: Ratio"), &ALLOWED), [false]);
    }

    #[test]
    fn a_completions_query_is_restricted_as_the_other_one() {
        let text = "apiVersion: ai.infra.example.com/v1\nkind: AIScaler\nmetadata: {name: chat, namespace: demo}\n\
                    spec: {deploymentName: chat, metricType: queue_depth, targetValue: 5, maxReplicas: 10, \
                    source: {prometheus: {query: sum(a), completionsQuery: 'sum(b{namespace=\"other\"})'}}}";
        let refused = validate(&Arc::new(serde_saphyr::from_str(text).unwrap()), &ALLOWED).unwrap_err();
        assert!(refused.to_string().starts_with("spec.source.prometheus.completionsQuery: "), "{refused}");
    }
}
