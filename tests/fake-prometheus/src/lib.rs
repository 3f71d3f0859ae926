//! A Prometheus-compatible server (`/api/v1/query`) on loopback whose answers are set while it runs. `external` serves the
//! same series to HorizontalPodAutoscalers, and `/metrics` to a real Prometheus.
//!
//! It knows no PromQL. `vector(N)` has the value N, as in Prometheus; a query that names a series gets what was set for that
//! series, and every other query the default. Results of tests that rest on it say nothing of Prometheus itself.

#![forbid(unsafe_code)]

mod external;

use std::{
    collections::HashMap,
    future::pending,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Bytes,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What a query is answered with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    Value(f64),
    /// Success without a series.
    Empty,
    /// An error of this status.
    Status(u16),
    /// Nothing, on an open connection.
    Silence,
}

/// A server; it serves until the process ends.
#[derive(Clone, Debug)]
pub struct Prometheus {
    address: SocketAddr,
    external: SocketAddr,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug)]
struct Known {
    series: HashMap<String, Answer>,
    others: Other,
    queries: HashMap<String, Asked>,
}

/// How a series was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    times: usize,
    last: Option<Instant>,
    longest_gap: Duration,
    /// When the present answer was first given.
    sampled: Option<Instant>,
}

/// The answer to queries without a known series.
#[derive(Clone, Copy, Debug)]
enum Other {
    Fixed(Answer),
    Wandering { since: Instant, wave: Wave },
}

/// A load that goes up and down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wave {
    pub low: f64,
    pub high: f64,
    pub period_seconds: f64,
}

impl Wave {
    /// A sine between the bounds, from the lower one on.
    pub fn at(self, seconds: f64) -> f64 {
        let part = (1.0 - (std::f64::consts::TAU * seconds / self.period_seconds).cos()) / 2.0;
        (self.low + (self.high - self.low) * part).round()
    }
}

impl Prometheus {
    /// Serves from a thread of its own, so that it outlives the async runtime of a test.
    pub fn start(default: f64) -> anyhow::Result<Self> {
        let known = Known {
            series: HashMap::new(),
            others: Other::Fixed(Answer::Value(default)),
            queries: HashMap::new(),
        };
        let known = Arc::new(Mutex::new(known));
        let (send, started) = mpsc::channel();
        let shared = Arc::clone(&known);
        thread::spawn(move || {
            let served = runtime().and_then(|runtime| {
                runtime.block_on(async {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                    let external = external::listen().await?;
                    let _ = send.send((listener.local_addr()?, external.local_addr()?));
                    let (own, others) = (Arc::clone(&shared), shared);
                    tokio::try_join!(serve(listener, own), external::serve(external, others)).map(drop)
                })
            });
            drop(served);
        });
        let (address, external) = started.recv().context("failed to start the server on loopback")?;
        Ok(Self { address, external, known })
    }

    /// Where `/metrics` is scraped.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Manifests that make the same series metrics of Kubernetes (external.metrics.k8s.io).
    pub fn external_metrics(&self) -> String {
        external::manifest(self.external)
    }

    /// From now on queries with this name are answered so.
    pub fn set(&self, series: &str, answer: Answer) {
        let mut known = locked(&self.known);
        known.series.insert(series.to_owned(), answer);
        if let Some(asked) = known.queries.get_mut(series) {
            asked.sampled = None;
        }
    }

    /// When the present answer of this name was first given.
    pub fn sampled(&self, series: &str) -> Option<Instant> {
        locked(&self.known).queries.get(series)?.sampled
    }

    /// How often queries with this name have come.
    pub fn queries(&self, series: &str) -> usize {
        locked(&self.known).queries.get(series).map_or(0, |asked| asked.times)
    }

    /// The longest time between two queries of one series, of all series.
    pub fn longest_gap(&self) -> Duration {
        locked(&self.known).queries.values().map(|asked| asked.longest_gap).max().unwrap_or_default()
    }

    /// Begins to measure gaps anew.
    pub fn forget_gaps(&self) {
        for asked in locked(&self.known).queries.values_mut() {
            asked.longest_gap = Duration::ZERO;
        }
    }
}

/// Serves a wandering load at this address, until the process ends.
pub fn wander(address: SocketAddr, wave: Wave) -> anyhow::Result<()> {
    let others = Other::Wandering { since: Instant::now(), wave };
    let known = Known { series: HashMap::new(), others, queries: HashMap::new() };
    runtime()?.block_on(async {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("failed to listen on {address}"))?;
        serve(listener, Arc::new(Mutex::new(known))).await
    })
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("failed to start a runtime")
}

async fn serve(listener: TcpListener, known: Arc<Mutex<Known>>) -> anyhow::Result<()> {
    let routes = Router::new().route("/api/v1/query", get(query).post(query)).route("/metrics", get(page));
    axum::serve(listener, routes.with_state(known)).await.context("the server ended")
}

async fn query(State(known): State<Arc<Mutex<Known>>>, RawQuery(query): RawQuery, body: Bytes) -> Response {
    let query = query.unwrap_or_default();
    let fields = form_urlencoded::parse(query.as_bytes()).chain(form_urlencoded::parse(&body));
    let query = fields.into_iter().find(|(name, _)| name == "query").map(|(_, query)| query.into_owned());
    let query = query.unwrap_or_default();
    let answer = locked(&known).answer(&query);
    match answer {
        Answer::Value(value) => {
            let now = Timestamp::now().as_millisecond();
            let number = if value.is_nan() { "NaN".to_owned() } else { value.to_string() };
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of this century are exact")]
            let sample = json!({"metric": {}, "value": [now as f64 / 1_000.0, number]});
            vector(&json!([sample]))
        }
        Answer::Empty => vector(&json!([])),
        Answer::Status(status) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let body = json!({"status": "error", "errorType": "internal", "error": "scripted"});
            (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
        }
        Answer::Silence => pending().await,
    }
}

/// The series that have a value. By their names, those with `_total` are counters.
async fn page(State(known): State<Arc<Mutex<Known>>>) -> Response {
    let mut page = String::new();
    for (series, answer) in &locked(&known).series {
        if let Answer::Value(value) = answer {
            let kind = if series.ends_with("_total") { "counter" } else { "gauge" };
            page += &format!("# TYPE {series} {kind}\n{series} {value}\n");
        }
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

fn vector(result: &Value) -> Response {
    let body = json!({"status": "success", "data": {"resultType": "vector", "result": result}});
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

impl Known {
    fn answer(&mut self, query: &str) -> Answer {
        // A query is often the name with labels alone.
        let whole = query.split('{').next().and_then(|name| self.series.get_key_value(name));
        let named = whole.or_else(|| self.series.iter().find(|(series, _)| query.contains(series.as_str())));
        if let Some((series, answer)) = named {
            let asked = self.queries.entry(series.clone()).or_default();
            let now = Instant::now();
            let gap = asked.last.map(|last| now - last).unwrap_or_default();
            *asked = Asked {
                times: asked.times + 1,
                last: Some(now),
                longest_gap: asked.longest_gap.max(gap),
                sampled: asked.sampled.or(Some(now)),
            };
            return *answer;
        }
        let constant = query.split_once("vector(").and_then(|(_, rest)| rest.split(')').next()?.parse().ok());
        match (constant, self.others) {
            (Some(value), _) => Answer::Value(value),
            (None, Other::Fixed(answer)) => answer,
            (None, Other::Wandering { since, wave }) => Answer::Value(wave.at(since.elapsed().as_secs_f64())),
        }
    }
}

fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_a_known_series_and_every_other_query_have_their_answers() {
        let mut known = Known {
            series: HashMap::from([("load".to_owned(), Answer::Status(503))]),
            others: Other::Fixed(Answer::Value(10.0)),
            queries: HashMap::new(),
        };
        assert_eq!(known.answer("vector(12.5)"), Answer::Value(12.5));
        assert_eq!(known.answer("sum(load{namespace=\"a\"})"), Answer::Status(503));
        assert_eq!(known.answer("sum(other)"), Answer::Value(10.0));
        assert_eq!(known.queries["load"].times, 1);
    }

    #[test]
    fn a_wave_goes_from_its_lower_bound_to_its_upper_one_and_back() {
        let wave = Wave { low: 4.0, high: 28.0, period_seconds: 240.0 };
        assert_eq!([0.0, 60.0, 120.0, 240.0].map(|seconds| wave.at(seconds)), [4.0, 16.0, 28.0, 4.0]);
    }
}
