//! An agent with two GPUs that have every reading.

use serde_json::{Value, json};
use tests::agent::{Agent, GPU, holding};

/// Every reading that the agent exports.
const READINGS: [&str; 21] = [
    "utilization",
    "memory_bandwidth_utilization",
    "memory_used",
    "memory_free",
    "memory_reserved",
    "memory_total",
    "power",
    "power_limit",
    "energy",
    "temperature",
    "memory_temperature",
    "core_clock",
    "memory_clock",
    "throttled",
    "ecc_corrected",
    "ecc_uncorrected",
    "bus_replays",
    "engine_active",
    "tensor_active",
    "memory_active",
    "cores_active",
];

/// A pod holds the first of them.
pub(crate) fn agent() -> Agent {
    let readings: Value = READINGS.iter().map(|name| ((*name).to_owned(), json!([1.0]))).collect();
    let devices = ["GPU-0", "GPU-1"]
        .map(|id| json!({ "id": id, "vendor": "nvidia", "model": "A100", "readings": readings }));
    let agent = Agent::replaying("node-1", &json!({ "devices": devices }));
    agent.kubelet.has(vec![holding("team", "chat-0", "engine", GPU, vec!["GPU-0".to_owned()])]);
    agent
}
