//! What the tests begin with: objects, short times, a client of the scripted API server, a watch, and the log.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Once},
    time::Duration,
};

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Client, Config};
use runtime::{
    client::{self, Deadlines, WriteGuard},
    clock::Clock,
    metrics::Metrics,
    watch::{
        Scope, Timings, Wanted, Watches,
        cache::Cache,
        cached_child::{CachedChild, Metadata},
        health::WatchesHealth,
    },
    write::apply::Writer,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use fake_api::{PATIENCE, ScriptedApi};

/// What a busy machine may add to a time that has an upper bound. What the bound excludes must take longer still.
pub(crate) const STALL: Duration = Duration::from_secs(5);

pub(crate) fn config_map(name: &str) -> ConfigMap {
    ConfigMap { metadata: meta(name), ..ConfigMap::default() }
}

/// The root kind of these tests: it has a generation.
pub(crate) fn deployment(name: &str, generation: i64) -> Deployment {
    let metadata = ObjectMeta { generation: Some(generation), ..meta(name) };
    Deployment { metadata, ..Deployment::default() }
}

pub(crate) fn child_of(owner: &Deployment, name: &str) -> ConfigMap {
    let mut child = config_map(name);
    child.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        name: owner.metadata.name.clone().unwrap(),
        uid: owner.metadata.uid.clone().unwrap(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    child
}

/// Children as a controller keeps them.
pub(crate) type Child = CachedChild<Metadata<ConfigMap>, Deployment>;

/// Of a controller of Deployments.
pub(crate) fn writer(fake: &ScriptedApi, roots: &Cache<Deployment>) -> Writer {
    Writer::new(client(fake), "test", "test/hash", roots)
}

/// The child of this root as a controller renders it: without a uid.
pub(crate) fn rendered(root: &Deployment, name: &str) -> ConfigMap {
    let mut child = child_of(root, name);
    child.metadata.uid = None;
    child
}

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some("demo".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        ..ObjectMeta::default()
    }
}

/// The defaults, divided by 20.
pub(crate) fn timings() -> Timings {
    let Timings {
        server_timeout,
        silence,
        first_backoff,
        longest_backoff,
        shortest_connection,
        steady_after,
        early_retry_within,
        early_retry_gap,
        look_for_kind_every,
    } = Timings::default();
    Timings {
        server_timeout: server_timeout / 20,
        silence: silence / 20,
        first_backoff: first_backoff / 20,
        longest_backoff: longest_backoff / 20,
        shortest_connection: shortest_connection / 20,
        steady_after: steady_after / 20,
        early_retry_within: early_retry_within / 20,
        early_retry_gap: early_retry_gap / 20,
        look_for_kind_every: look_for_kind_every / 600,
    }
}

/// No second try within a test.
pub(crate) fn one_try() -> Timings {
    Timings { first_backoff: 10 * PATIENCE, longest_backoff: 10 * PATIENCE, ..timings() }
}

/// A client as every controller has it, with the defaults' deadlines.
pub(crate) fn client(fake: &ScriptedApi) -> Client {
    client_within(fake, Deadlines::default())
}

pub(crate) fn client_within(fake: &ScriptedApi, deadlines: Deadlines) -> Client {
    client_of(config(fake), deadlines)
}

pub(crate) fn client_of(config: Config, deadlines: Deadlines) -> Client {
    client::build(&config, deadlines, WriteGuard::Always, metrics(), Clock::default()).unwrap()
}

pub(crate) fn config(fake: &ScriptedApi) -> Config {
    config_of(&format!("http://{}", fake.address()))
}

pub(crate) fn config_of(url: &str) -> Config {
    let mut config = Config::new(url.parse().unwrap());
    // Plain HTTP needs no certificates, and reading those of the machine takes a tenth of a second.
    config.root_cert = Some(Vec::new());
    config
}

/// The value of one line of the metrics page; absent is 0.
pub(crate) fn value_of(metrics: &Metrics, line: &str) -> u64 {
    let page = metrics.page().unwrap();
    let value = page.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

pub(crate) fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new("test"))
}

/// A watch of ConfigMaps that has been started.
pub(crate) struct Watched {
    pub(crate) cache: Cache<ConfigMap>,
    pub(crate) health: WatchesHealth,
    pub(crate) metrics: Arc<Metrics>,
    changes: mpsc::UnboundedReceiver<String>,
    _watches: Watches,
}

impl Watched {
    pub(crate) fn start(client: Client, timings: Timings) -> Self {
        Self::start_within(client, timings, Scope::default())
    }

    pub(crate) fn start_within(client: Client, timings: Timings, scope: Scope) -> Self {
        Self::start_if_wanted(client, timings, scope, Box::new(|| true))
    }

    pub(crate) fn start_if_wanted(client: Client, timings: Timings, scope: Scope, wanted: Wanted) -> Self {
        let metrics = metrics();
        let mut watches = Watches::new(client, timings, Arc::clone(&metrics));
        let cache = watches.watch_if_wanted::<ConfigMap>("ConfigMap", scope, wanted);
        let (sender, changes) = mpsc::unbounded_channel();
        cache.subscribe(move |change| {
            let sign = match (change.old, change.new) {
                (None, _) => '+',
                (Some(_), Some(_)) => '~',
                (Some(_), None) => '-',
            };
            // The receiver may be gone at the end of a test.
            let _ = sender.send(format!("{sign}{}", change.key.name));
        });
        watches.start(&CancellationToken::new());
        Self { cache, health: watches.health(), metrics, changes, _watches: watches }
    }

    /// The next change that the cache reports: + new, ~ changed, - gone.
    pub(crate) async fn next_change(&mut self) -> String {
        within_patience("a change in the cache", self.changes.recv()).await.unwrap()
    }

    pub(crate) async fn next_changes(&mut self, times: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..times {
            all.push(self.next_change().await);
        }
        all.sort();
        all
    }

    pub(crate) fn has_no_more_changes(&mut self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn counted(&self, line: &str) -> u64 {
        value_of(&self.metrics, line)
    }
}

pub(crate) async fn within_patience<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

/// What this test's thread has logged; only for tests that run on one thread.
pub(crate) struct Logs(watch::Sender<String>);

thread_local! {
    static LOG: RefCell<Option<watch::Sender<String>>> = const { RefCell::new(None) };
}

impl Logs {
    pub(crate) fn text(&self) -> String {
        self.0.borrow().clone()
    }

    pub(crate) fn capture() -> Self {
        // One subscriber for the process: scoped ones of parallel tests switch each other's events off.
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(|| ThisThread).init();
        });
        let text = watch::Sender::new(String::new());
        LOG.set(Some(text.clone()));
        Self(text)
    }

    /// Waits until a line holds all these words, and returns it.
    pub(crate) async fn until_logged(&self, words: &[&str]) -> String {
        let mut text = self.0.subscribe();
        let found = |text: &str| {
            text.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        };
        let seen = tokio::time::timeout(PATIENCE, text.wait_for(|text| found(text).is_some())).await;
        let line = seen.ok().and_then(|text| found(&text.unwrap()));
        line.unwrap_or_else(|| panic!("{words:?} were not logged, but\n{}", *self.0.borrow()))
    }
}

/// Writes to the log of the thread that it is called on.
struct ThisThread;

impl Write for ThisThread {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow(|log| {
            if let Some(log) = log {
                log.send_modify(|text| text.push_str(&String::from_utf8_lossy(bytes)));
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
