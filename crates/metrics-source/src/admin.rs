//! The admin server: `/livez`, `/readyz` and `/metrics`. It reads; it changes nothing.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use daemon::http::{self, LIMITS, Limits};
use prometheus_client::{encoding::text::encode, registry::Registry};
use proto::metrics::v1::Snapshot;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{moment::Clock, stream::Hub};

/// One process on each node has less than a controller.
const CONNECTIONS: usize = 32;
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
    http::serve(Limits { connections: CONNECTIONS, ..LIMITS }, listener, router, stop).await;
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
    let mut page = String::new();
    http::metrics_page(encode(&mut page, &admin.registry).map(|()| page))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

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
