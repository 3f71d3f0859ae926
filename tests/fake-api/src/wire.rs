//! Wire format of responses: objects, pages of a list, watch events, failures.

use std::convert::Infallible;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use serde_json::{Value, json};

pub(crate) fn answered(code: u16, body: String) -> Response {
    (StatusCode::from_u16(code).unwrap(), [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(crate) fn streamed(lines: impl stream::Stream<Item = String> + Send + 'static) -> Body {
    Body::from_stream(lines.map(|line| Ok::<_, Infallible>(Bytes::from(line))))
}

/// A Status response.
pub(crate) fn failure(code: u16, reason: &str, message: &str) -> Response {
    answered(code, status(code, reason, message).to_string())
}

/// One page of a list; `more` is the continue token. As in a real API server, the items have no kind, only the list has.
pub(crate) fn list(kind: &str, version: u64, more: &str, mut items: Vec<Value>) -> Response {
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.retain(|field, _| field != "apiVersion" && field != "kind");
    }
    let metadata = json!({"resourceVersion": version.to_string(), "continue": more});
    let page =
        json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": metadata, "items": items});
    answered(200, page.to_string())
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

pub(crate) fn expired_line() -> String {
    event_line("ERROR", &status(410, "Expired", "too old resource version: 1 (2)"))
}

/// One watch event, with the type first, as the API server writes it.
pub(crate) fn event_line(event: &str, object: &Value) -> String {
    format!(r#"{{"type":"{event}","object":{object}}}"#)
}
