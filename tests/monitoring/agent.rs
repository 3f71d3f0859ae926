//! An agent with two GPUs that have every reading.

use proto::metrics::v1::Metric;
use serde_json::{Value, json};
use tests::agent::{Agent, GPU, holding};

/// A pod holds the first of them.
pub(crate) fn agent() -> Agent {
    // The metrics of devices; a recording has no XID.
    let metrics = (1..100).filter_map(|number| Metric::try_from(number).ok());
    let metrics = metrics.filter(|metric| *metric != Metric::LastErrorCode);
    let readings: Value = metrics.map(|metric| (metric.name(), json!([1.0]))).collect();
    let devices = ["GPU-0", "GPU-1"]
        .map(|id| json!({ "id": id, "vendor": "nvidia", "model": "A100", "readings": readings }));
    let agent = Agent::replaying("node-1", &json!({ "devices": devices }));
    agent.kubelet.set_pods(vec![holding("team", "chat-0", "engine", GPU, vec!["GPU-0".to_owned()])]);
    agent
}
