//! The load of workers from Prometheus instead of the streams of their monitors (`--prometheus-url`). It decides nothing.
//!
//! One query for each pool returns the values that Prometheus has scraped from its monitors, by worker. An absent value
//! counts as missing, never as zero. A worker also counts as busy if the stream of its monitor, which is newer, reports
//! a task.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    aidispatcher::AIDispatcher,
    monitor::metrics::{QUEUE_DEPTH, TASKS_IN_FLIGHT},
};
use jiff::Timestamp;
use reqwest::{Client, Url, header::CONTENT_TYPE, redirect::Policy};
use runtime::watch::cache::Cache;
use serde::Deserialize;
use workload::time::elapsed;

use crate::{MEASURED_EVERY, NAME, load::WorkerLoad};

/// From the name resolution to the last byte. A slower answer counts as no answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Two series of a thousand workers have half of it.
const LARGEST_ANSWER: usize = 1 << 20;
/// An answer is used until two more have failed.
pub(crate) const MAX_AGE: Duration = MEASURED_EVERY.saturating_mul(3).saturating_add(ANSWER_WITHIN);

/// A server, and its last answer about each pool.
pub(crate) struct Prometheus {
    client: Result<Client, String>,
    url: Url,
    pools: Arc<Mutex<HashMap<String, Asked>>>,
}

/// The last query and answer for one pool.
#[derive(Clone, Debug)]
struct Asked {
    /// When the last query was sent.
    at: Timestamp,
    /// `None`: no query has ended yet.
    answer: Option<Answer>,
}

#[derive(Clone, Debug)]
struct Answer {
    at: Timestamp,
    /// By name of the worker's pod; or why it is not known.
    loads: Result<HashMap<String, Load>, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    queued: Option<u64>,
    in_flight: Option<u64>,
}

impl Prometheus {
    pub(crate) fn new(url: Url, dispatchers: &Cache<AIDispatcher>) -> Self {
        // Proxies of the environment and redirects would take the request to another host.
        let client = Client::builder().user_agent(NAME).redirect(Policy::none()).no_proxy();
        let client = client.timeout(ANSWER_WITHIN).build().map_err(|error| error.to_string());
        let known = Self { client, url, pools: Arc::default() };
        let pools = Arc::clone(&known.pools);
        dispatchers.subscribe(move |change| {
            if let Some(uid) = change.gone().and_then(|gone| gone.metadata.uid.as_ref()) {
                locked(&pools).remove(uid);
            }
        });
        known
    }

    /// Queries the loads of a pool, at most once in `MEASURED_EVERY`.
    pub(crate) async fn ask(&self, dispatcher: &AIDispatcher, now: Timestamp) {
        let meta = &dispatcher.metadata;
        let (Some(uid), Some(namespace), Some(name)) = (&meta.uid, &meta.namespace, &meta.name) else {
            return;
        };
        {
            let mut pools = locked(&self.pools);
            let asked = pools.entry(uid.clone()).or_insert(Asked { at: Timestamp::MAX, answer: None });
            // A query time in the future means that the clock was set back.
            if asked.at <= now && elapsed(asked.at, now) < MEASURED_EVERY {
                return;
            }
            // Set before the query, so that a failing server is not queried more often.
            asked.at = now;
        }
        let answered = self.query(&query(namespace, name)).await;
        let loads = answered.map_err(|why| format!("Prometheus at {} {why}", self.url));
        let mut pools = locked(&self.pools);
        // Without an entry, the object was deleted meanwhile.
        let Some(Asked { at: _, answer }) = pools.get_mut(uid) else { return };
        // An answer counts until it is too old.
        let counts =
            |before: &Answer| before.loads.is_ok() && before.at <= now && elapsed(before.at, now) < MAX_AGE;
        if loads.is_ok() || !answer.as_ref().is_some_and(counts) {
            *answer = Some(Answer { at: now, loads });
        }
    }

    async fn query(&self, query: &str) -> Result<HashMap<String, Load>, String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let mut place = self.url.clone();
        place.set_path(&format!("{}/api/v1/query", self.url.path().trim_end_matches('/')));
        let body: String =
            form_urlencoded::Serializer::new(String::new()).append_pair("query", query).finish();
        let request = client.post(place).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
        let broken = |error: reqwest::Error| {
            if error.is_timeout() {
                format!("does not answer within {} s", ANSWER_WITHIN.as_secs())
            } else if error.is_connect() {
                "cannot be reached".to_owned()
            } else {
                "ended the connection".to_owned()
            }
        };
        let mut answer = request.send().await.map_err(broken)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > LARGEST_ANSWER {
                return Err(format!("answers with more than {LARGEST_ANSWER} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        if !answer.status().is_success() {
            return Err(format!("answers with status {}", answer.status().as_u16()));
        }
        loads(&body).ok_or_else(|| "did not answer with a vector".to_owned())
    }

    /// The load of a worker with what Prometheus has of its queue and its tasks.
    pub(crate) fn replace_load(&self, streamed: WorkerLoad, uid: &str, worker: &str) -> WorkerLoad {
        let pools = locked(&self.pools);
        let (queued, in_flight, fault) = match pools.get(uid).and_then(|asked| asked.answer.as_ref()) {
            None => (None, None, None),
            Some(Answer { loads: Err(why), .. }) => (None, None, Some(why.clone())),
            Some(Answer { at, loads: Ok(loads) }) => {
                let Load { queued, in_flight } = loads.get(worker).copied().unwrap_or_default();
                let fault = queued
                    .is_none()
                    .then(|| format!("Prometheus at {} has no {QUEUE_DEPTH} for this pod", self.url));
                (queued.map(|queued| (queued, *at)), in_flight, fault)
            }
        };
        // A worker that became busy after the last query must not be removed as an idle one.
        let busy = streamed.in_flight.filter(|tasks| *tasks > 0);
        // Neither is a worker replaced unless its stream shows that it is idle now.
        let is_idle = streamed.in_flight == Some(0) && streamed.queued.is_some_and(|(tasks, _)| tasks == 0);
        let unclaimed = streamed.unclaimed.filter(|_| is_idle);
        // What has ended is counted beside the streamed queue, which is of another time than this one.
        let finished = None;
        WorkerLoad { queued, in_flight: in_flight.max(busy), finished, fault, unclaimed, ..streamed }
    }
}

fn locked(pools: &Mutex<HashMap<String, Asked>>) -> MutexGuard<'_, HashMap<String, Asked>> {
    pools.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both are names of Kubernetes, which need no quoting.
fn query(namespace: &str, pool: &str) -> String {
    format!("{{__name__=~\"{QUEUE_DEPTH}|{TASKS_IN_FLIGHT}\",namespace=\"{namespace}\",pool=\"{pool}\"}}")
}

#[derive(Deserialize)]
struct Body {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: HashMap<String, String>,
    value: (f64, String),
}

/// `None`: the text is no vector.
fn loads(text: &[u8]) -> Option<HashMap<String, Load>> {
    let Body { data: Data { result } } = serde_json::from_slice(text).ok()?;
    let mut loads = HashMap::<String, Load>::new();
    for Series { metric, value: (_, value) } in result {
        let value = value.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
        let (Some(worker), Some(value)) = (metric.get("worker"), value) else { continue };
        // Prometheus sets `pod` to the scraped pod. The labels `worker` and `pool` come from the pod itself and are not
        // trusted.
        if metric.get("pod").is_some_and(|pod| pod != worker) {
            continue;
        }
        let load = loads.entry(worker.clone()).or_default();
        match metric.get("__name__").map(String::as_str) {
            Some(QUEUE_DEPTH) => load.queued = Some(value.round() as u64),
            Some(TASKS_IN_FLIGHT) => load.in_flight = Some(value.round() as u64),
            _ => {}
        }
    }
    Some(loads)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, TcpListener},
        thread,
    };

    use crate::tests::{at, dispatcher};

    use super::*;

    const VECTOR: &str = r#"{"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"__name__": "agent_queue_depth", "worker": "coder-0"}, "value": [1767268800.1, "7"]},
        {"metric": {"__name__": "agent_tasks_in_flight", "worker": "coder-0"}, "value": [1767268800.1, "2"]},
        {"metric": {"__name__": "agent_tasks_in_flight", "worker": "coder-1"}, "value": [1767268800.1, "1"]},
        {"metric": {"__name__": "agent_tasks_in_flight", "worker": "coder-4"}, "value": [1767268800.1, "0"]},
        {"metric": {"__name__": "agent_queue_depth", "worker": "coder-2"}, "value": [1767268800.1, "NaN"]}]}}"#;

    /// Gives these answers, one for each connection, and nothing to the next.
    fn server(answers: Vec<(u16, &'static str)>) -> Url {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}/prometheus/", listener.local_addr().unwrap());
        thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let read = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                assert!(request.starts_with("POST /prometheus/api/v1/query HTTP/1.1"), "{request}");
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
                stream.write_all((head + body).as_bytes()).unwrap();
            }
        });
        url.parse().unwrap()
    }

    fn prometheus(answers: Vec<(u16, &'static str)>) -> Prometheus {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Prometheus::new(server(answers), &Cache::default())
    }

    fn load(prometheus: &Prometheus, worker: &str) -> WorkerLoad {
        let streamed = WorkerLoad {
            queued: Some((99, at(0))),
            finished: Some(3),
            tokens: Some(7),
            ..WorkerLoad::default()
        };
        prometheus.replace_load(streamed, "uid-of-coder", worker)
    }

    #[test]
    fn the_series_are_those_of_one_pool() {
        let wanted = r#"{__name__=~"agent_queue_depth|agent_tasks_in_flight",namespace="demo",pool="coder"}"#;
        assert_eq!(query("demo", "coder"), wanted);
    }

    #[tokio::test]
    async fn what_prometheus_has_stands_for_what_is_streamed_and_tokens_stay() {
        let prometheus = prometheus(vec![(200, VECTOR)]);
        let coder = dispatcher("{role: coder}");
        assert_eq!(load(&prometheus, "coder-0").queued, None, "it was not asked yet");
        prometheus.ask(&coder, at(0)).await;
        let first = load(&prometheus, "coder-0");
        assert_eq!((first.queued, first.in_flight, first.tokens), (Some((7, at(0))), Some(2), Some(7)));
        assert_eq!(first.finished, None, "it is of another time than the queue of Prometheus");
        for missing in ["coder-1", "coder-2", "coder-3"] {
            let load = load(&prometheus, missing);
            assert_eq!(load.queued, None);
            assert!(load.fault.unwrap().contains("has no agent_queue_depth for this pod"));
        }
        // It is not queried again at once.
        prometheus.ask(&coder, at(9)).await;
        assert_eq!(load(&prometheus, "coder-0").queued, Some((7, at(0))));
    }

    #[tokio::test]
    async fn a_worker_is_replaced_only_if_its_stream_shows_that_it_is_idle() {
        let prometheus = prometheus(vec![(200, VECTOR)]);
        prometheus.ask(&dispatcher("{role: coder}"), at(0)).await;
        let unclaimed = |queued: Option<u64>, in_flight: Option<u64>| {
            let queued = queued.map(|tasks| (tasks, at(0)));
            let streamed = WorkerLoad { queued, in_flight, unclaimed: Some(1), ..WorkerLoad::default() };
            prometheus.replace_load(streamed, "uid-of-coder", "coder-4").unclaimed
        };
        assert_eq!(unclaimed(Some(0), Some(0)), Some(1));
        assert_eq!((unclaimed(Some(3), Some(0)), unclaimed(None, None)), (None, None));
    }

    #[tokio::test]
    async fn a_worker_is_busy_if_its_stream_says_so() {
        let prometheus = prometheus(vec![(200, VECTOR)]);
        prometheus.ask(&dispatcher("{role: coder}"), at(0)).await;
        let in_flight = |streamed: Option<u64>, worker: &str| {
            let streamed = WorkerLoad { in_flight: streamed, ..WorkerLoad::default() };
            prometheus.replace_load(streamed, "uid-of-coder", worker).in_flight
        };
        assert_eq!(in_flight(Some(1), "coder-4"), Some(1), "Prometheus has 0");
        assert_eq!(in_flight(Some(0), "coder-4"), Some(0));
        assert_eq!(in_flight(None, "coder-4"), Some(0));
        assert_eq!(in_flight(Some(0), "coder-0"), Some(2));
        assert_eq!(in_flight(Some(3), "coder-9"), Some(3));
        assert_eq!(in_flight(Some(0), "coder-9"), None, "a value that is missing is not zero");
    }

    #[test]
    fn a_pod_does_not_speak_for_another() {
        let series = |labels: &str| {
            format!(
                r#"{{"metric": {{"__name__": "agent_queue_depth", "worker": "coder-0"{labels}}}, "value": [1, "7"]}}"#
            )
        };
        let queued = |labels: &str| {
            let text = format!(r#"{{"data": {{"result": [{}]}}}}"#, series(labels));
            loads(text.as_bytes()).unwrap().get("coder-0").and_then(|load| load.queued)
        };
        assert_eq!(queued(""), Some(7));
        assert_eq!(queued(r#", "pod": "coder-0""#), Some(7));
        assert_eq!(queued(r#", "pod": "other""#), None);
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_keeps_no_answer_of_the_future() {
        let prometheus = prometheus(vec![(200, VECTOR), (200, VECTOR), (503, "")]);
        let coder = dispatcher("{role: coder}");
        prometheus.ask(&coder, at(3_600)).await;
        prometheus.ask(&coder, at(0)).await;
        assert_eq!(load(&prometheus, "coder-0").queued, Some((7, at(0))));
        prometheus.ask(&coder, at(-3_600)).await;
        assert!(load(&prometheus, "coder-0").fault.unwrap().contains("status 503"));
    }

    #[tokio::test]
    async fn a_server_that_fails_is_asked_no_more_often() {
        let prometheus = prometheus(vec![(200, VECTOR), (503, ""), (200, "<html>")]);
        let coder = dispatcher("{role: coder}");
        prometheus.ask(&coder, at(0)).await;
        // The second answer fails, and the first one is kept. A third query would come before its time.
        for seconds in [10, 11, 19] {
            prometheus.ask(&coder, at(seconds)).await;
        }
        assert_eq!(load(&prometheus, "coder-0").queued, Some((7, at(0))));
        prometheus.ask(&coder, at(40)).await;
        assert!(load(&prometheus, "coder-0").fault.unwrap().contains("did not answer with a vector"));
    }

    #[tokio::test]
    async fn an_answer_counts_until_it_is_old_and_then_the_fault_is_named() {
        let prometheus = prometheus(vec![(200, VECTOR), (503, ""), (200, "<html>")]);
        let coder = dispatcher("{role: coder}");
        prometheus.ask(&coder, at(0)).await;
        prometheus.ask(&coder, at(10)).await;
        assert_eq!(load(&prometheus, "coder-0").queued, Some((7, at(0))));
        prometheus.ask(&coder, at(40)).await;
        let fault = load(&prometheus, "coder-0").fault.unwrap();
        assert!(fault.contains("did not answer with a vector"), "{fault}");
        prometheus.ask(&coder, at(50)).await;
        let fault = load(&prometheus, "coder-0").fault.unwrap();
        assert!(fault.contains("cannot be reached"), "{fault}");
    }
}
