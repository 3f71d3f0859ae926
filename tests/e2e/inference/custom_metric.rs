//! Requests that only a Prometheus server can call bad decide over a candidate. The server is a real one.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use api::{aiinference::AIInference, conditions};
use fake_prometheus::{Answer, Prometheus as Application};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller, fresh_name,
    gateway::Gateway,
    inference::CONTROLLER,
    monitoring::prometheus::{Prometheus, Scrape},
    start, tools, wait_for, within,
};

use super::{change, condition, create, traffic::gateway, until_ready};

const ANSWERS: &str = "chat_answers_total";
const UNREADABLE: &str = "chat_unreadable_answers_total";

/// What an application counts of one version.
fn counting() -> Application {
    let counting = Application::start(0.0).unwrap();
    counting.set(ANSWERS, Answer::Value(0.0));
    counting
}

/// Answers of both versions at a steady rate, one in two of the candidate unreadable from a moment on.
async fn answers(stable: &Application, candidate: &Application, is_bad: &AtomicBool) {
    let (mut ended, mut bad) = (0.0, 0.0);
    loop {
        ended += 10.0;
        stable.set(ANSWERS, Answer::Value(ended * 9.0));
        candidate.set(ANSWERS, Answer::Value(ended));
        if is_bad.load(Ordering::Relaxed) {
            bad += 5.0;
            // Its first value is not 0, as that of a series that begins with the first error.
            candidate.set(UNREADABLE, Answer::Value(bad));
        }
        // The pace of the requests.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn analysis(bad: &str) -> Value {
    json!({
        "intervalSeconds": 5,
        "metrics": [{"name": "custom"}],
        "prometheus": {"requestsQuery": format!("{ANSWERS}{{service=\"$name\"}}"), "badRequestsQuery": bad},
    })
}

async fn until_healthy_says(scene: &Scene<'_>, status: &str, reason: &str, words: &str) {
    let what = format!("CanaryHealthy is {status}: {reason}: {words}");
    wait_for(&scene.api::<AIInference>(), "chat", &what, within(), |inference: &AIInference| {
        condition(inference, conditions::CANARY_HEALTHY).is_some_and(|healthy| {
            (&*healthy.status, &*healthy.reason) == (status, reason) && healthy.message.contains(words)
        })
    })
    .await;
}

#[tokio::test]
async fn a_candidate_is_judged_by_what_only_the_users_prometheus_knows() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let scene = Scene::new(&cluster).await;
    let (stable, candidate) = (counting(), counting());
    let scrape = |application: &Application, service: &str| {
        let scrape = Scrape::new(service, [application.address()]).with_label("namespace", scene.namespace());
        scrape.with_label("service", service)
    };
    let prometheus = Prometheus::start([scrape(&stable, "chat"), scrape(&candidate, "chat-canary")]).await;
    prometheus.until_scraped().await;
    let is_bad = AtomicBool::new(false);
    let script = async {
        // Before the controller, which finds a new kind within a minute.
        let _stand_in = Gateway::start(&scene).await;
        let mut process = controller(CONTROLLER);
        process.args = vec![format!("--prometheus-url={}", prometheus.url())];
        cluster.start_controller(&process).await.unwrap();
        create(&scene, "chat", json!({"image": "engine:1", "gateway": gateway()})).await;
        until_ready(&scene, "chat").await;
        let bad = format!("{UNREADABLE}{{service=\"$name\"}}");
        let steps = json!([{"weightPercent": 10, "minSeconds": 5, "minRequests": 20}]);
        let canary = json!({"image": "engine:2", "steps": steps, "analysis": analysis(&bad)});
        change(&scene, "chat", json!({"canary": canary})).await;
        let no_value = "custom: 3 looks in a row did not get all numbers: spec.canary.analysis.prometheus.badRequestsQuery \
                        has no value for the Service chat";
        until_healthy_says(&scene, "False", "MetricsMissing", no_value).await;

        let or_zero = format!("{bad} or vector(0)");
        change(&scene, "chat", json!({"canary": {"analysis": analysis(&or_zero)}})).await;
        until_healthy_says(&scene, "True", "Judging", "custom: 0 of ").await;
        is_bad.store(true, Ordering::Relaxed);
        let last_rollback =
            |inference: &AIInference| inference.status.as_ref()?.canary.as_ref()?.last_rollback.clone();
        let is_over = |inference: &AIInference| last_rollback(inference).is_some();
        let ended = wait_for(&scene.api::<AIInference>(), "chat", "a rollback", within(), is_over).await;
        let rollback = last_rollback(&ended).unwrap();
        assert_eq!(rollback.reason, "AnalysisFailed");
        let words = &rollback.message;
        assert!(words.starts_with("custom: ") && words.contains("were bad, 0 of "), "{words}");
    };
    tokio::select! {
        () = script => {}
        () = answers(&stable, &candidate, &is_bad) => unreachable!("it does not end"),
    }
}
