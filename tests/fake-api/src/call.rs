//! A parsed request to an API server.

use std::collections::HashMap;

use axum::extract::Query;
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

/// A received request.
#[derive(Clone, Debug)]
pub struct Call {
    pub verb: Verb,
    pub plural: String,
    pub namespace: String,
    /// Empty for LIST, WATCH and CREATE.
    pub name: String,
    pub subresource: String,
    pub query: HashMap<String, String>,
    pub body: Value,
    /// The caller's User-Agent: it distinguishes candidates for a Lease.
    pub agent: String,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    List,
    Watch,
    Get,
    Create,
    Update,
    Patch,
    Delete,
}

impl Call {
    /// `/api/v1/…` or `/apis/<group>/<version>/…`, then `[namespaces/<ns>/]<plural>[/<name>[/<subresource>]]`.
    pub(crate) fn read(head: &http::request::Parts, body: &[u8]) -> Self {
        let segments: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        let prefix = if segments[0] == "api" { 2 } else { 3 };
        let (namespace, rest) = match &segments[prefix..] {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let name = rest.get(1).copied().unwrap_or_default();
        let Query(query) = Query::<HashMap<String, String>>::try_from_uri(&head.uri).unwrap();
        let verb = match head.method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if query.contains_key("watch") => Verb::Watch,
            _ if name.is_empty() => Verb::List,
            _ => Verb::Get,
        };
        let agent = head.headers.get(http::header::USER_AGENT);
        Self {
            verb,
            plural: rest[0].to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: rest.get(2).copied().unwrap_or_default().to_owned(),
            query,
            body: serde_json::from_slice(body).unwrap_or_default(),
            agent: agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default().to_owned(),
            at: Instant::now(),
        }
    }
}
