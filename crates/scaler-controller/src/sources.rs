//! Where samples come from: Prometheus-compatible servers, the target's pods, and the metrics agents of their nodes.
//!
//! ```text
//!  Prometheus  promql ─▶ prometheus ── query ──▶ Sample | Fault
//!  pods        pods ── scrape ──▶ exposition ─▶ engines ─▶ Scraped ─▶ scrapes ─▶ Sample | Fault
//!  agents      metrics_client ── snapshots ──▶ agents ─▶ Answer
//! ```
//!
//! Servers and pods have one call that reads them once, and pure functions that judge what was read. Agents push
//! snapshots; `agents` only judges them, and returns the answer itself. When to call, how often
//! and for whom is decided elsewhere; nothing here starts a task, reads a clock or keeps a value longer than its rates need.
//!
//! A missing value is never zero: it is a [`Fault`], whose message names the object, the number and the fix. The latency of
//! an engine that says it has no requests is not missing: it is 0.

use std::time::Duration;

use engine_metrics::foreign;
use jiff::Timestamp;

use pods::kept::Full;

pub mod agents;
pub(crate) mod answer;
pub mod engines;
pub mod pods;
pub mod prometheus;
pub mod promql;

const USER_AGENT: &str = concat!("scaler-controller/", env!("CARGO_PKG_VERSION"));

/// A measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Finite. In the unit of the metric type; for a query as the query says.
    pub value: f64,
    /// When the value was true: the time at which a server evaluated the query, or at which a pod was scraped. It is never
    /// later than the time that the caller has passed as now.
    pub at: Timestamp,
    /// Why the value may be too low, in the words of the server: some of its data was missing. Such a value may add
    /// replicas, and removes none.
    pub caution: Option<String>,
}

/// Why there is no sample. Every text of another program in it is one line, cut and printable; no variant holds a secret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    // The answer was read, and has no value that can be used.
    // `or vector(0)` is not advised: it would make a zero of every outage of the exporter.
    #[error(
        "{server} has no series for the query in this namespace, to which the controller restricts it: correct the name of \
         the metric or its labels, or what the server scrapes"
    )]
    Empty { server: String },
    #[error("{origin} gave NaN: a division by zero, or a quantile without observations")]
    NotANumber { origin: String },
    #[error("{origin} gave {}infinity: a division by zero, or a quantile in the last bucket", if *.is_negative { "-" } else { "+" })]
    Infinite { origin: String, is_negative: bool },
    #[error("{server} gave {series} series where one is needed: aggregate them, as in sum(...)")]
    TooManySeries { server: String, series: usize },
    #[error("{server} gave {found} where one number is needed: {}", found.fix())]
    WrongResult { server: String, found: ResultKind },
    #[error("{server} evaluated the query {} s ago, which is more than {} s: a cache in front of it, or a wrong clock", .age.as_secs(), .limit.as_secs())]
    Stale { server: String, age: Duration, limit: Duration },

    // The server refused or failed.
    #[error("{server} refused the query with {status}: {why}")]
    Rejected { server: String, status: u16, why: String },
    #[error("{server} refused access with {status}: {}", access_fix(secret.as_deref()))]
    Unauthorized { server: String, status: u16, secret: Option<String> },
    #[error("{server} failed with {status}: {why}")]
    Failed { server: String, status: u16, why: String },
    #[error("{server} redirects to {to}, and redirects are not followed: use the address that answers")]
    Redirected { server: String, to: String },
    #[error("{server} did not answer within {} s", .limit.as_secs_f32())]
    Slow { server: String, limit: Duration },
    #[error("{server} cannot be reached: {why}{}", reach_fix(server))]
    Unreachable { server: String, why: String },
    #[error("{server} has no certificate that can be trusted: {why}; {}", trust_fix(secret.as_deref()))]
    Untrusted { server: String, why: String, secret: Option<String> },
    #[error(
        "{server} answered with more than {limit} bytes: too many series, or something else than metrics"
    )]
    TooLarge { server: String, limit: usize },
    #[error(
        "{server} answered with headers of more than {limit} bytes: remove headers that a proxy adds, or correct the address"
    )]
    HeadTooLarge { server: String, limit: usize },
    #[error(
        "{server} answered with {content}, not with {wanted}: a login page, or the address of something else"
    )]
    WrongContent { server: String, content: String, wanted: &'static str },

    // What the user or the configuration says cannot be used.
    #[error(
        "source.prometheus.url is not set, and the controller has no --prometheus-url (PROMETHEUS_URL): set one of them"
    )]
    NoServer,
    #[error("{url} is not a URL of a server ({why})")]
    InvalidUrl { url: String, why: &'static str },
    #[error(
        "{url} is not among the servers that --allowed-prometheus-urls of the controller allows: have it added, or leave \
         source.prometheus.url out"
    )]
    UrlNotAllowed { url: String },
    #[error(
        "{url} is not https, so a token would be sent in clear: use https, or start the controller with --tokens-over-http"
    )]
    TokenOverHttp { url: String },
    #[error("the query cannot be used: {0}")]
    InvalidQuery(promql::Refusal),
    #[error("the key {key} of Secret {secret} {why}")]
    InvalidSecret { secret: String, key: &'static str, why: &'static str },

    #[error("Secret {secret} does not exist: create it with the key {key}, or correct source.prometheus")]
    NoSecret { secret: String, key: &'static str },
    #[error("Secret {secret} has no key {key}: add it")]
    NoKey { secret: String, key: &'static str },
    #[error(
        "this controller may not read Secret {secret}: create a Role and a RoleBinding in that namespace that let it get this Secret"
    )]
    SecretForbidden { secret: String },
    #[error("Secret {secret} cannot be read: {why}")]
    SecretUnreadable { secret: String, why: String },

    // What a pod serves does not fit.
    #[error("pod {pod} does not serve {metric}{}", similar_names(similar))]
    NoSuchMetric { pod: String, metric: String, similar: Vec<String> },
    #[error("pod {pod} serves {metric} as a {}: {}", found.name(), wanted.fix())]
    WrongKind { pod: String, metric: String, found: text::exposition::Kind, wanted: WantedKind },
    #[error("pod {pod} serves no metrics of vLLM, SGLang, TGI or Triton: name one in source.pods")]
    UnknownEngine { pod: String },
    #[error("{engine} does not serve its {metric}: {instead}")]
    NotServed { engine: &'static str, metric: &'static str, instead: &'static str },
    #[error("pod {pod} has been scraped for less than 10 s: {metric} is what its counters gain in that time")]
    FirstScrape { pod: String, metric: String },
    #[error("pod {pod} has finished no request in {} s, so {metric} has no value", .within.as_secs())]
    NoRequests { pod: String, metric: String, within: Duration },
    #[error("pod {pod} serves more than {limit} series or lines: its values are incomplete")]
    TooManyMetrics { pod: String, limit: usize },
    #[error(
        "pod {pod} serves {metric} with more than {limit} sets of labels: aggregate it with source.prometheus"
    )]
    TooManyLabelSets { pod: String, metric: String, limit: usize },
    #[error("pod {pod} has the address {address}, which is not the address of a pod")]
    InvalidAddress { pod: String, address: String },
    #[error("more than {limit} pods are measured: {pod} is not")]
    TooManyPods { pod: String, limit: usize },
    #[error("the counters of pod {pod} are not kept, so they have no rate: {}", full_words(*full))]
    TooMuchKept { pod: String, full: Full },
}

/// What a server gave in the place of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    Matrix,
    Text,
    NativeHistogram,
    /// A word that the API does not have.
    Unknown,
}

impl ResultKind {
    fn fix(self) -> &'static str {
        match self {
            Self::Matrix => "remove the range of the outermost selector, or wrap it, as in sum(rate(x[5m]))",
            Self::Text => "the query is a string",
            Self::NativeHistogram => "wrap it, as in histogram_quantile(0.95, ...)",
            Self::Unknown => "it is not a Prometheus-compatible server",
        }
    }
}

impl std::fmt::Display for ResultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Matrix => "a range of values",
            Self::Text => "a string",
            Self::NativeHistogram => "a histogram",
            Self::Unknown => "an unknown type of result",
        })
    }
}

/// What a metric of a pod must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedKind {
    Gauge,
    CounterOrGauge,
    HistogramOrGauge,
}

impl WantedKind {
    fn fix(self) -> &'static str {
        match self {
            Self::Gauge => {
                "a gauge is needed, because its value is used as it is; for the rate of a counter, use source.prometheus"
            }
            Self::CounterOrGauge => "a counter is needed, or a gauge that is a rate per minute",
            Self::HistogramOrGauge => "a histogram is needed, or a gauge in milliseconds",
        }
    }
}

fn access_fix(secret: Option<&str>) -> String {
    match secret {
        Some(secret) => format!("correct the key token of Secret {secret}"),
        None => "name a Secret with its token in source.prometheus.secretName".to_owned(),
    }
}

fn trust_fix(secret: Option<&str>) -> String {
    match secret {
        Some(secret) => format!("correct the key ca.crt of Secret {secret}"),
        None => "name a Secret with its CA in source.prometheus.caSecretName".to_owned(),
    }
}

/// The server may be one that the user never wrote: that of the controller.
fn reach_fix(server: &str) -> &'static str {
    if server.starts_with("http") {
        "; correct source.prometheus.url, or --prometheus-url (PROMETHEUS_URL) of the controller"
    } else {
        ""
    }
}

fn full_words(full: Full) -> String {
    match full {
        Full::Namespace { limit } => format!(
            "those of its namespace take as much memory as they may ({} MiB); let fewer AIScalers of this namespace read \
             counters or histograms of pods, or read them by source.prometheus",
            limit >> 20
        ),
        Full::All { limit } => format!(
            "those of all namespaces take most of the memory that they may ({} MiB), and what is left is for namespaces that \
             have less; let fewer AIScalers read counters or histograms of pods, or read them by source.prometheus",
            limit >> 20
        ),
    }
}

fn similar_names(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!("; it serves {}", similar.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_object_the_number_and_the_fix() {
        let server = || "http://prometheus:9090".to_owned();
        for (fault, message) in [
            (
                Fault::TooManySeries { server: server(), series: 3 },
                "http://prometheus:9090 gave 3 series where one is needed: aggregate them, as in sum(...)",
            ),
            (
                Fault::Unauthorized { server: server(), status: 401, secret: Some("demo/prom".into()) },
                "http://prometheus:9090 refused access with 401: correct the key token of Secret demo/prom",
            ),
            (
                Fault::Infinite { origin: server(), is_negative: true },
                "http://prometheus:9090 gave -infinity: a division by zero, or a quantile in the last bucket",
            ),
            (
                Fault::NoSuchMetric {
                    pod: "demo/llm-0".into(),
                    metric: "vllm:num_request_waiting".into(),
                    similar: vec!["vllm:num_requests_waiting".into()],
                },
                "pod demo/llm-0 does not serve vllm:num_request_waiting; it serves vllm:num_requests_waiting",
            ),
            (
                Fault::WrongKind {
                    pod: "demo/llm-0".into(),
                    metric: "x_total".into(),
                    found: text::exposition::Kind::Counter,
                    wanted: WantedKind::Gauge,
                },
                "pod demo/llm-0 serves x_total as a counter: a gauge is needed, because its value is used as it is; for \
                 the rate of a counter, use source.prometheus",
            ),
            (
                Fault::TooMuchKept { pod: "demo/llm-0".into(), full: Full::Namespace { limit: 16 << 20 } },
                "the counters of pod demo/llm-0 are not kept, so they have no rate: those of its namespace take as much \
                 memory as they may (16 MiB); let fewer AIScalers of this namespace read counters or histograms of pods, or \
                 read them by source.prometheus",
            ),
            (
                Fault::TooMuchKept { pod: "demo/llm-0".into(), full: Full::All { limit: 64 << 20 } },
                "the counters of pod demo/llm-0 are not kept, so they have no rate: those of all namespaces take most of the \
                 memory that they may (64 MiB), and what is left is for namespaces that have less; let fewer AIScalers read \
                 counters or histograms of pods, or read them by source.prometheus",
            ),
        ] {
            assert_eq!(fault.to_string(), message);
        }
    }
}
