//! Stand-ins for the metrics of engines of simulated pods, each on the address of its pod. They count requests that nothing
//! sends.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{WatchEvent, WatchParams},
};
use scripted_server::answer_scrapes;
use tokio::{net::TcpListener, task::JoinSet, time::Instant};

use crate::Scene;

/// The port of vLLM.
const PORT: u16 = 8000;
/// What each engine ends in a second, in requests.
pub const REQUESTS_PER_SECOND: u64 = 20;

/// What an engine has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Engine {
    /// Percent of its requests.
    pub errors: u64,
    pub repetitions: u64,
    /// Milliseconds until the first token of each request.
    pub first_token: u64,
    /// Its histograms end at other times than those of vLLM.
    pub has_other_buckets: bool,
    /// After so many requests its counters begin at 0 again, once.
    pub resets_after: Option<u64>,
}

/// In milliseconds, some of vLLM's histogram of first tokens.
const BUCKETS: &[u64] = &[1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000];
/// They have none in common with vLLM.
const OTHER_BUCKETS: &[u64] = &[15, 150, 1_500, 15_000];

impl Engine {
    /// As a good version answers.
    pub const GOOD: Self =
        Self { errors: 0, repetitions: 0, first_token: 80, has_other_buckets: false, resets_after: None };

    /// The metrics after so many requests.
    fn page(self, requests: u64) -> String {
        let ended = self.resets_after.and_then(|after| requests.checked_sub(after)).unwrap_or(requests);
        let (errors, repetitions) = (ended * self.errors / 100, ended * self.repetitions / 100);
        let good = ended - errors - repetitions;
        let reasons = [("stop", good), ("abort", 0), ("error", errors), ("repetition", repetitions)];
        let mut page: String = reasons
            .iter()
            .map(|(reason, count)| {
                format!(
                    "vllm:request_success_total{{finished_reason=\"{reason}\",model_name=\"m\"}} {count}\n"
                )
            })
            .collect();
        let first_token = "vllm:time_to_first_token_seconds_bucket";
        for end in if self.has_other_buckets { OTHER_BUCKETS } else { BUCKETS } {
            let fast = if self.first_token <= *end { ended } else { 0 };
            let end = *end as f64 / 1_000.0;
            page.push_str(&format!("{first_token}{{le=\"{end}\",model_name=\"m\"}} {fast}\n"));
        }
        page.push_str(&format!("{first_token}{{le=\"+Inf\",model_name=\"m\"}} {ended}\n"));
        page + "vllm:num_requests_running{model_name=\"m\"} 1\nvllm:num_requests_waiting{model_name=\"m\"} 0\n"
    }
}

/// Serves the metrics of each pod of the namespace, as `of` says. It does not end. Only in a network that has their addresses:
/// see [`crate::in_own_network`].
pub async fn serve(scene: &Scene<'_>, of: impl Fn(&Pod) -> Engine) {
    let pods = scene.api::<Pod>();
    let (mut served, mut servers) = (BTreeSet::new(), JoinSet::new());
    let mut from = "0".to_owned();
    loop {
        let events = pods.watch(&WatchParams::default(), &from).await.expect("a watch of pods");
        futures::pin_mut!(events);
        while let Some(event) = events.try_next().await.expect("a watch that does not break") {
            let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
            from = pod.resource_version().unwrap_or_default();
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref());
            let address: Option<IpAddr> = address.and_then(|address| address.parse().ok());
            let Some(address) = address else { continue };
            if served.insert(pod.metadata.uid.clone()) {
                let listener = TcpListener::bind(SocketAddr::new(address, PORT)).await;
                let listener = listener.expect("the port of the engine is free");
                let (engine, began) = (of(&pod), Instant::now());
                servers.spawn(answer_scrapes(listener, move |_| {
                    engine.page(REQUESTS_PER_SECOND * began.elapsed().as_secs())
                }));
            }
        }
    }
}
