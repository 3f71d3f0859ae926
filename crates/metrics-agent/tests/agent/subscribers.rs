//! What the subscriber of the controllers makes of a real agent. On the ABI fake, with a kubelet that the test plays.

use std::{sync::Arc, time::Duration};

use fake_kubelet::{GPU, Kubelet, pod};
use fake_nvml::{Event, State as Machine};
use metrics_client::{
    args::Security,
    endpoint::{Endpoint, Origin},
    limits::Limits,
    snapshot::{EventKind, Metric},
    sources::{News, Settings, Sources, Timings},
    view::{Attribution, Health, Value, View},
};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::process::{Agent, PATIENCE, Start};

const GPU_0: &str = "GPU-00000000-0000-0000-0000-000000000000";

struct Client {
    sources: Sources,
    /// With each snapshot, and each change of the source's health.
    changed: Arc<Notify>,
    _stop: DropGuard,
}

impl Client {
    fn of(agent: &Agent) -> Self {
        let sources = Sources::new(Settings {
            subscriber: "test",
            min_interval: Duration::ZERO,
            metrics: &[Metric::Utilization, Metric::MemoryUsed, Metric::Energy],
            security: Security::Plain,
            timings: Timings::default(),
            limits: Limits::default(),
        });
        let (changed, stop) = (Arc::<Notify>::default(), CancellationToken::new());
        let notified = Arc::clone(&changed);
        sources.subscribe(move |_| notified.notify_one());
        let (running, until) = (sources.clone(), stop.clone());
        let client = Self { sources, changed, _stop: stop.drop_guard() };
        client.follow(agent);
        tokio::spawn(async move { running.run(until).await });
        client
    }

    fn follow(&self, agent: &Agent) {
        let address = agent.grpc.to_string().into();
        self.sources.set([Endpoint { origin: Origin::Node("node-1".into()), address }]);
    }

    async fn until(&self, is_so: impl Fn(&View) -> bool) -> View {
        let reached = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(view) = self.sources.of_node("node-1").filter(&is_so) {
                    return view;
                }
                self.changed.notified().await;
            }
        });
        reached.await.unwrap_or_else(|_| panic!("never: {:#?}", self.sources.views()))
    }
}

fn fresh(view: &View, metric: Metric) -> Option<f64> {
    let subject = view.held_by("ml", "llm-0").next()?;
    match view.value(subject.reading(metric)?) {
        Value::Fresh { value, .. } => Some(value),
        Value::Stale { .. } | Value::Unsupported | Value::Missing { .. } => None,
    }
}

#[tokio::test]
async fn readings_of_a_pod_are_those_of_its_gpus_and_stale_once_the_agent_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path(), vec![pod("llm-0", GPU, &[GPU_0])]).unwrap();
    let start = || {
        Start::on(Machine::with_gpus(2))
            .with(format!("--pod-resources={}", kubelet.socket().display()))
            .with("--pod-resources-interval=1")
            .start()
    };
    let agent = start();
    let client = Client::of(&agent);
    let view = client.until(|view| fresh(view, Metric::Utilization).is_some()).await;
    assert_eq!((&view.health, view.attribution()), (&Health::Live, Attribution::Fresh));
    let held: Vec<_> = view.held_by("ml", "llm-0").collect();
    assert_eq!((held.len(), &*held[0].id), (1, GPU_0));
    assert_eq!(fresh(&view, Metric::Utilization), Some(0.4));
    let window = held[0].reading(Metric::Utilization).unwrap().window(Duration::from_secs(10)).unwrap();
    assert_eq!(window.mean, 0.4);
    assert_eq!(view.held_by("ml", "llm-1").count(), 0);

    drop(agent);
    // A busy client may find the silence of the stream before it finds that the connection is closed.
    let gone = client.until(|view| matches!(view.health, Health::Unreachable { .. })).await;
    assert_eq!(fresh(&gone, Metric::Utilization), None);
    assert!(matches!(gone.attribution(), Attribution::Stale { .. }));

    let again = start();
    client.follow(&again);
    let view = client.until(|view| fresh(view, Metric::Utilization).is_some()).await;
    assert_eq!(view.attribution(), Attribution::Fresh);
}

#[tokio::test]
async fn an_xid_is_reported_once_with_the_pod_that_held_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path(), vec![pod("llm-0", GPU, &[GPU_0])]).unwrap();
    let mut machine = Machine::with_gpus(2);
    let agent = Start::on(machine.clone())
        .with(format!("--pod-resources={}", kubelet.socket().display()))
        .with("--pod-resources-interval=1")
        .start();
    let client = Client::of(&agent);
    let (reported, mut events) = tokio::sync::mpsc::unbounded_channel();
    client.sources.subscribe(move |change| {
        if let News::Snapshot { events } = &change.news {
            events.iter().for_each(|event| reported.send(event.clone()).unwrap());
        }
    });
    client
        .until(|view| view.attribution() == Attribution::Fresh && view.held_by("ml", "llm-0").count() == 1)
        .await;
    agent.awaits_events();
    machine.events.push(Event { gpu: 0, kind: 8, data: 79 });
    agent.machine_becomes(&machine);
    let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("in time").unwrap();
    assert_eq!((event.kind, event.code, event.is_fatal), (EventKind::DeviceError, Some(79), true));
    assert_eq!(&*event.subject_id, GPU_0);
    assert!(event.holders.iter().any(|holder| holder.is_pod("ml", "llm-0")), "{event:?}");
    assert!(event.at.is_some());
    let seen = client.sources.counts().snapshots;
    client.until(|_| client.sources.counts().snapshots > seen + 3).await;
    assert!(events.try_recv().is_err(), "it is in each snapshot, and reported once");
}
