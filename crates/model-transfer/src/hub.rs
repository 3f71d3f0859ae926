//! A model on a hub: Hugging Face, ModelScope, or a mirror of one. The hub lists its files with their digests, and sends
//! their bytes, most often by a redirect to another host.
//!
//! It must not send the token to another host than that of the endpoint, nor follow a redirect from https to http. It
//! repeats no text of a hub.
//!
//! The revision of a source is resolved to a commit once in a run. All files are of that commit.

mod hugging_face;
mod model_scope;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use api::{aiinference::source::Hub as Kind, loader::is_commit};
use bytes::Bytes;
use futures::TryStreamExt as _;
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, COOKIE, LOCATION, RANGE},
};
use object_storage::{Client, Expected, RequestError, innermost, origin};
use object_store::{
    Attributes, GetResult, GetResultPayload, ObjectMeta,
    client::{HttpRequestBody, HttpResponse},
    path::Path as Key,
};
use reqwest::Url;

use crate::{
    cli::{Options, Token},
    fault::{Cause, Fault, visitor::Visitor},
    location::HubModel,
    store::{
        authorities,
        requests::{Requests, Side},
    },
};

/// Limit for a page of a list of files: Hugging Face gives 1000 files, ModelScope 3000, each of some hundred bytes.
const LONGEST_PAGE: u64 = 8 << 20;
/// Redirects for one file. A hub makes one, and a mirror perhaps another.
const MOST_REDIRECTS: usize = 5;
/// Addresses that are remembered; more files are not fetched at a time.
const MOST_LOCATIONS: usize = 64;

/// A file as a hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// Below the root of the model.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) expected: Expected,
}

/// The files of a commit.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// `None` if the hub does not name it: then only the digests tell two contents of a branch apart.
    pub(crate) commit: Option<String>,
    pub(crate) files: Vec<File>,
}

#[derive(Debug)]
pub(crate) struct Hub {
    client: Client,
    model: HubModel,
    endpoint: Url,
    /// For requests to the endpoint alone.
    identity: HeaderMap,
    pub(crate) requests: Requests,
    /// The commit, or the branch whose commit the hub does not name. Set by the first list of files.
    resolved: OnceLock<String>,
    /// Where the hub has redirected to, by path. Each part of a file would cost a request to the hub otherwise.
    locations: Mutex<BTreeMap<String, Url>>,
}

impl Hub {
    /// Sends no request.
    pub(crate) fn open(model: &HubModel, endpoint: Option<&str>, options: &Options) -> Result<Self, Fault> {
        let fields = options.fields.clone();
        let text = endpoint.unwrap_or(model.hub.default_endpoint());
        let endpoint = endpoint_of(text).ok_or_else(|| {
            let shown = object_storage::without_password(text);
            Fault::new(
                Cause::Usage,
                format!("{shown:?} is no endpoint of a hub: correct {fields}.endpoint, for example to https://hf-mirror.com"),
            )
        })?;
        let token = Token::of_environment();
        let has_token = token.is_some();
        let identity = identity(model.hub, token).ok_or_else(|| {
            let message = format!(
                "the key token of the Secret in {fields}.secretName is no token: it has characters that no token has"
            );
            Fault::new(Cause::Unauthorized, message)
        })?;
        let answered = Arc::<AtomicBool>::default();
        let stall = Duration::from_secs(options.stall_seconds);
        let https_only = endpoint.scheme() == "https";
        let client = Client::new(stall, Arc::clone(&answered), &authorities(options)?, https_only)
            .map_err(|error| Fault::new(Cause::Usage, innermost(&error)))?;
        let HubModel { hub, id, revision } = model;
        let shown = endpoint.as_str().trim_end_matches('/');
        let name = format!("{}{id} at {shown}", hub.scheme());
        let visitor = Visitor { page: page(*hub, shown, id), revision: revision.clone(), has_token };
        let requests = Requests::new(name, Side::Hub(visitor), fields, options.patience(), answered);
        Ok(Self {
            client,
            model: model.clone(),
            endpoint,
            identity,
            requests,
            resolved: OnceLock::new(),
            locations: Mutex::default(),
        })
    }

    /// The list of files. `pinned`: the commit that other pods have loaded.
    pub(crate) async fn snapshot(&self, pinned: Option<&str>) -> Result<Snapshot, Fault> {
        let wanted = pinned.or(self.model.revision.as_deref());
        let wanted = wanted.unwrap_or(self.model.hub.default_branch());
        let known = self.resolved.get().map(String::as_str).or(Some(wanted).filter(|text| is_commit(text)));
        let snapshot = match self.model.hub {
            Kind::HuggingFace => {
                let commit = match known {
                    Some(commit) => commit.to_owned(),
                    None => self.requests.retried("revision", || hugging_face::commit(self, wanted)).await?,
                };
                let files = self.requests.retried("list", || hugging_face::files(self, &commit)).await?;
                Snapshot { commit: Some(commit), files }
            }
            Kind::ModelScope => {
                let revision = known.unwrap_or(wanted);
                self.requests.retried("list", || model_scope::snapshot(self, revision)).await?
            }
        };
        let resolved = snapshot.commit.clone().unwrap_or_else(|| wanted.to_owned());
        // Set already by an earlier attempt, which has asked for the same commit.
        let _ = self.resolved.set(resolved);
        Ok(snapshot)
    }

    /// The bytes of a file of the commit, or a range of them. `etag`: what the answer is labelled with, because the commit in
    /// the address identifies the content.
    pub(crate) async fn get(
        &self,
        (path, key): (&str, &Key),
        range: Option<Range<u64>>,
        size: u64,
        etag: Option<String>,
    ) -> Result<GetResult, RequestError> {
        let address = self.address_of_file(path)?;
        let mut at = self.location(path).unwrap_or_else(|| address.clone());
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.send(&at, range.as_ref(), None).await?;
            if answer.status().is_redirection() {
                at = followed(&at, &answer)?;
                continue;
            }
            if answer.status().is_success() {
                if at != address {
                    self.remember(path, at);
                }
                let wanted = range.unwrap_or(0..size);
                let size = size_of(&answer, &wanted, size)?;
                let meta = ObjectMeta {
                    location: key.clone(),
                    last_modified: std::time::UNIX_EPOCH.into(),
                    size,
                    e_tag: etag,
                    version: None,
                };
                let bytes = answer.into_body().bytes_stream();
                let bytes = bytes
                    .map_err(|error| object_store::Error::Generic { store: "hub", source: Box::new(error) });
                return Ok(GetResult {
                    payload: GetResultPayload::Stream(Box::pin(bytes)),
                    meta,
                    range: wanted,
                    attributes: Attributes::default(),
                    extensions: Default::default(),
                });
            }
            // The signature in a remembered address is valid for a while only.
            if self.forget(path) {
                at = address.clone();
                continue;
            }
            if !self.is_endpoint(&at) {
                let why = format!("{} from {}", answer.status().as_u16(), host(&at));
                return Err(RequestError::Transient(why));
            }
            return Err(self.refusal(answer, Missing::File).await);
        }
        Err(RequestError::Redirected { to: None, why: format!("more than {MOST_REDIRECTS} times") })
    }

    /// An answer of the API, and its headers.
    async fn read(&self, address: &Url, missing: Missing) -> Result<(HeaderMap, Bytes), RequestError> {
        let mut at = address.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.send(&at, None, Some(LONGEST_PAGE)).await?;
            if answer.status().is_redirection() {
                // The model was renamed.
                at = followed(&at, &answer)?;
                continue;
            }
            if !answer.status().is_success() {
                return Err(self.refusal(answer, missing).await);
            }
            let (head, body) = answer.into_parts();
            let bytes = body.bytes().await.map_err(|error| RequestError::of_http(&error))?;
            return Ok((head.headers, bytes));
        }
        Err(RequestError::Redirected { to: None, why: format!("more than {MOST_REDIRECTS} times") })
    }

    async fn send(
        &self,
        at: &Url,
        range: Option<&Range<u64>>,
        longest: Option<u64>,
    ) -> Result<HttpResponse, RequestError> {
        let mut request = http::Request::builder()
            .method(Method::GET)
            .uri(at.as_str())
            // The lengths of ranges are those of the file.
            .header(ACCEPT_ENCODING, "identity");
        if let Some(Range { start, end }) = range {
            request = request.header(RANGE, format!("bytes={start}-{}", end.saturating_sub(1)));
        }
        if self.is_endpoint(at) {
            for (name, value) in &self.identity {
                request = request.header(name, value);
            }
        }
        let request = request.body(HttpRequestBody::empty());
        let request =
            request.map_err(|_| RequestError::MalformedAnswer("an address that is none".to_owned()))?;
        self.client.get(request, longest).await.map_err(|error| RequestError::of_http(&error))
    }

    /// Whether requests to this address may have the token.
    fn is_endpoint(&self, at: &Url) -> bool {
        self.endpoint.origin() == at.origin()
    }

    fn location(&self, path: &str) -> Option<Url> {
        self.locations.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    fn remember(&self, path: &str, at: Url) {
        let mut locations = self.locations.lock().unwrap_or_else(PoisonError::into_inner);
        if locations.len() >= MOST_LOCATIONS {
            locations.clear();
        }
        locations.insert(path.to_owned(), at);
    }

    /// Whether there was one.
    fn forget(&self, path: &str) -> bool {
        self.locations.lock().unwrap_or_else(PoisonError::into_inner).remove(path).is_some()
    }

    fn address_of_file(&self, path: &str) -> Result<Url, RequestError> {
        let unresolved = || RequestError::MalformedAnswer("no list of files".to_owned());
        let revision = self.resolved.get().ok_or_else(unresolved)?;
        Ok(match self.model.hub {
            Kind::HuggingFace => hugging_face::address(self, revision, path),
            Kind::ModelScope => model_scope::address(self, revision, path),
        })
    }

    /// The endpoint with these names behind it; each becomes one segment of the path.
    fn address<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Url {
        let mut address = self.endpoint.clone();
        if let Ok(mut path) = address.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        address
    }

    /// What a status means. Of its headers only a code in a fixed format is kept.
    async fn refusal(&self, answer: HttpResponse, missing: Missing) -> RequestError {
        let status = answer.status();
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        let code = header("x-error-code").filter(|code| is_code(code)).unwrap_or_default().to_owned();
        let is_wrong_token =
            header("x-error-message").is_some_and(|text| text.starts_with("Invalid credentials"));
        // Reads the rest, so that the connection can be used again.
        drop(self.client.beginning(answer.into_body()).await);
        let why = match code.as_str() {
            "" => status.as_u16().to_string(),
            code => format!("{} {code}", status.as_u16()),
        };
        match (status, code.as_str()) {
            (_, "RepoNotFound") => RequestError::NoBucket,
            (_, "RevisionNotFound" | "EntryNotFound") => RequestError::Missing(why),
            (_, "GatedRepo") => RequestError::Unauthorized(why),
            // Hugging Face does not tell whether a model exists to whom it does not know.
            (StatusCode::UNAUTHORIZED, _)
                if self.identity.is_empty() && !is_wrong_token && missing == Missing::Model =>
            {
                RequestError::NoBucket
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => RequestError::Unauthorized(why),
            (StatusCode::NOT_FOUND, _) => match missing {
                Missing::Model => RequestError::NoBucket,
                Missing::File => RequestError::Missing(why),
            },
            (StatusCode::RANGE_NOT_SATISFIABLE, _) => RequestError::Changed,
            (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, _) => RequestError::Transient(why),
            (StatusCode::NOT_IMPLEMENTED, _) => RequestError::Refused(why),
            (status, _) if status.is_server_error() => RequestError::Transient(why),
            _ => RequestError::Refused(why),
        }
    }
}

/// Where a redirect leads. Not from https to http, where others can read the answer.
fn followed(at: &Url, answer: &HttpResponse) -> Result<Url, RequestError> {
    let status = answer.status().as_u16().to_string();
    let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| at.join(location).ok()).filter(Url::has_host);
    let Some(next) = next else {
        return Err(RequestError::MalformedAnswer(format!("{status} without an address")));
    };
    match (at.scheme(), next.scheme()) {
        ("http", "http" | "https") | ("https", "https") => Ok(next),
        _ => Err(RequestError::Redirected { to: origin(next.as_str()), why: status }),
    }
}

/// What the answer 404 says is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Model,
    File,
}

/// The page where a person can ask for access.
fn page(hub: Kind, endpoint: &str, id: &str) -> String {
    match hub {
        Kind::HuggingFace => format!("{endpoint}/{id}"),
        Kind::ModelScope => format!("{endpoint}/models/{id}"),
    }
}

/// Without a user, a query and a fragment.
fn endpoint_of(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    (["http", "https"].contains(&url.scheme()) && url.has_host() && is_plain && url.fragment().is_none())
        .then_some(url)
}

/// The headers that name the user. `None` for a token that no header can have.
fn identity(hub: Kind, token: Option<Token>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let Some(Token(token)) = token else { return Some(headers) };
    let secret = |text: String| {
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    };
    headers.insert(AUTHORIZATION, secret(format!("Bearer {token}"))?);
    if hub == Kind::ModelScope {
        // Its older services know users by this cookie alone.
        headers.insert(COOKIE, secret(format!("m_session_id={token}"))?);
    }
    Some(headers)
}

fn is_code(text: &str) -> bool {
    text.len() <= 64 && text.chars().all(|char| char.is_ascii_alphanumeric())
}

fn host(at: &Url) -> &str {
    at.host_str().unwrap_or_default()
}

/// The size of the whole file, by the answer to a request for these bytes of it.
fn size_of(answer: &HttpResponse, wanted: &Range<u64>, listed: u64) -> Result<u64, RequestError> {
    let header = |name| answer.headers().get(name)?.to_str().ok();
    let wrong = |why: &str| Err(RequestError::MalformedAnswer(why.to_owned()));
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        if *wanted != (0..listed) {
            return wrong("the whole file in place of a range");
        }
        // Without a length the bytes are counted.
        return Ok(header(CONTENT_LENGTH).and_then(|length| length.parse().ok()).unwrap_or(listed));
    }
    let range = header(CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes "));
    let Some((bytes, size)) = range.and_then(|range| range.split_once('/')) else {
        return wrong("a range without its place");
    };
    match (bytes.split_once('-').and_then(|(from, _)| from.parse::<u64>().ok()), size.parse()) {
        (Some(from), Ok(size)) if wanted.start == from => Ok(size),
        _ => wrong("another range than asked for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_without_secrets() {
        for good in ["https://huggingface.co", "http://mirror:8080/hub/", "https://hf-mirror.com/"] {
            assert!(endpoint_of(good).is_some(), "{good}");
        }
        for bad in ["", "huggingface.co", "ftp://a", "https://user:word@a", "https://a?b", "https://a#b"] {
            assert!(endpoint_of(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_redirect_never_leaves_https() {
        let followed = |at: &str, location: &str| {
            let mut answer = HttpResponse::new(String::new().into());
            *answer.status_mut() = StatusCode::FOUND;
            answer.headers_mut().insert(LOCATION, location.parse().unwrap());
            followed(&Url::parse(at).unwrap(), &answer).map(String::from)
        };
        let at = "https://hub/a/b/resolve/0/c";
        assert_eq!(followed(at, "https://cdn/x?y"), Ok("https://cdn/x?y".to_owned()));
        assert_eq!(followed(at, "/api/x"), Ok("https://hub/api/x".to_owned()));
        assert_eq!(followed("http://mirror/a", "https://cdn/x"), Ok("https://cdn/x".to_owned()));
        for location in ["http://cdn/x?signature=1", "ftp://cdn/x?signature=1"] {
            let refused = followed(at, location).unwrap_err();
            let RequestError::Redirected { to: Some(to), .. } = &refused else { panic!("{refused:?}") };
            assert!(to.ends_with("://cdn"), "without the signature: {to}");
        }
        assert!(matches!(followed(at, "mailto:a"), Err(RequestError::MalformedAnswer(_))));
    }

    #[test]
    fn a_token_is_shown_by_no_header() {
        let headers = identity(Kind::ModelScope, Some(Token("ms-secret".to_owned()))).unwrap();
        assert!(!format!("{headers:?}").contains("secret"), "{headers:?}");
        assert!(identity(Kind::HuggingFace, Some(Token("a\nb".to_owned()))).is_none());
    }
}
