//! One task per watched kind: LIST, then WATCH, into a `Cache`, until the process stops.
//!
//! Each task has its own back-off and its own, true health: a kind that cannot be watched delays no other. Expired
//! versions in all their forms, silence, hangs and instant closes lead to a new connection or a new list. An object
//! that cannot be decoded is skipped and named, never fatal. It decides nothing about the objects.

pub mod cache;
pub mod cached_child;
pub(crate) mod covers;
pub(crate) mod decode;
pub mod health;
pub mod object_counts;
pub mod relations;
pub mod watched;

use std::{
    collections::HashSet,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::{
    Client,
    api::{ListParams, WatchParams},
    core::{Request, Status, WatchEvent},
};
use serde::Deserialize;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    backoff::{doubled, spread},
    causes::with_causes,
    client::CallError,
    key::Key,
    metrics::Metrics,
    watch::{
        cache::Cache,
        health::{Health, WatchesHealth},
        watched::{Guard, Watched},
    },
};

/// Which objects of a kind are watched.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    pub labels: Option<String>,
    pub fields: Option<String>,
    pub requirement: Requirement,
}

/// Whether a process can do without the objects of a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requirement {
    #[default]
    Required,
    /// While the API server does not serve the kind, there are no objects of it.
    IfServed,
    /// As `IfServed`, and also while this process may not list them.
    IfAllowed,
}

impl Requirement {
    /// Whether an answer with this status means that there are no objects.
    fn does_without(self, status: &Status) -> bool {
        // A list of a kind that is served is never 404, without objects neither.
        match self {
            Self::Required => false,
            Self::IfServed => status.code == 404,
            Self::IfAllowed => matches!(status.code, 403 | 404),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// The server ends a watch after this long, so that a dead connection is found soon.
    pub server_timeout: Duration,
    /// Not a byte for so long: the connection is dead. Longer than the server's own limit.
    pub silence: Duration,
    pub first_backoff: Duration,
    pub longest_backoff: Duration,
    /// A connection that ends sooner counts as failed, even if the server closed it without an error.
    pub shortest_connection: Duration,
    /// Only a connection that lived so long resets the back-off; a successful LIST never does.
    pub steady_after: Duration,
    /// When one watch works again, the others try within this time instead of waiting for the end of their back-off.
    pub early_retry_within: Duration,
    /// But not more often than this: watches that fail in turn must not keep each other from backing off.
    pub early_retry_gap: Duration,
    /// Until a kind that is not required, and not served or not allowed, is looked for again.
    pub look_for_kind_every: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            server_timeout: Duration::from_secs(60),
            silence: Duration::from_secs(65),
            first_backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(30),
            shortest_connection: Duration::from_secs(1),
            steady_after: Duration::from_secs(30),
            early_retry_within: Duration::from_secs(1),
            early_retry_gap: Duration::from_secs(5),
            // A kind comes with an installation by a person, who does not wait for its effect within seconds.
            look_for_kind_every: Duration::from_secs(30),
        }
    }
}

/// A cluster of 10 000 objects is 20 requests. Where the objects are so large that a page is more than one answer may be
/// (`client`), pages get smaller.
const PAGE: u32 = 500;
/// Each wait is drawn from [wait, wait × 1.25].
const JITTER: f64 = 0.25;
/// A re-list may lose this many objects without a second look, or half of all.
const DOUBTFUL_LOSS: usize = 10;

/// Whether anything needs the objects of a kind now.
pub type Wanted = Box<dyn Fn() -> bool + Send + Sync>;

/// Owns all watch tasks of a process.
pub struct Watches {
    client: Client,
    timings: Timings,
    metrics: Arc<Metrics>,
    waiting: Vec<Task>,
    running: JoinSet<()>,
    health: Vec<(&'static str, Arc<Health>)>,
    recovery: Arc<Notify>,
}

type Task = Box<dyn FnOnce(CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

impl Watches {
    pub fn new(client: Client, timings: Timings, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            timings,
            metrics,
            waiting: Vec::new(),
            running: JoinSet::new(),
            health: Vec::new(),
            recovery: Arc::default(),
        }
    }

    /// A cache that fills once the watches has started.
    pub fn watch<K>(&mut self, kind: &'static str, scope: Scope) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        self.watch_if_wanted(kind, scope, Box::new(|| true))
    }

    /// As `watch`. A kind that is not required, and was not there, is looked for again only while it is `wanted`.
    pub fn watch_if_wanted<K>(&mut self, kind: &'static str, scope: Scope, wanted: Wanted) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let cache = Cache::<K>::default();
        let health = Arc::clone(cache.health());
        let watch = Watch {
            kind,
            client: self.client.clone(),
            scope,
            wanted,
            timings: self.timings,
            cache: cache.clone(),
            health: Arc::clone(&health),
            metrics: Arc::clone(&self.metrics),
            undecodable: HashSet::new(),
            recovery: Arc::clone(&self.recovery),
            last_early_retry: None,
        };
        self.health.push((kind, health));
        self.metrics.observe_cache(kind, {
            let cache = cache.clone();
            move || cache.len()
        });
        self.waiting.push(Box::new(move |stop| Box::pin(watch.run(stop))));
        cache
    }

    pub fn start(&mut self, stop: &CancellationToken) {
        for task in self.waiting.drain(..) {
            self.running.spawn(task(stop.clone()));
        }
    }

    /// Ends when the stop token is cancelled and all tasks have ended; earlier only if a task dies, which is a fault
    /// of this program.
    pub async fn finished(&mut self, stop: &CancellationToken) {
        while self.running.join_next().await.is_some() {
            if !stop.is_cancelled() {
                return;
            }
        }
    }

    pub fn health(&self) -> WatchesHealth {
        WatchesHealth::new(self.health.clone())
    }
}

struct Watch<K> {
    kind: &'static str,
    client: Client,
    scope: Scope,
    wanted: Wanted,
    timings: Timings,
    cache: Cache<K>,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    /// Each undecodable version is reported once.
    undecodable: HashSet<(Key, String)>,
    /// Notified when the watch of any kind works again after a failure.
    recovery: Arc<Notify>,
    /// When this watch last cut its back-off short because of that.
    last_early_retry: Option<Instant>,
}

/// How one watch connection ended.
enum End {
    /// The server closed it: resume.
    Closed,
    /// The version is too old, or the stream cannot be trusted: list again.
    Stale(String),
    /// Resume after a wait.
    Failed(String),
}

struct Connection {
    end: End,
    /// The version of the last event seen.
    reached: String,
    /// Counted from the answer's headers: neither a slow LIST nor a slow refusal is a life.
    lived: Duration,
}

impl Connection {
    fn refused(end: End, from: String) -> Self {
        Self { end, reached: from, lived: Duration::ZERO }
    }
}

impl<K> Watch<K>
where
    K: Watched + Send + Sync + 'static,
{
    async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.forever()).await;
    }

    async fn forever(&mut self) {
        let mut version: Option<String> = None;
        let mut failures = 0_u32;
        let mut has_backed_off = false;
        loop {
            let from = match version.take() {
                Some(from) => Ok(from),
                None => self.list_into_cache().await,
            };
            let is_absent = from.as_ref().is_err_and(|error| self.does_without(error));
            if is_absent || from.is_ok() {
                self.health.absent(is_absent);
            }
            if is_absent {
                self.cache.replace(Vec::new(), "");
                self.health.synced();
                self.alive();
                self.until_wanted().await;
                continue;
            }
            let Connection { end, reached, lived } = match from {
                Ok(from) => self.watch_from(from).await,
                Err(error) => {
                    Connection::refused(End::Stale(format!("LIST: {}", with_causes(&error))), String::new())
                }
            };
            version = Some(reached);
            if lived >= self.timings.steady_after {
                failures = 0;
            }
            // After an outage the server answers again, and the version from before it has often expired. To wait as long
            // once more would double the outage; and as a wait came before each such answer, lists do not become frequent.
            let expired_in_an_outage = matches!(end, End::Stale(_)) && has_backed_off;
            let why = match end {
                End::Closed if lived >= self.timings.shortest_connection => {
                    has_backed_off = false;
                    continue;
                }
                End::Closed => "the server closed the watch at once".to_owned(),
                End::Stale(why) => {
                    version = None;
                    why
                }
                End::Failed(why) => why,
            };
            failures = failures.saturating_add(1);
            self.health.failed(&why);
            self.metrics.watch_failed(self.kind);
            has_backed_off = version.is_some();
            let wait = self.backoff(if expired_in_an_outage { 1 } else { failures });
            warn!(kind = self.kind, failures, wait_ms = wait.as_millis(), %why, "watch failed");
            self.wait_for_next_try(wait).await;
        }
    }

    async fn until_wanted(&self) {
        loop {
            tokio::time::sleep(spread(self.timings.look_for_kind_every, JITTER)).await;
            if (self.wanted)() {
                return;
            }
        }
    }

    fn does_without(&self, error: &ListError) -> bool {
        match error {
            ListError::Call(kube::Error::Api(status)) => self.scope.requirement.does_without(status),
            ListError::Call(_) | ListError::NoList { .. } => false,
        }
    }

    /// The end of the back-off, or soon after another kind has found that the API server answers again.
    async fn wait_for_next_try(&mut self, wait: Duration) {
        let end = Instant::now() + wait;
        let early_retry_from =
            self.last_early_retry.map_or(end - wait, |last| last + self.timings.early_retry_gap);
        let recovered = async {
            // A recovery before that is too early to count; `Notify` stores none for later waiters.
            tokio::time::sleep_until(early_retry_from).await;
            self.recovery.notified().await;
        };
        if tokio::time::timeout_at(end, recovered).await.is_ok() {
            self.last_early_retry = Some(Instant::now());
            let soon = Instant::now() + self.timings.early_retry_within.mul_f64(fastrand::f64());
            tokio::time::sleep_until(end.min(soon)).await;
        }
    }

    /// The watch is open, or delivers.
    fn alive(&self) {
        if self.health.alive() {
            self.recovery.notify_waiters();
        }
    }

    fn backoff(&self, failures: u32) -> Duration {
        spread(doubled(self.timings.first_backoff, self.timings.longest_backoff, failures), JITTER)
    }

    async fn list_into_cache(&mut self) -> Result<String, ListError> {
        let Listed { mut objects, mut version } = self.list().await?;
        let before = self.cache.len();
        let lost = self.cache.count_missing_from(&objects);
        if lost > DOUBTFUL_LOSS && lost > before / 2 {
            // An emptied or half-restored store must not lead to mass action: ask once more before it is taken over.
            let wait = self.backoff(1);
            warn!(
                kind = self.kind,
                before,
                lost,
                wait_ms = wait.as_millis(),
                "a list lost most objects; asking again"
            );
            // An immediate second LIST could be answered from the same stale cache.
            tokio::time::sleep(wait).await;
            Listed { objects, version } = self.list().await?;
        }
        self.cache.replace(objects, &version);
        self.health.synced();
        Ok(version)
    }

    /// All pages of a consistent (quorum) read.
    async fn list(&mut self) -> Result<Listed<K>, ListError> {
        self.metrics.listed(self.kind);
        self.cache.begin_list();
        let mut objects = Vec::new();
        let mut params = ListParams {
            label_selector: self.scope.labels.clone(),
            field_selector: self.scope.fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        loop {
            let mut request = self.request().list(&params).map_err(kube::Error::BuildRequest)?;
            request.extensions_mut().insert("list");
            let limit = params.limit.unwrap_or(PAGE);
            let page: Page<K> = match self.client.request(request).await {
                Err(error) if limit > 1 && is_too_large(&error) => {
                    params.limit = Some((limit / 4).max(1));
                    continue;
                }
                page => page?,
            };
            // One page of large objects must not make the rest of a long list slow.
            params.limit = Some(limit.saturating_mul(2).min(PAGE));
            let version = page.version()?;
            for item in page.items.unwrap_or_default() {
                match item {
                    Guard::Decoded(object) => objects.push(Arc::new(*object)),
                    Guard::Undecodable { meta, error } => objects.extend(self.undecodable(&meta, &error)),
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(Listed { objects, version }),
            }
        }
    }

    /// Opens one connection and follows it to its end.
    async fn watch_from(&mut self, mut version: String) -> Connection {
        let params = WatchParams {
            label_selector: self.scope.labels.clone(),
            field_selector: self.scope.fields.clone(),
            timeout: Some(u32::try_from(self.timings.server_timeout.as_secs()).unwrap_or(u32::MAX).max(1)),
            bookmarks: true,
            send_initial_events: false,
        };
        let mut request = match self.request().watch(&params, &version) {
            Ok(request) => request,
            Err(error) => return Connection::refused(End::Failed(error.to_string()), version),
        };
        request.extensions_mut().insert("watch");
        let events = match self.client.request_events::<Guard<K>>(request).await {
            Ok(events) => events,
            // The list decides what it means.
            Err(kube::Error::Api(status)) if self.scope.requirement.does_without(&status) => {
                return Connection::refused(End::Stale(words("WATCH", &status)), version);
            }
            Err(error) => return Connection::refused(ended_by("WATCH", &error), version),
        };
        let opened = Instant::now();
        let end = self.follow(events, &mut version).await;
        Connection { end, reached: version, lived: opened.elapsed() }
    }

    async fn follow(
        &mut self,
        events: impl Stream<Item = Result<WatchEvent<Guard<K>>, kube::Error>>,
        version: &mut String,
    ) -> End {
        let mut events = pin!(events);
        let mut open = pin!(tokio::time::sleep(self.timings.shortest_connection));
        let mut proven = false;
        loop {
            let next = tokio::select! {
                next = tokio::time::timeout(self.timings.silence, events.next()) => next,
                () = &mut open, if !proven => {
                    // Open and quiet is healthy; open and closed at once is not.
                    proven = true;
                    self.alive();
                    continue;
                }
            };
            let event = match next {
                Err(_) => return End::Failed("the watch was silent for too long".to_owned()),
                Ok(None) => return End::Closed,
                Ok(Some(Ok(event))) => event,
                // From the same version the same line would come again.
                Ok(Some(Err(kube::Error::SerdeError(error)))) => {
                    return End::Stale(format!("unreadable event: {error}"));
                }
                Ok(Some(Err(error))) => return ended_by("WATCH", &error),
            };
            match event {
                WatchEvent::Added(item) | WatchEvent::Modified(item) => match item {
                    Guard::Decoded(object) => {
                        note_version(version, object.meta());
                        self.cache.upsert(*object);
                    }
                    Guard::Undecodable { meta, error } => {
                        note_version(version, &meta);
                        self.undecodable(&meta, &error);
                    }
                },
                WatchEvent::Deleted(item) => {
                    let meta = match &item {
                        Guard::Decoded(object) => object.meta(),
                        Guard::Undecodable { meta, .. } => meta,
                    };
                    note_version(version, meta);
                    self.cache.forget_undecodable(&Key::named_in(meta));
                    self.cache.remove(meta);
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return ended_by_status("WATCH event", &status),
            }
            self.alive();
            proven = true;
        }
    }

    fn request(&self) -> Request {
        Request::new(K::url_path(&(), self.scope.namespace.as_deref()))
    }

    /// What the cache knew of it is kept: an object that cannot be read any more is not an object that is gone.
    fn undecodable(&mut self, meta: &ObjectMeta, error: &str) -> Option<Arc<K>> {
        let key = Key::named_in(meta);
        self.cache.note_undecodable(meta);
        let version = meta.resource_version.clone().unwrap_or_default();
        if self.undecodable.len() > 1_000 {
            self.undecodable.clear();
        }
        if self.undecodable.insert((key.clone(), version)) {
            self.metrics.undecodable(self.kind);
            warn!(kind = self.kind, object = %key, error, "object cannot be decoded and is skipped; fix or delete it");
        }
        self.cache.get(&key).filter(|known| known.meta().uid == meta.uid)
    }
}

fn is_too_large(error: &kube::Error) -> bool {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.into_iter().any(|cause| matches!(cause.downcast_ref(), Some(CallError::TooLarge { .. })))
}

fn note_version(version: &mut String, meta: &ObjectMeta) {
    if let Some(seen) = &meta.resource_version {
        version.clone_from(seen);
    }
}

fn ended_by(step: &str, error: &kube::Error) -> End {
    match error {
        kube::Error::Api(status) => ended_by_status(step, status),
        other => End::Failed(format!("{step}: {}", with_causes(other))),
    }
}

fn ended_by_status(step: &str, status: &Status) -> End {
    let why = words(step, status);
    if is_gone(status) { End::Stale(why) } else { End::Failed(why) }
}

fn words(step: &str, status: &Status) -> String {
    format!("{step}: {} {}: {}", status.code, status.reason, status.message)
}

/// All the forms in which a server says that a version cannot be continued: too old, or (after a restore) too new.
fn is_gone(status: &Status) -> bool {
    // 404: the kind is not served any more.
    matches!(status.code, 404 | 410)
        || matches!(status.reason.as_str(), "Expired" | "Gone")
        || (status.code == 504 && status.message.contains("Too large resource version"))
}

#[derive(Deserialize)]
#[serde(bound = "K: Watched")]
struct Page<K> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Guard<K>>>,
}

impl<K> Page<K> {
    /// What is between us and the API server may answer 200 with something else, and `{}` must not read as an empty
    /// list.
    fn version(&self) -> Result<String, ListError> {
        let version = self.metadata.resource_version.clone().filter(|version| !version.is_empty());
        match version {
            Some(version) if self.kind.ends_with("List") => Ok(version),
            Some(_) | None => Err(ListError::NoList { kind: self.kind.clone() }),
        }
    }
}

/// All objects of one kind at one version.
struct Listed<K> {
    objects: Vec<Arc<K>>,
    version: String,
}

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Call(#[from] kube::Error),
    #[error("the answer is no list with a version, but of kind {kind:?}")]
    NoList { kind: String },
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn status(code: u16, reason: &str, message: &str) -> Status {
        Status { code, reason: reason.into(), message: message.into(), ..Status::default() }
    }

    #[test]
    fn every_form_of_an_expired_version_is_gone() {
        assert!(is_gone(&status(410, "Expired", "too old resource version")));
        assert!(is_gone(&status(200, "Expired", "")));
        assert!(is_gone(&status(410, "", "")));
        assert!(is_gone(&status(504, "Timeout", "Too large resource version: 9, current: 3")));
        assert!(!is_gone(&status(504, "Timeout", "the server was slow")));
        assert!(!is_gone(&status(500, "InternalError", "")));
    }

    #[test]
    fn one_undecodable_object_does_not_hide_the_others() {
        let text = r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[
            {"metadata":{"name":"good"},"data":{"a":"b"}},
            {"metadata":{"name":"bad","resourceVersion":"3"},"data":"not a map"}]}"#;
        let page: Page<ConfigMap> = serde_json::from_str(text).unwrap();
        assert_eq!(page.version().unwrap(), "7");
        let items = page.items.unwrap();
        assert!(
            matches!(&items[0], Guard::Decoded(object) if object.metadata.name.as_deref() == Some("good"))
        );
        assert!(matches!(&items[1], Guard::Undecodable { meta, .. } if meta.name.as_deref() == Some("bad")));
    }

    #[test]
    fn only_a_list_with_a_version_is_a_list() {
        for text in [
            "{}",
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#,
            r#"{"kind":"ConfigMapList","metadata":{},"items":[]}"#,
            r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":""},"items":[]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#,
        ] {
            let page: Page<ConfigMap> = serde_json::from_str(text).unwrap();
            assert!(page.version().is_err(), "{text}");
        }
    }

    #[test]
    fn a_watch_line_with_an_undecodable_object_is_still_an_event() {
        let line =
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"bad","resourceVersion":"3"},"data":"no"}}"#;
        let event: WatchEvent<Guard<ConfigMap>> = serde_json::from_str(line).unwrap();
        assert!(matches!(event, WatchEvent::Modified(Guard::Undecodable { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn watches_that_recover_all_the_time_shorten_the_backoff_of_another_only_once_in_a_while() {
        let mut config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        config.root_cert = Some(Vec::new());
        let metrics = Arc::new(Metrics::new("test"));
        let guard = crate::client::WriteGuard::Always;
        let client = crate::client::build(
            &config,
            crate::client::Deadlines::default(),
            guard,
            Arc::clone(&metrics),
            Default::default(),
        )
        .unwrap();
        let (cache, timings) = (Cache::<ConfigMap>::default(), Timings::default());
        let mut watch = Watch {
            kind: "ConfigMap",
            client,
            scope: Scope::default(),
            wanted: Box::new(|| true),
            timings,
            health: Arc::clone(cache.health()),
            cache,
            metrics,
            undecodable: HashSet::new(),
            recovery: Arc::default(),
            last_early_retry: None,
        };
        let recovery = Arc::clone(&watch.recovery);
        let recoveries = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                recovery.notify_waiters();
            }
        });
        let began = Instant::now();
        watch.wait_for_next_try(timings.longest_backoff).await;
        assert!(began.elapsed() <= timings.early_retry_within + Duration::from_millis(100));
        let again = Instant::now();
        watch.wait_for_next_try(timings.longest_backoff).await;
        assert!(
            again.elapsed() >= timings.early_retry_gap - timings.early_retry_within,
            "{:?}",
            again.elapsed()
        );
        assert!(again.elapsed() < timings.longest_backoff);
        recoveries.abort();
    }
}
