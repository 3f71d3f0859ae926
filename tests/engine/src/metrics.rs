//! Metrics under the names that scalers and dashboards expect of each engine.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::invocation::Engine;

/// What is counted for one model.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) waiting: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    /// By the engine, while it worked on them.
    pub(crate) failed: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Of requests that ended, until their end.
    times: Times,
}

/// Of each answer.
const TOKENS: u64 = 10;

/// Ends of buckets in milliseconds, of vLLM's histogram of whole requests.
const BOUNDS: [u64; 12] = [10, 50, 100, 300, 500, 800, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];

/// How many took at most so long; the last one counts all.
#[derive(Debug, Default)]
struct Times([AtomicU64; BOUNDS.len() + 1]);

impl Times {
    fn note(&self, took: Duration) {
        let ends = BOUNDS.iter().map(|end| Duration::from_millis(*end)).chain([Duration::MAX]);
        for (end, count) in ends.zip(&self.0) {
            if took <= end {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Labels and counts.
    fn buckets(&self) -> Vec<(String, u64)> {
        let ends = BOUNDS.iter().map(|end| (*end as f64 / 1_000.0).to_string()).chain(["+Inf".to_owned()]);
        ends.zip(&self.0)
            .map(|(end, count)| (format!("le=\"{end}\""), count.load(Ordering::Relaxed)))
            .collect()
    }
}

impl Counters {
    pub(crate) fn ended(&self, is_failed: bool, took: Duration) {
        if is_failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.succeeded.fetch_add(1, Ordering::Relaxed);
        }
        self.times.note(took);
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

fn histogram(name: &'static str, times: &Times, count: u64) -> Metric {
    let mut series: Vec<_> =
        times.buckets().into_iter().map(|(label, count)| ("_bucket", label, count)).collect();
    series.push(("_count", String::new(), count));
    Metric { name, kind: "histogram", series }
}

fn metrics(engine: &Engine, counters: &Counters) -> Vec<Metric> {
    let Counters { waiting, running, succeeded, failed, refused, times } = counters;
    let [waiting, running, succeeded, failed, refused] =
        [waiting, running, succeeded, failed, refused].map(|count| count.load(Ordering::Relaxed));
    let ended = succeeded + failed;
    match engine {
        Engine::Vllm => {
            let by_reason = [("stop", succeeded), ("length", 0), ("abort", 0), ("error", failed)];
            let by_reason =
                by_reason.map(|(reason, count)| ("", format!("finished_reason=\"{reason}\""), count));
            vec![
                one("vllm:num_requests_running", "gauge", running),
                one("vllm:num_requests_waiting", "gauge", waiting),
                one("vllm:kv_cache_usage_perc", "gauge", 0),
                one("vllm:num_preemptions_total", "counter", 0),
                Metric { name: "vllm:request_success_total", kind: "counter", series: by_reason.into() },
                one("vllm:generation_tokens_total", "counter", succeeded * TOKENS),
                histogram("vllm:e2e_request_latency_seconds", times, ended),
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
            histogram("tgi_request_duration", times, ended),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::Triton;

    #[test]
    fn each_metric_has_one_type_and_a_row_per_model() {
        let counters = Counters::default();
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
        let counters = Counters::default();
        for (is_failed, milliseconds) in [(false, 20), (false, 400), (true, 400)] {
            counters.ended(is_failed, Duration::from_millis(milliseconds));
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
