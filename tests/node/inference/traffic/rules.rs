//! Requests that a rule of the route leads: by a header to the candidate, and as copies. The candidate has no share.

use std::net::SocketAddr;

use serde_json::json;
use tests::{Scene, ask_until, inference::change, within};
use tokio::time::Instant;

use super::{asked, start_load};
use crate::{
    pods::report_within,
    store::{self, pods_of},
};

/// A header that leads to the candidate, and others that do not.
const CHOSEN: &str = "x-version: new";
const OTHERS: [&str; 3] = ["x-version: old", "x-other: new", "accept: */*"];
/// Requests with each header.
const EACH: usize = 10;
/// The load whose requests are copied.
const COPIED_SECONDS: u64 = 3;
/// The share of copies that may be missing, or of earlier requests: Envoy does not wait for their answers.
const LOST: f64 = 0.05;

/// Beside a share of 0 %.
pub(super) async fn a_header_leads_to_the_candidate(scene: &Scene<'_>, envoy: SocketAddr) {
    let matches = json!([{ "header": "x-version", "value": "new" }]);
    change(scene, "chat", json!({ "canary": { "match": matches } })).await;
    until_answered_by(envoy, CHOSEN, "2").await;
    for _ in 0..EACH {
        assert_eq!(asked(envoy, CHOSEN).await.0, "2");
        for other in OTHERS {
            assert_eq!(asked(envoy, other).await.0, "1", "{other}");
        }
    }
    change(scene, "chat", json!({ "canary": { "match": [] } })).await;
    until_answered_by(envoy, CHOSEN, "1").await;
}

/// Envoy takes a route over a moment after it was accepted.
async fn until_answered_by(envoy: SocketAddr, header: &str, revision: &str) {
    let until = Instant::now() + within();
    while asked(envoy, header).await.0 != revision {
        assert!(Instant::now() < until, "revision {revision} does not answer {header}");
    }
}

pub(super) async fn copies_reach_the_candidate_and_stable_answers(
    scene: &Scene<'_>,
    url: &str,
    envoy: SocketAddr,
) {
    let before = Answered::now(scene).await;
    change(scene, "chat", json!({ "canary": { "mirror": true } })).await;
    let until = Instant::now() + within();
    while Answered::now(scene).await.candidate == before.candidate {
        assert!(Instant::now() < until, "no copy has reached the candidate");
        assert_eq!(asked(envoy, CHOSEN).await.0, "1");
    }
    let before = Answered::now(scene).await;
    start_load(scene, "copied", url, COPIED_SECONDS).await;
    let report = report_within(scene, "copied", within()).await;
    let of_stable = json!({ "1": report["sent"] });
    assert_eq!((&report["failed"], &report["by_revision"]), (&json!(0), &of_stable), "{report}");
    // No client waits for the last copies.
    ask_until("as many copies as requests", within(), async || {
        let now = Answered::now(scene).await;
        let (stable, candidate) = (now.stable - before.stable, now.candidate - before.candidate);
        let is_close = stable.abs_diff(candidate) as f64 <= stable as f64 * LOST;
        if is_close && Some(stable) >= report["sent"].as_u64() {
            return Ok(());
        }
        Err(format!("{candidate} copies of {stable} requests; {report}"))
    })
    .await;
    change(scene, "chat", json!({ "canary": { "mirror": false } })).await;
}

/// Requests that have ended, by the counters of the engines.
struct Answered {
    stable: u64,
    candidate: u64,
}

impl Answered {
    async fn now(scene: &Scene<'_>) -> Self {
        let mut answered = Self { stable: 0, candidate: 0 };
        for pod in pods_of(scene, "chat").await {
            let is_candidate = pod.metadata.labels.iter().flatten().any(|(key, value)| {
                (key.as_str(), value.as_str()) == ("ai.infra.example.com/track", "canary")
            });
            let metrics = store::asked(scene, &pod, "metrics");
            let ended = metrics.lines().filter(|line| line.starts_with("vllm:request_success_total{"));
            let ended: u64 = ended.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
            *(if is_candidate { &mut answered.candidate } else { &mut answered.stable }) += ended;
        }
        answered
    }
}
