//! The admin server: `/livez`, `/readyz` and `/metrics`. It reads; it changes nothing.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{health::PlaneHealth, metrics::Metrics};

/// A watch may fail for so long before the replica calls itself unready.
const WATCH_GRACE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Admin {
    metrics: Arc<Metrics>,
    health: PlaneHealth,
}

/// Listens at once, so that a port that is taken is an error of the start.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    health: PlaneHealth,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        // The process answers: nothing that a restart would mend is wrong. A dead watch task or a lost lease ends it.
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(Admin { metrics, health });
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// A standby is ready too: it serves its metrics, and its caches are warm.
async fn readyz(State(admin): State<Admin>) -> Response {
    let complaints = admin.health.complaints(WATCH_GRACE);
    if complaints.is_empty() {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, complaints.join("\n") + "\n").into_response()
    }
}

async fn metrics_page(State(admin): State<Admin>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.metrics.page() {
        Ok(page) => ([(header::CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
