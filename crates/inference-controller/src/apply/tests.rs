//! What is sent although deletions of pods fail, to a scripted API server.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use api::labels;
use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use prometheus_api::args::Prometheus;
use runtime::{
    metrics::Metrics,
    read::{endpoints::Endpoints, logs::Logs, secrets::Secrets},
    reconcile::Decision,
    watch::cache::Cache,
    write::{apply::Writer, events::Recorder},
};
use serde_json::{Value, json};
use workload::{
    faults::{pace::Allowance, stranded::Nodes},
    views::node::{LossKind, NodeLoss},
};

use super::*;
use crate::{
    NAME,
    plan::plan,
    tests::{Scene, at, defaults, parsed},
};

const DENIED: (u16, &str) = (403, "admission webhook \"pods.example.com\" denied the request: no");
const FAILED: (u16, &str) = (500, "etcdserver: request timed out");

/// Ends of paths, with code and message of the answer to each call of them.
type Failures = Vec<(&'static str, (u16, &'static str))>;
type Outcome = Result<Applied, ApplyError>;

/// An API server that takes every object as it is sent, unless a test says otherwise.
struct Api {
    calls: Mutex<Vec<String>>,
    version: AtomicU64,
    inference: Value,
    failures: Failures,
    /// Another manager takes back what is written to the ConfigMap.
    takes_back: bool,
}

impl Api {
    fn of(inference: &AIInference, failures: Failures) -> Self {
        let inference = serde_json::to_value(inference).unwrap();
        let (calls, version, takes_back) = Default::default();
        Self { calls, version, inference, failures, takes_back }
    }

    fn answer(&self, call: &str, mut sent: Value) -> (StatusCode, Value) {
        self.calls.lock().unwrap().push(call.to_owned());
        if let Some((_, (code, message))) = self.failures.iter().find(|(path, _)| call.ends_with(path)) {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
            return (StatusCode::from_u16(*code).unwrap(), status);
        }
        if call.starts_with("GET ") {
            return (StatusCode::OK, self.inference.clone());
        }
        if self.takes_back && call.contains("/configmaps/") {
            sent["metadata"]["annotations"] = json!({});
        }
        if call.ends_with("/status") {
            sent["spec"] = self.inference["spec"].clone();
        }
        sent["metadata"]["uid"] = json!("1");
        sent["metadata"]["resourceVersion"] =
            json!((10 + self.version.fetch_add(1, Ordering::Relaxed)).to_string());
        (StatusCode::OK, sent)
    }

    fn client(self: &Arc<Self>) -> Client {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = Arc::clone(&api);
            async move {
                let call = format!("{} {}", request.method(), request.uri().path());
                let sent = request.into_body().collect_bytes().await?;
                let (status, body) = api.answer(&call, serde_json::from_slice(&sent).unwrap_or_default());
                let mut answer = Response::new(Body::from(body.to_string().into_bytes()));
                *answer.status_mut() = status;
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, "demo")
    }

    fn has(&self, call: &str) -> bool {
        self.calls.lock().unwrap().iter().any(|known| known == call)
    }

    fn writes_status(&self) -> bool {
        self.calls.lock().unwrap().iter().any(|call| call.ends_with("/aiinferences/chat/status"))
    }
}

fn deletion(pod: &str) -> String {
    format!("DELETE /api/v1/namespaces/demo/pods/{pod}")
}

fn context(client: &Client, inference: &AIInference) -> Context {
    let inferences = Cache::default();
    let writer = Writer::new(client.clone(), NAME, labels::APPLIED, &inferences);
    inferences.upsert(inference.clone());
    let metrics = Arc::new(Metrics::new(NAME));
    Context {
        looks: Default::default(),
        prometheus: Prometheus::new(
            parsed(&[]).expect("no flags").prometheus,
            Secrets::new(client.clone()),
            "test/1",
        ),
        looking: Default::default(),
        clock: Default::default(),
        inferences,
        config_maps: writer.of(Cache::default()),
        deployments: writer.of(Cache::default()),
        services: writer.of(Cache::default()),
        budgets: writer.of(Cache::default()),
        routes: writer.of(Cache::default()),
        grpc_routes: writer.of(Cache::default()),
        pools: writer.of(Cache::default()),
        foreign_routes: writer.of(Cache::default()),
        evaluations: Cache::default(),
        replica_sets: Cache::default(),
        pods: writer.of(Cache::default()),
        failed_pods: Cache::default(),
        claims: Cache::default(),
        attach_failures: Cache::default(),
        mount_failures: Cache::default(),
        sandbox_failures: Cache::default(),
        nodes: None,
        losses: Arc::default(),
        agents: Default::default(),
        pace: Default::default(),
        migrations: Default::default(),
        fact_times: Default::default(),
        apart: Default::default(),
        logs: Logs::new(client.clone()),
        endpoints: Endpoints::new(client.clone()),
        crashes: Arc::default(),
        writer,
        recorder: Recorder::new(client.clone(), NAME, "test".to_owned(), metrics),
        defaults: defaults(&[]),
    }
}

/// The object, and a plan that deletes b and then c from the lost node gpu-1.
fn planned() -> (Arc<AIInference>, Plan) {
    let mut scene = Scene::ready(3);
    let pods = [("a", "gpu-0"), ("b", "gpu-1"), ("c", "gpu-1")];
    let pods = pods.map(|(name, node)| format!("{{name: {name}, ready: true, node: {node}}}"));
    scene.pods(&pods.each_ref().map(String::as_str));
    scene.write_status();
    let lost = NodeLoss { kind: LossKind::Unreachable, since: at(-30), reported: at(-30) };
    let pods = ["b", "c"].map(str::to_owned).into();
    scene.observe(|observed| {
        observed.nodes =
            Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down: 1, all: 4, is_stale: false };
        observed.allowance = Some(Allowance { pods, requeue_after: None });
    });
    let observed = scene.observed();
    let Decision::Plan(plan) = plan(&observed, &defaults(&[]), at(0)) else { panic!("a doubt") };
    (observed.inference, plan)
}

/// Applies the plan to an API server with these answers.
async fn applied(failures: Failures) -> (Arc<Api>, Context, Outcome) {
    let (inference, plan) = planned();
    let api = Arc::new(Api::of(&inference, failures));
    let ctx = context(&api.client(), &inference);
    let applied = apply(&ctx, &inference, &plan, at(0)).await;
    (api, ctx, applied)
}

fn unrecorded(ctx: &Context) -> Vec<String> {
    let unrecorded = ctx.migrations.unrecorded("uid-of-chat", |_| false);
    unrecorded.into_iter().map(|migration| migration.pod).collect()
}

#[tokio::test]
async fn no_status_of_before_an_accepted_deletion_is_written_if_another_one_fails() {
    let (api, ctx, applied) = applied(vec![("/pods/c", FAILED)]).await;
    assert!(matches!(applied, Err(ApplyError::Call { step: "delete", .. })), "{applied:?}");
    assert!(api.has(&deletion("b")) && api.has(&deletion("c")));
    assert!(api.has("PATCH /apis/apps/v1/namespaces/demo/deployments/chat"), "children wait for nothing");
    assert!(!api.writes_status(), "it would say that b was not deleted");
    assert_eq!(unrecorded(&ctx), ["b"], "the next status has it");
}

#[tokio::test]
async fn if_no_deletion_is_accepted_the_status_says_what_is_there() {
    let (api, ctx, applied) = applied(vec![("/pods/b", FAILED), ("/pods/c", FAILED)]).await;
    assert!(matches!(applied, Err(ApplyError::Call { step: "delete", .. })), "{applied:?}");
    assert!(api.writes_status());
    assert!(unrecorded(&ctx).is_empty());
}

#[tokio::test]
async fn a_failed_deletion_is_retried_as_a_failure_also_if_a_child_is_refused() {
    let (api, _, applied) = applied(vec![("/pods/c", FAILED), ("/deployments/chat", DENIED)]).await;
    let Ok(Applied::Failed { error: ApplyError::Call { step, .. }, why: Refusal::Denied(_) }) = applied
    else {
        panic!("{applied:?}");
    };
    assert_eq!(step, "delete");
    assert!(!api.writes_status());
}

#[tokio::test(start_paused = true)]
async fn a_refused_deletion_does_not_hide_when_a_contested_write_is_repeated() {
    let (inference, plan) = planned();
    let failures = vec![("/pods/b", DENIED), ("/pods/c", DENIED)];
    let api = Arc::new(Api { takes_back: true, ..Api::of(&inference, failures) });
    let ctx = context(&api.client(), &inference);
    // One creation, and as many repetitions as are sent at once.
    for _ in 0..4 {
        let applied = apply(&ctx, &inference, &plan, at(0)).await.unwrap();
        assert!(matches!(applied, Applied::Refused(Refusal::Denied(_))), "{applied:?}");
    }
    let applied = apply(&ctx, &inference, &plan, at(0)).await.unwrap();
    let Applied::RefusedAfterContest { refusal: Refusal::Denied(_), wait } = applied else {
        panic!("{applied:?}");
    };
    assert_eq!(wait, Duration::from_secs(1));
}

/// A GitOps tool that takes a write back each ten minutes. The condition about it stays in between.
#[test]
fn a_contest_is_over_only_when_nothing_was_taken_back_for_a_while() {
    let apart = Apart::default();
    let complaint = ("RouteContested", "a keeps changing b".to_owned());
    let minutes = |count: i64| at(count * 60);
    assert!(apart.is_new("uid", "route", complaint.clone()));
    apart.contested("uid", "route", minutes(0));
    let wait = |has_changed, now| apart.written("uid", "route", has_changed, minutes(now));
    let in_minutes = |count: u64| Some(Duration::from_secs(count * 60));
    assert_eq!(wait(true, 0), in_minutes(15));
    assert_eq!(wait(false, 9), in_minutes(6));
    assert_eq!(wait(true, 10), in_minutes(15), "taken back, and written again");
    assert!(apart.of("uid").contains_key("route"));
    assert_eq!(wait(false, 25), Some(Duration::ZERO));
    assert!(apart.of("uid").is_empty());
    // A refusal ends with the write.
    apart.is_new("uid", "route", ("Denied", String::new()));
    assert_eq!(wait(true, 25), Some(Duration::ZERO));
    assert_eq!(wait(false, 25), None);
}
