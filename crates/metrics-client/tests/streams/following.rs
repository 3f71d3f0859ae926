//! What the client makes of gaps, duplicates, restarts, silence and servers that go.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use metrics_client::{
    args::Security,
    endpoint::{Endpoint, Origin},
    limits::Limits,
    snapshot::{FaultReason, Metric},
    sources::News,
    view::{Attribution, Health, Value, View},
};
use proto::metrics::v1::{Event, Fault};
use tokio::time::timeout;

use crate::{
    given::{Client, PATIENCE, of_node, subscribed},
    source::{NODE, Source, snapshot},
};

#[tokio::test]
async fn values_arrive_with_their_holders_at_once() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    client.follows(&source);
    let view = client.has(1).await;
    assert_eq!(view.health, Health::Live);
    assert_eq!(view.attribution(), Attribution::Fresh);
    let held: Vec<_> = view.held_by("demo", "llm-0").collect();
    assert_eq!(held.len(), 1);
    let reading = held[0].reading(Metric::Utilization).unwrap();
    assert!(matches!(view.value(reading), Value::Fresh { value: 0.5, .. }), "{view:?}");
    assert_eq!(reading.window(Duration::from_secs(10)).unwrap().samples, 10);
    assert_eq!(view.held_by("demo", "llm-1").count(), 0);
    assert_eq!(client.sources.of_node(NODE).unwrap().endpoint, view.endpoint);
    assert!(client.sources.of_node("gpu-2").is_none());
}

#[tokio::test]
async fn gaps_duplicates_and_restarts_are_counted_and_the_latest_snapshot_stays() {
    let source = Source::start();
    let client = Client::start();
    client.follows(&source);
    subscribed(&source, 1).await;
    for sequence in [1, 2, 5, 5, 4] {
        source.send(snapshot("a", sequence));
    }
    let counts = client.counts(|counts| counts.duplicates == 2).await;
    assert_eq!((counts.snapshots, counts.lost, counts.restarts), (3, 2, 0));
    assert_eq!(client.has(5).await.latest.unwrap().snapshot.sequence, 5);
    source.send(snapshot("b", 1));
    let counts = client.counts(|counts| counts.restarts == 1).await;
    assert_eq!((counts.snapshots, counts.lost), (4, 2));
    assert_eq!(&*client.has(1).await.latest.unwrap().snapshot.instance, "b");
    assert_eq!(source.subscribed(), 1, "none of it ends the stream");
}

#[tokio::test]
async fn a_silent_source_has_stale_values_and_is_subscribed_to_again() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    client.follows(&source);
    client.has(1).await;
    let view = client.until(|view| view.health != Health::Live).await;
    assert!(matches!(view.health, Health::Silent { .. } | Health::Unreachable { .. }), "{view:?}");
    let reading = view.latest.as_ref().unwrap().snapshot.subjects[0].readings[0].clone();
    let stale = view.value(&reading);
    assert!(matches!(stale, Value::Stale { value: 0.5, reason: FaultReason::Unspecified, .. }), "{stale:?}");
    assert!(matches!(view.attribution(), Attribution::Stale { .. }));
    // The latest snapshot, which it sends again, is no sign of life.
    subscribed(&source, 3).await;
    assert_ne!(client.sources.views()[0].health, Health::Live);
    source.send(snapshot("a", 2));
    client.until(|view| view.health == Health::Live).await;
    assert_eq!(client.reported("silent") + client.reported("unreachable"), 1, "{:?}", client.news);
}

#[tokio::test]
async fn a_source_that_repeats_itself_is_as_silent_as_one_that_says_nothing() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    client.follows(&source);
    client.has(1).await;
    let silent = timeout(PATIENCE, async {
        // The pace of its repetitions.
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while source.subscribed() < 2 {
            ticks.tick().await;
            source.send(snapshot("a", 1));
        }
    });
    silent.await.expect("another subscription");
    assert_ne!(client.sources.views()[0].health, Health::Live);
}

#[tokio::test]
async fn a_source_that_goes_and_comes_back_is_found_again() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    client.follows(&source);
    client.has(1).await;
    let address = source.address;
    drop(source);
    let why = client.is_unreachable().await;
    assert!(why.contains("refused"), "{why}");
    let source = Source::start_at(address);
    source.send(snapshot("b", 1));
    client.until(|view| view.health == Health::Live).await;
    assert_eq!(client.sources.counts().restarts, 1);
}

#[tokio::test]
async fn a_stream_that_is_opened_again_within_three_intervals_makes_nothing_stale() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    client.follows(&source);
    client.has(1).await;
    let address = source.address;
    drop(source);
    let source = Source::start_at(address);
    source.send(snapshot("a", 2));
    client.has(2).await;
    assert_eq!(client.reported("unreachable") + client.reported("silent"), 0, "{:?}", client.news);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_loses_snapshots_sees_it_and_has_the_last_one() {
    const SENT: u64 = 300;
    let source = Source::start();
    let client = Client::start();
    let (open, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    // Reads nothing until the test lets it.
    client.sources.subscribe(move |_| {
        let _ = gate.lock().unwrap().recv();
    });
    client.follows(&source);
    subscribed(&source, 1).await;
    for sequence in 1..=SENT {
        let message = "x".repeat(32 * 1024);
        let fault = Fault { message, ..Fault::default() };
        source.send(proto::metrics::v1::Snapshot { faults: vec![fault], ..snapshot("a", sequence) });
        // The timers of the runtime may be behind the reader that is held up.
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(open);
    client.has(SENT).await;
    let counts = client.sources.counts();
    assert!(counts.lost > 0, "{counts:?}");
    assert_eq!(counts.snapshots + counts.lost, SENT, "{counts:?}");
}

#[tokio::test]
async fn clocks_that_differ_by_a_minute_change_no_age() {
    let source = Source::start();
    let client = Client::start();
    client.follows(&source);
    subscribed(&source, 1).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (sequence, clock) in [(1, now - 60), (2, now + 60)] {
        let at = |seconds: u64| {
            Some(prost_types::Timestamp { seconds: i64::try_from(seconds).unwrap(), nanos: 0 })
        };
        let mut snapshot = snapshot("a", sequence);
        snapshot.sampled_at = at(clock);
        snapshot.events = vec![Event { sequence, at: at(clock - 30), ..Event::default() }];
        source.send(snapshot);
        let view = client.has(sequence).await;
        let reading = &view.latest.as_ref().unwrap().snapshot.subjects[0].readings[0];
        let Value::Fresh { age, .. } = view.value(reading) else { panic!("{view:?}") };
        assert!(age < Duration::from_secs(2), "{age:?}");
        let (_, age) = view.events().next().unwrap();
        assert!((30.0..32.0).contains(&age.as_secs_f64()), "{age:?}");
    }
}

#[tokio::test]
async fn an_event_is_reported_once_also_after_its_endpoint_was_gone() {
    let source = Source::start();
    let with_events = |sequence: u64, events: std::ops::RangeInclusive<u64>| {
        let event = |sequence| Event { sequence, code: Some(79), ..Event::default() };
        proto::metrics::v1::Snapshot { events: events.map(event).collect(), ..snapshot("a", sequence) }
    };
    source.send(with_events(1, 1..=2));
    let client = Client::start();
    client.follows(&source);
    client.has(1).await;
    source.send(with_events(2, 1..=3));
    client.has(2).await;
    client.sources.set([]);
    client.counts(|_| client.reported("gone") == 1).await;
    assert!(client.sources.views().is_empty());
    source.send(with_events(3, 2..=4));
    client.follows(&source);
    client.has(3).await;
    let events = ["event 1", "event 2", "event 3", "event 4"].map(|event| client.reported(event));
    assert_eq!(events, [1; 4], "{:?}", client.news);
}

#[tokio::test]
async fn endpoints_that_stay_keep_their_streams() {
    let (one, other) = (Source::start(), Source::start());
    one.send(snapshot("a", 1));
    other.send(snapshot("b", 1));
    let client = Client::start();
    client.sources.set([of_node(&one, "gpu-1"), of_node(&other, "gpu-2")]);
    client.counts(|counts| counts.snapshots == 2).await;
    client.sources.set([of_node(&one, "gpu-1")]);
    client.counts(|_| client.reported("gone") == 1).await;
    one.send(snapshot("a", 2));
    client.has(2).await;
    assert_eq!(one.subscribed(), 1);
    assert!(client.sources.of_node("gpu-2").is_none());
}

#[tokio::test]
async fn a_source_that_names_another_node_is_not_trusted_and_one_by_address_is() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    let stated = Endpoint { origin: Origin::Stated, address: source.address.to_string().into() };
    client.sources.set([of_node(&source, "gpu-2"), stated.clone()]);
    client.counts(|counts| counts.snapshots == 2).await;
    assert_eq!(client.sources.of_node("gpu-2").unwrap().attribution(), Attribution::NotAdmitted);
    let view = client.sources.of_node(NODE).unwrap();
    assert_eq!((view.endpoint.clone(), view.attribution()), (stated, Attribution::Fresh));
}

#[tokio::test]
async fn a_task_that_dies_is_started_again_after_the_longest_back_off() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    client.sources.subscribe(|change| {
        assert!(!matches!(change.news, News::Snapshot { .. }), "a consumer that panics, as this test wants");
    });
    let begin = Instant::now();
    client.follows(&source);
    for (sequence, times) in [(2, 2), (3, 3), (4, 4)] {
        source.send(snapshot("a", sequence));
        subscribed(&source, times).await;
    }
    assert!(begin.elapsed() >= Duration::from_millis(3 * 200), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_stated_source_speaks_for_no_node_that_has_a_found_one() {
    let source = Source::start();
    source.send(snapshot("a", 1));
    let client = Client::start();
    let stated = Endpoint { origin: Origin::Stated, address: source.address.to_string().into() };
    // Of a node whose agent does not answer.
    let found = Endpoint { origin: Origin::Node(NODE.into()), address: "127.0.0.1:1".into() };
    client.sources.set([found.clone(), stated.clone()]);
    client.counts(|counts| counts.snapshots == 1).await;
    assert_eq!(client.sources.of_node(NODE).unwrap().endpoint, found);
    client.sources.set([stated.clone()]);
    assert_eq!(client.sources.of_node(NODE).unwrap().endpoint, stated);
}

#[tokio::test]
async fn what_is_wrong_with_a_source_is_named() {
    let source = Source::start();
    source.refuses(Some(tonic::Status::resource_exhausted("there are 64 subscribers already")));
    let client = Client::start();
    client.follows(&source);
    assert_eq!(client.is_unreachable().await, "it has as many subscribers as it allows");
    source.refuses(Some(tonic::Status::unimplemented("")));
    let named = |words: &'static str| {
        client
            .until(move |view| matches!(&view.health, Health::Unreachable { why, .. } if why.contains(words)))
    };
    named("does not serve metrics.v1.Metrics").await;
    source.refuses(None);
    source.send(proto::metrics::v1::Snapshot { source: None, ..snapshot("a", 1) });
    named("without an instance").await;
    let fault = Fault { message: "x".repeat(5 << 20), ..Fault::default() };
    source.send(proto::metrics::v1::Snapshot { faults: vec![fault], ..snapshot("a", 1) });
    named("larger than").await;
    // Two bytes each on the wire.
    let faults = vec![Fault::default(); 1 << 17];
    source.send(proto::metrics::v1::Snapshot { faults, ..snapshot("a", 1) });
    named("more than 65536 subjects").await;
    source.send(snapshot("a", 2));
    client.has(2).await;
}

#[tokio::test]
async fn a_source_that_sends_more_than_a_user_expects_loses_its_stream() {
    let limits = Limits { message_bytes: 1_024, elements: 8, ..Limits::default() };
    let source = Source::start();
    let client = Client::start_within(limits, Security::Plain, Duration::ZERO);
    client.follows(&source);
    let fault = Fault { message: "x".repeat(1_024), ..Fault::default() };
    source.send(proto::metrics::v1::Snapshot { faults: vec![fault], ..snapshot("a", 1) });
    assert_eq!(client.is_unreachable().await, "a snapshot is larger than 1024 bytes");
    source.send(proto::metrics::v1::Snapshot { faults: vec![Fault::default(); 8], ..snapshot("a", 1) });
    let is_refused = |view: &View| matches!(&view.health, Health::Unreachable { why, .. } if why.contains("more than 8 subjects"));
    assert!(client.until(is_refused).await.latest.is_none());
}

#[tokio::test]
async fn a_source_beyond_the_limit_is_read_once_another_is_gone() {
    let limits = Limits { sources: 2, ..Limits::default() };
    let client = Client::start_within(limits, Security::Plain, Duration::ZERO);
    let sources = [Source::start(), Source::start(), Source::start()];
    let endpoints =
        [(0, "gpu-1"), (1, "gpu-2"), (2, "gpu-3")].map(|(index, node)| of_node(&sources[index], node));
    for (source, endpoint) in sources.iter().zip(&endpoints) {
        source.send(proto::metrics::v1::Snapshot { source: Some(anyone()), ..snapshot("a", 1) });
        client.sources.insert(endpoint.clone());
    }
    assert!(client.sources.is_full());
    assert_eq!(client.sources.at(&endpoints[2]), None);
    client.sources.remove(&endpoints[0]);
    client.until(|view| view.endpoint == endpoints[2] && view.health == Health::Live).await;
    // One that waits no more takes no place.
    client.sources.insert(endpoints[0].clone());
    client.sources.remove(&endpoints[0]);
    client.sources.remove(&endpoints[1]);
    assert_eq!((client.sources.len(), client.sources.is_full()), (1, false));
}

/// It names no node.
fn anyone() -> proto::metrics::v1::Source {
    proto::metrics::v1::Source { instance: "a".into(), ..proto::metrics::v1::Source::default() }
}

#[tokio::test]
async fn a_source_that_says_nothing_is_given_up_and_tried_again() {
    // Accepts connections and never answers.
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::start();
    let address: Arc<str> = deaf.local_addr().unwrap().to_string().into();
    client.sources.set([Endpoint { origin: Origin::Node(NODE.into()), address }]);
    let why = client.is_unreachable().await;
    assert!(why.starts_with("no answer to the subscription within"), "{why}");
    let source = Source::start();
    let quiet = Client::start_with(Security::Plain, Duration::ZERO);
    quiet.follows(&source);
    assert_eq!(quiet.is_unreachable().await, "no snapshot for 2 s");
    subscribed(&source, 2).await;
}
