//! What is sent, in which order, and what follows of a write that fails or is refused: to a scripted API server.

use std::sync::Arc;

use api::{
    aiinference::evaluation::{ModelEvaluationStatus, Phase},
    conditions, labels,
};
use fake_api::{Answer, ScriptedApi, Verb};
use kube::Config;
use runtime::{
    client::{Deadlines, WriteGuard, build},
    clock::Clock,
    controller::Next,
    metrics::Metrics,
    reconcile::reconcile,
    watch::{cache::Cache, relations::Referrers, watched::Watched},
    write::apply::Writer,
    write::events::Recorder,
};
use serde_json::{Value, json};
use workload::views::pod::PodView;

use super::*;
use crate::{
    NAME, outputs, relations,
    tests::{at, condition, evaluation, ready, settings},
};

const DENIED: &str = "admission webhook \"jobs.example.com\" denied the request: no";
const WRITES_STATUS: &str = "Patch modelevaluations";
const TIMED_OUT: &str = "etcdserver: request timed out";

/// An evaluation whose answers are uploaded, and a controller whose caches have what the API server has.
struct Setup {
    api: ScriptedApi,
    ctx: Context,
    evaluation: Arc<ModelEvaluation>,
}

impl Setup {
    async fn of(evaluation: ModelEvaluation) -> Self {
        let api = ScriptedApi::start().await;
        api.put(&evaluation);
        let ctx = context(&api);
        ctx.evaluations.upsert(evaluation.clone());
        Self { api, ctx, evaluation: Arc::new(evaluation) }
    }

    /// The server of the baseline is ready, so the first run can begin.
    async fn ready_to_run() -> Self {
        let setup = Self::of(evaluation(&json!({"output": {"uri": "s3://evaluations/chat"}}))).await;
        setup.put_server("ab-baseline", &ready());
        setup
    }

    fn put_server(&self, name: &str, condition: &Value) {
        let server = json!({
            "metadata": metadata(name),
            "status": {"observedGeneration": 1, "url": format!("http://{name}.demo.svc:8000"), "conditions": [condition],
                       "model": {"digest": "sha256:1", "files": 1, "bytes": 1}},
        });
        put(&self.api, "aiinferences", server, &self.ctx.inferences);
    }

    fn put_job(&self, name: &str) {
        put(&self.api, "jobs", json!({"metadata": metadata(name)}), &self.ctx.jobs);
    }

    async fn reconciled(&self) -> Result<Next, ApplyError> {
        reconcile(&self.ctx, Arc::clone(&self.evaluation), at(0)).await
    }

    /// Without those of events, which are sent beside the others.
    fn calls(&self) -> Vec<String> {
        self.api.verbs().into_iter().filter(|call| !call.ends_with(" events")).collect()
    }

    /// The names of the Jobs that it has tried to create.
    fn jobs(&self) -> Vec<String> {
        let created = self.api.calls(Verb::Create.of("jobs")).into_iter();
        created.map(|call| call.body["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn answers(&self, verb: Verb, plural: &'static str, code: u16, message: &str) {
        self.api.always(verb.of(plural), Answer::status(code, "", message));
    }

    fn status(&self) -> ModelEvaluationStatus {
        let stored: ModelEvaluation =
            serde_json::from_value(self.api.stored("modelevaluations", "ab").unwrap()).unwrap();
        stored.status.unwrap()
    }

    fn phase(&self) -> Option<Phase> {
        self.status().phase
    }

    /// Status, reason and message of a condition.
    fn said(&self, type_: &str) -> Option<(String, String, String)> {
        let found = self.status().conditions.into_iter().find(|known| known.type_ == type_)?;
        Some((found.status, found.reason, found.message))
    }
}

fn context(api: &ScriptedApi) -> Context {
    let metrics = Arc::new(Metrics::new(NAME));
    let config = Config::new(format!("http://{}", api.address()).parse().unwrap());
    let guard = WriteGuard::Always;
    let client = build(&config, Deadlines::default(), guard, Arc::clone(&metrics), Clock::default()).unwrap();
    let evaluations = Cache::default();
    let writer = Writer::new(client.clone(), NAME, labels::APPLIED, &evaluations);
    let (pods, training_jobs) = (Cache::<PodView>::default(), Cache::default());
    Context {
        inferences: writer.of(Cache::default()),
        running: Cache::default(),
        jobs: writer.of(Cache::default()),
        claims: writer.of(Cache::default()),
        pods_of: Referrers::of(&pods, relations::keys_by_instance),
        pods: writer.of(pods),
        outputs: Referrers::of(&training_jobs, outputs::output_key),
        training_jobs,
        evaluations,
        fact_times: Default::default(),
        writer,
        recorder: Recorder::new(client, NAME, "test".to_owned(), metrics),
        settings: settings(),
    }
}

/// Of a child.
fn metadata(name: &str) -> Value {
    json!({
        "name": name, "namespace": "demo", "generation": 1, "creationTimestamp": "2026-01-01T11:59:55Z",
        "ownerReferences": [{"apiVersion": "aistudio.modelscope.cn/v1alpha1", "kind": "ModelEvaluation", "name": "ab",
                             "uid": "e", "controller": true}],
    })
}

fn put<V: Watched>(api: &ScriptedApi, plural: &str, object: Value, cache: &Cache<V>) {
    let stored = api.put_json(plural, object);
    cache.upsert(V::from_json(&stored.to_string()).unwrap());
}

#[tokio::test]
async fn the_run_and_the_check_of_the_store_are_created_before_the_status_is_written() {
    let setup = Setup::ready_to_run().await;
    setup.reconciled().await.unwrap();
    assert_eq!(setup.jobs(), ["ab-baseline-0", "ab-answers-check"]);
    assert_eq!(setup.calls().last().map(String::as_str), Some(WRITES_STATUS), "{:?}", setup.calls());
    assert_eq!(setup.said(conditions::STALLED), None);
}

/// The check of a store that the spec does not name any more.
#[tokio::test]
async fn a_job_that_must_not_be_deleted_keeps_no_run_from_its_start_and_is_named() {
    let setup = Setup::ready_to_run().await;
    setup.put_job("ab-answers-check");
    setup.answers(Verb::Delete, "jobs", 403, DENIED);
    setup.reconciled().await.unwrap();
    assert_eq!(setup.jobs(), ["ab-baseline-0"]);
    let (status, _, message) = setup.said(conditions::STALLED).unwrap();
    assert!(status == "True" && message.contains(DENIED), "{message}");
}

#[tokio::test]
async fn after_a_failed_deletion_the_run_begins_and_no_status_claims_that_all_was_sent() {
    let setup = Setup::ready_to_run().await;
    setup.put_job("ab-answers-check");
    setup.answers(Verb::Delete, "jobs", 500, TIMED_OUT);
    let failed = setup.reconciled().await.unwrap_err();
    assert!(matches!(failed, ApplyError::Call { step: "delete", .. }), "{failed:?}");
    assert_eq!(
        setup.calls(),
        ["Delete jobs", "Create persistentvolumeclaims", "Patch aiinferences", "Create jobs"]
    );
}

#[tokio::test]
async fn what_needs_a_denied_server_is_not_tried_and_the_store_is() {
    let setup = Setup::of(evaluation(&json!({"output": {"uri": "s3://evaluations/chat"}}))).await;
    for verb in [Verb::Create, Verb::Patch] {
        setup.answers(verb, "aiinferences", 403, DENIED);
    }
    setup.reconciled().await.unwrap();
    assert_eq!(setup.jobs(), ["ab-answers-check"]);
    let (status, _, message) = setup.said(conditions::STALLED).unwrap();
    assert!(status == "True" && message.contains(DENIED), "{message}");
    assert!(setup.said(conditions::UPLOADED).unwrap().2.ends_with("the store is tried with a small object"));
}

#[tokio::test]
async fn if_run_and_check_are_denied_neither_is_said_to_be_under_way() {
    let setup = Setup::ready_to_run().await;
    setup.answers(Verb::Create, "jobs", 403, DENIED);
    setup.reconciled().await.unwrap();
    assert_eq!(setup.jobs(), ["ab-baseline-0", "ab-answers-check"]);
    let (_, _, message) = setup.said(conditions::STALLED).unwrap();
    assert!(message.contains("Job demo/ab-baseline-0") && message.contains(DENIED), "{message}");
    let (_, _, message) = setup.said(conditions::UPLOADED).unwrap();
    assert!(message.contains("Job demo/ab-answers-check was not created"), "{message}");
}

/// Since when it has none is in memory, also if writes fail or are refused.
#[tokio::test]
async fn a_run_without_a_pod_is_timed_from_the_first_reconcile_on() {
    let setup = Setup::ready_to_run().await;
    setup.put_job("ab-baseline-0");
    setup.put_job("ab-answers-check");
    setup.answers(Verb::Delete, "jobs", 500, TIMED_OUT);
    setup.reconciled().await.unwrap_err();
    setup.api.clear_script();
    setup.answers(Verb::Delete, "jobs", 403, DENIED);
    let later = |seconds: i64| reconcile(&setup.ctx, Arc::clone(&setup.evaluation), at(seconds));
    later(60).await.unwrap();
    assert!(setup.said(conditions::STALLED).unwrap().2.contains(DENIED));
    assert_eq!(setup.phase(), Some(Phase::Running));
    setup.api.clear_script();
    later(599).await.unwrap();
    assert_eq!(setup.phase(), Some(Phase::Running));
    later(600).await.unwrap();
    assert_eq!(setup.phase(), Some(Phase::Failed));
}

#[tokio::test]
async fn a_check_that_fails_is_tried_again_and_the_status_of_the_runs_is_written() {
    let setup = Setup::ready_to_run().await;
    let on = Verb::Create.of("jobs");
    setup.api.next(on, [Answer::Stored, Answer::status(500, "", TIMED_OUT)]);
    let failed = setup.reconciled().await.unwrap_err();
    assert!(matches!(failed, ApplyError::Call { step: "create", .. }), "{failed:?}");
    assert_eq!(setup.calls().last().map(String::as_str), Some(WRITES_STATUS), "{:?}", setup.calls());
}

#[tokio::test]
async fn a_check_that_fails_beside_a_denied_run_is_an_error_and_the_denial_is_named() {
    let setup = Setup::ready_to_run().await;
    let answers = [Answer::status(403, "", DENIED), Answer::status(500, "", TIMED_OUT)];
    setup.api.next(Verb::Create.of("jobs"), answers);
    let failed = setup.reconciled().await.unwrap_err();
    assert!(matches!(failed, ApplyError::Call { step: "create", .. }), "{failed:?}");
    let (_, _, message) = setup.said(conditions::STALLED).unwrap();
    assert!(message.contains(DENIED), "{message}");
}

#[tokio::test]
async fn an_evaluation_whose_time_is_over_is_deleted_by_its_uid() {
    let mut ended = evaluation(&json!({"ttlSecondsAfterFinished": 60}));
    ended.status = serde_json::from_value(json!({
        "phase": "Failed", "observedGeneration": 1, "completionTime": "2025-12-31T00:00:00Z",
        "conditions": [condition("Complete", "False", "RunFailed")],
    }))
    .unwrap();
    let setup = Setup::of(ended).await;
    setup.reconciled().await.unwrap();
    assert_eq!(setup.calls(), ["Delete modelevaluations"]);
    let deleted = &setup.api.calls(Verb::Delete.of("modelevaluations"))[0];
    assert_eq!(deleted.body["preconditions"]["uid"], "e");
}
