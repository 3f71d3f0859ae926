//! What subscribers and Prometheus see of a worker, and what is counted through restarts.

use std::fs;

use proto::metrics::v1::{
    FaultReason, Metric, Snapshot, State, SubscribeRequest, metrics_client::MetricsClient,
};
use tokio::time::timeout;

use crate::{
    process::{Monitor, PATIENCE},
    worker::{Says, Worker},
};

pub(crate) const LABELS: &str = r#"{namespace="demo",pool="coder",role="coder",worker="coder-1"}"#;

fn line(name: &str, value: u64) -> String {
    format!("{name}{LABELS} {value}.0")
}

fn busy(tokens: u64, started: u64) -> Says {
    Says { queued: 3, in_flight: 2, tokens, started }
}

async fn until(monitor: &Monitor, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let found = timeout(PATIENCE, async {
        let mut client = MetricsClient::connect(format!("http://{}", monitor.grpc)).await.unwrap();
        let mut stream = client.subscribe(SubscribeRequest::default()).await.unwrap().into_inner();
        loop {
            let snapshot = stream.message().await.unwrap().expect("the stream goes on");
            if is_so(&snapshot) {
                return snapshot;
            }
        }
    });
    found.await.expect("such a snapshot")
}

fn reading(snapshot: &Snapshot, metric: Metric) -> (State, Option<f64>) {
    let readings = &snapshot.subjects[0].readings;
    let reading = readings.iter().find(|reading| reading.metric() == metric).expect("a reading");
    (reading.state(), reading.value)
}

#[tokio::test]
async fn load_and_tokens_are_streamed_with_the_pod_they_are_of() {
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::start(busy(7, 1));
    let monitor = Monitor::start(folder.path(), worker.port);
    let fresh = |snapshot: &Snapshot| reading(snapshot, Metric::Tokens) == (State::Fresh, Some(7.0));
    let snapshot = until(&monitor, fresh).await;
    assert_eq!(reading(&snapshot, Metric::QueueWaiting), (State::Fresh, Some(3.0)));
    assert_eq!(reading(&snapshot, Metric::Busy), (State::Fresh, Some(1.0)));
    let pod = snapshot.source.unwrap().pod.unwrap();
    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("demo", "coder-1", "u"));
    for (name, value) in [("agent_queue_depth", 3), ("agent_tasks_in_flight", 2), ("agent_tokens_total", 7)] {
        monitor.until(&line(name, value));
    }
}

#[tokio::test]
async fn a_worker_that_is_gone_has_no_load_and_keeps_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::start(busy(7, 1));
    let monitor = Monitor::start(folder.path(), worker.port);
    monitor.until(&line("agent_tokens_total", 7));
    worker.stop();
    let stale = |snapshot: &Snapshot| reading(snapshot, Metric::QueueWaiting).0 == State::Stale;
    let snapshot = until(&monitor, stale).await;
    assert_eq!(reading(&snapshot, Metric::Tokens), (State::Fresh, Some(7.0)));
    assert_eq!(snapshot.subjects[0].fault.as_ref().unwrap().reason(), FaultReason::Unreachable);
    let page = monitor.page("/metrics");
    assert!(!page.contains("agent_queue_depth{") && page.contains(&line("agent_tokens_total", 7)), "{page}");
    assert_eq!(monitor.page("/livez"), "ok\n", "the monitor is well");
}

#[test]
fn tokens_are_counted_once_through_restarts_of_the_worker_and_of_the_monitor() {
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::start(busy(100, 1));
    let monitor = Monitor::start(folder.path(), worker.port);
    monitor.until(&line("agent_tokens_total", 100));
    // It has used more than the one before when it is first seen.
    worker.says(busy(150, 2));
    monitor.until(&line("agent_tokens_total", 250));
    monitor.kill();
    worker.says(busy(160, 2));
    let monitor = Monitor::start(folder.path(), worker.port);
    monitor.until(&line("agent_tokens_total", 260));
    assert_eq!(monitor.stop().tokens, 260);
}

/// As after a failure of the node's power.
#[test]
fn tokens_that_cannot_be_read_do_not_keep_a_worker_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokens.json"), "").unwrap();
    let worker = Worker::start(busy(7, 1));
    let monitor = Monitor::start(folder.path(), worker.port);
    monitor.until(&line("agent_tokens_total", 7));
    assert_eq!(monitor.stop().tokens, 7);
}
