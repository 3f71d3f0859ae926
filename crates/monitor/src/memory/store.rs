//! Requests to a vector store: Chroma (API v2) or Qdrant, whichever answers at the endpoint.
//!
//! A store is not trusted: time and bytes of each answer are bounded, and no redirect is followed, so that the key goes to
//! no other store. A proxy of the environment is used, if any. Messages contain no text of the store.

use std::time::Duration;

use api::monitor::ExitCode;
use reqwest::{Client, Method, RequestBuilder, StatusCode, redirect::Policy};
use serde_json::Value;

use super::records::{Collection, Malformed, Page, chroma, qdrant};
use crate::{checkpoint::bounded::is_nested_within, fault::Fault};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Limit for one page. A larger page is requested again with fewer records. Its numbers take twice as much in memory.
pub(crate) const LARGEST_ANSWER: usize = 4 << 20;
/// Limit for any other answer, of which the parsed form takes many times as much.
const LARGEST_DESCRIPTION: usize = 256 << 10;
/// Far deeper than metadata is. A parser that reads a value whole takes no more.
const DEEPEST: usize = 128;
/// The names of a Chroma that has no others.
const TENANT: &str = "default_tenant";
const DATABASE: &str = "default_database";

/// A vector store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    client: Client,
    /// Without a slash at its end.
    endpoint: String,
    key: Option<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chroma,
    Qdrant,
}

/// Why there is no page.
#[derive(Debug)]
pub(crate) enum PageError {
    TooLarge,
    Fault(Fault),
}

impl From<Fault> for PageError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

enum Answered {
    Body(Vec<u8>),
    NotFound,
    TooLarge,
}

impl Store {
    /// Detects the kind of the store.
    pub(crate) async fn find(endpoint: &str, key: Option<String>) -> Result<Self, Fault> {
        let usage = |error: reqwest::Error| Fault::new(ExitCode::Usage, error.without_url().to_string());
        let client = Client::builder()
            .user_agent(concat!("monitor/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .build()
            .map_err(usage)?;
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let mut store = Self { client, endpoint, key, kind: Kind::Chroma };
        let refusal = match store.get("/api/v2/heartbeat").await {
            Ok(Answered::Body(body)) if has(&body, "nanosecond heartbeat") => return Ok(store),
            Ok(_) => None,
            // A Qdrant with a key refuses also the paths that it does not have.
            Err(fault) if fault.code == ExitCode::StoreUnauthorized => Some(fault),
            Err(fault) => return Err(fault),
        };
        store.kind = Kind::Qdrant;
        let root = store.get("/").await;
        if matches!(&root, Ok(Answered::Body(body)) if has(body, "version") && is_qdrant(body)) {
            return Ok(store);
        }
        if let Some(fault) = refusal.or(root.err()) {
            return Err(fault);
        }
        let message = format!("neither Chroma (API v2) nor Qdrant answers at {}", store.endpoint);
        Err(Fault::new(ExitCode::StoreUnreachable, message))
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) async fn collection(&self, name: &str) -> Result<Collection, Fault> {
        let path = match self.kind {
            Kind::Chroma => format!("{}/{}", chroma_collections(), segment(name)),
            Kind::Qdrant => format!("/collections/{}", segment(name)),
        };
        let body = match self.get(&path).await? {
            Answered::Body(body) => body,
            Answered::NotFound => {
                let message = format!(
                    "{} has no collection {name:?}; create it, or correct memoryConfig.collection",
                    self.endpoint
                );
                return Err(Fault::new(ExitCode::CollectionNotFound, message));
            }
            Answered::TooLarge => return Err(self.malformed(&Malformed::Answer("a collection"))),
        };
        let read = match self.kind {
            Kind::Chroma => chroma::collection(&body),
            Kind::Qdrant => qdrant::collection(&body, name),
        };
        read.map_err(|malformed| self.malformed(&malformed))
    }

    /// The records from here on. `count`: how many came before.
    pub(crate) async fn page(
        &self,
        collection: &Collection,
        (count, next): (u64, Option<&Value>),
        limit: usize,
    ) -> Result<Page, PageError> {
        let (path, request) = match self.kind {
            Kind::Chroma => {
                let offset = next.and_then(Value::as_u64).unwrap_or(count);
                (
                    format!("{}/{}/get", chroma_collections(), segment(&collection.id)),
                    chroma::request(offset, limit),
                )
            }
            Kind::Qdrant => (
                format!("/collections/{}/points/scroll", segment(&collection.id)),
                qdrant::request(next, limit),
            ),
        };
        let request = self.request(Method::POST, &path).json(&request);
        let body = match self.send(request, LARGEST_ANSWER).await? {
            Answered::Body(body) => body,
            Answered::NotFound => {
                let message =
                    format!("the collection was deleted from {} while it was loaded", self.endpoint);
                return Err(Fault::new(ExitCode::CollectionNotFound, message).into());
            }
            Answered::TooLarge => return Err(PageError::TooLarge),
        };
        if !is_nested_within(&body, DEEPEST) {
            return Err(self.malformed(&Malformed::Answer("records")).into());
        }
        let read = match self.kind {
            Kind::Chroma => chroma::page(&body, next.and_then(Value::as_u64).unwrap_or(count), limit),
            Kind::Qdrant => qdrant::page(body),
        };
        read.map_err(|malformed| self.malformed(&malformed).into())
    }

    fn malformed(&self, malformed: &Malformed) -> Fault {
        match malformed {
            Malformed::Answer(wanted) => {
                let message = format!("{} did not answer with {wanted}", self.endpoint);
                Fault::new(ExitCode::StoreUnreachable, message)
            }
            Malformed::ManyVectors(count) => Fault::new(
                ExitCode::DimMismatch,
                format!(
                    "the points of the collection have {count} named vectors, and a memory has one: set \
                     memoryConfig.collection to a collection with one vector for each point"
                ),
            ),
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.endpoint));
        match (&self.key, self.kind) {
            (None, _) => request,
            (Some(key), Kind::Chroma) => request.header("x-chroma-token", key),
            (Some(key), Kind::Qdrant) => request.header("api-key", key),
        }
    }

    async fn get(&self, path: &str) -> Result<Answered, Fault> {
        self.send(self.request(Method::GET, path), LARGEST_DESCRIPTION).await
    }

    /// `most`: bytes of the answer.
    async fn send(&self, request: RequestBuilder, most: usize) -> Result<Answered, Fault> {
        let unreachable =
            |why: &str| Fault::new(ExitCode::StoreUnreachable, format!("{} {why}", self.endpoint));
        let broken = |error: reqwest::Error| {
            let why = if error.is_timeout() {
                format!("did not answer within {} s", ANSWER_WITHIN.as_secs())
            } else if error.is_connect() {
                "cannot be connected to".to_owned()
            } else {
                "ended the connection".to_owned()
            };
            unreachable(&why)
        };
        let mut answer = request.send().await.map_err(broken)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(Answered::NotFound),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let why = match self.key {
                    Some(_) => {
                        "refuses the key; correct key `api-key` of the Secret in memoryConfig.secretName"
                    }
                    None => "requires a key; set memoryConfig.secretName to a Secret with the key api-key",
                };
                let message = format!("{} {why}", self.endpoint);
                return Err(Fault::new(ExitCode::StoreUnauthorized, message));
            }
            status => return Err(unreachable(&format!("answered with status {}", status.as_u16()))),
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > most {
                return Ok(Answered::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answered::Body(body))
    }
}

fn chroma_collections() -> String {
    format!("/api/v2/tenants/{TENANT}/databases/{DATABASE}/collections")
}

/// A name as one segment of a path.
fn segment(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn has(body: &[u8], key: &str) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|answer| answer.get(key).is_some())
}

fn is_qdrant(body: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    answer["title"].as_str().is_some_and(|title| title.starts_with("qdrant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment() {
        assert_eq!(segment("planner-memory_1.0"), "planner-memory_1.0");
        assert_eq!(segment("a/../b c?"), "a%2F..%2Fb%20c%3F");
    }
}
