//! One sick kind, one sick object, or one lost event stays where it is: K3, K9, K11, K18, K19, and the shutdown.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::Resource;
use runtime::{
    apply::{ApplyError, Writer},
    cache::Cache,
    controller::{Controller, Next, Options, ReconcileError},
    metrics::Metrics,
    queue::Backoff,
    watch::{Plane, Scope, Timings},
};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{Answer, Fake, Gate, On, PATIENCE, Verb},
    given::{Logs, child_of, client, deployment, metrics, one_try, timings, within_patience},
};

fn root_watches() -> On {
    Verb::Watch.of("deployments")
}

fn child_watches() -> On {
    Verb::Watch.of("configmaps")
}

/// A controller of Deployments that own ConfigMaps, as a controller crate would build it.
struct Controlled {
    roots: Cache<Deployment>,
    children: Cache<ConfigMap>,
    runs: mpsc::UnboundedReceiver<String>,
    stop: CancellationToken,
    running: JoinHandle<()>,
    metrics: Arc<Metrics>,
    _plane: Plane,
}

#[derive(Debug, thiserror::Error)]
#[error("failed on purpose")]
struct OnPurpose;

impl ReconcileError for OnPurpose {
    fn step(&self) -> &'static str {
        "on-purpose"
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Applying(#[from] ApplyError);

impl ReconcileError for Applying {
    fn step(&self) -> &'static str {
        "apply"
    }

    fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl Controlled {
    fn start<Fut, E>(
        fake: &Fake,
        timings: Timings,
        options: Options,
        act: impl Fn(Arc<Deployment>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Next, E>> + Send + 'static,
        E: ReconcileError,
    {
        let metrics = metrics();
        let mut plane = Plane::new(client(fake), timings, Arc::clone(&metrics));
        let roots = plane.watch::<Deployment>("Deployment", Scope::default());
        let children = plane.watch::<ConfigMap>("ConfigMap", Scope::default());
        let controller = Controller::new(&roots, options, Arc::clone(&metrics)).owns(&children);
        let stop = CancellationToken::new();
        plane.start(&CancellationToken::new());
        let (sender, runs) = mpsc::unbounded_channel();
        let running =
            tokio::spawn(controller.run(stop.clone(), move |root: Arc<Deployment>, _: Timestamp| {
                // The receiver may be gone at the end of a test.
                let _ = sender.send(root.metadata.name.clone().unwrap());
                act(root)
            }));
        Self { roots, children, runs, stop, running, metrics, _plane: plane }
    }

    async fn ran(&mut self) -> String {
        within_patience("a reconcile", self.runs.recv()).await.unwrap()
    }

    /// The runs up to and with the first one of this object.
    async fn ran_until(&mut self, name: &str) -> Vec<String> {
        let mut all = vec![self.ran().await];
        while all.last().is_none_or(|last| last != name) {
            all.push(self.ran().await);
        }
        all
    }
}

/// Waits until a cache tells of this object.
async fn seen<K: Resource<DynamicType = ()>>(cache: &Cache<K>, name: &'static str) {
    let (sender, mut told) = mpsc::unbounded_channel();
    cache.subscribe(move |change| {
        if &*change.key.name == name {
            // The receiver is gone once it has been told.
            let _ = sender.send(());
        }
    });
    within_patience(name, told.recv()).await;
}

async fn succeed(_: Arc<Deployment>) -> Result<Next, OnPurpose> {
    Ok(Next::Done)
}

/// Keys run in the order in which they were queued.
fn one_worker() -> Options {
    Options { workers: 1, ..Options::default() }
}

/// A failed key does not come again within a test, unless something else makes it.
fn one_failure() -> Options {
    let backoff = Backoff { first: 10 * PATIENCE, longest: 10 * PATIENCE, ..Backoff::default() };
    Options { backoff, ..one_worker() }
}

#[tokio::test]
async fn a_child_watch_that_keeps_failing_delays_no_other_kind() {
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    fake.always(child_watches(), Answer::pretty(500, "InternalError", "etcdserver: no leader"));
    // Whoever shares the back-off of the sick watch waits for longer than this test may take.
    let mut controlled = Controlled::start(&fake, one_try(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.called(child_watches(), 1).await;
    for generation in 2..30 {
        fake.put(&deployment("a", generation));
        assert_eq!(controlled.ran().await, "a");
    }
    assert_eq!(fake.calls(child_watches()).len(), 1, "and the healthy events do not hurry the sick watch");
}

#[tokio::test]
async fn a_watch_that_recovers_tells_what_it_missed() {
    let fake = Fake::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.always(child_watches(), Answer::status(500, "InternalError", "etcdserver: no leader"));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.put(&child_of(&root, "child"));
    fake.called(child_watches(), 4).await;
    fake.heal();
    assert_eq!(controlled.ran().await, "a");
    assert_eq!(fake.calls(Verb::List.of("configmaps")).len(), 1);
}

#[tokio::test]
async fn poison_objects_of_every_sort_leave_the_good_ones_alone() {
    let logs = Logs::capture();
    let fake = Fake::start().await;
    for name in ["errs", "good", "hangs", "panics"] {
        fake.put(&deployment(name, 1));
    }
    fake.put_json("deployments", json!({"metadata": {"namespace": "demo", "name": "unreadable"}, "spec": 7}));
    let options = Options { workers: 2, deadline: Duration::from_millis(50), ..Options::default() };
    let act = async |root: Arc<Deployment>| match root.metadata.name.as_deref().unwrap() {
        "panics" => panic!("on purpose"),
        "hangs" => std::future::pending().await,
        "errs" => Err(OnPurpose),
        _ => Ok(Next::Done),
    };
    let act = Arc::new(act);
    let mut controlled = Controlled::start(&fake, timings(), options, move |root| {
        let act = Arc::clone(&act);
        async move { act(root).await }
    });
    logs.said(&["demo/panics", "panic", "on purpose"]).await;
    logs.said(&["demo/hangs", "deadline"]).await;
    logs.said(&["demo/errs", "on-purpose", "failed on purpose"]).await;
    logs.said(&["skipped", "demo/unreadable"]).await;
    for generation in 2..5 {
        fake.put(&deployment("good", generation));
        controlled.ran_until("good").await;
    }
    let page = controlled.metrics.page().unwrap();
    for step in ["panic", "deadline", "on-purpose"] {
        assert!(page.contains(&format!("step=\"{step}\"")), "{step} is not counted in\n{page}");
    }
    assert!(!controlled.running.is_finished());
}

#[tokio::test]
async fn a_panicking_object_is_tried_again_ever_more_rarely_and_recovers() {
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&times);
    let first = Duration::from_millis(20);
    let options = Options { backoff: Backoff { first, ..Backoff::default() }, ..one_worker() };
    let mut controlled = Controlled::start(&fake, timings(), options, move |_| {
        let tries = {
            let mut times = log.lock().unwrap();
            times.push(std::time::Instant::now());
            times.len()
        };
        async move { if tries < 5 { panic!("on purpose") } else { Ok::<_, OnPurpose>(Next::Done) } }
    });
    for _ in 0..5 {
        controlled.ran().await;
    }
    let times = times.lock().unwrap().clone();
    for (number, pair) in times.windows(2).enumerate() {
        assert!(pair[1] - pair[0] >= first * 2_u32.pow(u32::try_from(number).unwrap()));
    }
    fake.put(&deployment("a", 2));
    assert_eq!(controlled.ran().await, "a");
}

#[tokio::test]
async fn a_child_event_does_not_bypass_the_backoff_and_a_spec_change_jumps_it() {
    let fake = Fake::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    let mut controlled =
        Controlled::start(&fake, timings(), one_failure(), |_| async { Err::<Next, _>(OnPurpose) });
    assert_eq!(controlled.ran().await, "a");
    for _ in 0..20 {
        fake.put(&child_of(&root, "child"));
    }
    fake.put(&child_of(&root, "last"));
    seen(&controlled.children, "last").await;
    fake.put(&deployment("fence", 1));
    assert_eq!(controlled.ran().await, "fence", "the child's events, which came before, started nothing");
    fake.put(&deployment("a", 2));
    assert_eq!(controlled.ran().await, "a");
}

#[tokio::test]
async fn a_child_deleted_behind_an_expired_watch_starts_its_owner() {
    let fake = Fake::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.put(&child_of(&root, "child"));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.called(child_watches(), 1).await;
    fake.mute("configmaps");
    fake.remove("configmaps", "child");
    fake.compact("configmaps");
    assert_eq!(controlled.ran().await, "a");
    assert_eq!(controlled.children.len(), 0);
}

#[tokio::test]
async fn a_root_that_was_recreated_behind_an_expired_watch_runs() {
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.called(root_watches(), 1).await;
    fake.mute("deployments");
    fake.remove("deployments", "a");
    let mut namesake = deployment("a", 1);
    namesake.metadata.uid = Some("another".into());
    fake.put(&namesake);
    fake.compact("deployments");
    assert_eq!(controlled.ran().await, "a");
}

#[tokio::test]
async fn only_a_controlling_owner_of_the_known_uid_is_started() {
    let fake = Fake::start().await;
    let [loose, older, right] = ["loose", "older", "right"].map(|name| deployment(name, 1));
    for root in [&loose, &older, &right] {
        fake.put(root);
    }
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    for _ in 0..3 {
        controlled.ran().await;
    }
    let mut of_loose = child_of(&loose, "of-loose");
    of_loose.metadata.owner_references.as_mut().unwrap()[0].controller = None;
    let mut of_older = child_of(&older, "of-older");
    of_older.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-of-an-older-one".into();
    fake.put(&of_loose);
    fake.put(&of_older);
    fake.put(&child_of(&right, "of-right"));
    assert_eq!(controlled.ran().await, "right", "one worker: what came first would have run first");
}

#[tokio::test]
async fn both_owners_of_a_child_that_changes_hands_are_started() {
    let fake = Fake::start().await;
    let [one, two] = ["one", "two"].map(|name| deployment(name, 1));
    fake.put(&one);
    fake.put(&two);
    fake.put(&child_of(&one, "child"));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    for _ in 0..2 {
        controlled.ran().await;
    }
    fake.put(&child_of(&two, "child"));
    assert_eq!([controlled.ran().await, controlled.ran().await], ["one", "two"]);
}

/// A controller whose reconcile applies one child.
fn applying(fake: &Fake) -> Controlled {
    let writer = Writer::new(client(fake), "test", "test/hash");
    let cache = Cache::<ConfigMap>::default();
    Controlled::start(fake, timings(), one_worker(), move |root| {
        let (writer, cache) = (writer.clone(), cache.clone());
        async move {
            let mut child = child_of(&root, "child");
            child.metadata.uid = None;
            writer.apply(&cache, &child).await?;
            Ok::<_, Applying>(Next::Done)
        }
    })
}

/// The server's wish, in whole seconds as it has to be, is a floor; the back-off alone would take milliseconds.
async fn assert_waits_a_second(answer: Answer) {
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    fake.next(Verb::Patch.of("configmaps"), [answer]);
    let _controlled = applying(&fake);
    let tries = fake.called(Verb::Patch.of("configmaps"), 2).await;
    assert!(tries[1].at - tries[0].at >= Duration::from_secs(1), "{:?}", tries[1].at - tries[0].at);
}

#[tokio::test]
async fn the_pause_in_a_status_is_a_floor_for_the_next_try() {
    assert_waits_a_second(Answer::busy(429, 1)).await;
}

#[tokio::test]
async fn the_pause_in_a_header_alone_is_a_floor_for_the_next_try() {
    assert_waits_a_second(Answer::rejected(1)).await;
}

#[tokio::test]
async fn the_pause_in_a_header_counts_whatever_the_body_says() {
    let body = r#"{"kind": "Status", "code": 429, "details": "none"}"#.to_owned();
    assert_waits_a_second(Answer::Says { code: 429, body, retry_after: Some(1) }).await;
}

#[tokio::test]
async fn a_stop_lets_what_runs_finish_and_begins_nothing_new() {
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    let gate = Gate::default();
    let patches = Verb::Patch.of("configmaps");
    fake.next(patches, [Answer::Late(gate.clone())]);
    let mut controlled = applying(&fake);
    assert_eq!(controlled.ran().await, "a");
    fake.called(patches, 1).await;
    fake.put(&deployment("b", 1));
    seen(&controlled.roots, "b").await;
    controlled.stop.cancel();
    gate.open();
    within_patience("the end", controlled.running).await.unwrap();
    assert!(controlled.runs.is_empty(), "b, which waited for the only worker, did not begin");
    let page = controlled.metrics.page().unwrap();
    let success = "controller_runtime_reconcile_total{controller=\"test\",result=\"success\"} 1";
    assert!(page.contains(success), "a, which waited for its answer, was finished\n{page}");
}

#[tokio::test]
async fn a_reconcile_that_hangs_does_not_hold_up_a_stop_for_longer_than_the_drain() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct SaysWhenDropped;
    impl Drop for SaysWhenDropped {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::SeqCst);
        }
    }
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    let options = Options { drain: Duration::from_millis(100), ..one_worker() };
    let mut controlled = Controlled::start(&fake, timings(), options, |_| async {
        let _held = SaysWhenDropped;
        std::future::pending::<Result<Next, OnPurpose>>().await
    });
    controlled.ran().await;
    controlled.stop.cancel();
    within_patience("the end", controlled.running).await.unwrap();
    // The workers are aborted, which the runtime carries out when they next could run.
    let gone = async {
        while !DROPPED.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    within_patience("the end of the reconcile", gone).await;
}

#[tokio::test]
async fn nothing_runs_before_every_kind_has_been_listed() {
    let fake = Fake::start().await;
    fake.put(&deployment("a", 1));
    let gate = Gate::default();
    fake.next(Verb::List.of("configmaps"), [Answer::Late(gate.clone())]);
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    fake.called(root_watches(), 1).await;
    assert!(controlled.runs.is_empty());
    gate.open();
    assert_eq!(controlled.ran().await, "a");
}
