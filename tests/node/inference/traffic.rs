//! Two versions behind a real gateway: Contour and Envoy send requests to engines on real nodes, and the engines' own counters
//! decide which version stays.

mod bad_engines;
mod calls;
mod rules;

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use api::{
    aiinference::{AIInference, traffic::CanaryPhase},
    conditions,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tests::{
    Scene,
    gateway::{
        contour::{Contour, GATEWAY},
        routes,
    },
    inference::{change, create, until_ready},
    real, wait_for, wait_until_gone, within,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    claims::model_in_a_claim,
    pods::{self, load_of, pod, report_within},
    store::on_real_nodes,
};

/// Requests per second.
const RATE: u64 = 40;
/// From the share of a bad version to its rollback and the end of its pods.
const BAD_SECONDS: u64 = 75;
/// Two steps, a rollout of two pods, and the drain.
const GOOD_SECONDS: u64 = 150;
/// Streams that are open at any time, one token per second of each.
const STREAMS: u64 = 50;
/// Tokens of a stream. Its service drains a little longer.
const TOKENS: u64 = 40;
const DRAINS: u64 = TOKENS + 5;
/// New streams are opened so long: an abort with its drain, and a promotion with its own.
const STREAMS_SECONDS: u64 = 200;
/// A promotion rolls two pods and then waits half a minute until requests of the candidate have ended.
const PROMOTED_WITHIN: Duration = Duration::from_secs(400);

#[tokio::test]
async fn requests_through_envoy_follow_the_shares_and_a_bad_version_is_taken_back() {
    let scene = real().await;
    let contour = Contour::start(&scene).await;
    let url = format!("{}/chat/v1/chat/completions", contour.url());
    let mut spec = on_real_nodes(&model_in_a_claim(&scene).await);
    let settings = json!({
        "replicas": 2,
        "drainSeconds": 5,
        "env": engine(1, ""),
        "gateway": { "name": GATEWAY, "pathPrefixes": ["/chat/v1"] },
    });
    spec.as_object_mut().expect("a spec").extend(settings.as_object().expect("fields").clone());
    create(&scene, "chat", spec).await;
    calls::create_triton(&scene).await;
    until_ready(&scene, "chat").await;

    let envoy = contour.relayed(&scene).await;
    the_split_is_as_asked(&scene, &url).await;
    a_cookie_leads_back_to_its_version(&scene, envoy).await;
    rules::a_header_leads_to_the_candidate(&scene, envoy).await;
    rules::copies_reach_the_candidate_and_stable_answers(&scene, &url, envoy).await;
    calls::calls_follow_their_metadata_and_the_share(&scene, envoy).await;
    a_version_that_fails_is_taken_back(&scene, &url).await;
    a_version_that_crashes_gets_no_more_requests(&scene, &url).await;
    a_good_version_becomes_stable_without_a_failed_request(&scene, &url).await;
    no_stream_is_cut(&scene, &contour.url()).await;
}

fn engine(revision: u64, fault: &str) -> Value {
    let answer = "100";
    json!([
        { "name": "ENGINE_TOKEN_MILLISECONDS", "value": "1000" },
        { "name": "ENGINE_REVISION", "value": revision.to_string() },
        { "name": "ENGINE_ANSWER_MILLISECONDS", "value": answer },
        { "name": "ENGINE_FAULT", "value": fault },
    ])
}

fn analysis() -> Value {
    json!({ "intervalSeconds": 5, "metrics": [{ "name": "errorRate", "limitPercent": "5" }] })
}

async fn start_load(scene: &Scene<'_>, name: &str, url: &str, seconds: u64) {
    let spec = json!({ "restartPolicy": "Never", "containers": [load_of(url, RATE, seconds, 30, None)] });
    pods::create(scene, &pod(name, spec)).await;
}

async fn until_phase(scene: &Scene<'_>, phase: CanaryPhase, within: Duration) -> AIInference {
    until_phase_of(scene, "chat", phase, within).await
}

async fn until_phase_of(scene: &Scene<'_>, name: &str, phase: CanaryPhase, within: Duration) -> AIInference {
    let what = format!("{phase:?}");
    wait_for(&scene.api::<AIInference>(), name, &what, within, |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.phase == Some(phase))
    })
    .await
}

async fn until_share(scene: &Scene<'_>, percent: i32) {
    until_share_of(scene, "chat", percent).await;
}

async fn until_share_of(scene: &Scene<'_>, name: &str, percent: i32) {
    let what = format!("{percent} %");
    wait_for(&scene.api::<AIInference>(), name, &what, within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.weight_percent == percent)
    })
    .await;
}

/// Share of stable in the stored route.
async fn weight_of_stable(scene: &Scene<'_>) -> Option<i64> {
    let route = routes(scene).get("chat").await.expect("the route");
    let rules = route.data["spec"]["rules"].as_array().cloned().unwrap_or_default();
    rules.last()?["backendRefs"][0]["weight"].as_i64()
}

async fn the_split_is_as_asked(scene: &Scene<'_>, url: &str) {
    change(scene, "chat", json!({ "canary": { "env": engine(2, ""), "weightPercent": 30 } })).await;
    until_share(scene, 30).await;
    start_load(scene, "split", url, 20).await;
    let report = report_within(scene, "split", within()).await;
    assert_eq!((&report["failed"], &report["sent"]), (&json!(0), &json!(RATE * 20)), "{report}");
    let candidate = report["by_revision"]["2"].as_f64().expect("answers of the candidate");
    // Envoy chooses at random: three standard deviations of a binomial distribution.
    let requests = (RATE * 20) as f64;
    let (expected, deviation) = (requests * 0.3, (requests * 0.3 * 0.7).sqrt());
    assert!((candidate - expected).abs() <= 3.0 * deviation, "{report}");
}

/// The version that answers a request with this header, and the cookie that it gives.
async fn asked(envoy: SocketAddr, header: &str) -> (String, Option<String>) {
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}]}"#;
    let request = format!(
        "POST /chat/v1/chat/completions HTTP/1.1\r\nhost: chat.example.com\r\nconnection: close\r\n{header}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(envoy).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(within(), exchange).await.expect("an answer in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_owned());
    let cookie = head.lines().find(|line| line.to_lowercase().starts_with("set-cookie:")).and_then(value);
    let (_, revision) = body.split_once(r#""revision":""#).expect("a revision");
    (revision.split('"').next().unwrap_or_default().to_owned(), cookie)
}

/// Beside the share of the test before.
async fn a_cookie_leads_back_to_its_version(scene: &Scene<'_>, envoy: SocketAddr) {
    change(scene, "chat", json!({ "canary": { "pin": "Cookie" } })).await;
    let until = Instant::now() + within();
    let mut pinned = BTreeMap::new();
    while pinned.len() < 2 {
        assert!(Instant::now() < until, "not each version has given a cookie: {pinned:?}");
        if let (revision, Some(cookie)) = asked(envoy, "cookie: theme=dark").await {
            let (pin, attributes) = cookie.split_once(';').expect("attributes");
            assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax");
            pinned.insert(revision, pin.to_owned());
        }
    }
    for (revision, pin) in &pinned {
        for _ in 0..20 {
            let (answered, cookie) = asked(envoy, &format!("cookie: theme=dark; {pin}; x=1")).await;
            assert_eq!((&answered, cookie), (revision, None), "{pin}");
        }
    }
    // Without a share the cookie leads nowhere.
    change(scene, "chat", json!({ "canary": { "weightPercent": 0 } })).await;
    until_share(scene, 0).await;
    // Envoy takes it over a moment after it was accepted.
    while asked(envoy, &format!("cookie: {}", pinned["2"])).await.0 != "1" {
        assert!(Instant::now() < until + within(), "stable does not answer");
    }
    change(scene, "chat", json!({ "canary": { "pin": "None" } })).await;
}

async fn a_version_that_fails_is_taken_back(scene: &Scene<'_>, url: &str) {
    let canary = json!({
        "env": engine(3, "error-share:30"),
        "weightPercent": 0,
        "steps": [{ "weightPercent": 50, "minSeconds": 5, "minRequests": 100 }],
        "analysis": analysis(),
    });
    change(scene, "chat", json!({ "canary": canary })).await;
    until_share(scene, 50).await;
    start_load(scene, "bad", url, BAD_SECONDS).await;
    let seen = Instant::now();
    wait_for(&scene.api::<AIInference>(), "chat", "a verdict", within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.last_rollback.is_some())
    })
    .await;
    println!("from the share to the verdict of 30 % errors: {:.1} s", seen.elapsed().as_secs_f64());
    let inference = until_phase(scene, CanaryPhase::RolledBack, PROMOTED_WITHIN).await;
    let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref()).expect("a canary");
    let rollback = canary.last_rollback.as_ref().expect("a rollback");
    assert_eq!(rollback.reason, "AnalysisFailed", "{rollback:?}");
    let message = &rollback.message;
    assert!(
        message.starts_with("errorRate: ") && message.contains("the evidence that it is worse is"),
        "{message}"
    );
    let healthy = tests::inference::condition(&inference, conditions::CANARY_HEALTHY).expect("a condition");
    assert_eq!((&*healthy.status, &*healthy.reason), ("False", "AnalysisFailed"));
    let analysis = canary.analysis.as_ref().expect("what it was decided by");
    assert_eq!((&*analysis.verdict, &*analysis.metrics[0].verdict), ("Fail", "Fail"));
    assert!(analysis.metrics[0].candidate.bad >= 4, "{analysis:?}");
    assert_eq!(weight_of_stable(scene).await, Some(100));
    let report = report_within(scene, "bad", PROMOTED_WITHIN).await;
    // Its own failures, and no others: none of a Service without pods or of a connection that was cut.
    assert_eq!(report["failed"], report["failures"]["status 500"], "{report}");
}

async fn a_version_that_crashes_gets_no_more_requests(scene: &Scene<'_>, url: &str) {
    change(scene, "chat", json!({ "canary": { "env": engine(4, "crash-after-requests:100") } })).await;
    until_share(scene, 50).await;
    start_load(scene, "crash", url, BAD_SECONDS).await;
    let candidate = ListParams::default().labels("ai.infra.example.com/track=canary");
    let pods = scene.api::<Pod>();
    let crashed = async || {
        let pods = pods.list(&candidate).await.map_err(|error| error.to_string())?;
        let mut statuses = pods.items.iter().filter_map(|pod| pods::container_status(pod, "engine"));
        statuses
            .find(|status| status.restart_count > 0 || !status.ready)
            .map(|_| ())
            .ok_or("none has crashed".to_owned())
    };
    tests::ask_until("a crash", within(), crashed).await;
    let seen = Instant::now();
    tests::ask_until("all requests go to stable", within(), async || match weight_of_stable(scene).await {
        Some(100) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let taken = seen.elapsed();
    println!("from the end of the engine to weight 0: {:.1} s", taken.as_secs_f64());
    // Alone it takes 3 s; beside other tests the machine is busy.
    assert!(taken < Duration::from_secs(30), "{taken:?}");
    let inference = until_phase(scene, CanaryPhase::RolledBack, PROMOTED_WITHIN).await;
    let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref()).expect("a canary");
    assert_eq!(
        canary.last_rollback.as_ref().map(|rollback| &*rollback.reason),
        Some("CandidateCrashed"),
        "{canary:?}"
    );
    report_within(scene, "crash", PROMOTED_WITHIN).await;
}

async fn a_good_version_becomes_stable_without_a_failed_request(scene: &Scene<'_>, url: &str) {
    start_load(scene, "good", url, GOOD_SECONDS).await;
    let steps = json!([
        { "weightPercent": 10, "minSeconds": 10, "minRequests": 60 },
        { "weightPercent": 50, "minSeconds": 10, "minRequests": 60 },
    ]);
    let canary = json!({ "env": engine(5, ""), "steps": steps, "promotion": "Auto", "analysis": analysis() });
    change(scene, "chat", json!({ "canary": canary })).await;
    let inference = until_phase(scene, CanaryPhase::Promoted, PROMOTED_WITHIN).await;
    let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref()).expect("a canary");
    let analysis = canary.analysis.as_ref().expect("the verdict of the last step");
    assert_eq!((&*analysis.verdict, canary.step), ("Pass", 2), "{analysis:?}");
    assert!(analysis.metrics[0].candidate.ended >= 60, "{analysis:?}");
    wait_for(&scene.api::<AIInference>(), "chat", "folded", PROMOTED_WITHIN, {
        |inference: &AIInference| {
            let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
            canary.is_some_and(|canary| canary.replicas == 0)
        }
    })
    .await;
    let report = report_within(scene, "good", PROMOTED_WITHIN).await;
    assert_eq!((&report["failed"], &report["sent"]), (&json!(0), &json!(RATE * GOOD_SECONDS)), "{report}");
    let answers = |revision: &str| report["by_revision"][revision].as_u64();
    assert!(answers("1") > Some(0) && answers("5") > Some(0), "both versions answered: {report}");
}

/// Shares go 10, 50, abort, and then 10, 50, 100, promotion, while streams are open.
async fn no_stream_is_cut(scene: &Scene<'_>, gateway: &str) {
    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.expect("its GPUs get free");
    let mut spec = on_real_nodes("pvc://models");
    let settings = json!({
        "drainSeconds": DRAINS,
        "env": engine(6, ""),
        "gateway": { "name": GATEWAY, "pathPrefixes": ["/streams/v1"] },
    });
    spec.as_object_mut().expect("a spec").extend(settings.as_object().expect("fields").clone());
    create(scene, "streams", spec).await;
    until_ready(scene, "streams").await;
    let [count, tokens, seconds] = [STREAMS, TOKENS, STREAMS_SECONDS].map(|number| number.to_string());
    let url = format!("{gateway}/streams/v1/completions");
    let args = ["streams", "--url", &url, "--count", &count, "--tokens", &tokens, "--ramp-seconds", &tokens];
    let args: Vec<&str> = args.into_iter().chain(["--seconds", &seconds]).collect();
    let container = pods::container("load", &args, json!({}));
    pods::create(scene, &pod("clients", json!({ "restartPolicy": "Never", "containers": [container] })))
        .await;

    let steps = |percents: &[u64]| -> Value {
        percents.iter().map(|percent| json!({ "weightPercent": percent, "minSeconds": 10 })).collect()
    };
    change(scene, "streams", json!({ "canary": { "env": engine(7, ""), "steps": steps(&[10, 50]) } })).await;
    // Half of the streams that were opened in the last 10 s are those of the candidate.
    until_phase_of(scene, "streams", CanaryPhase::AwaitingApproval, within()).await;
    change(scene, "streams", json!({ "canary": { "abort": true } })).await;
    until_phase_of(scene, "streams", CanaryPhase::Aborted, within()).await;
    let removed = Patch::Merge(json!({ "spec": { "canary": null } }));
    let inferences = scene.api::<AIInference>();
    inferences.patch("streams", &PatchParams::default(), &removed).await.expect("the canary is removed");
    wait_until_gone(&scene.api::<Deployment>(), "streams-canary", PROMOTED_WITHIN).await;
    let canary = json!({ "env": engine(8, ""), "steps": steps(&[10, 50, 100]), "promotion": "Auto" });
    change(scene, "streams", json!({ "canary": canary })).await;
    until_share_of(scene, "streams", 100).await;
    until_phase_of(scene, "streams", CanaryPhase::Promoted, PROMOTED_WITHIN).await;

    let report = report_within(scene, "clients", PROMOTED_WITHIN).await;
    println!("streams: {report}");
    assert_eq!((&report["cut"], &report["failures"]), (&json!(0), &json!({})), "{report}");
    assert_eq!(report["opened"], report["complete"], "{report}");
    assert!(report["longest_seconds"].as_f64() >= Some(TOKENS as f64), "{report}");
    let complete = |revision: &str| report["by_revision"][revision].as_u64();
    for revision in ["6", "7", "8"] {
        assert!(complete(revision) > Some(0), "streams of each version have ended: {report}");
    }
}
