//! The other workers of the pool: which of them holds a session, and passing requests on to it.
//!
//! Possession decides. A worker that does not hold a session asks its siblings, and keeps the answer for a while. A
//! session that no worker holds begins at the worker with the least tasks. An address that does not answer may be of a
//! worker that restores the session, so it is waited for, but not longer than a bound. If two workers hold a session,
//! the newer copy is the session. `route` and `Silence` decide, and are pure.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::{
    net::lookup_host,
    time::{Instant, timeout},
};

use crate::{
    connections::{Client, cause, client, read_body},
    session::{Name, Standing},
};

/// A request with it is not passed on again.
pub(crate) const HOP: &str = "x-agent-hop";
/// Every answer of a worker has it, with the id of the process. So an address that another program has got meanwhile is
/// not taken for a sibling.
pub(crate) const WORKER: &str = "x-agent-worker";

/// Siblings are in the same cluster.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// An answer about a session is made from memory.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Siblings that are asked at the same time.
const ASKED_AT_ONCE: usize = 32;
/// The largest pool.
const MOST_SIBLINGS: usize = 1_000;
/// A report has some hundred bytes. A task has an answer, and its JSON.
const REPORT_BYTES: usize = 4 << 10;
const TASK_BYTES: usize = 2 << 20;
/// A session seldom moves, and a worker that does not hold it any more says so.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Sessions whose place is kept.
const MOST_KEPT: usize = 4_096;

/// Host and port of a headless Service or of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    host: String,
    port: u16,
}

impl Peer {
    /// Parses `host:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not host:port");
        let (host, port) = text.trim().rsplit_once(':').ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| wrong())? })
    }
}

/// What a worker says about itself and about one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// An id of the process, so that a worker recognizes itself.
    pub(crate) worker: String,
    pub(crate) ending: bool,
    pub(crate) queue: usize,
    pub(crate) in_flight: usize,
    pub(crate) sessions: usize,
    /// `None`: the worker does not hold the session.
    #[serde(flatten)]
    pub(crate) standing: Option<Standing>,
}

/// Why a request is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// The sibling holds the session.
    Held,
    /// The session begins at the sibling.
    Begin,
}

impl Hop {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Begin => "begin",
        }
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        [Self::Held, Self::Begin].into_iter().find(|hop| hop.name().as_bytes() == text)
    }
}

/// Where the tasks of a session are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Here,
    At(SocketAddr, Hop),
    /// A worker that does not answer may hold it.
    Wait,
    /// Its holder ends, and hands it over soon.
    Ending(SocketAddr),
}

/// Decides where a session is. `may_wait`: a worker that does not answer may hold it.
pub(crate) fn route(session: &Name, own: &Report, others: &[(SocketAddr, Report)], may_wait: bool) -> Route {
    // Of two equal copies, the ids of the workers decide, so that both choose the same.
    // The copy of a worker that ends is going to be given up.
    let claim = |report: &'_ Report| {
        report.standing.map(|standing| (standing, !report.ending, report.worker.clone()))
    };
    let newest =
        others.iter().filter_map(|(address, report)| Some((claim(report)?, *address, report.ending))).max();
    let at_holder = |address, is_ending| match is_ending {
        true => Route::Ending(address),
        false => Route::At(address, Hop::Held),
    };
    match (claim(own), newest) {
        (Some(own), Some((other, address, is_ending))) if other > own => at_holder(address, is_ending),
        (Some(_), Some(_) | None) => Route::Here,
        (None, Some((_, address, is_ending))) => at_holder(address, is_ending),
        (None, None) if may_wait => Route::Wait,
        (None, None) => {
            // Workers that are equally busy choose the same one, so that a session begins once.
            let rank =
                |report: &Report| (report.queue + report.in_flight, mixed(session.as_str(), &report.worker));
            let ready = others.iter().filter(|(_, report)| !report.ending);
            match ready.min_by_key(|(_, report)| rank(report)) {
                Some((address, other)) if rank(other) < rank(own) => Route::At(*address, Hop::Begin),
                Some(_) | None => Route::Here,
            }
        }
    }
}

/// Why a sibling has not said that it has a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declined {
    pub(crate) why: String,
    /// It has not taken the session. Otherwise it may have.
    pub(crate) is_certain: bool,
}

/// A sibling that takes sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sibling {
    pub(crate) address: SocketAddr,
    worker: String,
}

/// In the order in which a session is offered to them. Each session has an order of its own, so that they share the sessions.
pub(crate) fn offered<'s>(session: &Name, siblings: &'s [Sibling]) -> Vec<&'s Sibling> {
    let mut order: Vec<&Sibling> = siblings.iter().collect();
    order.sort_by_key(|sibling| mixed(session.as_str(), &sibling.worker));
    order
}

/// FNV-1a, which is the same in every build.
fn mixed(session: &str, worker: &str) -> u64 {
    let bytes = session.bytes().chain([0]).chain(worker.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Addresses that do not answer, with the times of the first and of the last attempt.
#[derive(Debug, Default)]
struct Silence(HashMap<String, (Instant, Instant)>);

impl Silence {
    /// Whether one of them is to be waited for.
    fn is_short(&mut self, silent: &[String], bound: Duration, now: Instant) -> bool {
        self.0
            .retain(|address, (_, last)| silent.contains(address) && now.duration_since(*last) <= 2 * bound);
        let mut is_short = false;
        for address in silent {
            let (first, last) = self.0.entry(address.clone()).or_insert((now, now));
            *last = now;
            is_short |= now.duration_since(*first) < bound;
        }
        is_short
    }
}

/// What siblings say of a session.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) reports: Vec<(SocketAddr, Report)>,
    /// An address that does not answer may hold the session, and the bound has not passed.
    pub(crate) may_wait: bool,
    /// Addresses and names that do not answer.
    pub(crate) silent: usize,
}

/// What siblings say of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// With the answer of the sibling that knows it.
    Found(Vec<u8>),
    /// A worker that does not answer, or cannot read its file, may know it. The bound has not passed.
    Uncertain,
    Unknown,
}

pub(crate) struct Siblings {
    peers: Vec<Peer>,
    own: Option<SocketAddr>,
    worker: String,
    /// How long an address that does not answer is waited for.
    bound: Duration,
    client: Client,
    places: Mutex<HashMap<Name, (SocketAddr, Instant)>>,
    silence: Mutex<Silence>,
}

impl Siblings {
    /// `own`: the address of this worker, if it is known. `worker`: the id of this process.
    pub(crate) fn new(
        peers: Vec<Peer>,
        own: Option<(IpAddr, u16)>,
        worker: String,
        bound: Duration,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            peers,
            own: own.map(SocketAddr::from),
            worker,
            bound,
            client: client(false, CONNECT_WITHIN)?,
            places: Mutex::default(),
            silence: Mutex::default(),
        })
    }

    pub(crate) fn are_none(&self) -> bool {
        self.peers.is_empty()
    }

    /// Where the session was found before.
    pub(crate) fn place(&self, session: &Name) -> Option<SocketAddr> {
        let places = lock(&self.places);
        places.get(session).filter(|(_, found)| found.elapsed() < KEPT_FOR).map(|(address, _)| *address)
    }

    pub(crate) fn keep(&self, session: &Name, address: SocketAddr) {
        let mut places = lock(&self.places);
        if places.len() >= MOST_KEPT {
            places.retain(|_, (_, found)| found.elapsed() < KEPT_FOR);
        }
        if places.len() >= MOST_KEPT {
            // It is asked for again when it is needed.
            places.clear();
        }
        places.insert(session.clone(), (address, Instant::now()));
    }

    pub(crate) fn forget(&self, session: &Name) {
        lock(&self.places).remove(session);
    }

    /// Asks every sibling about a session.
    pub(crate) async fn ask(&self, session: &Name) -> Asked {
        let asked = self.ask_once(session).await;
        let is_held = asked.reports.iter().any(|(_, report)| report.standing.is_some());
        // During a hand-over, the giver may answer after it and the taker before it. Both then lack the session.
        match !is_held && asked.reports.iter().any(|(_, report)| report.ending) {
            true => self.ask_once(session).await,
            false => asked,
        }
    }

    async fn ask_once(&self, session: &Name) -> Asked {
        let (addresses, mut silent) = self.resolve().await;
        let path = format!("/v1/sessions/{session}");
        let answers = self.answers_of(addresses, &path, REPORT_BYTES).await;
        let mut asked = Asked::default();
        for (address, answer) in answers {
            let report = answer.and_then(|(_, body)| serde_json::from_slice::<Report>(&body).ok());
            match report {
                Some(report) if report.worker == self.worker => {}
                Some(report) => asked.reports.push((address, report)),
                None => silent.push(address.to_string()),
            }
        }
        asked.silent = silent.len();
        asked.may_wait = lock(&self.silence).is_short(&silent, self.bound, Instant::now());
        asked
    }

    /// Asks every sibling about a task. If no sibling knows the task, they are asked again: its session may be moving.
    pub(crate) async fn task(&self, path: &str) -> Lookup {
        match self.task_once(path).await {
            Lookup::Unknown => self.task_once(path).await,
            known => known,
        }
    }

    async fn task_once(&self, path: &str) -> Lookup {
        let (addresses, mut silent) = self.resolve().await;
        let mut is_uncertain = false;
        for (address, answer) in self.answers_of(addresses, path, TASK_BYTES).await {
            match answer {
                Some((StatusCode::OK, body)) => return Lookup::Found(body),
                Some((StatusCode::NOT_FOUND, _)) => {}
                // It holds the task perhaps, and cannot read its file.
                Some(_) => is_uncertain = true,
                None => silent.push(address.to_string()),
            }
        }
        is_uncertain |= lock(&self.silence).is_short(&silent, self.bound, Instant::now());
        if is_uncertain { Lookup::Uncertain } else { Lookup::Unknown }
    }

    /// Sends a request to a sibling. An error says that the sibling cannot be reached.
    pub(crate) async fn pass_on(
        &self,
        to: SocketAddr,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        within: Duration,
    ) -> Result<Response<Incoming>, String> {
        let mut request =
            Request::post(format!("http://{to}{path}")).body(Full::new(body)).map_err(|e| cause(&e))?;
        request.headers_mut().extend(headers);
        match timeout(within, self.client.request(request)).await {
            Ok(Ok(answer)) if answer.headers().contains_key(WORKER) => Ok(answer),
            Ok(Ok(_)) => Err("another program has this address now".to_owned()),
            Ok(Err(error)) => Err(cause(&error)),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// The siblings that answer and do not end.
    pub(crate) async fn ready(&self) -> Vec<Sibling> {
        let (addresses, _) = self.resolve().await;
        let answers = self.answers_of(addresses, "/v1/load", REPORT_BYTES).await;
        let reports = answers.into_iter().filter_map(|(address, answer)| {
            Some((address, serde_json::from_slice::<Report>(&answer?.1).ok()?))
        });
        let others = reports.filter(|(_, report)| report.worker != self.worker && !report.ending);
        others.map(|(address, report)| Sibling { address, worker: report.worker }).collect()
    }

    /// Gives a session to a sibling, which has it then, or has a copy that is as new.
    pub(crate) async fn give(
        &self,
        to: SocketAddr,
        session: &Name,
        copy: Vec<u8>,
        within: Duration,
    ) -> Result<(), Declined> {
        let uncertain = |why: String| Declined { why: format!("{to}: {why}"), is_certain: false };
        let certain = |why: String| Declined { why: format!("{to}: {why}"), is_certain: true };
        let request = Request::put(format!("http://{to}/v1/sessions/{session}"));
        let request = request.body(Full::new(Bytes::from(copy))).map_err(|error| certain(cause(&error)))?;
        let answer = timeout(within, self.client.request(request)).await;
        let answer = answer.map_err(|_| uncertain("no answer in time".to_owned()))?;
        let answer = answer.map_err(|error| match error.is_connect() {
            true => certain(cause(&error)),
            false => uncertain(cause(&error)),
        })?;
        match answer.status() {
            _ if !answer.headers().contains_key(WORKER) => {
                Err(certain("another program has this address".to_owned()))
            }
            // An earlier request, whose answer did not arrive, may have been the one that gave it.
            StatusCode::OK | StatusCode::CONFLICT => Ok(()),
            status => Err(certain(format!("status {}", status.as_u16()))),
        }
    }

    /// `None`: the sibling does not answer.
    async fn answers_of(
        &self,
        addresses: BTreeSet<SocketAddr>,
        path: &str,
        most: usize,
    ) -> Vec<(SocketAddr, Option<(StatusCode, Vec<u8>)>)> {
        stream::iter(addresses)
            .map(|address| async move { (address, self.read(address, path, most).await) })
            .buffer_unordered(ASKED_AT_ONCE)
            .collect()
            .await
    }

    async fn read(&self, address: SocketAddr, path: &str, most: usize) -> Option<(StatusCode, Vec<u8>)> {
        let exchanged = async {
            let request = Request::get(format!("http://{address}{path}"))
                .header(HOP, Hop::Held.name())
                .body(Full::new(Bytes::new()))
                .ok()?;
            let answer = self.client.request(request).await.ok()?;
            let status = answer.status();
            if !answer.headers().contains_key(WORKER) {
                return None;
            }
            Some((status, read_body(answer.into_body(), most).await.ok()?))
        };
        timeout(ANSWER_WITHIN, exchanged).await.ok().flatten()
    }

    /// Addresses of siblings, and names that could not be resolved.
    async fn resolve(&self) -> (BTreeSet<SocketAddr>, Vec<String>) {
        let (mut addresses, mut unknown) = (BTreeSet::new(), Vec::new());
        for Peer { host, port } in &self.peers {
            match timeout(ANSWER_WITHIN, lookup_host((host.as_str(), *port))).await {
                Ok(Ok(found)) => addresses.extend(found),
                Ok(Err(_)) | Err(_) => unknown.push(host.clone()),
            }
        }
        addresses.retain(|address| Some(*address) != self.own);
        (addresses.into_iter().take(MOST_SIBLINGS).collect(), unknown)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(worker: &str, load: usize, standing: Option<(u64, u64)>) -> Report {
        Report {
            worker: worker.to_owned(),
            ending: false,
            queue: load,
            in_flight: 0,
            sessions: 0,
            standing: standing.map(|(turns, updated)| Standing { turns, updated, messages: 0 }),
        }
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn session(name: &str) -> Name {
        Name::parse(name).unwrap()
    }

    fn decide(own: &Report, others: &[(SocketAddr, Report)], may_wait: bool) -> Route {
        route(&session("s"), own, others, may_wait)
    }

    #[test]
    fn the_holder_of_a_session_gets_its_tasks_also_if_it_is_busier() {
        let others = [(address(1), report("b", 9, Some((1, 1)))), (address(2), report("c", 0, None))];
        assert_eq!(decide(&report("a", 0, None), &others, true), Route::At(address(1), Hop::Held));
        assert_eq!(decide(&report("a", 9, Some((1, 2))), &others[1..], true), Route::Here);
    }

    #[test]
    fn of_two_copies_the_newer_is_the_session() {
        let others = [(address(1), report("b", 0, Some((3, 1)))), (address(2), report("c", 0, Some((2, 9))))];
        let at_first = Route::At(address(1), Hop::Held);
        assert_eq!(decide(&report("a", 0, None), &others, false), at_first);
        assert_eq!(decide(&report("a", 0, Some((2, 99))), &others, false), at_first);
        assert_eq!(decide(&report("a", 0, Some((3, 2))), &others, false), Route::Here);
    }

    #[test]
    fn a_session_whose_holder_ends_is_waited_for() {
        let ending = |turns| Report { ending: true, ..report("b", 0, Some((turns, 1))) };
        assert_eq!(
            decide(&report("a", 0, None), &[(address(1), ending(1))], false),
            Route::Ending(address(1))
        );
        assert_eq!(
            decide(&report("a", 0, Some((2, 1))), &[(address(1), ending(3))], false),
            Route::Ending(address(1))
        );
        assert_eq!(decide(&report("a", 0, Some((3, 1))), &[(address(1), ending(2))], false), Route::Here);
    }

    #[test]
    fn of_two_equal_copies_that_of_a_worker_that_ends_is_given_up() {
        let ending = Report { ending: true, ..report("z", 0, Some((1, 1))) };
        let others = [(address(1), ending), (address(2), report("b", 0, Some((1, 1))))];
        assert_eq!(decide(&report("c", 0, None), &others, false), Route::At(address(2), Hop::Held));
        assert_eq!(decide(&report("b", 0, Some((1, 1))), &others[..1], false), Route::Here);
    }

    #[test]
    fn sessions_that_are_handed_over_are_spread() {
        let siblings: Vec<Sibling> = (0..4)
            .map(|number| Sibling { address: address(number), worker: format!("worker-{number}") })
            .collect();
        let mut counts = [0; 4];
        for number in 0..400 {
            let order = offered(&session(&format!("s-{number}")), &siblings);
            assert_eq!(order.len(), 4);
            counts[usize::from(order[0].address.port())] += 1;
        }
        assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
    }

    #[test]
    fn of_two_equal_copies_both_workers_choose_the_same() {
        let (a, b) = (report("a", 0, Some((1, 1))), report("b", 0, Some((1, 1))));
        assert_eq!(decide(&a, &[(address(2), b.clone())], false), Route::At(address(2), Hop::Held));
        assert_eq!(decide(&b, &[(address(1), a)], false), Route::Here);
    }

    #[test]
    fn a_new_session_begins_at_the_least_loaded_worker_that_does_not_end() {
        let mut others = [(address(1), report("b", 1, None)), (address(2), report("c", 0, None))];
        assert_eq!(decide(&report("a", 2, None), &others, false), Route::At(address(2), Hop::Begin));
        others[1].1.ending = true;
        assert_eq!(decide(&report("a", 2, None), &others, false), Route::At(address(1), Hop::Begin));
        assert_eq!(decide(&report("a", 0, None), &[], false), Route::Here);
    }

    #[test]
    fn workers_that_are_equally_busy_choose_the_same_one() {
        let (a, b) = (report("a", 0, None), report("b", 0, None));
        let mut begun = [0, 0];
        for n in 0..50 {
            let name = session(&format!("s{n}"));
            let at_a = route(&name, &a, &[(address(2), b.clone())], false) == Route::Here;
            let at_b = route(&name, &b, &[(address(1), a.clone())], false) == Route::Here;
            assert_ne!(at_a, at_b, "{name}");
            begun[usize::from(at_a)] += 1;
        }
        assert!(begun.iter().all(|count| *count > 10), "{begun:?}");
    }

    #[test]
    fn a_session_waits_for_a_silent_worker_but_not_beyond_the_bound() {
        assert_eq!(decide(&report("a", 0, None), &[], true), Route::Wait);
        let (mut silence, bound, begin) = (Silence::default(), Duration::from_secs(10), Instant::now());
        let silent = ["10.0.0.1:1".to_owned()];
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(silence.is_short(&silent, bound, at(0)));
        assert!(silence.is_short(&silent, bound, at(9)));
        assert!(!silence.is_short(&silent, bound, at(10)));
        assert!(silence.is_short(&["other".to_owned()], bound, at(11)));
        // It has answered since, or was not asked for long.
        assert!(silence.is_short(&silent, bound, at(12)));
        assert!(silence.is_short(&silent, bound, at(100)));
    }

    #[test]
    fn a_report_says_whether_the_session_is_held() {
        for report in [report("a", 1, None), report("a", 1, Some((2, 3)))] {
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(text.contains("turns"), report.standing.is_some());
            assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        }
    }

    #[test]
    fn a_peer_is_a_host_and_a_port() {
        let peer = |host: &str| Peer { host: host.to_owned(), port: 8080 };
        assert_eq!(Peer::parse("pool.ns.svc:8080"), Ok(peer("pool.ns.svc")));
        assert_eq!(Peer::parse(" [::1]:8080"), Ok(peer("::1")));
        for wrong in ["", "host", ":1", "host:x", "host:99999"] {
            assert!(Peer::parse(wrong).is_err(), "{wrong}");
        }
    }
}
