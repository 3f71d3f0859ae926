//! A kind whose watch fails, an object that fails or an event that is lost affects nothing else; and the shutdown.

use std::{
    borrow::Cow,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Resource;
use runtime::{
    controller::{Controller, Next, Options, ReconcileError},
    key::Key,
    metrics::Metrics,
    queue::{Backoff, EventDelays, Waker},
    watch::{Scope, Timings, Watches, cache::Cache},
    write::{
        apply::{ApplyError, Writer},
        children::Children,
    },
};
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{Answer, Gate, On, PATIENCE, ScriptedApi, Verb},
    given::{
        Child, Logs, child_of, client, deployment, metrics, one_try, rendered, timings, value_of,
        within_patience, writer,
    },
};

fn root_watches() -> On {
    Verb::Watch.of("deployments")
}

fn child_watches() -> On {
    Verb::Watch.of("configmaps")
}

/// What a controller of Deployments that own ConfigMaps has at hand, as a controller crate would build it.
#[derive(Clone)]
struct Context {
    roots: Cache<Deployment>,
    children: Children<Child, k8s_openapi::api::core::v1::ConfigMap>,
    writer: Writer,
}

struct Controlled {
    ctx: Context,
    runs: mpsc::UnboundedReceiver<String>,
    stop: CancellationToken,
    running: JoinHandle<()>,
    metrics: Arc<Metrics>,
    _watches: Watches,
}

#[derive(Debug, thiserror::Error)]
#[error("failed on purpose")]
struct OnPurpose;

impl ReconcileError for OnPurpose {
    fn step(&self) -> Cow<'static, str> {
        "on-purpose".into()
    }
}

impl Controlled {
    fn start<Fut, E>(
        fake: &ScriptedApi,
        timings: Timings,
        options: Options,
        act: impl Fn(Arc<Deployment>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Next, E>> + Send + 'static,
        E: ReconcileError,
    {
        Self::start_selected(fake, timings, options, None, move |_, root| act(root))
    }

    /// Of the children, only those with these labels are watched.
    fn start_selected<Fut, E>(
        fake: &ScriptedApi,
        timings: Timings,
        options: Options,
        labels: Option<&str>,
        act: impl Fn(Context, Arc<Deployment>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Next, E>> + Send + 'static,
        E: ReconcileError,
    {
        let metrics = metrics();
        let mut watches = Watches::new(client(fake), timings, Arc::clone(&metrics));
        let roots = watches.watch::<Deployment>("Deployment", Scope::default());
        let labels = labels.map(str::to_owned);
        let children = watches.watch::<Child>("ConfigMap", Scope { labels, ..Scope::default() });
        let writer = writer(fake, &roots);
        let ctx = Context { children: writer.of(children), roots, writer };
        let controller = Controller::new(&ctx.roots, options, Arc::clone(&metrics)).owns(&ctx.children);
        let for_runs = ctx.clone();
        let stop = CancellationToken::new();
        watches.start(&CancellationToken::new());
        let (sender, runs) = mpsc::unbounded_channel();
        let running =
            tokio::spawn(controller.run(stop.clone(), move |root: Arc<Deployment>, _: Timestamp| {
                // The receiver may be gone at the end of a test.
                let _ = sender.send(root.metadata.name.clone().unwrap());
                act(for_runs.clone(), root)
            }));
        Self { ctx, runs, stop, running, metrics, _watches: watches }
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

/// Waits until a cache has reported this object.
async fn seen<K: Resource<DynamicType = ()>>(cache: &Cache<K>, name: &'static str) {
    let (sender, mut reported) = mpsc::unbounded_channel();
    cache.subscribe(move |change| {
        if &*change.key.name == name {
            // The receiver is gone after the first report.
            let _ = sender.send(());
        }
    });
    within_patience(name, reported.recv()).await;
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

/// A controller with a task beside its workers, and what that task reports.
async fn woken(
    task: impl FnOnce(Waker, CancellationToken, mpsc::UnboundedSender<&'static str>) -> BoxFuture<'static, ()>
    + Send
    + 'static,
) -> (mpsc::UnboundedReceiver<String>, mpsc::UnboundedReceiver<&'static str>, CancellationToken, JoinHandle<()>)
{
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let metrics = metrics();
    let mut watches = Watches::new(client(&fake), timings(), Arc::clone(&metrics));
    let roots = watches.watch::<Deployment>("Deployment", Scope::default());
    let (say, said) = mpsc::unbounded_channel();
    let controller =
        Controller::new(&roots, one_worker(), metrics).beside(move |waker, stop| task(waker, stop, say));
    watches.start(&CancellationToken::new());
    let (sender, runs) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let running = controller.run(stop.clone(), move |root: Arc<Deployment>, _| {
        // The receiver may be gone at the end of a test.
        let _ = sender.send(root.metadata.name.clone().unwrap());
        succeed(root)
    });
    let running = tokio::spawn(async move {
        let _served = (fake, watches);
        running.await;
    });
    (runs, said, stop, running)
}

#[tokio::test]
async fn a_task_beside_the_workers_wakes_objects_and_ends_with_them() {
    let first_run = Arc::new(Notify::new());
    let has_run = Arc::clone(&first_run);
    let (mut runs, mut said, stop, running) = woken(|waker, stop, say| {
        Box::pin(async move {
            has_run.notified().await;
            waker.wake(&Key::new("demo", "a"));
            waker.wake(&Key::new("demo", "that-does-not-exist"));
            stop.cancelled().await;
            let _ = say.send("stopped");
        })
    })
    .await;
    assert_eq!(within_patience("the run for the list", runs.recv()).await.as_deref(), Some("a"));
    first_run.notify_one();
    assert_eq!(within_patience("the run for the wake", runs.recv()).await.as_deref(), Some("a"));
    stop.cancel();
    within_patience("the end", running).await.unwrap();
    assert_eq!(said.recv().await, Some("stopped"));
}

#[tokio::test]
async fn a_task_beside_the_workers_that_ends_by_itself_ends_the_controller() {
    let (_runs, _said, _stop, running) = woken(|_, _, _| Box::pin(async {})).await;
    assert!(within_patience("the end", running).await.unwrap_err().is_panic());
}

#[tokio::test]
async fn a_child_watch_that_keeps_failing_delays_no_other_kind() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    fake.always(child_watches(), Answer::pretty(500, "InternalError", "etcdserver: no leader"));
    // A kind that shared the back-off of the failing watch would wait for longer than this test may take.
    let mut controlled = Controlled::start(&fake, one_try(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.until_called(child_watches(), 1).await;
    for generation in 2..30 {
        fake.put(&deployment("a", generation));
        assert_eq!(controlled.ran().await, "a");
    }
    assert_eq!(
        fake.calls(child_watches()).len(),
        1,
        "events of other kinds do not shorten the back-off of the failing watch"
    );
}

#[tokio::test]
async fn a_watch_that_recovers_reports_the_changes_that_it_missed() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.always(child_watches(), Answer::status(500, "InternalError", "etcdserver: no leader"));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.put(&child_of(&root, "child"));
    fake.until_called(child_watches(), 4).await;
    fake.clear_script();
    assert_eq!(controlled.ran().await, "a");
    assert_eq!(fake.calls(Verb::List.of("configmaps")).len(), 1);
}

/// A new version of the child, in which `edit` was made.
fn rewrite(fake: &ScriptedApi, name: &str, edit: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut child = fake.stored("configmaps", name).unwrap();
    edit(&mut child);
    let stored = fake.put_json("configmaps", child);
    stored["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_event_that_changes_nothing_of_which_a_plan_is_made_starts_no_reconcile() {
    let fake = ScriptedApi::start().await;
    for root in [deployment("a", 1), deployment("b", 1)] {
        fake.put(&root);
        fake.put(&child_of(&root, &format!("child-of-{}", root.metadata.name.as_deref().unwrap())));
    }
    let delays = EventDelays { gap: Duration::ZERO, ..EventDelays::default() };
    let mut controlled = Controlled::start(&fake, timings(), Options { delays, ..one_worker() }, succeed);
    assert_eq!([controlled.ran().await, controlled.ran().await].len(), 2);
    rewrite(&fake, "child-of-a", |child| child["status"] = json!({"reported": "by another program"}));
    rewrite(&fake, "child-of-a", |child| {
        child["metadata"]["managedFields"] = json!([{"manager": "another"}])
    });
    rewrite(&fake, "child-of-b", |child| child["data"] = json!({"key": "drift"}));
    assert_eq!(controlled.ran().await, "b", "events of one kind come in their order");
    rewrite(&fake, "child-of-a", |child| child["data"] = json!({"key": "drift"}));
    assert_eq!(controlled.ran().await, "a");
}

#[tokio::test]
async fn ten_child_events_in_a_row_start_two_reconciles_at_most_and_the_last_one_sees_them_all() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.put(&child_of(&root, "child"));
    let (sender, mut runs) = mpsc::unbounded_channel();
    // Long enough for ten writes on a machine that does something else as well.
    let delays = EventDelays { gap: Duration::from_secs(1), ..EventDelays::default() };
    let options = Options { delays, ..one_worker() };
    let act = move |ctx: Context, _| {
        let child = ctx.children.get(&Key::new("demo", "child")).unwrap();
        sender.send(child.meta().resource_version.clone().unwrap()).unwrap();
        async { Ok::<_, OnPurpose>(Next::Done) }
    };
    let _controlled = Controlled::start_selected(&fake, timings(), options, None, act);
    let first = within_patience("the first run", runs.recv()).await.unwrap();
    let mut last = first;
    for number in 0..10 {
        last = rewrite(&fake, "child", |child| child["data"] = json!({"number": number.to_string()}));
    }
    let mut counted = 1;
    while within_patience("a run that sees the last event", runs.recv()).await.unwrap() != last {
        counted += 1;
    }
    assert!(counted <= 2, "{counted} reconciles for ten events");
}

#[tokio::test]
async fn malformed_objects_of_every_sort_do_not_affect_valid_ones() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
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
    logs.until_logged(&["demo/panics", "panic", "on purpose"]).await;
    logs.until_logged(&["demo/hangs", "deadline"]).await;
    logs.until_logged(&["demo/errs", "on-purpose", "failed on purpose"]).await;
    logs.until_logged(&["skipped", "demo/unreadable"]).await;
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
    let fake = ScriptedApi::start().await;
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
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    let mut controlled =
        Controlled::start(&fake, timings(), one_failure(), |_| async { Err::<Next, _>(OnPurpose) });
    assert_eq!(controlled.ran().await, "a");
    for _ in 0..20 {
        fake.put(&child_of(&root, "child"));
    }
    fake.put(&child_of(&root, "last"));
    seen(&controlled.ctx.children, "last").await;
    fake.put(&deployment("fence", 1));
    assert_eq!(controlled.ran().await, "fence", "the child's events, which came before, started nothing");
    fake.put(&deployment("a", 2));
    assert_eq!(controlled.ran().await, "a");
}

#[tokio::test]
async fn a_child_deleted_while_the_watch_was_expired_starts_a_reconcile_of_its_owner() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.put(&child_of(&root, "child"));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.until_called(child_watches(), 1).await;
    fake.mute("configmaps");
    fake.remove("configmaps", "child");
    fake.compact("configmaps");
    assert_eq!(controlled.ran().await, "a");
    assert_eq!(controlled.ctx.children.len(), 0);
}

#[tokio::test]
async fn a_root_recreated_while_the_watch_was_expired_is_reconciled() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    assert_eq!(controlled.ran().await, "a");
    fake.until_called(root_watches(), 1).await;
    fake.mute("deployments");
    fake.remove("deployments", "a");
    let mut namesake = deployment("a", 1);
    namesake.metadata.uid = Some("another".into());
    fake.put(&namesake);
    fake.compact("deployments");
    assert_eq!(controlled.ran().await, "a");
}

#[tokio::test]
async fn only_a_controlling_owner_of_the_known_uid_is_reconciled() {
    let fake = ScriptedApi::start().await;
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
async fn both_owners_of_a_child_that_changes_its_owner_are_reconciled() {
    let fake = ScriptedApi::start().await;
    let [one, two] = ["one", "two"].map(|name| deployment(name, 1));
    fake.put(&one);
    fake.put(&two);
    fake.put(&child_of(&one, "child"));
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    for _ in 0..2 {
        controlled.ran().await;
    }
    fake.put(&child_of(&two, "child"));
    // In either order: each waits for the gap after its own last run.
    let mut ran = [controlled.ran().await, controlled.ran().await];
    ran.sort();
    assert_eq!(ran, ["one", "two"]);
}

/// A controller whose reconcile applies one child.
fn applying(fake: &ScriptedApi) -> Controlled {
    Controlled::start_selected(fake, timings(), one_worker(), None, |ctx, root| async move {
        ctx.children.apply(&rendered(&root, "child")).await?;
        Ok::<_, ApplyError>(Next::Done)
    })
}

/// The server's wish, in whole seconds as it has to be, is a floor; the back-off alone would take milliseconds.
async fn assert_waits_a_second(answer: Answer) {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    fake.next(Verb::Patch.of("configmaps"), [answer]);
    let _controlled = applying(&fake);
    let tries = fake.until_called(Verb::Patch.of("configmaps"), 2).await;
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
    assert_waits_a_second(Answer::Body { code: 429, body, retry_after: Some(1) }).await;
}

#[tokio::test]
async fn a_stop_waits_for_running_reconciles_and_begins_no_new_one() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let gate = Gate::default();
    let patches = Verb::Patch.of("configmaps");
    fake.next(patches, [Answer::Late(gate.clone())]);
    let mut controlled = applying(&fake);
    assert_eq!(controlled.ran().await, "a");
    fake.until_called(patches, 1).await;
    fake.put(&deployment("b", 1));
    seen(&controlled.ctx.roots, "b").await;
    controlled.stop.cancel();
    gate.open();
    within_patience("the end", controlled.running).await.unwrap();
    assert!(controlled.runs.is_empty(), "b, which waited for the only worker, did not begin");
    let page = controlled.metrics.page().unwrap();
    let success = "controller_runtime_reconcile_total{controller=\"test\",result=\"success\"} 1";
    assert!(page.contains(success), "a, which waited for its answer, was finished\n{page}");
}

#[tokio::test]
async fn a_reconcile_that_hangs_does_not_delay_a_stop_for_longer_than_the_drain_time() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct SaysWhenDropped;
    impl Drop for SaysWhenDropped {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::SeqCst);
        }
    }
    let fake = ScriptedApi::start().await;
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
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let gate = Gate::default();
    fake.next(Verb::List.of("configmaps"), [Answer::Late(gate.clone())]);
    let mut controlled = Controlled::start(&fake, timings(), one_worker(), succeed);
    fake.until_called(root_watches(), 1).await;
    assert!(controlled.runs.is_empty());
    gate.open();
    assert_eq!(controlled.ran().await, "a");
}

/// A controller whose children are watched by a label, and whose plan keeps what a child has recorded: the default of
/// today is for new children only.
fn recording(fake: &ScriptedApi, default: &'static str) -> Controlled {
    Controlled::start_selected(fake, timings(), one_worker(), Some("by=test"), move |ctx, root| async move {
        if root.metadata.name.as_deref() != Some("a") {
            return Ok(Next::Done);
        }
        let known = ctx.children.get(&Key::new("demo", "child"));
        let image = known.map_or_else(|| default.to_owned(), |child| recorded(&child));
        let mut child = rendered(&root, "child");
        child.metadata.labels = Some([("by".to_owned(), "test".to_owned())].into());
        child.data = Some([("image".to_owned(), image)].into());
        ctx.children.apply(&child).await?;
        Ok::<_, ApplyError>(Next::Done)
    })
}

/// These tests name the uid of a child after what it records, as their view has no data.
fn recorded(child: &Child) -> String {
    child.meta().uid.clone().unwrap()
}

/// A child that an older release has created with its own default, labelled or not.
fn older_child(root: &Deployment, labels: serde_json::Value) -> serde_json::Value {
    let mut child = serde_json::to_value(child_of(root, "child")).unwrap();
    child["metadata"]["uid"] = json!("the-first-image");
    child["metadata"]["labels"] = labels;
    child["data"] = json!({"image": "the-first-image"});
    child
}

fn is_repaired(fake: &ScriptedApi) -> bool {
    let child = fake.stored("configmaps", "child").unwrap();
    assert_eq!(child["data"]["image"], "the-first-image", "a plan that did not know the child was written");
    child["metadata"]["labels"]["by"] == "test"
}

async fn assert_repaired(labels: serde_json::Value) {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.put_json("configmaps", older_child(&root, json!({"by": "test"})));
    let patches = Verb::Patch.of("configmaps");
    let mut controlled = recording(&fake, "the-new-default");
    // Its hash is new, so the first reconcile writes it once.
    fake.until_called(patches, 1).await;
    fake.until_called(Verb::Watch.of("configmaps"), 1).await;
    let mut child = fake.stored("configmaps", "child").unwrap();
    child["metadata"]["labels"] = labels;
    fake.put_json("configmaps", child);
    // A create that finds it, and a write that knows it.
    fake.until_called(patches, 3).await;
    assert!(is_repaired(&fake));
    fake.put(&deployment("fence", 1));
    controlled.ran_until("fence").await;
    fake.put(&deployment("a", 2));
    controlled.ran_until("a").await;
    fake.put(&deployment("another-fence", 1));
    controlled.ran_until("another-fence").await;
    assert_eq!(
        fake.calls(patches).iter().filter(|call| call.name == "child").count(),
        3,
        "{:#?}",
        fake.verbs()
    );
    assert!(!logs.text().contains("reconcile failed"), "{}", logs.text());
}

#[tokio::test]
async fn a_child_whose_label_is_taken_off_gets_it_back_and_keeps_what_it_has_recorded() {
    assert_repaired(json!({})).await;
}

#[tokio::test]
async fn a_child_whose_label_is_changed_gets_it_back_and_keeps_what_it_has_recorded() {
    assert_repaired(json!({"by": "another"})).await;
}

#[tokio::test]
async fn a_child_that_the_watch_has_not_shown_yet_keeps_what_it_has_recorded() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.put_json("configmaps", older_child(&root, json!({"by": "test"})));
    // The caches of this process are of a time before the child.
    fake.next(Verb::List.of("configmaps"), [Answer::text(200, EMPTY_LIST)]);
    fake.always(Verb::Watch.of("configmaps"), Answer::silence());
    let _controlled = recording(&fake, "the-new-default");
    fake.until_called(Verb::Patch.of("configmaps"), 2).await;
    assert!(is_repaired(&fake));
}

const EMPTY_LIST: &str = r#"{"kind": "ConfigMapList", "metadata": {"resourceVersion": "50"}, "items": []}"#;

/// A controller that writes a status with the generation that it has seen.
fn reporting(fake: &ScriptedApi) -> Controlled {
    Controlled::start_selected(fake, timings(), one_worker(), None, |ctx, root| async move {
        let status = json!({"observedGeneration": root.metadata.generation});
        ctx.writer.apply_status(&ctx.roots, &root, &status).await?;
        Ok::<_, ApplyError>(Next::Done)
    })
}

#[tokio::test]
async fn a_status_written_by_another_process_starts_a_reconcile_and_one_of_this_process_does_not() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let mut controlled = reporting(&fake);
    assert_eq!(controlled.ran().await, "a");
    let statuses = Verb::Patch.of("deployments");
    fake.until_called(statuses, 1).await;
    fake.put(&deployment("fence", 1));
    assert_eq!(controlled.ran().await, "fence", "our own status started nothing");
    let mut other = fake.stored("deployments", "a").unwrap();
    other["status"] = json!({"observedGeneration": 0});
    fake.put_json("deployments", other);
    assert_eq!(controlled.ran().await, "a");
    let repaired = fake.until_called(statuses, 3).await;
    assert_eq!(repaired[2].body["status"]["observedGeneration"], 1);
}

#[tokio::test]
async fn a_status_that_the_watch_shows_before_the_answer_comes_starts_nothing() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let gate = Gate::default();
    fake.next(Verb::Patch.of("deployments"), [Answer::Late(gate.clone())]);
    let mut controlled = reporting(&fake);
    assert_eq!(controlled.ran().await, "a");
    fake.until_called(Verb::Patch.of("deployments"), 1).await;
    fake.put(&deployment("fence", 1));
    seen(&controlled.ctx.roots, "fence").await;
    gate.open();
    assert_eq!(controlled.ran().await, "fence", "it was queued while the first one ran");
    fake.put(&deployment("last", 1));
    assert_eq!(controlled.ran().await, "last", "and nothing came after it");
}

#[tokio::test]
async fn a_conflict_is_planned_again_and_is_no_failure() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let conflict = || Answer::status(409, "Conflict", "the object has been modified");
    fake.next(Verb::Patch.of("deployments"), [conflict(), conflict(), conflict()]);
    let mut controlled = reporting(&fake);
    for _ in 0..4 {
        assert_eq!(controlled.ran().await, "a");
    }
    fake.until_called(Verb::Patch.of("deployments"), 4).await;
    fake.put(&deployment("fence", 1));
    controlled.ran_until("fence").await;
    let failed = "controller_runtime_reconcile_total{controller=\"test\",result=\"error\"}";
    assert_eq!(value_of(&controlled.metrics, failed), 0);
    assert!(!logs.text().contains("reconcile failed"), "{}", logs.text());
}

/// A controller whose status is another one with each run.
fn counting(fake: &ScriptedApi) -> Controlled {
    let runs = AtomicUsize::new(0);
    Controlled::start_selected(fake, timings(), one_worker(), None, move |ctx, root| {
        let status = json!({"replicas": runs.fetch_add(1, Ordering::SeqCst) + 1});
        async move {
            ctx.writer.apply_status(&ctx.roots, &root, &status).await?;
            Ok::<_, ApplyError>(Next::Done)
        }
    })
}

#[tokio::test]
async fn a_conflict_that_repeats_waits_for_the_watch() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let mut controlled = counting(&fake);
    let statuses = Verb::Patch.of("deployments");
    fake.until_called(statuses, 1).await;
    fake.mute("deployments");
    // Another process has written since, and no watch shows it.
    let mut newer = fake.stored("deployments", "a").unwrap();
    newer["status"] = json!({"replicas": 0});
    fake.put_json("deployments", newer);
    let root: Deployment = serde_json::from_value(fake.stored("deployments", "a").unwrap()).unwrap();
    fake.put(&child_of(&root, "child"));
    // They come ever more rarely, the last ones a second apart.
    for _ in 0..11 {
        assert_eq!(controlled.ran().await, "a");
    }
    let refused = fake.calls(statuses).len() - 1;
    assert!((1..=4).contains(&refused), "{refused} writes of a version that is known to be outdated");
    // The watch begins anew, and the next write comes at once.
    fake.compact("deployments");
    let version = root.metadata.resource_version;
    let mut calls = refused + 1;
    while fake.stored("deployments", "a").unwrap()["metadata"]["resourceVersion"] == json!(version) {
        calls += 1;
        fake.until_called(statuses, calls).await;
    }
    assert_ne!(fake.stored("deployments", "a").unwrap()["status"]["replicas"], 0);
    assert!(calls <= 6, "{calls} writes");
}

#[tokio::test]
async fn a_panic_in_a_relation_ends_neither_the_watch_nor_the_process() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    let metrics = metrics();
    let mut watches = Watches::new(client(&fake), timings(), Arc::clone(&metrics));
    let roots = watches.watch::<Deployment>("Deployment", Scope::default());
    let others = watches.watch::<Child>("ConfigMap", Scope::default());
    let controller = Controller::new(&roots, one_worker(), metrics).maps(&others, |other| {
        assert!(other.meta().name.as_deref() != Some("poison"), "on purpose");
        vec![Key::new("demo", "a")]
    });
    let stop = CancellationToken::new();
    watches.start(&stop);
    let (sender, mut runs) = mpsc::unbounded_channel();
    tokio::spawn(controller.run(stop.clone(), move |_: Arc<Deployment>, _: Timestamp| {
        sender.send(()).unwrap();
        succeed(Arc::default())
    }));
    fake.put(&deployment("a", 1));
    within_patience("the first run", runs.recv()).await.unwrap();
    fake.put(&child_of(&deployment("a", 1), "poison"));
    logs.until_logged(&["demo/poison", "panicked", "on purpose"]).await;
    fake.put(&child_of(&deployment("a", 1), "good"));
    within_patience("a run for the good one", runs.recv()).await.unwrap();
    assert_eq!(fake.calls(child_watches()).len(), 1);
}

#[derive(Debug, thiserror::Error)]
#[error("failed with a faulty name")]
struct Faulty;

impl ReconcileError for Faulty {
    fn step(&self) -> Cow<'static, str> {
        panic!("on purpose")
    }
}

#[tokio::test]
async fn a_worker_that_dies_ends_the_controller() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let mut controlled =
        Controlled::start(&fake, timings(), Options::default(), |_| async { Err::<Next, _>(Faulty) });
    controlled.ran().await;
    let ended = within_patience("the end", controlled.running).await;
    assert!(ended.unwrap_err().is_panic(), "its key would never run again");
}
