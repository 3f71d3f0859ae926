//! Metrics under the names that scalers and dashboards expect of each engine.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::invocation::Engine;

/// What is counted for one model.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) waiting: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Of each answer.
const TOKENS: u64 = 10;

/// Name, type and value.
type Row = (&'static str, &'static str, u64);

/// The text that Prometheus reads; without a model there is none.
pub(crate) fn text<'a>(engine: &Engine, models: impl Iterator<Item = (&'a str, &'a Counters)>) -> String {
    let models: Vec<(String, Vec<Row>)> =
        models.map(|(name, counters)| (label(engine, name), rows(engine, counters))).collect();
    let Some((_, first)) = models.first() else { return String::new() };
    let mut text = String::new();
    for (number, (name, kind, _)) in first.iter().enumerate() {
        text.push_str(&format!("# TYPE {name} {kind}\n"));
        let suffix = if *kind == HISTOGRAM { "_count" } else { "" };
        for (label, rows) in &models {
            text.push_str(&format!("{name}{suffix}{label} {}\n", rows[number].2));
        }
    }
    text
}

/// Of whose parts the count alone is served.
const HISTOGRAM: &str = "histogram";

fn label(engine: &Engine, model: &str) -> String {
    match engine {
        Engine::Vllm => format!("{{model_name=\"{model}\"}}"),
        Engine::Triton(_) => format!("{{model=\"{model}\",version=\"1\"}}"),
        Engine::Tgi => String::new(),
    }
}

fn rows(engine: &Engine, counters: &Counters) -> Vec<Row> {
    let [waiting, running, succeeded, refused] =
        [&counters.waiting, &counters.running, &counters.succeeded, &counters.refused]
            .map(|count| count.load(Ordering::Relaxed));
    match engine {
        Engine::Vllm => vec![
            ("vllm:num_requests_running", "gauge", running),
            ("vllm:num_requests_waiting", "gauge", waiting),
            ("vllm:kv_cache_usage_perc", "gauge", 0),
            ("vllm:num_preemptions_total", "counter", 0),
            ("vllm:request_success_total", "counter", succeeded),
            ("vllm:generation_tokens_total", "counter", succeeded * TOKENS),
            ("vllm:e2e_request_latency_seconds", HISTOGRAM, succeeded),
        ],
        Engine::Triton(_) => vec![
            // Without the one that a single instance executes.
            ("nv_inference_pending_request_count", "gauge", waiting + running.saturating_sub(1)),
            ("nv_inference_request_success", "counter", succeeded),
            ("nv_inference_request_failure", "counter", refused),
            ("nv_inference_queue_duration_us", "counter", 0),
        ],
        Engine::Tgi => vec![
            ("tgi_batch_current_size", "gauge", running),
            ("tgi_queue_size", "gauge", waiting),
            ("tgi_request_count", "counter", succeeded + refused),
            ("tgi_request_success", "counter", succeeded),
            ("tgi_request_duration", HISTOGRAM, succeeded),
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
        let counters = Counters { succeeded: AtomicU64::new(3), ..Counters::default() };
        let text = text(&Engine::Tgi, std::iter::once(("", &counters)));
        assert!(
            text.contains("# TYPE tgi_request_duration histogram\ntgi_request_duration_count 3\n"),
            "{text}"
        );
    }
}
