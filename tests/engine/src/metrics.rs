//! Metrics under the names that scalers and dashboards expect of each engine.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::invocation::Engine;

/// What is counted for one model.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) waiting: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Requests that it worked on, by how they ended.
    ended: [AtomicU64; ENDS.len()],
    /// Until the first token.
    first_token: Times,
    /// Until the end.
    whole_request: Times,
}

/// How a request ends that the engine works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    /// The client hung up.
    Abort,
    Error,
    Repetition,
}

/// In the order of the counters.
const ENDS: [End; 4] = [End::Stop, End::Abort, End::Error, End::Repetition];

impl End {
    /// As newer versions of vLLM call it.
    fn reason(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Abort => "abort",
            Self::Error => "error",
            Self::Repetition => "repetition",
        }
    }
}

/// Of each answer.
const TOKENS: u64 = 10;

/// Ends of buckets in milliseconds, of vLLM's histogram of whole requests.
const OF_REQUESTS: &[u64] = &[10, 50, 100, 300, 500, 800, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];
/// Of its histogram of first tokens.
const OF_FIRST_TOKENS: &[u64] =
    &[1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000];
/// Of an engine that has none in common with vLLM.
const OTHERS: &[u64] = &[15, 150, 1_500, 15_000];

/// Which buckets an engine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Buckets {
    #[default]
    Vllm,
    Other,
}

/// How many took at most so long; the last one counts all.
#[derive(Debug)]
struct Times {
    bounds: &'static [u64],
    counts: Vec<AtomicU64>,
}

impl Times {
    fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::default()).collect() }
    }

    fn note(&self, took: Duration) {
        let ends = self.bounds.iter().map(|end| Duration::from_millis(*end)).chain([Duration::MAX]);
        for (end, count) in ends.zip(&self.counts) {
            if took <= end {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Labels and counts.
    fn buckets(&self) -> Vec<(String, u64)> {
        let ends =
            self.bounds.iter().map(|end| (*end as f64 / 1_000.0).to_string()).chain(["+Inf".to_owned()]);
        ends.zip(&self.counts)
            .map(|(end, count)| (format!("le=\"{end}\""), count.load(Ordering::Relaxed)))
            .collect()
    }

    fn all(&self) -> u64 {
        self.counts.last().map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

impl Counters {
    pub(crate) fn new(buckets: Buckets) -> Self {
        let (first_token, whole_request) = match buckets {
            Buckets::Vllm => (OF_FIRST_TOKENS, OF_REQUESTS),
            Buckets::Other => (OTHERS, OTHERS),
        };
        Self {
            waiting: AtomicU64::default(),
            running: AtomicU64::default(),
            refused: AtomicU64::default(),
            ended: Default::default(),
            first_token: Times::new(first_token),
            whole_request: Times::new(whole_request),
        }
    }

    /// How many have ended.
    pub(crate) fn all_ended(&self) -> u64 {
        self.ended.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn first_token(&self, took: Duration) {
        self.first_token.note(took);
    }

    pub(crate) fn ended(&self, end: End, took: Duration) {
        for (known, count) in ENDS.iter().zip(&self.ended) {
            if *known == end {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.whole_request.note(took);
    }

    fn of(&self, end: End) -> u64 {
        let mut counts = ENDS.iter().zip(&self.ended);
        counts.find(|(known, _)| **known == end).map_or(0, |(_, count)| count.load(Ordering::Relaxed))
    }
}

/// A metric of one model: name, type, and its series with a suffix of the name, a label and a value.
struct Metric {
    name: &'static str,
    kind: &'static str,
    series: Vec<(&'static str, String, u64)>,
}

/// The text that Prometheus reads; without a model there is none.
pub(crate) fn text<'a>(engine: &Engine, models: impl Iterator<Item = (&'a str, &'a Counters)>) -> String {
    let models: Vec<(String, Vec<Metric>)> =
        models.map(|(name, counters)| (label(engine, name), metrics(engine, counters))).collect();
    let Some((_, first)) = models.first() else { return String::new() };
    let mut text = String::new();
    for (number, Metric { name, kind, .. }) in first.iter().enumerate() {
        text.push_str(&format!("# TYPE {name} {kind}\n"));
        for (of_model, metrics) in &models {
            for (suffix, label, value) in &metrics[number].series {
                let labels: Vec<&str> = [of_model.as_str(), label.as_str()]
                    .into_iter()
                    .filter(|label| !label.is_empty())
                    .collect();
                let labels =
                    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                text.push_str(&format!("{name}{suffix}{labels} {value}\n"));
            }
        }
    }
    text
}

fn label(engine: &Engine, model: &str) -> String {
    match engine {
        Engine::Vllm => format!("model_name=\"{model}\""),
        Engine::Triton(_) => format!("model=\"{model}\",version=\"1\""),
        Engine::Tgi => String::new(),
    }
}

fn one(name: &'static str, kind: &'static str, value: u64) -> Metric {
    Metric { name, kind, series: vec![("", String::new(), value)] }
}

fn histogram(name: &'static str, times: &Times) -> Metric {
    let mut series: Vec<_> =
        times.buckets().into_iter().map(|(label, count)| ("_bucket", label, count)).collect();
    series.push(("_count", String::new(), times.all()));
    Metric { name, kind: "histogram", series }
}

fn metrics(engine: &Engine, counters: &Counters) -> Vec<Metric> {
    let Counters { waiting, running, refused, ended: _, first_token, whole_request } = counters;
    let [waiting, running, refused] = [waiting, running, refused].map(|count| count.load(Ordering::Relaxed));
    let (failed, ended) = (counters.of(End::Error), counters.all_ended());
    let succeeded = ended - failed;
    match engine {
        Engine::Vllm => {
            let by_reason =
                ENDS.map(|end| ("", format!("finished_reason=\"{}\"", end.reason()), counters.of(end)));
            vec![
                one("vllm:num_requests_running", "gauge", running),
                one("vllm:num_requests_waiting", "gauge", waiting),
                one("vllm:kv_cache_usage_perc", "gauge", 0),
                one("vllm:num_preemptions_total", "counter", 0),
                Metric { name: "vllm:request_success_total", kind: "counter", series: by_reason.into() },
                one("vllm:generation_tokens_total", "counter", succeeded * TOKENS),
                histogram("vllm:time_to_first_token_seconds", first_token),
                histogram("vllm:e2e_request_latency_seconds", whole_request),
            ]
        }
        Engine::Triton(_) => vec![
            // Without the one that a single instance executes.
            one("nv_inference_pending_request_count", "gauge", waiting + running.saturating_sub(1)),
            one("nv_inference_request_success", "counter", succeeded),
            one("nv_inference_request_failure", "counter", refused + failed),
            one("nv_inference_queue_duration_us", "counter", 0),
        ],
        Engine::Tgi => vec![
            one("tgi_batch_current_size", "gauge", running),
            one("tgi_queue_size", "gauge", waiting),
            one("tgi_request_count", "counter", ended + refused),
            one("tgi_request_success", "counter", succeeded),
            one("tgi_request_failure", "counter", failed),
            histogram("tgi_request_duration", whole_request),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::Triton;

    #[test]
    fn each_metric_has_one_type_and_a_row_per_model() {
        let counters = Counters::new(Buckets::Vllm);
        let engine = Engine::Triton(Triton::default());
        let text = text(&engine, [("a", &counters), ("b", &counters)].into_iter());
        assert!(
            text.contains(
                "# TYPE nv_inference_request_success counter\n\
                 nv_inference_request_success{model=\"a\",version=\"1\"} 0\n\
                 nv_inference_request_success{model=\"b\",version=\"1\"} 0\n"
            ),
            "{text}"
        );
        assert_eq!(text.matches("# TYPE").count(), 4);
    }

    #[test]
    fn finished_requests_are_the_count_of_a_histogram() {
        let counters = Counters::new(Buckets::Vllm);
        for (end, milliseconds) in [(End::Stop, 20), (End::Stop, 400), (End::Error, 400)] {
            counters.ended(end, Duration::from_millis(milliseconds));
        }
        let of_tgi = text(&Engine::Tgi, std::iter::once(("", &counters)));
        for line in [
            "_bucket{le=\"0.01\"} 0",
            "_bucket{le=\"0.05\"} 1",
            "_bucket{le=\"0.5\"} 3",
            "_bucket{le=\"+Inf\"} 3",
            "_count 3",
        ] {
            assert!(of_tgi.contains(&format!("\ntgi_request_duration{line}\n")), "{line}: {of_tgi}");
        }
        let of_vllm = text(&Engine::Vllm, std::iter::once(("a", &counters)));
        let errors = "vllm:request_success_total{model_name=\"a\",finished_reason=\"error\"} 1\n";
        assert!(of_vllm.contains(errors), "{of_vllm}");
    }
}
