//! What kube's own runtime and client do today under the same faults: the reasons why the engine is our own.
//!
//! A test here that turns red is good news: something was mended upstream, and this table has to change.
//!
//! | situation | kube's runtime 5.0.0 | this runtime |
//! |---|---|---|
//! | a watch answered 410 as the HTTP status | requests the same version indefinitely | lists again, with growing back-off |
//! | a 410 within the stream | lists at a constant pace, no back-off | lists again, with growing back-off |
//! | one kind whose watch keeps failing | delays the events of every other kind | each kind has a task and a back-off of its own |
//! | one object that does not fit its type | the whole kind stays unseen, and is listed at a constant pace | it is skipped and named, the others are kept |
//! | a call that is not answered | no limit | a deadline on headers and body |
//! | a create answered 503 | sent again and again for minutes | sent once; the queue retries |
//! | a watch answered 429 | hidden behind retries | seen, counted and in `/readyz` |
//! | a panic in one reconcile | the process ends | an error of that object |
//! | an error, and events of children | each event bypasses the wait | the back-off of the object holds; a spec change may jump it |
//! | a watch that is closed at once | reopened without a pause | counts as a failure and backs off |
//! | a child deleted behind an expired watch | its owner is not reconciled | objects that vanished are reported |
//! | an owner reference without `controller: true` | starts that owner | only the controlling owner of the known uid |

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{
        Controller, WatchStreamExt,
        controller::{Action, Error},
        utils::Backoff,
        watcher::{self, Event, watcher},
    },
};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use crate::{
    fake::{Answer, On, PATIENCE, ScriptedApi, Verb},
    given::{child_of, config, config_map, deployment, within_patience},
};

fn lists() -> On {
    Verb::List.of("configmaps")
}

fn watches() -> On {
    Verb::Watch.of("configmaps")
}

/// kube's client as it comes.
fn client(fake: &ScriptedApi) -> Client {
    Client::try_from(config(fake)).unwrap()
}

fn config_maps(fake: &ScriptedApi) -> Api<ConfigMap> {
    Api::all(client(fake))
}

/// Doubles from its first wait, and remembers every wait that it gave.
struct Doubling {
    first: Duration,
    failures: u32,
    given: Arc<Mutex<Vec<Duration>>>,
}

impl Doubling {
    fn from(first: Duration) -> Self {
        Self { first, failures: 0, given: Arc::default() }
    }
}

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.first * 2_u32.pow(self.failures);
        self.failures += 1;
        self.given.lock().unwrap().push(wait);
        Some(wait)
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Polls a watcher until so many calls have arrived, and returns its events until then.
async fn events_until<S, T>(fake: &ScriptedApi, on: On, times: usize, stream: S) -> Vec<T>
where
    S: futures::Stream<Item = T>,
{
    let mut events = Vec::new();
    let collect = stream.for_each(|event| {
        events.push(event);
        futures::future::ready(())
    });
    tokio::select! {
        () = collect => panic!("a watcher never ends"),
        _ = fake.until_called(on, times) => {}
    }
    events
}

#[tokio::test]
async fn kube_runtime_never_lists_again_after_a_410_as_the_http_status() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::gone());
    events_until(&fake, watches(), 8, watcher(config_maps(&fake), watcher::Config::default())).await;
    assert_eq!(fake.calls(lists()).len(), 1);
    let versions: Vec<_> =
        fake.calls(watches()).iter().map(|watch| watch.query["resourceVersion"].clone()).collect();
    assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
}

#[tokio::test]
async fn kube_runtime_lists_at_a_constant_pace_after_a_410_within_the_stream() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::gone_in_stream());
    let backoff = Doubling::from(Duration::from_millis(10));
    let waits = Arc::clone(&backoff.given);
    let stream = watcher(config_maps(&fake), watcher::Config::default()).backoff(backoff);
    events_until(&fake, lists(), 8, stream).await;
    let waits = waits.lock().unwrap();
    assert!(waits.iter().all(|wait| *wait == Duration::from_millis(10)), "no wait grows: {waits:?}");
}

#[tokio::test]
async fn kube_runtime_sees_nothing_of_a_kind_with_one_malformed_object_and_lists_at_a_constant_pace() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("good"));
    fake.put_json("configmaps", json!({"metadata": {"namespace": "demo", "name": "bad"}, "data": "no map"}));
    let backoff = Doubling::from(Duration::from_millis(10));
    let waits = Arc::clone(&backoff.given);
    let stream = watcher(config_maps(&fake), watcher::Config::default()).backoff(backoff);
    let events = events_until(&fake, lists(), 8, stream).await;
    let an_object =
        |event: &Result<Event<ConfigMap>, _>| matches!(event, Ok(Event::Apply(_) | Event::InitApply(_)));
    assert!(!events.iter().any(an_object), "{events:?}");
    let waits = waits.lock().unwrap();
    assert!(waits.iter().all(|wait| *wait == Duration::from_millis(10)), "no wait grows: {waits:?}");
}

#[tokio::test]
async fn kube_runtime_reopens_a_watch_that_is_closed_at_once_without_a_pause_or_a_word() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::closed_at_once());
    let stream = watcher(config_maps(&fake), watcher::Config::default()).default_backoff();
    let events = events_until(&fake, watches(), 50, stream).await;
    assert!(events.iter().all(|event| matches!(event, Ok(Event::Init | Event::InitDone))), "{events:?}");
    assert_eq!(fake.calls(lists()).len(), 1);
}

#[tokio::test]
async fn kube_runtime_hides_a_429_behind_retries() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::busy(429, 0));
    let stream = watcher(config_maps(&fake), watcher::Config::default()).default_backoff();
    let events = events_until(&fake, watches(), 4, stream).await;
    assert!(events.iter().all(Result::is_ok), "{events:?}");
}

#[tokio::test]
async fn kube_runtime_sends_a_refused_create_again_and_again() {
    let fake = ScriptedApi::start().await;
    let creates = Verb::Create.of("configmaps");
    fake.always(creates, Answer::status(503, "ServiceUnavailable", "the server is starting"));
    let api = Api::<ConfigMap>::namespaced(client(&fake), "demo");
    let (post, object) = (PostParams::default(), config_map("a"));
    tokio::select! {
        answered = api.create(&post, &object) => panic!("{answered:?}"),
        _ = fake.until_called(creates, 5) => {}
    }
}

#[tokio::test]
async fn kube_runtime_has_no_limit_for_a_call_that_is_not_answered() {
    let fake = ScriptedApi::start().await;
    fake.always(Verb::Get.of("configmaps"), Answer::NoHeaders);
    assert_eq!(config(&fake).read_timeout, None);
    let api = Api::<ConfigMap>::namespaced(client(&fake), "demo");
    let second = tokio::time::timeout(Duration::from_secs(1), api.get("a")).await;
    assert!(second.is_err(), "{second:?}");
}

/// kube's Controller of Deployments that own ConfigMaps.
struct Upstream {
    runs: mpsc::UnboundedReceiver<String>,
    errors: mpsc::UnboundedReceiver<String>,
    running: JoinHandle<()>,
}

#[derive(Debug, thiserror::Error)]
#[error("failed on purpose")]
struct OnPurpose;

impl Upstream {
    fn start<Fut>(
        fake: &ScriptedApi,
        backoff: Doubling,
        act: impl Fn(String) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Action, OnPurpose>> + Send + 'static,
    {
        let (run, runs) = mpsc::unbounded_channel();
        let (fail, errors) = mpsc::unbounded_channel();
        let client = client(fake);
        let reconcile = move |root: Arc<Deployment>, _: Arc<()>| -> BoxFuture<'static, _> {
            let name = root.metadata.name.clone().unwrap();
            // The receivers may be gone at the end of a test.
            let _ = run.send(name.clone());
            act(name).boxed()
        };
        let running = Controller::new(Api::<Deployment>::all(client.clone()), watcher::Config::default())
            .owns(Api::<ConfigMap>::all(client), watcher::Config::default())
            .trigger_backoff(backoff)
            .run(reconcile, |_, _, _| Action::requeue(10 * PATIENCE), Arc::new(()))
            .map_err(move |error| {
                if let Error::QueueError(error) = error {
                    let _ = fail.send(error.to_string());
                }
            })
            .for_each(|_| futures::future::ready(()));
        Self { runs, errors, running: tokio::spawn(running) }
    }

    async fn ran(&mut self) -> String {
        within_patience("a reconcile", self.runs.recv()).await.unwrap()
    }
}

impl Upstream {
    /// The runs until those of a new root and of its new child: every earlier change has been reconciled by then.
    async fn ran_until_settled(&mut self, fake: &ScriptedApi, name: &str) -> Vec<String> {
        let root = deployment(name, 1);
        let mut runs = Vec::new();
        fake.put(&root);
        while runs.last().is_none_or(|last| last != name) {
            runs.push(self.ran().await);
        }
        fake.put(&child_of(&root, &format!("of-{name}")));
        runs.push(self.ran().await);
        while runs.last().is_none_or(|last| last != name) {
            runs.push(self.ran().await);
        }
        runs
    }
}

async fn succeed(_: String) -> Result<Action, OnPurpose> {
    Ok(Action::await_change())
}

/// Not looked at by the test.
fn any_backoff() -> Doubling {
    Doubling::from(Duration::from_millis(10))
}

#[tokio::test]
async fn kube_runtime_lets_a_failing_child_watch_delay_the_root_kind() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    fake.always(watches(), Answer::status(500, "InternalError", "etcdserver: no leader"));
    let pause = Duration::from_secs(2);
    let mut upstream = Upstream::start(&fake, Doubling::from(pause), succeed);
    within_patience("the failure", upstream.errors.recv()).await.unwrap();
    let failed = Instant::now();
    // The very first one may come on either side of the failure.
    fake.put(&deployment("b", 1));
    while upstream.ran().await != "b" {}
    assert!(failed.elapsed() >= pause / 2, "the change waits for the back-off of the failing watch");
}

#[tokio::test]
async fn kube_runtime_ends_with_the_panic_of_one_object() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("poison", 1));
    let upstream = Upstream::start(&fake, any_backoff(), |_| async { panic!("on purpose") });
    let ended = within_patience("the end", upstream.running).await;
    assert!(ended.unwrap_err().is_panic());
}

#[tokio::test]
async fn kube_runtime_lets_a_child_event_bypass_the_wait_after_an_error() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    let mut upstream = Upstream::start(&fake, any_backoff(), |_| async { Err(OnPurpose) });
    assert_eq!(upstream.ran().await, "a");
    fake.until_called(watches(), 1).await;
    for child in ["one", "two", "three"] {
        fake.put(&child_of(&root, child));
        assert_eq!(upstream.ran().await, "a", "although its error policy said: in minutes");
    }
}

#[tokio::test]
async fn kube_runtime_never_tells_of_a_child_deleted_behind_an_expired_watch() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.put(&child_of(&root, "child"));
    let mut upstream = Upstream::start(&fake, any_backoff(), succeed);
    fake.until_called(watches(), 1).await;
    upstream.ran_until_settled(&fake, "before").await;
    fake.mute("configmaps");
    fake.remove("configmaps", "child");
    fake.compact("configmaps");
    fake.until_called(watches(), 2).await;
    let runs = upstream.ran_until_settled(&fake, "after").await;
    assert!(!runs.contains(&"a".to_owned()), "{runs:?}");
}

#[tokio::test]
async fn kube_runtime_starts_an_owner_that_does_not_control() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    let mut upstream = Upstream::start(&fake, any_backoff(), succeed);
    assert_eq!(upstream.ran().await, "a");
    fake.until_called(watches(), 1).await;
    let mut loose = child_of(&root, "loose");
    let reference = &mut loose.metadata.owner_references.as_mut().unwrap()[0];
    reference.controller = None;
    reference.uid = "uid-of-an-older-a".into();
    fake.put(&loose);
    assert_eq!(upstream.ran().await, "a");
}
