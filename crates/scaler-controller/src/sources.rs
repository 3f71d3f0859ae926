//! Where samples come from: Prometheus-compatible servers, the target's pods, and the metrics agents of their nodes.
//!
//! ```text
//!  Prometheus  prometheus_api ── query ──▶ Sample | Fault
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

pub use prometheus_api::Sample;

use pods::kept::Full;

pub mod agents;
pub(crate) mod answer;
pub mod engines;
pub mod pods;

pub(crate) const USER_AGENT: &str = concat!("scaler-controller/", env!("CARGO_PKG_VERSION"));

/// Why there is no sample. Every text of another program in it is one line, cut and printable; no variant holds a secret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Server(#[from] prometheus_api::Fault),

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
        for (fault, message) in [
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
