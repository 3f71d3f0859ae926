//! A proxy between one controller and the API server that makes exactly one write fail.
//!
//! It speaks plain HTTP/1.1 with the controller, which is what kube uses, and to the API server as the controller's
//! ServiceAccount. A Lease is never touched and never counted. It is independent of kinds.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::mode::{Fault, Mode, OUTAGE, RETRY_AFTER_SECONDS};

/// It serves until it is dropped.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What a life has sent so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// In order.
    pub(super) writes: Vec<Write>,
    /// Paths of the collections in which it has written.
    pub(super) collections: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Method and path.
    pub(super) call: String,
    pub(super) at: Instant,
    /// The controller got an answer with success.
    pub(super) accepted: bool,
}

/// How many writes there are, by their meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Statuses that the API server has taken: the controller sees more states on its way on a slow machine.
    pub(super) statuses: usize,
    /// Everything else, with statuses that were refused.
    pub(super) others: usize,
}

impl Counts {
    /// The higher of each.
    pub(super) fn max(self, other: Self) -> Self {
        Self { statuses: self.statuses.max(other.statuses), others: self.others.max(other.others) }
    }
}

impl Sent {
    pub(super) fn counts(&self) -> Counts {
        let is_status = |write: &&Write| write.accepted && write.call.ends_with("/status");
        let statuses = self.writes.iter().filter(is_status).count();
        Counts { statuses, others: self.writes.len() - statuses }
    }

    /// A write that came sooner after this throttled one, to the same object, than it was asked to.
    pub(super) fn too_soon(&self, throttled: usize) -> Option<String> {
        let (first, later) = self.writes.get(throttled.checked_sub(1)?..)?.split_first()?;
        // A create names no object, so that the next one may be of another object.
        if first.call.starts_with("POST ") {
            return None;
        }
        let again = later.iter().find(|write| write.call == first.call)?;
        let after = again.at - first.at;
        let wanted = Duration::from_secs(RETRY_AFTER_SECONDS.into());
        (after < wanted).then(|| format!("{} came again after {after:?} despite Retry-After", first.call))
    }
}

/// An answer as the controller gets it, and no answer: the connection ends.
type Answer = Result<Response<AnswerBody>, io::Error>;
type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

struct Shared {
    upstream: Client,
    /// Plural of the kind whose objects own all others.
    roots: String,
    state: Mutex<State>,
    watches: watch::Sender<Watches>,
    /// The chosen write is carried out, and the process must not get the answer.
    kill_due: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    sent: Sent,
    /// When anything happened last that the controller may have to react to.
    active: Option<Instant>,
    /// Paths with queries of the lists that the present process has asked for.
    lists: BTreeSet<String>,
    past: Option<StaleLists>,
    /// How many watches are open, by path and selectors.
    open: BTreeMap<String, usize>,
    /// Those that were open when the chosen write came.
    needed: BTreeSet<String>,
}

/// One open watch.
struct OpenWatch {
    shared: Arc<Shared>,
    key: String,
}

impl OpenWatch {
    fn new(shared: Arc<Shared>, target: &str) -> Self {
        let key = watch_key(target);
        *shared.state().open.entry(key.clone()).or_default() += 1;
        Self { shared, key }
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(count) = state.open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&self.key);
            }
        }
    }
}

/// What a watch has in common with the one that replaces it: everything but its version and its timeout.
fn watch_key(target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let selectors = query.split('&').filter(|pair| pair.contains("Selector="));
    selectors.fold(path.to_owned(), |key, selector| key + "&" + selector)
}

impl State {
    /// Some watch of before the fault is not open again: the controller misses what changes.
    fn is_blind(&self) -> bool {
        self.needed.iter().any(|needed| !self.open.contains_key(needed))
    }
}

/// How watches are treated now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watches {
    Open,
    Silent,
    Refused,
}

/// Lists as they once were.
struct StaleLists {
    lists: BTreeMap<String, Bytes>,
    /// To a process that has been started anew, from its first list on.
    shown: Option<ServeStale>,
}

enum ServeStale {
    /// To the next process.
    Next {
        roots: Duration,
        others: Duration,
    },
    Until {
        roots: Instant,
        others: Instant,
    },
}

/// What a request is, by its method and its path alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Read,
    List,
    Watch,
    Write,
    Lease,
}

impl Proxy {
    /// `upstream` speaks to the API server with the rights of the controller.
    pub(super) async fn start(upstream: Client, roots: &str, fault: Option<Fault>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            roots: roots.to_owned(),
            state: Mutex::new(State { fault, ..State::default() }),
            watches: watch::Sender::new(Watches::Open),
            kill_due: watch::Sender::new(false),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    pub(super) fn sent(&self) -> Sent {
        self.shared.state().sent.clone()
    }

    pub(super) fn writes(&self) -> usize {
        self.shared.state().sent.writes.len()
    }

    /// Returns when the chosen write has gone wrong in a way that kills the process.
    pub(super) async fn kill_due(&self) {
        let mut kill_due = self.shared.kill_due.subscribe();
        // The sender lives as long as this.
        let _ = kill_due.wait_for(|kill_due| *kill_due).await;
    }

    /// Records what lists answer now, for a later process to see.
    pub(super) async fn record_lists(&self) -> Result<(), String> {
        let asked: Vec<String> = self.shared.state().lists.iter().cloned().collect();
        let mut lists = BTreeMap::new();
        for list in asked {
            let request = Request::get(&list).body(Body::empty()).map_err(|error| error.to_string())?;
            let answer = self.shared.upstream.send(request).await.map_err(|error| error.to_string())?;
            let body = answer.into_body().collect().await.map_err(|error| error.to_string())?;
            lists.insert(list, body.to_bytes());
        }
        self.shared.state().past = Some(StaleLists { lists, shown: None });
        Ok(())
    }

    /// From now on a new process is served: by lists of the past, if the fault says so.
    pub(super) fn begin_process(&self) {
        let mut state = self.shared.state();
        state.lists.clear();
        state.active = Some(Instant::now());
        if let Some(fault) = state.fault
            && fault.mode == Mode::StaleLists
            && let Some(past) = &mut state.past
        {
            let (roots, others) = fault.catch_up();
            past.shown = Some(ServeStale::Next { roots, others });
        }
    }

    /// The world has changed: the controller is not idle before it has had time to react.
    pub(super) fn touch(&self) {
        self.shared.touch();
    }

    /// How many different lists the present process has asked for.
    pub(super) fn listed(&self) -> usize {
        self.shared.state().lists.len()
    }

    /// For how long nothing has happened; zero while a fault lasts, and until all watches are open again.
    pub(super) fn idle(&self) -> Duration {
        let state = self.shared.state();
        let caught_up = match state.past.as_ref().and_then(|past| past.shown.as_ref()) {
            Some(&ServeStale::Until { roots, others }) => Some(roots.max(others)),
            Some(ServeStale::Next { .. }) | None => None,
        };
        let since = state.active.max(caught_up);
        let is_blind = state.is_blind();
        drop(state);
        if is_blind || *self.shared.watches.borrow() != Watches::Open {
            return Duration::ZERO;
        }
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let call = Call::of(&head.method, head.uri.path(), head.uri.query().unwrap_or_default());
        let pass_on = || self.pass_on(&head.method, &target, &head.headers, body.clone());
        match call {
            Call::Read | Call::Lease => pass_on().await.map(whole),
            Call::List => {
                if let Some(old) = self.list(&target) {
                    return Ok(json_answer(StatusCode::OK, old));
                }
                pass_on().await.map(whole)
            }
            Call::Watch => {
                if *self.watches.borrow() == Watches::Refused {
                    return Err(cut());
                }
                // The stale API server has no newer events.
                if let Some(until) = self.past_until(head.uri.path()) {
                    sleep_until(until).await;
                }
                let answer = pass_on().await?;
                self.touch();
                let (head, body) = answer.into_parts();
                let open = OpenWatch::new(self, &target);
                Ok(Response::from_parts(head, gated(body, open)))
            }
            Call::Write => {
                let (number, struck) = self.note_write(&head.method, head.uri.path());
                let answer = match struck {
                    None => pass_on().await.map(whole),
                    Some(mode) => self.strike(mode, &head.method, pass_on).await,
                };
                if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                    self.state().sent.writes[number - 1].accepted = true;
                }
                self.touch();
                answer
            }
        }
    }

    /// What becomes of the chosen write.
    async fn strike(
        self: &Arc<Self>,
        mode: Mode,
        method: &Method,
        pass_on: impl AsyncFnOnce() -> Result<Response<Body>, io::Error>,
    ) -> Answer {
        match mode {
            Mode::NotSent => Err(cut()),
            Mode::AnswerLost => {
                pass_on().await?;
                Err(cut())
            }
            Mode::Killed | Mode::StaleLists => {
                pass_on().await?;
                self.kill_due.send_replace(true);
                std::future::pending().await
            }
            // A create meets an object of its name, everything else another version of it.
            Mode::Conflict if method == Method::POST => Ok(refused(409, "AlreadyExists")),
            Mode::Conflict => Ok(refused(409, "Conflict")),
            Mode::Throttled => {
                let mut answer = refused(429, "TooManyRequests");
                answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
                Ok(answer)
            }
            Mode::ServerError => Ok(refused(500, "InternalError")),
            Mode::WatchesSilent => {
                self.disturb_watches(Watches::Silent);
                pass_on().await.map(whole)
            }
            Mode::WatchesRefused => {
                self.disturb_watches(Watches::Refused);
                pass_on().await.map(whole)
            }
        }
    }

    fn disturb_watches(self: &Arc<Self>, how: Watches) {
        self.watches.send_replace(how);
        let shared = Arc::clone(self);
        // It ends by itself, and the proxy with it.
        tokio::spawn(async move {
            sleep(OUTAGE).await;
            shared.touch();
            shared.watches.send_replace(Watches::Open);
        });
    }

    async fn pass_on(
        &self,
        method: &Method,
        target: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Body>, io::Error> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = target.parse().map_err(io::Error::other)?;
        for name in [header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT] {
            if let Some(value) = headers.get(&name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        self.upstream.send(request).await.map_err(io::Error::other)
    }

    /// The number of the write; how it goes wrong, if it is the chosen one.
    fn note_write(&self, method: &Method, path: &str) -> (usize, Option<Mode>) {
        let mut state = self.state();
        let write = Write { call: format!("{method} {path}"), at: Instant::now(), accepted: false };
        state.sent.writes.push(write);
        state.sent.collections.extend(collection_of(path));
        state.active = Some(Instant::now());
        let number = state.sent.writes.len();
        let struck = state.fault.filter(|fault| fault.write == number);
        if struck.is_some() {
            state.needed = state.open.keys().cloned().collect();
        }
        (number, struck.map(|fault| fault.mode))
    }

    /// The answer of the past, while it is shown.
    fn list(&self, target: &str) -> Option<Bytes> {
        let mut state = self.state();
        state.lists.insert(target.to_owned());
        let now = Instant::now();
        state.active = Some(now);
        if let Some(past) = &mut state.past
            && let Some(ServeStale::Next { roots, others }) = past.shown
        {
            past.shown = Some(ServeStale::Until { roots: now + roots, others: now + others });
        }
        drop(state);
        let path = target.split('?').next().unwrap_or_default();
        self.past_until(path)?;
        self.state().past.as_ref()?.lists.get(target).cloned()
    }

    fn past_until(&self, path: &str) -> Option<Instant> {
        let state = self.state();
        let &ServeStale::Until { roots, others } = state.past.as_ref()?.shown.as_ref()? else { return None };
        let is_root = path.rsplit('/').next() == Some(&self.roots);
        let until = if is_root { roots } else { others };
        (Instant::now() < until).then_some(until)
    }

    /// Something has happened that the controller may react to.
    fn touch(&self) {
        self.state().active = Some(Instant::now());
    }
}

impl Call {
    fn of(method: &Method, path: &str, query: &str) -> Self {
        let collection = collection_of(path);
        if collection.as_deref().is_some_and(|collection| collection.ends_with("/leases")) {
            Self::Lease
        } else if method != Method::GET {
            Self::Write
        } else if query.split('&').any(|pair| pair == "watch=true") {
            Self::Watch
        } else if collection.as_deref() == Some(path) {
            Self::List
        } else {
            Self::Read
        }
    }
}

/// Path of the collection that a path within a namespace is in.
fn collection_of(path: &str) -> Option<String> {
    let (before, after) = path.split_once("/namespaces/")?;
    let mut parts = after.split('/');
    let (namespace, plural) = (parts.next()?, parts.next()?);
    Some(format!("{before}/namespaces/{namespace}/{plural}"))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // With this task, they end.
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(connection, Arc::clone(&shared)));
    }
}

async fn serve(connection: TcpStream, shared: Arc<Shared>) {
    let _ = connection.set_nodelay(true);
    let service = service_fn(move |request| Arc::clone(&shared).answer(request));
    // A connection that ends is what this is for.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
}

/// The events of a watch, held back or cut off as watches are at the time.
fn gated(body: Body, open: OpenWatch) -> AnswerBody {
    let watches = open.shared.watches.subscribe();
    let events = stream::try_unfold((body, watches, open), async |(mut body, mut watches, open)| {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = async { drop(watches.wait_for(|watches| *watches == Watches::Refused).await) } => {
                return Err(cut());
            }
        };
        let allowed = watches.wait_for(|watches| *watches != Watches::Silent).await.map(|allowed| *allowed);
        open.shared.touch();
        match (frame, allowed) {
            (Some(frame), Ok(Watches::Open)) => {
                Ok(Some((frame.map_err(io::Error::other)?, (body, watches, open))))
            }
            (None, Ok(Watches::Open)) => Ok(None),
            (_, Ok(Watches::Silent | Watches::Refused) | Err(_)) => Err(cut()),
        }
    });
    StreamBody::new(events.boxed()).boxed_unsync()
}

fn whole(answer: Response<Body>) -> Response<AnswerBody> {
    answer.map(|body| body.map_err(io::Error::other).boxed_unsync())
}

fn refused(code: u16, reason: &str) -> Response<AnswerBody> {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "made up by the sweep",
        "reason": reason,
        "code": code,
    });
    json_answer(StatusCode::from_u16(code).unwrap_or_default(), status.to_string().into())
}

fn json_answer(code: StatusCode, body: Bytes) -> Response<AnswerBody> {
    let body = Full::new(body).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn cut() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_write_waits_as_long_as_it_was_asked_to() {
        let began = Instant::now();
        let sent = |calls: &[(&str, u64)]| {
            let at = |millis: &u64| began + Duration::from_millis(*millis);
            let writes = calls.iter().map(|(call, millis)| Write {
                call: (*call).to_owned(),
                at: at(millis),
                accepted: true,
            });
            Sent { writes: writes.collect(), ..Sent::default() }
        };
        assert_eq!(sent(&[("PATCH /a", 0), ("PATCH /b", 10), ("PATCH /a", 1_000)]).too_soon(1), None);
        assert!(sent(&[("PATCH /a", 0), ("PATCH /b", 10), ("PATCH /a", 900)]).too_soon(1).is_some());
        assert_eq!(sent(&[("PATCH /a", 0), ("PATCH /b", 10), ("PATCH /a", 900)]).too_soon(2), None);
        assert_eq!(sent(&[("POST /events", 0), ("POST /events", 10)]).too_soon(1), None);
    }

    #[test]
    fn a_status_that_was_refused_is_no_status_that_was_taken() {
        let write = |call: &str, accepted| Write { call: call.to_owned(), at: Instant::now(), accepted };
        let writes = vec![
            write("PATCH /things/a/status", true),
            write("PATCH /things/a/status", false),
            write("PUT /things/a/scale", true),
        ];
        let sent = Sent { writes, ..Sent::default() };
        assert_eq!(sent.counts(), Counts { statuses: 1, others: 2 });
    }

    #[test]
    fn a_controller_is_blind_until_each_of_its_watches_is_open_again() {
        let (pods, chosen) = ("/pods?watch=true&resourceVersion=1", "/pods?watch=true&labelSelector=a");
        let needed = [pods, chosen].map(watch_key).into();
        let open = [(watch_key("/pods?watch=true&resourceVersion=7"), 1)].into();
        let mut state = State { needed, open, ..State::default() };
        assert!(state.is_blind());
        state.open.insert(watch_key(chosen), 1);
        assert!(!state.is_blind());
    }

    #[test]
    fn a_call_is_known_by_its_method_and_its_path() {
        let of = |method: Method, target: &str| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            Call::of(&method, path, query)
        };
        let pods = "/api/v1/namespaces/test/pods";
        assert_eq!(of(Method::GET, pods), Call::List);
        assert_eq!(of(Method::GET, &format!("{pods}?limit=500")), Call::List);
        assert_eq!(of(Method::GET, &format!("{pods}?limit=5&watch=true")), Call::Watch);
        assert_eq!(of(Method::GET, &format!("{pods}/chat")), Call::Read);
        assert_eq!(of(Method::GET, &format!("{pods}/chat/log?tailLines=5")), Call::Read);
        assert_eq!(of(Method::POST, pods), Call::Write);
        assert_eq!(of(Method::PATCH, "/apis/a/v1/namespaces/test/things/chat/status"), Call::Write);
        assert_eq!(of(Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/test/leases/it"), Call::Lease);
    }
}
