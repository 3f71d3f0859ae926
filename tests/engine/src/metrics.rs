//! Metrics under the names that scalers and dashboards know each engine by.

use crate::invocation::Engine;

/// What there is to tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) running: u64,
    pub(crate) succeeded: u64,
    pub(crate) refused: u64,
}

/// The text that Prometheus reads. Nobody ever waits in a queue of ours: every request begins at once.
pub(crate) fn text(engine: Engine, model: &str, counts: Counts) -> String {
    let Counts { running, succeeded, refused } = counts;
    let label = match engine {
        Engine::Vllm => format!("{{model_name=\"{model}\"}}"),
        Engine::Triton => format!("{{model=\"{model}\",version=\"1\"}}"),
        Engine::Tgi => String::new(),
    };
    let rows: &[(&str, &str, u64)] = match engine {
        Engine::Vllm => &[
            ("vllm:num_requests_running", "gauge", running),
            ("vllm:num_requests_waiting", "gauge", 0),
            ("vllm:kv_cache_usage_perc", "gauge", 0),
            ("vllm:num_preemptions_total", "counter", 0),
            ("vllm:request_success_total", "counter", succeeded),
        ],
        Engine::Triton => &[
            ("nv_inference_pending_request_count", "gauge", running),
            ("nv_inference_request_success", "counter", succeeded),
            ("nv_inference_request_failure", "counter", refused),
            ("nv_inference_queue_duration_us", "counter", 0),
        ],
        Engine::Tgi => &[
            ("tgi_batch_current_size", "gauge", running),
            ("tgi_queue_size", "gauge", 0),
            ("tgi_request_count", "counter", succeeded + refused),
            ("tgi_request_success", "counter", succeeded),
        ],
    };
    let mut text = String::new();
    for (name, kind, value) in rows {
        text.push_str(&format!("# TYPE {name} {kind}\n{name}{label} {value}\n"));
    }
    text
}
