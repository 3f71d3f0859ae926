//! Calls a function for each object at its own times: when it comes, when its spec changes, then each period, and when a
//! [`Trigger`] says so. For what no watch delivers, such as samples of metrics. It decides nothing about an object.
//!
//! One task keeps the times. Each object has at most one call under way, and all together a bounded number. A namespace
//! begins a call only while fewer of its own are under way than are free. So one namespace takes half of them at most, two
//! take a third each, and there is always room for another one. The times of objects are spread by their names, so that a
//! thousand objects are not polled as one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt as _;
use jiff::Timestamp;
use kube::Resource;
use std::panic::AssertUnwindSafe;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::{
    causes::panic_text,
    clock::Clock,
    key::Key,
    queue::Waker,
    watch::cache::{Cache, Change},
};

/// How often, and how many at once.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    /// From the end of one call of an object to the next; up to a tenth more, by the name of the object.
    pub period: Duration,
    /// Of all namespaces together.
    pub at_once: usize,
    /// One call may take so long.
    pub deadline: Duration,
    /// Between the beginnings of two calls of an object of which the second is triggered.
    pub gap: Duration,
}

/// Whether a call found something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The object is reconciled.
    Changed,
    Unchanged,
}

/// Calls the function for an object before its period is over. Calls that are triggered close together are one call.
#[derive(Clone, Debug, Default)]
pub struct Trigger(Arc<Triggered>);

/// Bounded by the objects: a key is in it once.
#[derive(Debug, Default)]
struct Triggered {
    keys: Mutex<HashSet<Key>>,
    notify: Notify,
}

impl Trigger {
    /// Synchronous, and as quick as an entry in a set.
    pub fn poll(&self, key: &Key) {
        let is_new = self.keys().insert(key.clone());
        if is_new {
            self.0.notify.notify_one();
        }
    }

    async fn next(&self) -> HashSet<Key> {
        loop {
            let keys = mem::take(&mut *self.keys());
            if !keys.is_empty() {
                return keys;
            }
            self.0.notify.notified().await;
        }
    }

    fn keys(&self) -> std::sync::MutexGuard<'_, HashSet<Key>> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Poller<K, F> {
    objects: Cache<K>,
    polling: Polling,
    poll: Arc<F>,
    clock: Clock,
    waker: Waker,
    trigger: Trigger,
    /// By namespace.
    due: BTreeMap<Arc<str>, BTreeSet<(Instant, Key)>>,
    scheduled: HashMap<Key, Instant>,
    /// When the last call of an object began.
    begun: HashMap<Key, Instant>,
    running: JoinSet<Key>,
    under_way: HashSet<Key>,
}

/// Ends when it is stopped.
pub(crate) async fn run<K, F, Fut>(
    objects: Cache<K>,
    polling: Polling,
    trigger: Trigger,
    poll: F,
    clock: Clock,
    waker: Waker,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
    F: Fn(Arc<K>, Timestamp) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Polled> + Send + 'static,
{
    // Bounded by the objects: each change of a spec is taken out at once.
    let (sender, changed) = mpsc::unbounded_channel();
    objects.subscribe(move |change| {
        if is_polled_at_once(change) {
            // The receiver is gone when the controller stops.
            let _ = sender.send(change.key.clone());
        }
    });
    let mut poller = Poller {
        objects,
        polling,
        poll: Arc::new(poll),
        clock,
        waker,
        trigger,
        due: BTreeMap::new(),
        scheduled: HashMap::new(),
        begun: HashMap::new(),
        running: JoinSet::new(),
        under_way: HashSet::new(),
    };
    stop.run_until_cancelled(poller.forever(changed)).await;
    // What is under way ends with the set.
}

fn is_polled_at_once<K: Resource>(change: &Change<'_, K>) -> bool {
    let spec = |object: &Arc<K>| (object.meta().uid.clone(), object.meta().generation);
    change.new.is_some() && change.old.map(spec) != change.new.map(spec)
}

impl<K, F, Fut> Poller<K, F>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
    F: Fn(Arc<K>, Timestamp) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Polled> + Send + 'static,
{
    async fn forever(&mut self, mut changed: mpsc::UnboundedReceiver<Key>) {
        let trigger = self.trigger.clone();
        loop {
            let next = self.first().map(|(at, _)| *at);
            tokio::select! {
                Some(key) = changed.recv() => self.schedule(key, Instant::now()),
                keys = trigger.next() => keys.into_iter().for_each(|key| self.triggered(key, Instant::now())),
                Some(Ok(key)) = self.running.join_next() => self.ended(&key),
                () = until(next) => self.begin_first(),
            }
        }
    }

    fn triggered(&mut self, key: Key, now: Instant) {
        if self.objects.get(&key).is_none() {
            return;
        }
        let at = self.begun.get(&key).map_or(now, |begun| now.max(*begun + self.polling.gap));
        if self.scheduled.get(&key).is_none_or(|due| at < *due) {
            if self.under_way.contains(&key) {
                self.scheduled.insert(key, at);
            } else {
                self.schedule(key, at);
            }
        }
    }

    fn schedule(&mut self, key: Key, at: Instant) {
        if let Some(before) = self.scheduled.insert(key.clone(), at) {
            self.remove_due(&(before, key.clone()));
        }
        self.due.entry(Arc::clone(&key.namespace)).or_default().insert((at, key));
    }

    fn remove_due(&mut self, entry: &(Instant, Key)) {
        let namespace = &entry.1.namespace;
        let Some(due) = self.due.get_mut(namespace) else { return };
        due.remove(entry);
        if due.is_empty() {
            self.due.remove(namespace);
        }
    }

    /// The first of the namespaces that may begin a call now.
    fn first(&self) -> Option<&(Instant, Key)> {
        let free = self.polling.at_once.saturating_sub(self.under_way.len());
        let mut of_namespaces: HashMap<&str, usize> = HashMap::new();
        for key in &self.under_way {
            *of_namespaces.entry(&key.namespace).or_default() += 1;
        }
        let has_share = |namespace: &str| of_namespaces.get(namespace).copied().unwrap_or(0) < free;
        let allowed = self.due.iter().filter(|(namespace, _)| has_share(namespace));
        allowed.filter_map(|(_, due)| due.first()).min()
    }

    fn begin_first(&mut self) {
        let Some(first) = self.first().cloned() else { return };
        self.remove_due(&first);
        let (_, key) = first;
        self.scheduled.remove(&key);
        let Some(object) = self.objects.get(&key) else {
            self.begun.remove(&key);
            return;
        };
        if self.under_way.contains(&key) {
            // The spec has changed meanwhile: once more as soon as that call has ended.
            self.scheduled.insert(key, Instant::now());
            return;
        }
        self.under_way.insert(key.clone());
        self.begun.insert(key.clone(), Instant::now());
        let (poll, waker, deadline) = (Arc::clone(&self.poll), self.waker.clone(), self.polling.deadline);
        let clock = self.clock.clone();
        self.running.spawn(async move {
            let guarded = AssertUnwindSafe(async { poll(object, clock.now()).await }).catch_unwind();
            let polled = match tokio::time::timeout(deadline, guarded).await {
                Ok(Ok(polled)) => polled,
                Ok(Err(panic)) => {
                    error!(object = %key, error = panic_text(&*panic), "a poll failed");
                    Polled::Changed
                }
                Err(_) => {
                    error!(object = %key, limit_s = deadline.as_secs_f32(), "a poll was not done in time");
                    Polled::Changed
                }
            };
            match polled {
                Polled::Changed => waker.wake(&key),
                Polled::Unchanged => {}
            }
            key
        });
    }

    fn ended(&mut self, key: &Key) {
        self.under_way.remove(key);
        if self.objects.get(key).is_none() {
            self.scheduled.remove(key);
            self.begun.remove(key);
            return;
        }
        let at = match self.scheduled.get(key) {
            // Its spec has changed since.
            Some(at) => *at,
            None => Instant::now() + self.polling.period.mul_f64(1.0 + share_of(key) / 10.0),
        };
        self.schedule(key.clone(), at);
    }
}

/// Never, if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// From 0 to 1, and always the same for one object.
fn share_of(key: &Key) -> f64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % 1_000) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;
    use crate::queue::{Backoff, EventDelays, Queue};

    const POLLING: Polling = Polling {
        period: Duration::from_secs(100),
        at_once: 2,
        deadline: Duration::from_secs(20),
        gap: Duration::from_secs(1),
    };

    fn object(name: &str, version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some("demo".into()),
            name: Some(name.into()),
            uid: Some(name.into()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    struct Bench {
        objects: Cache<ConfigMap>,
        trigger: Trigger,
        calls: mpsc::UnboundedReceiver<(String, Instant)>,
        queue: Arc<Queue>,
        _stop: tokio_util::sync::DropGuard,
    }

    /// A call takes 100 ms.
    fn bench(polled: Polled) -> Bench {
        let (objects, trigger, stop) = (Cache::default(), Trigger::default(), CancellationToken::new());
        let queue = Arc::new(Queue::new(Backoff::default(), EventDelays::default()));
        let (sender, calls) = mpsc::unbounded_channel();
        let poll = move |object: Arc<ConfigMap>, _: Timestamp| {
            let sender = sender.clone();
            async move {
                sender.send((object.metadata.name.clone().unwrap(), Instant::now())).unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                polled
            }
        };
        let waker = Waker::of(&queue);
        tokio::spawn(run(
            objects.clone(),
            POLLING,
            trigger.clone(),
            poll,
            Clock::default(),
            waker,
            stop.clone(),
        ));
        Bench { objects, trigger, calls, queue, _stop: stop.drop_guard() }
    }

    impl Bench {
        /// Name and time of the next call within half the period.
        async fn next(&mut self) -> Option<(String, Instant)> {
            tokio::time::timeout(POLLING.period / 2, self.calls.recv()).await.ok().flatten()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn triggers_that_come_close_together_are_one_call_after_the_gap() {
        let mut bench = bench(Polled::Changed);
        bench.objects.upsert(object("a", 1));
        let (_, first) = bench.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // While a call is under way, and after it.
        bench.trigger.poll(&Key::new("demo", "a"));
        tokio::time::sleep(Duration::from_millis(500)).await;
        (0..10).for_each(|_| bench.trigger.poll(&Key::new("demo", "a")));
        let (_, second) = bench.next().await.unwrap();
        assert_eq!(second - first, POLLING.gap);
        assert_eq!(bench.next().await, None, "the period follows");
        bench.trigger.poll(&Key::new("demo", "a"));
        let triggered = Instant::now();
        assert_eq!(bench.next().await.unwrap().1, triggered, "at once after the gap");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_of_slow_objects_holds_up_no_other() {
        let polling = Polling {
            period: Duration::from_secs(15),
            at_once: 64,
            deadline: Duration::from_secs(20),
            gap: Duration::from_secs(1),
        };
        let (objects, stop) = (Cache::default(), CancellationToken::new());
        let (sender, mut calls) = mpsc::unbounded_channel();
        let poll = move |object: Arc<ConfigMap>, _: Timestamp| {
            let sender = sender.clone();
            async move {
                let namespace = object.metadata.namespace.clone().unwrap();
                sender.send((namespace.clone(), Instant::now())).unwrap();
                // Servers that answer byte by byte.
                let takes = if namespace == "slow" { 15_000 } else { 50 };
                tokio::time::sleep(Duration::from_millis(takes)).await;
                Polled::Unchanged
            }
        };
        let queue = Arc::new(Queue::new(Backoff::default(), EventDelays::default()));
        let waker = Waker::of(&queue);
        let clock = Clock::default();
        tokio::spawn(run(objects.clone(), polling, Trigger::default(), poll, clock, waker, stop.clone()));
        let _stop = stop.drop_guard();
        for number in 0..500 {
            let mut slow = object(&format!("slow-{number}"), 1);
            slow.metadata.namespace = Some("slow".into());
            objects.upsert(slow);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        objects.upsert(object("chat", 1));
        let begun = Instant::now();
        let mut of_other = Vec::new();
        while begun.elapsed() < 10 * polling.period {
            let (namespace, at) = calls.recv().await.unwrap();
            if namespace == "demo" {
                of_other.push(at);
            }
        }
        assert_eq!(of_other.first(), Some(&begun), "at once");
        let longest = of_other.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest < Some(2 * polling.period), "{longest:?}");
    }

    #[test]
    fn polls_of_many_objects_drift_apart_within_a_tenth_of_the_period() {
        let shares: Vec<f64> =
            (0..1_000).map(|i| share_of(&Key::new("demo", &format!("chat-{i}")))).collect();
        // The polls that a restart begins in one moment are not together for ever.
        for tenth in 0..10 {
            let range = f64::from(tenth) / 10.0..f64::from(tenth + 1) / 10.0;
            let within = shares.iter().filter(|share| range.contains(share)).count();
            assert!((50..=150).contains(&within), "{within} of 1000 in {range:?}");
        }
        assert_eq!(share_of(&Key::new("demo", "chat-7")), shares[7]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_polled_each_period_and_at_most_a_tenth_later() {
        let mut bench = bench(Polled::Unchanged);
        bench.objects.upsert(object("a", 1));
        let mut calls = Vec::new();
        while calls.len() < 4 {
            calls.push(bench.calls.recv().await.unwrap().1);
        }
        let pause = POLLING.period.mul_f64(1.0 + share_of(&Key::new("demo", "a")) / 10.0);
        for pair in calls.windows(2) {
            assert_eq!((pair[1] - pair[0]).as_millis(), (pause + Duration::from_millis(100)).as_millis());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trigger_for_an_object_that_does_not_exist_is_nothing() {
        let mut bench = bench(Polled::Changed);
        bench.trigger.poll(&Key::new("demo", "a"));
        assert_eq!(bench.next().await, None);
        bench.objects.upsert(object("a", 1));
        assert!(bench.next().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_call_that_found_something_wakes_its_object() {
        for (polled, woken) in [(Polled::Changed, 1), (Polled::Unchanged, 0)] {
            let mut bench = bench(polled);
            bench.objects.upsert(object("a", 1));
            bench.next().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(bench.queue.depth().waiting, woken, "{polled:?}");
        }
    }
}
