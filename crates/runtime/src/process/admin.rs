//! The admin server: `/livez`, `/readyz` and `/metrics`. It reads; it changes nothing.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use daemon::http::{self, LIMITS};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, watch::health::WatchesHealth};

/// Time that a watch may fail before the replica is unready.
const WATCH_GRACE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Admin {
    metrics: Arc<Metrics>,
    health: WatchesHealth,
}

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    health: WatchesHealth,
    stop: CancellationToken,
) {
    let router = Router::new()
        // An answer is enough: a dead watch task or a lost Lease ends the process, and a restart repairs nothing else.
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(Admin { metrics, health });
    http::serve(LIMITS, listener, router, stop).await;
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
    http::metrics_page(admin.metrics.page())
}
