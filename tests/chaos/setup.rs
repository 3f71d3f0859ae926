//! Shared setup: a cluster with the controller, models, and polling.

use std::{fs, ops::Deref, time::Duration};

use api::{
    aiinference::{AIInference, Phase},
    conditions,
};
use kube::api::PostParams;
use local_cluster::{Cluster, ClusterSpec, ComponentStatus, NodePool};
use serde_json::{Value, json};
use tests::{Scene, ask_until, controller, fresh_name, start, tools, until_component, wait_for, within};
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) const CONTROLLER: &str = "inference-controller";
pub(crate) const API_SERVER: &str = "kube-apiserver";
/// Namespace of the controller and of its Lease.
pub(crate) const SYSTEM: &str = "ai-system";

/// Lease timings that survive the outages of the tests.
pub(crate) const PATIENT_LEASE: [&str; 3] =
    ["--lease-duration=60", "--lease-renew-deadline=40", "--lease-retry-period=1"];

/// Limits the number of concurrent clusters: the start of a control plane needs a core for seconds, and CPU shortage must
/// not fail a test.
static TURNS: Semaphore = Semaphore::const_new(2);

/// A cluster of its own, with the controller running.
pub(crate) struct Setup {
    // Dropped before the permit.
    cluster: Cluster,
    _turn: SemaphorePermit<'static>,
}

impl Setup {
    /// With enough GPUs for all models of a test.
    pub(crate) async fn cluster(adjust: impl FnOnce(ClusterSpec) -> ClusterSpec) -> Self {
        let turn = TURNS.acquire().await.expect("it is never closed");
        let pool = NodePool { gpus: 32, ..NodePool::default() };
        let cluster = start(adjust(ClusterSpec::simulated(fresh_name(), tools(), pool))).await;
        Self { cluster, _turn: turn }
    }

    pub(crate) async fn with_controller(self, args: &[&str]) -> Self {
        let controller = controller(CONTROLLER).with_args(args.iter().copied());
        self.cluster.start_controller(&controller).await.unwrap();
        self
    }

    pub(crate) async fn controller(&self) -> ComponentStatus {
        let status = self.status().await.unwrap();
        status.components.into_iter().find(|component| component.name == CONTROLLER).unwrap()
    }

    /// Waits until the state of the controller's process fulfils the condition.
    pub(crate) async fn until_controller(
        &self,
        what: &str,
        holds: impl Fn(&ComponentStatus) -> bool,
    ) -> ComponentStatus {
        until_component(self, CONTROLLER, what, holds).await
    }

    /// Everything that the controller has logged, one JSON object per line.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().log(CONTROLLER)).unwrap()
    }
}

impl Deref for Setup {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Polls until the condition is true, where watching is not possible.
pub(crate) async fn until(what: &str, deadline: Duration, mut holds: impl AsyncFnMut() -> bool) {
    ask_until(what, deadline, async || if holds().await { Ok(()) } else { Err("not yet") }).await;
}

/// Waits until the API server serves again, with a new client.
pub(crate) async fn until_served(cluster: &Cluster) {
    let client = cluster.client().await.unwrap();
    until("an API server that is ready", within(), async || {
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        client.request_text(request).await.is_ok()
    })
    .await;
}

/// A vLLM server on one GPU.
pub(crate) fn inference(scene: &Scene<'_>, name: &str) -> AIInference {
    serde_json::from_value(json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": {"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}, "image": "engine:1"},
    }))
    .expect("an AIInference")
}

/// Creates a model and waits until it is ready.
pub(crate) async fn serve(scene: &Scene<'_>, name: &str) -> AIInference {
    scene.api().create(&PostParams::default(), &inference(scene, name)).await.expect("it is accepted");
    until_ready(scene, name).await
}

/// Waits until the current spec is ready.
pub(crate) async fn until_ready(scene: &Scene<'_>, name: &str) -> AIInference {
    wait_for(&scene.api::<AIInference>(), name, "ready", within(), |inference: &AIInference| {
        let Some(status) = &inference.status else { return false };
        let ready = status.conditions.iter().find(|condition| condition.type_ == conditions::READY);
        Some(status.observed_generation) == inference.metadata.generation
            && status.phase == Some(Phase::Ready)
            && status.updated_ready_replicas >= inference.spec.replicas
            && ready.is_some_and(|ready| ready.status == "True")
    })
    .await
}

/// The lines of a controller's log with this message.
pub(crate) fn lines_about<'a>(log: &'a str, message: &str) -> impl Iterator<Item = Value> + use<'a> {
    let message = message.to_owned();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(move |line| line["message"] == message.as_str())
}
