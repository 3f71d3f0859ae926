//! The HTTP interface: tasks, chat completions, what siblings ask, and probes.
//!
//! Clients may be slow or many, so connections, bodies and waits are bounded. The server decides with `siblings` where
//! a task is done. It does no task itself.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, Query, State},
    middleware::map_response,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use daemon::http::{Limits, WhenFull};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    log::Log,
    metrics::page,
    session::{Name, Outcome, Session, Task, store::LARGEST_FILE},
    siblings::{HOP, Hop, Lookup, Route, Siblings, WORKER, route},
    worker::{End, Progress, Refusal, State as TaskState, Unreadable, Worker},
};
use answers::{Answered, ended, problem, queued, refused, streamed, task};
use requests::{Mode, Protocol, SESSION, Submission, TASK_ID};

mod answers;
mod requests;

/// An input and the JSON around it.
const BODY_BYTES: usize = 1 << 20;
/// A body is sent at once.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Bodies that are read at the same time: they are what a client can fill the memory with.
const BODIES: usize = 32;
/// Requests of clients that are answered at the same time.
const CLIENTS: usize = 256;
/// Whether answers have ended.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// For the turn of a session that a sibling hands over. The sibling waits longer, and so hears that it was not taken.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(2);
/// For the place of a body.
const BODY_TURN_WITHIN: Duration = Duration::from_secs(5);
/// A task may wait in the queue before its own time begins. Later the client asks for the task.
const QUEUED_FOR: Duration = Duration::from_secs(60);
/// A connection is kept no longer than this, so that a client finds new workers.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// For a sibling that answers at its last moment.
const PASSED_ON_FOR: Duration = Duration::from_secs(30);
/// Between two questions for a session that a silent worker may hold.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Between two comparisons of a session with the copies of siblings.
const COMPARE_AFTER: Duration = Duration::from_secs(60);
/// A session may move while a request is passed on, but not again and again.
const MOST_ROUNDS: u32 = 4;
/// For a client that asks for a task of a worker that is silent.
const TASK_AGAIN_AFTER_SECONDS: u64 = 5;
/// Says how the session was found.
const FOUND: &str = "x-agent-session";

pub(crate) struct Server {
    worker: Worker,
    siblings: Siblings,
    log: Arc<Log>,
    /// Of one task.
    task_within: Duration,
    /// How long a session waits for a worker that does not answer.
    restore_within: Duration,
    bodies: Semaphore,
    /// One session of a sibling is taken over at a time, because it may be large.
    handed_over: Semaphore,
    /// For requests of clients. Siblings and probes use the other connections.
    clients: Arc<Semaphore>,
    /// Held by each request that is passed on, until its answer has ended.
    passed_on: Arc<()>,
    /// Since 1970.
    started: Duration,
}

type Shared = State<Arc<Server>>;

impl Server {
    pub(crate) fn new(
        worker: Worker,
        siblings: Siblings,
        log: Arc<Log>,
        task_within: Duration,
        restore_within: Duration,
        started: Duration,
    ) -> Self {
        let (bodies, handed_over) = (Semaphore::new(BODIES), Semaphore::new(1));
        let clients = Arc::new(Semaphore::new(CLIENTS));
        let passed_on = Arc::default();
        Self {
            worker,
            siblings,
            log,
            task_within,
            restore_within,
            bodies,
            handed_over,
            clients,
            passed_on,
            started,
        }
    }

    /// Waits until siblings have answered what was passed on to them, or until this time.
    pub(crate) async fn answered(&self, until: Instant) {
        while Arc::strong_count(&self.passed_on) > 1 && Instant::now() < until {
            sleep(LOOKED_AGAIN_AFTER).await;
        }
    }

    pub(crate) fn siblings(&self) -> &Siblings {
        &self.siblings
    }

    /// How long a client waits for the end of its task.
    fn waited_for(&self) -> Duration {
        self.task_within + QUEUED_FOR
    }

    /// The bounds of the port for tasks.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections: 4 * CLIENTS,
            when_full: WhenFull::Wait,
            head: Duration::from_secs(10),
            life: KEPT_FOR,
            // A stream takes the time of a task after the client has waited for its begin.
            last_answer: self.waited_for()
                + self.task_within
                + 2 * PASSED_ON_FOR
                + MOST_ROUNDS * self.restore_within,
            // The end of the worker has tasks with an end, so answers are short by then.
            at_stop: Duration::from_secs(2),
        }
    }
}

pub(crate) fn tasks(server: Arc<Server>) -> Router {
    // An id is hexadecimal.
    let worker = HeaderValue::from_str(server.worker.id()).unwrap_or(HeaderValue::from_static("unknown"));
    Router::new()
        .route("/v1/tasks", post(post_task))
        .route("/v1/tasks/{id}", get(get_task))
        .route("/v1/chat/completions", post(post_chat))
        .route("/v1/sessions/{name}", get(get_session).put(put_session))
        .route("/v1/load", get(get_load))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .fallback(|| async { problem(StatusCode::NOT_FOUND, "there is no such path", None) })
        .layer(map_response(move |answer: Response| with_worker(answer, worker.clone())))
        .with_state(server)
}

/// The answer with the id of this worker. One that is passed back has the id of the sibling already.
async fn with_worker(mut answer: Response, worker: HeaderValue) -> Response {
    answer.headers_mut().entry(WORKER).or_insert(worker);
    answer
}

pub(crate) fn metrics(server: Arc<Server>) -> Router {
    Router::new().route("/metrics", get(get_metrics)).with_state(server)
}

async fn get_metrics(State(server): Shared) -> Response {
    let text = page(server.worker.counts(), server.started);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn readyz(State(server): Shared) -> Response {
    match server.worker.is_ending() {
        true => problem(StatusCode::SERVICE_UNAVAILABLE, "the worker ends", None),
        false => "ok\n".into_response(),
    }
}

async fn get_load(State(server): Shared) -> Response {
    axum::Json(server.worker.report(None)).into_response()
}

async fn get_session(State(server): Shared, Path(name): Path<String>) -> Response {
    let Some(name) = Name::parse(&name) else {
        return problem(StatusCode::BAD_REQUEST, &format!("a session must have {}", Name::RULE), None);
    };
    let report = server.worker.report(Some(&name));
    let status = if report.standing.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    (status, axum::Json(report)).into_response()
}

/// A sibling that ends hands a session over.
async fn put_session(State(server): Shared, Path(name): Path<String>, body: Body) -> Response {
    server.take_over(&name, body).await.unwrap_or_else(|refusal| refusal)
}

#[derive(Deserialize)]
struct Wanted {
    session: Option<String>,
}

async fn get_task(
    State(server): Shared,
    Path(id): Path<String>,
    Query(Wanted { session }): Query<Wanted>,
    headers: HeaderMap,
) -> Response {
    let session = session.map(|session| Name::parse(&session).ok_or(()));
    let (Some(id), Ok(session)) = (Name::parse(&id), session.transpose()) else {
        return problem(StatusCode::BAD_REQUEST, &format!("names must have {}", Name::RULE), None);
    };
    let mut is_uncertain = match server.worker.state(&id, session.as_ref()).await {
        Ok(Some((session, state))) => return task(&session, &id, &state),
        Ok(None) => false,
        Err(Unreadable) => true,
    };
    if !headers.contains_key(HOP) && !server.siblings.are_none() {
        let query = session.map_or_else(String::new, |session| format!("?session={session}"));
        match server.siblings.task(&format!("/v1/tasks/{id}{query}")).await {
            Lookup::Found(body) => {
                return ([(header::CONTENT_TYPE, "application/json")], body).into_response();
            }
            Lookup::Uncertain => is_uncertain = true,
            Lookup::Unknown => {}
        }
    }
    if is_uncertain {
        let message = "a worker that may know this task does not answer, or cannot read its session";
        return problem(StatusCode::SERVICE_UNAVAILABLE, message, Some(TASK_AGAIN_AFTER_SECONDS));
    }
    problem(StatusCode::NOT_FOUND, "no worker that answers knows this task", None)
}

async fn post_task(State(server): Shared, headers: HeaderMap, body: Body) -> Response {
    server.take(Protocol::Tasks, headers, body).await.unwrap_or_else(|refusal| refusal)
}

async fn post_chat(State(server): Shared, headers: HeaderMap, body: Body) -> Response {
    server.take(Protocol::Chat, headers, body).await.unwrap_or_else(|refusal| refusal)
}

/// Where a task is done, and how its session was found.
enum Found {
    Here(&'static str),
    At(SocketAddr, Hop),
    /// Its holder ends, and has not handed it over in time.
    Ending,
}

impl Server {
    /// An error is an answer, too.
    async fn take(&self, protocol: Protocol, headers: HeaderMap, body: Body) -> Result<Response, Response> {
        let is_of_client = !headers.contains_key(HOP);
        if self.worker.is_ending() {
            // A sibling looks for the session again.
            return Err(if is_of_client { refused(Refusal::Ending) } else { misdirected() });
        }
        let clients = self.clients.clone();
        let Ok(place) = is_of_client.then(|| clients.try_acquire_owned()).transpose() else {
            let mut full = problem(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait", Some(1));
            full.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            return Err(full);
        };
        Ok(holding(self.taken(protocol, headers, body).await?, place))
    }

    async fn taken(&self, protocol: Protocol, headers: HeaderMap, body: Body) -> Result<Response, Response> {
        let body = read(body, &self.bodies, BODY_BYTES).await?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let submission = match protocol {
            Protocol::Tasks => requests::task(&body, text(TASK_ID)),
            Protocol::Chat => requests::chat(&body, text(SESSION), text(TASK_ID)),
        };
        let submission = submission.map_err(|why| problem(StatusCode::BAD_REQUEST, &why, None))?;
        // With an id, a request that is passed on twice is one task.
        let id = submission.id.clone().unwrap_or_else(|| Name::of_number(fastrand::u128(..)));
        let hop = headers.get(HOP).map(|hop| Hop::parse(hop.as_bytes()));
        if self.worker.has_task(&submission.session, &id) {
            return self.answer(submission, id, "held").await;
        }
        match hop {
            Some(Some(Hop::Begin)) => self.answer(submission, id, "new").await,
            Some(Some(Hop::Held) | None) => match self.found_here(&submission.session).await {
                true => self.answer(submission, id, "held").await,
                false => Err(misdirected()),
            },
            None => self.place_and_answer(submission, id, &body).await,
        }
    }

    async fn take_over(&self, name: &str, body: Body) -> Result<Response, Response> {
        let most = usize::try_from(LARGEST_FILE).unwrap_or(usize::MAX);
        let busy =
            || problem(StatusCode::SERVICE_UNAVAILABLE, "another session is being taken over", Some(1));
        let turn = timeout(HANDED_OVER_WITHIN, self.handed_over.acquire()).await;
        let _turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
        let body = read(body, &self.bodies, most).await?;
        let wrong =
            |why: &str| problem(StatusCode::BAD_REQUEST, &format!("the body is no session: {why}"), None);
        let session: Session = serde_json::from_slice(&body).map_err(|error| wrong(&error.to_string()))?;
        if session.name.as_str() != name {
            return Err(wrong("it has another name"));
        }
        let name = session.name.clone();
        match self.worker.take_over(session).await.map_err(refused)? {
            true => Ok(axum::Json(self.worker.report(Some(&name))).into_response()),
            false => Err(problem(StatusCode::CONFLICT, "this worker has a copy that is as new", None)),
        }
    }

    /// Whether the session is held, also in comparison with the copies of siblings.
    async fn found_here(&self, session: &Name) -> bool {
        match self.worker.was_compared(session, COMPARE_AFTER) {
            Some(true) => true,
            Some(false) if self.siblings.are_none() => true,
            Some(false) => matches!(self.compare(session).await, (Route::Here | Route::Wait, _)),
            None => false,
        }
    }

    /// Asks the siblings, and gives up a copy that is older than theirs. Also gives the number of silent siblings.
    async fn compare(&self, session: &Name) -> (Route, usize) {
        // Before the others: what is taken over meanwhile is newer than what they say.
        let own = self.worker.report(Some(session));
        let asked = self.siblings.ask(session).await;
        let route = route(session, &own, &asked.reports, asked.may_wait);
        match route {
            Route::Here => self.worker.compared(session),
            Route::At(..) => {
                // The tasks of this copy are done here, and new ones at the sibling.
                if let Some(copy) = own.standing {
                    self.worker.set_aside(session, copy).await;
                }
            }
            Route::Wait | Route::Ending(_) => {}
        }
        (route, asked.silent)
    }

    async fn place_and_answer(
        &self,
        submission: Submission,
        id: Name,
        body: &Bytes,
    ) -> Result<Response, Response> {
        let mut until = Instant::now() + self.restore_within;
        for _ in 0..MOST_ROUNDS {
            let (at, hop) = match self.place(&submission.session, until).await {
                Found::Here(found) => return self.answer(submission, id, found).await,
                Found::At(at, hop) => (at, hop),
                Found::Ending => return Err(refused(Refusal::Ending)),
            };
            let passed_on = self.passed_on.clone();
            let path = match submission.protocol {
                Protocol::Tasks => "/v1/tasks",
                Protocol::Chat => "/v1/chat/completions",
            };
            let headers = passed_headers(&submission, &id, hop);
            let within = self.waited_for() + PASSED_ON_FOR;
            match self.siblings.pass_on(at, path, headers, body.clone(), within).await {
                Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {}
                Ok(answer) => {
                    if answer.headers().contains_key(FOUND) {
                        self.siblings.keep(&submission.session, at);
                    } else {
                        self.siblings.forget(&submission.session);
                    }
                    return Ok(passed_back(answer, passed_on));
                }
                Err(why) => {
                    let (session, at) = (submission.session.as_str(), at.to_string());
                    let attributes = json!({"session": session, "sibling": at, "error": why});
                    self.log.warn("a sibling cannot be reached", &attributes);
                    // It may have worked for long. Its address is silent from now on.
                    until = Instant::now() + self.restore_within;
                }
            }
            self.siblings.forget(&submission.session);
        }
        Err(problem(StatusCode::SERVICE_UNAVAILABLE, "the session moves between workers", Some(1)))
    }

    async fn place(&self, session: &Name, until: Instant) -> Found {
        if self.siblings.are_none() {
            let is_held = self.worker.was_compared(session, COMPARE_AFTER).is_some();
            return Found::Here(if is_held { "held" } else { "new" });
        }
        let mut has_ended = false;
        loop {
            let is_held = match self.worker.was_compared(session, COMPARE_AFTER) {
                Some(true) => return Found::Here("held"),
                Some(false) => true,
                None => false,
            };
            if let (false, Some(at)) = (is_held, self.siblings.place(session)) {
                return Found::At(at, Hop::Held);
            }
            match self.compare(session).await {
                (Route::Here, _) if is_held => return Found::Here("held"),
                (Route::Here, 0) => return Found::Here("new"),
                (Route::Here, _) => return Found::Here(self.begin_after_wait(session)),
                (Route::At(at, hop), _) => return Found::At(at, hop),
                // This worker takes no task, so it does not wait either.
                (Route::Wait | Route::Ending(_), _) if self.worker.is_ending() => return Found::Ending,
                (Route::Wait, _) if Instant::now() >= until && !has_ended => {
                    return Found::Here(self.begin_after_wait(session));
                }
                (Route::Wait | Route::Ending(_), _) if Instant::now() >= until => return Found::Ending,
                (Route::Wait, _) => sleep(ASK_AGAIN_AFTER).await,
                (Route::Ending(_), _) => {
                    // It exists, so it does not begin anew.
                    has_ended = true;
                    sleep(ASK_AGAIN_AFTER).await;
                }
            }
        }
    }

    fn begin_after_wait(&self, session: &Name) -> &'static str {
        let attributes = json!({"session": session.as_str(), "seconds": self.restore_within.as_secs()});
        self.log
            .warn("a session begins anew, although a worker that does not answer may hold it", &attributes);
        "new-after-wait"
    }

    /// Does a task here. `found`: how the session was found.
    async fn answer(
        &self,
        submission: Submission,
        id: Name,
        found: &'static str,
    ) -> Result<Response, Response> {
        let Submission { session, id: _, input, mode, protocol } = submission;
        // A name has no characters that a header may not have.
        let of_header = HeaderValue::from_str(id.as_str()).ok();
        let progress = self.worker.submit(&session, Task { id: id.clone(), input }).await.map_err(refused)?;
        let answered =
            Answered { session, id, protocol, model: self.worker.model().to_owned(), created: seconds() };
        let mut answer = match mode {
            Mode::Queue => queued(&answered, &state_of(&progress)),
            Mode::Wait => self.wait(answered, progress).await,
            Mode::Stream => self.stream(answered, progress).await,
        };
        answer.headers_mut().insert(HeaderName::from_static(FOUND), HeaderValue::from_static(found));
        // A client that sends a task again needs its id.
        if let Some(id) = of_header {
            answer.headers_mut().insert(HeaderName::from_static(TASK_ID), id);
        }
        Ok(answer)
    }

    async fn wait(&self, answered: Answered, mut progress: watch::Receiver<Progress>) -> Response {
        let has_ended = |progress: &Progress| progress.end.is_some();
        match self.reached(&mut progress, has_ended).await {
            Some(Reached { end, has_text: _ }) => ended(&answered, &end.unwrap_or(End::Unfinished)),
            None => queued(&answered, &state_of(&progress)),
        }
    }

    /// A task that fails before its first word is answered with the status of the fault.
    async fn stream(&self, answered: Answered, mut progress: watch::Receiver<Progress>) -> Response {
        let has_begun = |progress: &Progress| progress.end.is_some() || !progress.text.is_empty();
        match self.reached(&mut progress, has_begun).await {
            Some(Reached {
                end: Some(end @ (End::Outcome(Outcome::Failed { .. }) | End::Unfinished)),
                has_text: false,
            }) => ended(&answered, &end),
            Some(_) => streamed(answered, progress),
            None => queued(&answered, &state_of(&progress)),
        }
    }

    /// Waits for progress. `None`: it has not come in time.
    async fn reached(
        &self,
        progress: &mut watch::Receiver<Progress>,
        is_reached: impl FnMut(&Progress) -> bool,
    ) -> Option<Reached> {
        let reached = timeout(self.waited_for(), progress.wait_for(is_reached)).await.ok()?;
        Some(match reached {
            Ok(progress) => Reached { end: progress.end.clone(), has_text: !progress.text.is_empty() },
            // The worker has ended.
            Err(_) => Reached { end: Some(End::Unfinished), has_text: false },
        })
    }
}

/// What a task has given when its answer begins.
struct Reached {
    end: Option<End>,
    has_text: bool,
}

fn state_of(progress: &watch::Receiver<Progress>) -> TaskState {
    let progress = progress.borrow();
    match &progress.end {
        Some(End::Outcome(outcome)) => TaskState::Ended(outcome.clone()),
        Some(End::Unfinished) | None if progress.attempt > 0 => TaskState::Working,
        Some(End::Unfinished) | None => TaskState::Queued,
    }
}

async fn read(body: Body, places: &Semaphore, most: usize) -> Result<Bytes, Response> {
    let busy = || problem(StatusCode::SERVICE_UNAVAILABLE, "too many requests are being read", Some(1));
    let place = timeout(BODY_TURN_WITHIN, places.acquire()).await;
    let _place = place.map_err(|_| busy())?.map_err(|_| busy())?;
    let read = timeout(BODY_WITHIN, to_bytes(body, most)).await;
    let read =
        read.map_err(|_| problem(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time", None))?;
    read.map_err(|_| {
        let message = format!("the body has more than {most} bytes, or was cut off");
        problem(StatusCode::PAYLOAD_TOO_LARGE, &message, None)
    })
}

/// What a sibling needs beside the body.
fn passed_headers(submission: &Submission, id: &Name, hop: Hop) -> HeaderMap {
    let named = [(TASK_ID, id.as_str()), (SESSION, submission.session.as_str()), (HOP, hop.name())];
    let mut headers = HeaderMap::new();
    for (name, value) in named {
        // Names have no characters that a header may not have.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

/// For a sibling, which asks all of them again.
fn misdirected() -> Response {
    problem(StatusCode::MISDIRECTED_REQUEST, "this worker does not hold the session", None)
}

/// Keeps something until the body of the answer has ended.
fn holding(answer: Response, kept: impl Send + 'static) -> Response {
    answer.map(|body| {
        let body = body.map_frame(move |frame| {
            let _ = &kept;
            frame
        });
        Body::new(body)
    })
}

/// The answer of a sibling. Its body is passed on as it arrives.
fn passed_back(answer: http::Response<Incoming>, passed_on: Arc<()>) -> Response {
    let (head, body) = answer.into_parts();
    let mut back = holding(Response::new(Body::new(body)), passed_on);
    *back.status_mut() = head.status;
    let of_agents = [FOUND, WORKER, TASK_ID].map(HeaderName::from_static);
    for name in
        [header::CONTENT_TYPE, header::CACHE_CONTROL, header::RETRY_AFTER].into_iter().chain(of_agents)
    {
        if let Some(value) = head.headers.get(&name) {
            back.headers_mut().insert(name, value.clone());
        }
    }
    back
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
