//! Triton's restricted APIs: all are open unless the arguments name a header that they ask for.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use serde_json::json;

use super::Serving;
use crate::invocation::Engine;

/// More is refused in any case.
const LARGEST_BODY: usize = 1 << 20;

pub(super) async fn guard(State(serving): State<Arc<Serving>>, request: Request, next: Next) -> Response {
    let restricted = match &serving.invocation.engine {
        Engine::Triton(triton) => &triton.restricted[..],
        Engine::Vllm | Engine::Tgi => &[],
    };
    let api = api(request.uri().path());
    let missing = restricted.iter().find(|restriction| {
        let given = request.headers().get(&restriction.header);
        Some(restriction.api) == api
            && given.is_none_or(|given| given.as_bytes() != restriction.value.as_bytes())
    });
    match missing {
        Some(restriction) => {
            // As Triton does. A body that is left unread would end the connection, over which the next request may be under way.
            let _ = axum::body::to_bytes(request.into_body(), LARGEST_BODY).await;
            let why = format!("This API is restricted, expecting header '{}'", restriction.header);
            (StatusCode::FORBIDDEN, Json(json!({ "error": why }))).into_response()
        }
        None => next.run(request).await,
    }
}

/// Which API a path belongs to.
fn api(path: &str) -> Option<&'static str> {
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match segments.as_slice() {
        ["v2", "health", ..] | ["v2", "models", .., "ready"] => Some("health"),
        ["v2", "models", .., "infer"] => Some("inference"),
        ["v2", "repository", ..] => Some("model-repository"),
        ["v2", "logging"] => Some("logging"),
        ["v2", "trace", ..] => Some("trace"),
        ["v2", "systemsharedmemory" | "cudasharedmemory", ..] => Some("shared-memory"),
        _ => None,
    }
}
