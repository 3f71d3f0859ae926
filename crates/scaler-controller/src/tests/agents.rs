//! The way of a GPU metric: from the stream of an agent that the test plays to the samples of an AIScaler.

use std::{pin::Pin, sync::Arc, time::Duration};

use fake_api::ScriptedApi;
use futures::{Stream, StreamExt as _, stream};
use metrics_client::{
    args::Security,
    endpoint::{Endpoint, Origin},
    limits::Limits,
    sources::{Settings, Sources, Timings},
};
use proto::metrics::v1::{
    Attribution, Holder, Metric, PodRef, Reading as Measured, Snapshot, Source, State, Subject,
    SubscribeRequest, Window,
    metrics_server::{Metrics as Contract, MetricsServer},
};
use runtime::{
    controller::{Controller, Next, Options},
    metrics::Metrics,
    write::apply::ApplyError,
};
use scaling::reading::Reading;
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use super::{context, put_deployment, sampled, stored_scaler};
use crate::{
    NAME, collect,
    collect::agents::{self, Agents},
    sources::agents::METRICS,
};

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends each snapshot that the test sets.
struct Agent(watch::Receiver<Snapshot>);

#[tonic::async_trait]
impl Contract for Agent {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<Snapshot, Status>> + Send>>;

    async fn subscribe(
        &self,
        _: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut snapshots = self.0.clone();
        snapshots.mark_changed();
        let sent = stream::unfold(snapshots, |mut snapshots| async {
            snapshots.changed().await.ok()?;
            let snapshot = snapshots.borrow_and_update().clone();
            Some((Ok(snapshot), snapshots))
        });
        Ok(Response::new(sent.boxed()))
    }
}

/// One GPU of demo/chat-0 on node gpu-1.
fn snapshot(sequence: u64, utilization: f64) -> Snapshot {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let window = Window { length: seconds(10), mean: utilization, samples: 10, ..Window::default() };
    let reading = Measured {
        metric: Metric::Utilization.into(),
        state: State::Fresh.into(),
        value: Some(utilization),
        age: seconds(0),
        windows: vec![window],
        ..Measured::default()
    };
    let pod = PodRef { namespace: "demo".into(), name: "chat-0".into(), uid: String::new() };
    let subject = Subject {
        id: "GPU-a".into(),
        readings: vec![reading],
        holders: vec![Holder { pod: Some(pod), ..Holder::default() }],
        ..Subject::default()
    };
    Snapshot {
        source: Some(Source { instance: "a".into(), node: "gpu-1".into(), ..Source::default() }),
        sequence,
        uptime: seconds(i64::try_from(sequence).unwrap()),
        interval: seconds(1),
        subjects: vec![subject],
        attribution: Some(Attribution { state: State::Fresh.into(), age: seconds(0) }),
        ..Snapshot::default()
    }
}

#[tokio::test]
async fn a_new_snapshot_wakes_the_objects_with_pods_on_its_node() {
    let (sender, receiver) = watch::channel(snapshot(1, 0.5));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = Server::builder().add_service(MetricsServer::new(Agent(receiver)));
    let serving = tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));

    let api = ScriptedApi::start().await;
    let mut ctx = context(&api, &[]);
    let sources = Sources::new(Settings {
        subscriber: NAME,
        min_interval: Duration::ZERO,
        metrics: METRICS,
        security: Security::Plain,
        timings: Timings::default(),
        limits: Limits::default(),
    });
    sources.set([Endpoint { origin: Origin::Node("gpu-1".into()), address: address.into() }]);
    ctx.agents = Agents::of(Some(sources), None, String::new());
    put_deployment(&api, &ctx, 1, json!({}));
    let labels = json!({"app": "chat", "pod-template-hash": "5d4f"});
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-5d4f", "uid": "r", "controller": true});
    let pod = json!({
        "metadata": {"name": "chat-0", "namespace": "demo", "uid": "p", "resourceVersion": "1", "labels": labels,
                     "ownerReferences": [owner]},
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    ctx.pods.upsert(serde_json::from_value(pod).unwrap());
    let scaler = stored_scaler(&api, &ctx, json!({"deploymentName": "chat", "metricType": "gpu_util"}));
    ctx.scalers.replace(vec![Arc::clone(&scaler)], "1");

    let ctx = Arc::new(ctx);
    let (woken, mut wakes) = mpsc::unbounded_channel();
    let polled = Arc::clone(&ctx);
    let sources = ctx.agents.sources.clone();
    // The period is far longer than the test.
    let controller = Controller::new(&ctx.scalers, Options::default(), Arc::new(Metrics::new("test")))
        .polls(agents::polling(PATIENCE * 10), &ctx.agents.trigger, move |scaler, now| {
            let ctx = Arc::clone(&polled);
            async move { collect::read_agents(&ctx, &scaler, now).await }
        })
        .beside(move |_, stop| agents::run(sources, stop));
    let stop = CancellationToken::new();
    let observed = Arc::clone(&ctx);
    let running = tokio::spawn(controller.run(stop.clone(), move |scaler, _| {
        let _ = woken.send(sampled(&observed, &scaler));
        async { Ok::<Next, ApplyError>(Next::Done) }
    }));
    let mut until = async |percent: i64| {
        let is_so = |reading: &Reading| matches!(reading, Reading::Pods(samples) if samples[0].value.count() == percent * 1_000);
        let reached = timeout(PATIENCE, async { while !is_so(&wakes.recv().await.unwrap().reading) {} });
        reached.await.unwrap_or_else(|_| panic!("never {percent}: {:?}", sampled(&ctx, &scaler)));
    };
    until(50).await;
    sender.send_replace(snapshot(2, 0.9));
    until(90).await;
    stop.cancel();
    running.await.unwrap();
    serving.abort();
}
