//! What is sent, in which order, and what follows of a write that fails or is refused: to a scripted API server.

use std::sync::Arc;

use api::{conditions, labels, reasons};
use fake_api::{Answer, ScriptedApi, Verb};
use kube::Config;
use runtime::{
    client::{Deadlines, WriteGuard, build},
    clock::Clock,
    controller::Next,
    metrics::Metrics,
    reconcile::reconcile,
    watch::{cache::Cache, watched::Watched},
    write::apply::Writer,
    write::events::Recorder,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    NAME,
    rivals::Rivals,
    tests::{at, by_cpu, by_queue, endpoint, settings},
};

const DENIED: &str = "admission webhook \"hpas.example.com\" denied the request: no";

/// An endpoint, and a controller whose caches have what the API server has.
struct Setup {
    api: ScriptedApi,
    ctx: Context,
    endpoint: Arc<Endpoint>,
}

impl Setup {
    /// With an AIInference of 3 replicas that this one sets.
    async fn with_replicas_of(setter: &str, autoscaling: Value) -> Self {
        let api = ScriptedApi::start().await;
        let mut endpoint = endpoint(&json!({"replicas": 3, "autoscaling": autoscaling}));
        // A status of its first moments is written later.
        endpoint.status.as_mut().unwrap().observed_generation = 2;
        api.put(&endpoint);
        let ctx = context(&api);
        ctx.endpoints.upsert(endpoint.clone());
        let annotations = json!({labels::GENERATION: "2", labels::REPLICAS: setter});
        let inference = json!({"metadata": metadata(&annotations), "spec": {"replicas": 3}});
        put(&api, "aiinferences", inference, &ctx.inferences);
        Self { api, ctx, endpoint: Arc::new(endpoint) }
    }

    fn with_hpa(self) -> Self {
        let hpa = json!({"metadata": metadata(&json!({})), "spec": {"maxReplicas": 3}});
        put(&self.api, "horizontalpodautoscalers", hpa, &self.ctx.hpas);
        self
    }

    async fn reconciled(&self) -> Result<Next, ApplyError> {
        reconcile(&self.ctx, Arc::clone(&self.endpoint), at(0)).await
    }

    /// Without those of events, which are sent beside the others.
    fn calls(&self) -> Vec<String> {
        self.api.verbs().into_iter().filter(|call| !call.ends_with(" events")).collect()
    }

    fn answers(&self, verb: Verb, plural: &'static str, code: u16, message: &str) {
        self.api.always(verb.of(plural), Answer::status(code, "", message));
    }

    /// Reason and message of a condition that the status has.
    fn said(&self, type_: &str) -> (String, String) {
        let stored: Endpoint =
            serde_json::from_value(self.api.stored("inferenceendpoints", "chat").unwrap()).unwrap();
        let conditions = stored.status.unwrap().conditions;
        let found = conditions.iter().find(|known| known.type_ == type_ && known.status == "True");
        let found = found.unwrap_or_else(|| panic!("no {type_} in {conditions:?}"));
        (found.reason.clone(), found.message.clone())
    }

    fn has_written_status(&self) -> bool {
        self.calls().contains(&WRITES_STATUS.to_owned())
    }
}

const WRITES_STATUS: &str = "Patch inferenceendpoints";

fn context(api: &ScriptedApi) -> Context {
    let metrics = Arc::new(Metrics::new(NAME));
    let config = Config::new(format!("http://{}", api.address()).parse().unwrap());
    let guard = WriteGuard::Always;
    let client = build(&config, Deadlines::default(), guard, Arc::clone(&metrics), Clock::default()).unwrap();
    let endpoints = Cache::default();
    let writer = Writer::new(client.clone(), NAME, labels::APPLIED, &endpoints);
    Context {
        inferences: writer.of(Cache::default()),
        hpas: writer.of(Cache::default()),
        scalers: writer.of(Cache::default()),
        rivals: Rivals::of_caches(Cache::default(), Cache::default()),
        nodes: None,
        api_services: None,
        endpoints,
        fact_times: Default::default(),
        writer,
        recorder: Recorder::new(client, NAME, "test".to_owned(), metrics),
        settings: settings(),
    }
}

/// Of a child.
fn metadata(annotations: &Value) -> Value {
    json!({
        "name": "chat", "namespace": "demo", "annotations": annotations,
        "ownerReferences": [{"apiVersion": "aistudio.modelscope.cn/v1alpha1", "kind": "InferenceEndpoint", "name": "chat",
                             "uid": "e", "controller": true}],
    })
}

fn put<V: Watched>(api: &ScriptedApi, plural: &str, object: Value, cache: &Cache<V>) {
    let stored = api.put_json(plural, object);
    cache.upsert(V::from_json(&stored.to_string()).unwrap());
}

#[tokio::test]
async fn the_replicas_are_held_before_they_are_left_and_the_autoscaler_is_written_before_the_status() {
    let setup = Setup::with_replicas_of(labels::REPLICAS_OF_SPEC, by_queue()).await;
    // The fields of the other manager stay.
    let body = setup.api.stored("aiinferences", "chat").unwrap().to_string();
    setup.api.next(Verb::Patch.of("aiinferences"), [Answer::Body { code: 200, body, retry_after: None }]);
    assert_eq!(setup.reconciled().await.unwrap(), Next::After(Duration::ZERO));
    let writes = ["Patch aiinferences", "Patch aiinferences", "Patch aiscalers", WRITES_STATUS];
    assert_eq!(
        setup.calls().into_iter().filter(|call| !call.starts_with("Get ")).collect::<Vec<_>>(),
        writes
    );
    let writes = setup.api.calls(Verb::Patch.of("aiinferences"));
    let manager = |number: usize| writes[number].query["fieldManager"].as_str();
    assert_eq!((manager(0), manager(1)), (HANDOVER, NAME));
    let replicas = |number: usize| writes[number].body["spec"]["replicas"].as_i64();
    assert_eq!((replicas(0), replicas(1)), (Some(3), None));
}

#[tokio::test]
async fn without_the_hand_over_nothing_that_follows_is_sent() {
    let setup = Setup::with_replicas_of(labels::REPLICAS_OF_SPEC, by_queue()).await;
    setup.answers(Verb::Patch, "aiinferences", 500, "etcdserver: request timed out");
    setup.reconciled().await.unwrap_err();
    assert_eq!(setup.calls(), ["Patch aiinferences"]);
}

/// Pods start, fail and become ready while the deletion fails, and their user reads it.
#[tokio::test]
async fn a_failed_deletion_of_an_autoscaler_is_tried_again_and_the_status_is_written() {
    let setup = Setup::with_replicas_of(labels::REPLICAS_OF_SCALER, by_queue()).await.with_hpa();
    setup.answers(Verb::Delete, "horizontalpodautoscalers", 500, "etcdserver: request timed out");
    let failed = setup.reconciled().await.unwrap_err();
    assert!(matches!(failed, ApplyError::Call { step: "delete", .. }), "{failed:?}");
    let expected = ["Patch aiinferences", "Delete horizontalpodautoscalers", WRITES_STATUS];
    assert_eq!(setup.calls(), expected, "the new one waits for the end of the old one");
}

#[tokio::test]
async fn a_deletion_of_what_has_changed_is_decided_again_before_a_status_is_written() {
    let setup = Setup::with_replicas_of(labels::REPLICAS_OF_SCALER, by_queue()).await.with_hpa();
    let mut stored = setup.api.stored("horizontalpodautoscalers", "chat").unwrap();
    stored["metadata"]["annotations"] = json!({"by": "another"});
    setup.api.put_json("horizontalpodautoscalers", stored);
    let stale = setup.reconciled().await.unwrap_err();
    assert!(matches!(stale, ApplyError::Stale { .. }), "{stale:?}");
    assert!(!setup.has_written_status());
    // With the newest version in the cache.
    setup.reconciled().await.unwrap();
    assert_eq!(setup.api.stored("horizontalpodautoscalers", "chat"), None);
}

#[tokio::test]
async fn a_denied_deletion_of_an_autoscaler_is_named() {
    let setup = Setup::with_replicas_of(labels::REPLICAS_OF_SCALER, by_queue()).await.with_hpa();
    setup.answers(Verb::Delete, "horizontalpodautoscalers", 403, DENIED);
    assert_eq!(setup.reconciled().await.unwrap(), Next::After(Duration::from_secs(60)));
    let (reason, message) = setup.said(conditions::STALLED);
    assert_eq!(reason, reasons::DENIED);
    assert!(message.contains(DENIED), "{message}");
}

#[tokio::test]
async fn a_denied_autoscaler_is_named_and_the_inference_is_written() {
    let setup = Setup::with_replicas_of(labels::REPLICAS_OF_SCALER, by_cpu()).await;
    setup.answers(Verb::Patch, "horizontalpodautoscalers", 403, DENIED);
    let next = setup.reconciled().await.unwrap();
    assert_eq!(next, Next::After(Duration::from_secs(60)), "{:?}", setup.calls());
    assert!(setup.calls().contains(&"Patch aiinferences".to_owned()), "{:?}", setup.calls());
    let (reason, message) = setup.said(conditions::STALLED);
    assert_eq!(reason, reasons::DENIED);
    assert!(message.contains(DENIED), "{message}");
}
