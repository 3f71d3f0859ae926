//! Which objects of one kind are reconciled, when, and by whom: relations, workers, isolation, drain.
//!
//! Workers pull keys from the queue and run the controller's one function under a deadline. A panic, an error
//! or a call that hangs stays with its object. It knows nothing of what the function does.

use std::{
    borrow::Cow,
    error::Error,
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use jiff::Timestamp;
use kube::Resource;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, error, info_span, warn};

use crate::{
    causes::{panic_text, with_causes},
    clock::Clock,
    key::Key,
    metrics::Metrics,
    polling::{self, Polled, Polling, Trigger},
    queue::{Backoff, EventDelays, Outcome, Queue, Reason, Waker},
    watch::{
        cache::{Cache, Change, controller_of, is_of_kind},
        watched::{Difference, Watched},
    },
};

/// What a reconcile that went well wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A change will come.
    Done,
    /// Look again at this time even if nothing changes.
    After(Duration),
}

/// A reconcile that did not come to its end; a spec that is wrong, or a wait, is not a failure. `ApplyError` is one, so
/// a controller whose only effects are writes needs no error type of its own.
pub trait ReconcileError: Error + Send + Sync + 'static {
    /// What failed, for the metrics and the log: one of a closed set, never a name of an object.
    fn step(&self) -> Cow<'static, str>;

    /// True if the plan was made from an older state than the API server's. That is no failure: the object is
    /// reconciled again soon, and no error is logged.
    fn is_stale(&self) -> bool {
        false
    }

    /// `Retry-After` of the API server: the next try comes no sooner.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub workers: usize,
    /// One reconcile may take so long, its calls included.
    pub deadline: Duration,
    /// On stop, running reconciles may finish within this time.
    pub drain: Duration,
    pub backoff: Backoff,
    pub delays: EventDelays,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 32,
            deadline: Duration::from_secs(60),
            drain: Duration::from_secs(20),
            backoff: Backoff::default(),
            delays: EventDelays::default(),
        }
    }
}

/// One root kind and what belongs to it.
pub struct Controller<K> {
    root: Cache<K>,
    queue: Arc<Queue>,
    options: Options,
    metrics: Arc<Metrics>,
    clock: Clock,
    relations: Vec<Relation>,
    synced: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    companions: Vec<Companion>,
}

/// Brings what is no Kubernetes object, such as samples of metrics: it wakes the objects that these are about.
type Companion = Box<dyn FnOnce(Waker, CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Subscribes to one cache, so that its changes fill the queue.
type Relation = Box<dyn FnOnce() + Send>;

impl<K> Controller<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    pub fn new(root: &Cache<K>, options: Options, metrics: Arc<Metrics>) -> Self {
        let queue = Arc::new(Queue::new(options.backoff, options.delays));
        metrics.observe_queue(Arc::clone(&queue));
        let controller = Self {
            root: root.clone(),
            queue,
            options,
            metrics,
            clock: Clock::default(),
            relations: Vec::new(),
            synced: Vec::new(),
            companions: Vec::new(),
        };
        let sink = Arc::clone(&controller.queue);
        controller.follows(root, move |change| {
            if let Some(reason) = reason_of(change) {
                sink.add(change.key, reason);
            }
        })
    }

    /// Children: a change of one runs its controlling owner, both owners if it changes hands. A new version in which
    /// nothing differs that a decision could depend on runs none.
    #[must_use]
    pub fn owns<C>(self, children: &Cache<C>) -> Self
    where
        C: Watched + Send + Sync + 'static,
    {
        let (root, queue) = (self.root.clone(), Arc::clone(&self.queue));
        self.follows(children, move |change| {
            let Some(reason) = reason_of_child(change) else { return };
            for child in [change.old, change.new].into_iter().flatten() {
                if let Some(key) = owner_key(&root, &**child) {
                    queue.add(&key, reason);
                }
            }
        })
    }

    /// Other objects: a change of one runs the roots that `keys` names for it. A new version in which nothing differs that
    /// a decision could depend on runs none.
    #[must_use]
    pub fn maps<C>(self, others: &Cache<C>, keys: impl Fn(&C) -> Vec<Key> + Send + Sync + 'static) -> Self
    where
        C: Watched + Send + Sync + 'static,
    {
        self.maps_by_reason(others, keys, |_, _| Reason::Event)
    }

    /// As `maps`; `reason` says how soon the roots run after a change from the first version to the second.
    #[must_use]
    pub fn maps_by_reason<C>(
        self,
        others: &Cache<C>,
        keys: impl Fn(&C) -> Vec<Key> + Send + Sync + 'static,
        reason: impl Fn(Option<&C>, Option<&C>) -> Reason + Send + Sync + 'static,
    ) -> Self
    where
        C: Watched + Send + Sync + 'static,
    {
        let queue = Arc::clone(&self.queue);
        self.follows(others, move |change| {
            if difference(change) == Difference::None {
                return;
            }
            let reason = if change.initial {
                Reason::Resync
            } else {
                reason(change.old.map(AsRef::as_ref), change.new.map(AsRef::as_ref))
            };
            for other in [change.old, change.new].into_iter().flatten() {
                for key in keys(other) {
                    queue.add(&key, reason);
                }
            }
        })
    }

    /// A task that runs beside the workers, so on the leader alone: from when the caches have synced until the token is
    /// cancelled. If it ends before, the process ends.
    #[must_use]
    pub fn beside<Fut>(mut self, task: impl FnOnce(Waker, CancellationToken) -> Fut + Send + 'static) -> Self
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.companions.push(Box::new(move |waker, stop| Box::pin(task(waker, stop))));
        self
    }

    /// Calls `poll` for each root at its own times and when it is triggered, on the leader alone, and reconciles the root
    /// if the call says so. See [`Polling`].
    #[must_use]
    pub fn polls<F, Fut>(self, polling: Polling, trigger: &Trigger, poll: F) -> Self
    where
        F: Fn(Arc<K>, Timestamp) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Polled> + Send + 'static,
    {
        let (objects, trigger, clock) = (self.root.clone(), trigger.clone(), self.clock.clone());
        self.beside(move |waker, stop| polling::run(objects, polling, trigger, poll, clock, waker, stop))
    }

    /// A replica that does not run yet must not subscribe: nothing empties its queue.
    fn follows<C>(mut self, cache: &Cache<C>, add: impl Fn(&Change<'_, C>) + Send + Sync + 'static) -> Self
    where
        C: Send + Sync + 'static,
    {
        let followed = cache.clone();
        self.relations.push(Box::new(move || followed.subscribe(add)));
        self.synced.push(Box::pin(synced(cache.clone())));
        self
    }

    /// The time of reconciles and polls is that of this clock; it must be set before what is polled.
    #[must_use]
    pub fn by_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Runs until `stop`: then nothing new begins, what runs may finish, and this returns.
    pub async fn run<F, Fut, E>(self, stop: CancellationToken, reconcile: F)
    where
        F: Fn(Arc<K>, Timestamp) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Next, E>> + Send,
        E: ReconcileError,
    {
        for subscribe in self.relations {
            subscribe();
        }
        let all_synced = futures::future::join_all(self.synced);
        if stop.run_until_cancelled(all_synced).await.is_none() {
            return;
        }
        let reconcile = Arc::new(reconcile);
        let mut workers = JoinSet::new();
        for _ in 0..self.options.workers.max(1) {
            let (root, queue, reconcile) =
                (self.root.clone(), Arc::clone(&self.queue), Arc::clone(&reconcile));
            let (metrics, deadline) = (Arc::clone(&self.metrics), self.options.deadline);
            let clock = self.clock.clone();
            workers.spawn(async move {
                while let Some(key) = queue.take().await {
                    let outcome = match root.get(&key) {
                        Some(object) => run_one(&*reconcile, object, &key, deadline, &metrics, &clock).await,
                        // Gone: its children go with it, by their owner references.
                        None => Outcome::Done,
                    };
                    queue.done(&key, outcome);
                }
            });
        }
        let mut companions = JoinSet::new();
        for companion in self.companions {
            companions.spawn(companion(Waker::of(&self.queue), stop.clone()));
        }
        tokio::select! {
            () = stop.cancelled() => {}
            // One that ends without being asked to is a fault as well: its objects would not be woken any more.
            Some(ended) = companions.join_next() => match ended {
                Err(dead) => {
                    if let Ok(panic) = dead.try_into_panic() {
                        resume_unwind(panic);
                    }
                }
                Ok(()) if stop.is_cancelled() => {}
                Ok(()) => resume_unwind(Box::new("a task beside the workers ended")),
            },
            // Panics of a reconcile are caught, so this is a fault of the engine. The key of that worker would never
            // be taken again: the process has to begin anew.
            Some(Err(dead)) = workers.join_next() => {
                if let Ok(panic) = dead.try_into_panic() {
                    resume_unwind(panic);
                }
            }
        }
        self.queue.close();
        let drained = async {
            while workers.join_next().await.is_some() {}
            while companions.join_next().await.is_some() {}
        };
        if tokio::time::timeout(self.options.drain, drained).await.is_err() {
            warn!(limit_s = self.options.drain.as_secs(), "reconciles still ran at the end of the drain");
        }
    }
}

async fn synced<C>(cache: Cache<C>) {
    cache.synced().await;
}

async fn run_one<K, F, Fut, E>(
    reconcile: &F,
    object: Arc<K>,
    key: &Key,
    deadline: Duration,
    metrics: &Metrics,
    clock: &Clock,
) -> Outcome
where
    F: Fn(Arc<K>, Timestamp) -> Fut,
    Fut: Future<Output = Result<Next, E>>,
    E: ReconcileError,
{
    let span = info_span!("reconcile", object = %key);
    metrics.worker_started();
    let started = Instant::now();
    let guarded = AssertUnwindSafe(async { reconcile(object, clock.now()).await }).catch_unwind();
    let ended = tokio::time::timeout(deadline, guarded).instrument(span.clone()).await;
    let took = started.elapsed();
    let _entered = span.enter();
    let (result, outcome) = match ended {
        Ok(Ok(Ok(Next::Done))) => ("success", Outcome::Done),
        Ok(Ok(Ok(Next::After(wait)))) => ("requeue_after", Outcome::After(wait)),
        Ok(Ok(Err(stale))) if stale.is_stale() => {
            debug!(reason = %with_causes(&stale), "planned from an older state; planning again");
            ("requeue", Outcome::Again)
        }
        Ok(Ok(Err(failure))) => {
            metrics.step_failed(failure.step());
            error!(step = %failure.step(), error = %with_causes(&failure), "reconcile failed");
            ("error", Outcome::Failed { retry_after: failure.retry_after() })
        }
        Ok(Err(panic)) => {
            metrics.step_failed("panic".into());
            error!(step = "panic", error = panic_text(&*panic), "reconcile failed");
            ("error", Outcome::Failed { retry_after: None })
        }
        Err(_) => {
            metrics.step_failed("deadline".into());
            error!(step = "deadline", limit_s = deadline.as_secs(), "reconcile failed");
            ("error", Outcome::Failed { retry_after: None })
        }
    };
    debug!(result, took_us = took.as_micros(), "reconciled");
    metrics.worker_ended(result, took);
    outcome
}

/// Why a change of a child starts a reconcile; `None` if no decision can depend on it.
fn reason_of_child<C: Watched>(change: &Change<'_, C>) -> Option<Reason> {
    let reason = match difference(change) {
        Difference::None => return None,
        Difference::Detail => Reason::Detail,
        Difference::Content if change.initial => Reason::Resync,
        // What a reconcile has written is what it has planned. What is to be said of it can wait for what follows it.
        Difference::Content if change.own && change.new.is_some() => Reason::Detail,
        Difference::Content => Reason::Event,
    };
    Some(reason)
}

/// An object that comes, goes or is replaced by another one of its name is another content.
fn difference<C: Watched>(change: &Change<'_, C>) -> Difference {
    match (change.old, change.new) {
        (Some(old), Some(new)) if old.meta().uid == new.meta().uid => new.difference(old),
        (Some(_), Some(_)) | (Some(_), None) | (None, Some(_)) => Difference::Content,
        (None, None) => Difference::None,
    }
}

/// Why a change of the object itself starts a reconcile; `None` for a status that this process has written.
fn reason_of<K: Resource>(change: &Change<'_, K>) -> Option<Reason> {
    let (old, new) = match (change.old, change.new) {
        (_, None) => return Some(Reason::Spec),
        (None, Some(_)) if change.initial => return Some(Reason::Resync),
        (None, Some(_)) => return Some(Reason::Spec),
        (Some(old), Some(new)) => (old.meta(), new.meta()),
    };
    if old.uid != new.uid
        || old.generation != new.generation
        || old.deletion_timestamp != new.deletion_timestamp
        // A kind without generations cannot tell its spec from its status.
        || new.generation.is_none()
    {
        return Some(Reason::Spec);
    }
    let differs = old.labels != new.labels
        || old.annotations != new.annotations
        || old.finalizers != new.finalizers
        || old.owner_references != new.owner_references;
    (differs || !change.own).then_some(Reason::Event)
}

/// The key of the root that controls this child, if it is the very object that we know: same name, same uid.
fn owner_key<K, C>(root: &Cache<K>, child: &C) -> Option<Key>
where
    K: Resource<DynamicType = ()>,
    C: Resource,
{
    let owner = controller_of(child)?;
    if !is_of_kind::<K>(owner) {
        return None;
    }
    let key = Key::new(child.meta().namespace.as_deref().unwrap_or_default(), &owner.name);
    match root.get(&key) {
        Some(known) => (known.meta().uid.as_deref() == Some(&owner.uid)).then_some(key),
        // Not known yet, or gone: running it is harmless.
        None => Some(key),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::{
        api::{apps::v1::Deployment, core::v1::ConfigMap},
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
    };
    use tokio::sync::mpsc;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed on purpose")]
    struct OnPurpose;

    impl ReconcileError for OnPurpose {
        fn step(&self) -> Cow<'static, str> {
            "test".into()
        }
    }

    fn deployment(name: &str, version: u64, generation: i64) -> Deployment {
        Deployment {
            metadata: ObjectMeta {
                namespace: Some("demo".into()),
                name: Some(name.into()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some(version.to_string()),
                generation: Some(generation),
                ..ObjectMeta::default()
            },
            ..Deployment::default()
        }
    }

    fn child(name: &str, version: u64, owner: &str, uid: &str) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("demo".into()),
                name: Some(name.into()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some(version.to_string()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "apps/v1".into(),
                    kind: "Deployment".into(),
                    name: owner.into(),
                    uid: uid.into(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    struct Bench {
        root: Cache<Deployment>,
        children: Cache<ConfigMap>,
        runs: mpsc::UnboundedReceiver<String>,
        stop: CancellationToken,
        running: tokio::task::JoinHandle<()>,
    }

    /// A controller over two caches that the test fills; `act` is what a reconcile does.
    fn bench<Fut>(options: Options, act: impl Fn(String) -> Fut + Send + Sync + 'static) -> Bench
    where
        Fut: Future<Output = Result<Next, OnPurpose>> + Send + 'static,
    {
        let (root, children) = (Cache::default(), Cache::default());
        let controller = Controller::new(&root, options, Arc::new(Metrics::new("test"))).owns(&children);
        let stop = CancellationToken::new();
        let (sender, runs) = mpsc::unbounded_channel();
        let running = tokio::spawn(controller.run(stop.clone(), move |object: Arc<Deployment>, _| {
            let name = object.metadata.name.clone().unwrap();
            sender.send(name.clone()).unwrap();
            act(name)
        }));
        Bench { root, children, runs, stop, running }
    }

    async fn done(_: String) -> Result<Next, OnPurpose> {
        Ok(Next::Done)
    }

    impl Bench {
        async fn next_run(&mut self) -> Option<String> {
            tokio::time::timeout(Duration::from_secs(1), self.runs.recv()).await.ok().flatten()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_runs_before_every_cache_has_listed() {
        let mut bench = bench(Options::default(), done);
        bench.root.replace(vec![Arc::new(deployment("a", 1, 1))], "1");
        assert_eq!(bench.next_run().await, None);
        bench.children.replace(Vec::new(), "1");
        assert_eq!(bench.next_run().await.as_deref(), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_of_our_own_starts_nothing_and_one_of_another_writer_does() {
        let mut bench = bench(Options::default(), done);
        bench.root.replace(vec![Arc::new(deployment("a", 1, 1))], "1");
        bench.children.replace(Vec::new(), "1");
        assert!(bench.next_run().await.is_some());
        bench.root.absorb(deployment("a", 2, 1));
        bench.root.upsert(deployment("a", 2, 1));
        assert_eq!(bench.next_run().await, None);
        bench.root.upsert(deployment("a", 3, 1));
        assert!(bench.next_run().await.is_some(), "the status was written by another process");
        bench.root.absorb(deployment("a", 4, 2));
        assert!(bench.next_run().await.is_some(), "a new spec, by whichever writer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_of_our_own_that_the_watch_delivers_before_the_answer_starts_nothing() {
        let mut bench = bench(Options::default(), done);
        bench.root.replace(vec![Arc::new(deployment("a", 1, 1))], "1");
        bench.children.replace(Vec::new(), "1");
        assert!(bench.next_run().await.is_some());
        let root = bench.root.clone();
        let writing = root.writing(&Key::new("demo", "a"), Some("1"));
        bench.root.upsert(deployment("a", 2, 1));
        assert_eq!(bench.next_run().await, None, "the successor of the version that is being replaced");
        bench.root.upsert(deployment("a", 3, 1));
        assert!(bench.next_run().await.is_some(), "and what another process makes of it");
        drop(writing);
        bench.root.upsert(deployment("a", 4, 1));
        assert!(bench.next_run().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_written_child_is_reconciled_later_also_if_the_watch_delivers_it_first() {
        let mut bench = bench(Options::default(), done);
        bench.root.replace(vec![Arc::new(deployment("a", 1, 1))], "1");
        bench.children.replace(Vec::new(), "1");
        assert!(bench.next_run().await.is_some());
        let (children, late) =
            (bench.children.clone(), EventDelays::default().detail + Duration::from_millis(1));
        let writing = children.writing(&Key::new("demo", "early"), None);
        children.upsert(child("early", 2, "a", "uid-a"));
        drop(writing);
        children.absorb(child("answered", 3, "a", "uid-a"));
        assert_eq!(bench.next_run().await, None);
        assert!(tokio::time::timeout(late, bench.runs.recv()).await.unwrap().is_some(), "but it is seen");
        children.upsert(child("of-another-process", 4, "a", "uid-a"));
        assert!(bench.next_run().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_controlling_owner_of_that_uid_runs() {
        let mut bench = bench(Options::default(), done);
        bench.root.replace(vec![Arc::new(deployment("a", 1, 1))], "1");
        bench.children.replace(Vec::new(), "1");
        assert!(bench.next_run().await.is_some());
        bench.children.upsert(child("of-an-older-a", 2, "a", "uid-of-an-older-a"));
        assert_eq!(bench.next_run().await, None);
        let mut not_controlling = child("loose", 3, "a", "uid-a");
        not_controlling.metadata.owner_references.as_mut().unwrap()[0].controller = None;
        bench.children.upsert(not_controlling);
        assert_eq!(bench.next_run().await, None);
        bench.children.upsert(child("own", 4, "a", "uid-a"));
        assert_eq!(bench.next_run().await.as_deref(), Some("a"));
        bench.children.replace(Vec::new(), "5");
        assert_eq!(
            bench.next_run().await.as_deref(),
            Some("a"),
            "a child that vanished behind a re-list is reported"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_a_hang_and_an_error_stay_with_their_object() {
        let mut bench = bench(
            Options { deadline: Duration::from_millis(100), ..Options::default() },
            |name| async move {
                match name.as_str() {
                    "panics" => panic!("on purpose"),
                    "hangs" => std::future::pending().await,
                    "fails" => Err(OnPurpose),
                    _ => Ok(Next::Done),
                }
            },
        );
        let all = ["fails", "good", "hangs", "panics"].map(|name| Arc::new(deployment(name, 1, 1)));
        bench.root.replace(all.to_vec(), "1");
        bench.children.replace(Vec::new(), "1");
        let mut runs = std::collections::BTreeMap::<String, usize>::new();
        for _ in 0..20 {
            *runs.entry(bench.next_run().await.unwrap()).or_default() += 1;
        }
        assert_eq!(runs["good"], 1);
        assert!(["fails", "hangs", "panics"].iter().all(|name| runs[*name] > 1), "{runs:?}");
        bench.root.upsert(deployment("good", 2, 2));
        let good_runs_on = async { while bench.runs.recv().await.as_deref() != Some("good") {} };
        tokio::time::timeout(Duration::from_secs(1), good_runs_on)
            .await
            .expect("the good one is not held up");
    }

    #[tokio::test(start_paused = true)]
    async fn stop_lets_running_reconciles_finish() {
        static FINISHED: AtomicUsize = AtomicUsize::new(0);
        let mut bench = bench(Options::default(), |_| async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            FINISHED.fetch_add(1, Ordering::SeqCst);
            Ok(Next::Done)
        });
        bench.root.replace(vec![Arc::new(deployment("a", 1, 1))], "1");
        bench.children.replace(Vec::new(), "1");
        assert!(bench.next_run().await.is_some());
        bench.stop.cancel();
        bench.running.await.unwrap();
        assert_eq!(FINISHED.load(Ordering::SeqCst), 1);
    }
}
