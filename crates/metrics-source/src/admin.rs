//! The admin server: `/livez`, `/readyz` and `/metrics`. It reads; it changes nothing.
//!
//! Clients may be slow or hostile: the number of connections, the time for the head of a request and the life of a
//! connection are limited, so that probes are answered whatever other clients do.

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use proto::metrics::v1::Snapshot;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet, yield_now},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{moment::Clock, stream::Hub};

/// Two scrapers and the kubelet need three. Beyond them the oldest is closed: a probe comes on a new one.
const CONNECTIONS: usize = 32;
/// A probe is one packet; 10 s are enough for a slow network.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// After it a connection gets no further request.
const LIFE: Duration = Duration::from_secs(60);
/// For the client to read the answer that is under way when the life of its connection ends.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// hyper needs at least 8 KiB.
const HEAD_BYTES: usize = 16 * 1024;
/// Between attempts to accept a connection when the process has no file descriptor left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Without a snapshot for so many intervals, and never less than this time, the sampler hangs.
const SILENT_INTERVALS: u32 = 5;
const SILENT_AT_LEAST: Duration = Duration::from_secs(30);

/// Whether a source is ready, beside its first snapshot.
pub type Readiness = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Clone)]
struct Admin {
    hub: Hub,
    clock: Clock,
    registry: Arc<Registry>,
    is_ready: Readiness,
}

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    hub: Hub,
    clock: Clock,
    registry: Registry,
    is_ready: Readiness,
    stop: CancellationToken,
) {
    let registry = Arc::new(registry);
    let router = Router::new()
        // The source is live as long as it publishes snapshots, also without values.
        .route("/livez", get(livez))
        // Not before the first snapshot, which need not have a subject.
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Admin { hub, clock, registry, is_ready });
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Frees what an ended connection held.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    sleep(ACCEPT_AGAIN_AFTER).await;
                    continue;
                };
                oldest_first.retain(|connection| !connection.is_finished());
                if oldest_first.len() >= CONNECTIONS
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                oldest_first.push_back(connections.spawn(connection(stream, router.clone(), stop.clone())));
                // The new connection is polled before the next is accepted, so a request that has arrived with it is
                // answered even if many others wait.
                yield_now().await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    // Errors are those of clients: a head that is late, wrong or cut off.
    tokio::select! {
        _ = served.as_mut() => return,
        () = stop.cancelled() => {}
        () = sleep(LIFE) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(LAST_ANSWER_WITHIN, served).await;
}

async fn livez(State(admin): State<Admin>) -> Response {
    let Some(silent) = admin.hub.latest().and_then(|latest| silence(&latest, admin.clock.now().uptime))
    else {
        return (StatusCode::OK, "ok\n").into_response();
    };
    let text = format!("no snapshot for {} s\n", silent.as_secs());
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Since when nothing was published, if that is too long.
fn silence(latest: &Snapshot, now: Duration) -> Option<Duration> {
    let read =
        |it: Option<prost_types::Duration>| it.and_then(|it| Duration::try_from(it).ok()).unwrap_or_default();
    let silent = now.saturating_sub(read(latest.uptime));
    (silent > (read(latest.interval) * SILENT_INTERVALS).max(SILENT_AT_LEAST)).then_some(silent)
}

async fn readyz(State(admin): State<Admin>) -> Response {
    match admin.hub.latest() {
        Some(_) if (admin.is_ready)() => (StatusCode::OK, "ok\n").into_response(),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "no snapshot yet\n").into_response(),
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut page = String::new();
    match encode(&mut page, &admin.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn idle_connections_keep_no_probe_from_its_answer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (hub, clock, registry) = (Hub::default(), Clock::start(), Registry::default());
        tokio::spawn(serve(listener, hub, clock, registry, Arc::new(|| true), stop.clone()));
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = TcpStream::connect(address).await.unwrap();
            // Answered, so that the server has it, and kept.
            connection.write_all(b"GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"ok\n") {
                assert!(connection.read_buf(&mut answer).await.unwrap() > 0, "closed before the answer");
            }
            idle.push(connection);
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("ok\n"), "{answer:?}");
        // The oldest made room.
        assert_eq!(idle[0].read(&mut [0; 8]).await.unwrap_or_default(), 0);
        stop.cancel();
    }

    #[test]
    fn a_sampler_that_publishes_nothing_for_long_is_not_alive() {
        let second = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let latest =
            |interval| Snapshot { uptime: second(100), interval: second(interval), ..Snapshot::default() };
        assert_eq!(silence(&latest(1), Duration::from_secs(130)), None);
        assert_eq!(silence(&latest(1), Duration::from_secs(131)), Some(Duration::from_secs(31)));
        assert_eq!(silence(&latest(60), Duration::from_secs(399)), None);
    }
}
