//! The engines, and what they call their load. Pure.
//!
//! | engine | waiting + running | p95 of whole requests | tokens |
//! |---|---|---|---|
//! | vLLM | gauges | histogram in seconds | counters, as they are processed |
//! | SGLang | gauges, if the server was started with `--enable-metrics` | histogram in seconds | counters, when a request ends |
//! | TGI | gauges, from the first request on | histogram in seconds | sums of histograms, when a request ends |
//! | Triton | one gauge of pending requests, without those that are executed | none by default | none |
//!
//! Names are those of the engines' own sources and manuals. Tokens are those of prompts and of answers. TGI and SGLang count
//! them when a request ends, so that their rate is uneven within one request's time.

use text::exposition::Exposition;

use crate::series::{Unusable, across_ranks};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    Vllm,
    Sglang,
    Tgi,
    Triton,
}

/// What an engine calls its load.
#[derive(Debug)]
pub struct Profile {
    pub engine: Engine,
    /// For messages.
    pub name: &'static str,
    /// Of all its metrics.
    prefix: &'static str,
    /// Gauges whose sum is the queue depth: of what waits and, if there are two, of what runs.
    pub requests: &'static [&'static str],
    /// A histogram in seconds.
    pub latency: Option<&'static str>,
    /// Counters whose sum is the number of tokens.
    pub tokens: &'static [&'static str],
}

/// In the order of recognition. Triton comes first, because its vLLM back end serves metrics of vLLM as well.
const PROFILES: [Profile; 4] = [
    Profile {
        engine: Engine::Triton,
        name: "Triton",
        prefix: "nv_inference_",
        requests: &["nv_inference_pending_request_count"],
        latency: None,
        tokens: &[],
    },
    Profile {
        engine: Engine::Vllm,
        name: "vLLM",
        prefix: "vllm:",
        requests: &["vllm:num_requests_waiting", "vllm:num_requests_running"],
        latency: Some("vllm:e2e_request_latency_seconds"),
        tokens: &["vllm:prompt_tokens_total", "vllm:generation_tokens_total"],
    },
    Profile {
        engine: Engine::Sglang,
        name: "SGLang",
        prefix: "sglang:",
        requests: &["sglang:num_queue_reqs", "sglang:num_running_reqs"],
        latency: Some("sglang:e2e_request_latency_seconds"),
        tokens: &["sglang:prompt_tokens_total", "sglang:generation_tokens_total"],
    },
    Profile {
        engine: Engine::Tgi,
        name: "TGI",
        prefix: "tgi_",
        requests: &["tgi_queue_size", "tgi_batch_current_size"],
        latency: Some("tgi_request_duration"),
        tokens: &["tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"],
    },
];

impl Engine {
    /// By the name that specs use.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "tgi" => Self::Tgi,
            "triton" => Self::Triton,
            _ => return None,
        })
    }

    /// By what a pod serves.
    pub fn of(read: &Exposition<'_>) -> Option<Self> {
        PROFILES.iter().find(|profile| read.has_prefix(profile.prefix)).map(|profile| profile.engine)
    }

    pub fn profile(self) -> &'static Profile {
        let [triton, vllm, sglang, tgi] = &PROFILES;
        match self {
            Self::Triton => triton,
            Self::Vllm => vllm,
            Self::Sglang => sglang,
            Self::Tgi => tgi,
        }
    }

    /// All of them, in the order of recognition.
    pub fn profiles() -> &'static [Profile] {
        &PROFILES
    }
}

impl Profile {
    /// Waiting and running. All gauges must be there: one alone may be 0 under load.
    pub fn in_hand(&self, read: &Exposition<'_>) -> Result<f64, (&'static str, Unusable)> {
        let mut requests = 0.0;
        for name in self.requests {
            requests += across_ranks(read, name).map_err(|why| (*name, why))?;
        }
        Ok(requests)
    }
}

/// The count of a histogram of whole requests is the number of those that were finished.
pub fn is_count(series: &str, histogram: &str) -> bool {
    series.strip_suffix("_count") == Some(histogram)
}

pub fn is_bucket(series: &str, histogram: &str) -> bool {
    series.strip_suffix("_bucket") == Some(histogram)
}
