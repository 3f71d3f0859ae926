//! What the tests begin with: a cluster, the controller in it, a model, and looks at what cannot be watched.

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

/// Long enough for every outage that a leader shall survive.
pub(crate) const PATIENT_LEASE: [&str; 3] =
    ["--lease-duration=60", "--lease-renew-deadline=40", "--lease-retry-period=1"];

/// A start of a control plane keeps a core busy for seconds, and a test that breaks things is not to break for lack of
/// one.
static TURNS: Semaphore = Semaphore::const_new(2);

/// A cluster of its own, with the controller running.
pub(crate) struct Given {
    // Ends before the turn does.
    cluster: Cluster,
    _turn: SemaphorePermit<'static>,
}

impl Given {
    /// With room for as many models as a test may want.
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

    /// Waits until the controller's process is as the test expects it.
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

impl Deref for Given {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Asks until the answer is yes, for what cannot be watched.
pub(crate) async fn until(what: &str, deadline: Duration, mut holds: impl AsyncFnMut() -> bool) {
    ask_until(what, deadline, async || if holds().await { Ok(()) } else { Err("not yet") }).await;
}

/// Waits until the API server serves again; a client that was made before may be what the test is about.
pub(crate) async fn until_served(cluster: &Cluster) {
    let client = cluster.client().await.unwrap();
    until("an API server that is ready", within(), async || {
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        client.request_text(request).await.is_ok()
    })
    .await;
}

/// A vLLM server on one GPU.
pub(crate) fn model(scene: &Scene<'_>, name: &str) -> AIInference {
    serde_json::from_value(json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": {"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}, "image": "engine:1"},
    }))
    .expect("an AIInference")
}

/// A model comes into being, with all that needs the controller.
pub(crate) async fn serve(scene: &Scene<'_>, name: &str) -> AIInference {
    scene.api().create(&PostParams::default(), &model(scene, name)).await.expect("it is accepted");
    until_ready(scene, name).await
}

/// Waits until the newest spec is served.
pub(crate) async fn until_ready(scene: &Scene<'_>, name: &str) -> AIInference {
    wait_for(&scene.api::<AIInference>(), name, "ready", within(), |model: &AIInference| {
        let Some(status) = &model.status else { return false };
        let ready = status.conditions.iter().find(|condition| condition.type_ == conditions::READY);
        Some(status.observed_generation) == model.metadata.generation
            && status.phase == Some(Phase::Ready)
            && status.updated_ready_replicas >= model.spec.replicas
            && ready.is_some_and(|ready| ready.status == "True")
    })
    .await
}

/// The lines of a controller's log that say this.
pub(crate) fn lines_about<'a>(log: &'a str, message: &str) -> impl Iterator<Item = Value> + use<'a> {
    let message = message.to_owned();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(move |line| line["message"] == message.as_str())
}
