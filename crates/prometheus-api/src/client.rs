//! Sends one query to one server.
//!
//! A query has one deadline for everything, which is sent with it, and its answer a limit. Redirects are not followed:
//! they would take the token and the request to any host. There is no retry; the next poll is one. Proxies that the
//! environment names are not used.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use engine_metrics::{
    body::{BodyError, LARGEST_HEAD, cause, is_head_too_large, read_body},
    foreign,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::time::timeout;

use crate::{
    Counters, Fault, Sample,
    answer::{self, Moment},
    promql::Query,
    secret::{Authorities, Repeated, Token},
    url::ServerUrl,
};

/// Header of the tenant in Mimir and in Thanos and Cortex in front of it.
const TENANT: &str = "x-scope-orgid";
/// Idle connections to one server; queries of all objects share them.
const IDLE_CONNECTIONS: usize = 8;
/// Shorter than servers and proxies keep an idle connection, mostly a minute or more: a query must not meet its end.
const IDLE_FOR: Duration = Duration::from_secs(45);

/// Limits of one query.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the name resolution to the last byte.
    pub deadline: Duration,
    pub bytes: usize,
    /// Age of the evaluation, see [`crate::answer::Evaluated::sample`].
    pub staleness: Duration,
}

impl Limits {
    pub const NORMAL: Self = Self {
        // An object is evaluated every 15 s, and within 0.3 s of a new sample: a slow server is a missing one.
        deadline: Duration::from_secs(3),
        // One series has some hundred bytes. Hundreds of them, which is a mistake, are still counted. Many objects ask at
        // once, so that more would be much memory.
        bytes: 128 << 10,
        // Two clocks may differ by a minute.
        staleness: Duration::from_secs(120),
    };
}

/// Connections to servers whose certificates are of certain authorities. Clones share them; keep one for the system's
/// authorities and one for each Secret with its own.
#[derive(Clone)]
pub struct Connections {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The Secret of the authorities.
    secret: Option<String>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("secret", &self.secret).finish_non_exhaustive()
    }
}

impl Connections {
    pub fn new(authorities: &Authorities) -> Result<Self, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = match authorities {
            Authorities::System => builder.with_platform_verifier()?,
            Authorities::OfSecret { roots, .. } => builder.with_root_certificates(roots.clone()),
        };
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new())
            .http1_max_buf_size(LARGEST_HEAD)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(connector);
        Ok(Self { client, secret: authorities.secret().map(str::to_owned) })
    }
}

/// A server and the rights to ask it.
#[derive(Clone, Debug)]
pub struct Server {
    pub url: ServerUrl,
    pub token: Option<Token>,
    pub tenant: Option<Tenant>,
    pub user_agent: &'static str,
}

/// The tenant whose series are read, by the controller's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(HeaderValue);

impl Tenant {
    /// `None` unless it is 1 to 150 printable ASCII characters without spaces, as Mimir allows.
    pub fn new(tenant: &str) -> Option<Self> {
        const LONGEST: usize = 150;
        let is_tenant =
            (1..=LONGEST).contains(&tenant.len()) && tenant.bytes().all(|byte| byte.is_ascii_graphic());
        is_tenant.then(|| HeaderValue::from_str(tenant).ok().map(Self)).flatten()
    }
}

/// Asks a server once. `at`: the time of the values in Unix seconds; `None` is now.
pub async fn ask(
    connections: &Connections,
    server: &Server,
    query: &Query,
    at: Option<i64>,
    limits: Limits,
) -> Result<Answered, Fault> {
    match timeout(limits.deadline, ask_in_time(connections, server, query, at, limits)).await {
        Ok(answer) => answer,
        Err(_) => Err(Fault::Slow { server: server.url.to_string(), limit: limits.deadline }),
    }
}

/// An answer with status 200.
pub struct Answered {
    url: String,
    token: Option<Token>,
    content: String,
    body: Vec<u8>,
}

impl Answered {
    /// Its one number.
    pub fn number(&self, limits: Limits, asked: Moment) -> Result<Sample, Fault> {
        let Self { url, token, content, body } = self;
        let evaluated = answer::evaluated(url, content, body, Repeated(token.as_ref()))?;
        evaluated.sample(url, limits.staleness, asked)
    }

    /// All of its series. `asked`: the time of the call, if the values of now were asked for.
    pub fn counters(&self, limits: Limits, asked: Option<Moment>) -> Result<Counters, Fault> {
        let Self { url, token, content, body } = self;
        let fresh = |at| match asked {
            Some(asked) => asked.age(at, url, limits.staleness).map(drop),
            None => Ok(()),
        };
        answer::counters(url, content, body, Repeated(token.as_ref()), fresh)
    }
}

async fn ask_in_time(
    connections: &Connections,
    server: &Server,
    query: &Query,
    at: Option<i64>,
    limits: Limits,
) -> Result<Answered, Fault> {
    let url = server.url.to_string();
    let request = request(server, query, at, limits.deadline)
        .map_err(|error| Fault::Unreachable { server: url.clone(), why: cause(&error) })?;
    let answer = connections.client.request(request).await;
    let answer = answer.map_err(|error| connection_fault(&error, url.clone(), connections.secret.clone()))?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let repeated = Repeated(server.token.as_ref());
    let location = headers.get(header::LOCATION).and_then(|to| to.to_str().ok());
    let to = location.map_or(String::new(), |location| repeated.text(&origin(location)));
    if status.is_redirection() {
        return Err(Fault::Redirected { server: url, to });
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let secret = server.token.as_ref().map(|token| token.secret().to_owned());
        return Err(Fault::Unauthorized { server: url, status: status.as_u16(), secret });
    }
    let body = body(answer, limits.bytes, &url).await?;
    if status == StatusCode::OK {
        let (token, content) = (server.token.clone(), content(&headers).to_owned());
        return Ok(Answered { url, token, content, body });
    }
    let why = answer::reason(&body, repeated);
    // Too many requests are a failure of the moment.
    Err(if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        Fault::Rejected { server: url, status: status.as_u16(), why }
    } else {
        Fault::Failed { server: url, status: status.as_u16(), why }
    })
}

fn request(
    server: &Server,
    query: &Query,
    at: Option<i64>,
    deadline: Duration,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("query", query.text());
    // The server need not compute what is not waited for.
    form.append_pair("timeout", &format!("{}ms", deadline.as_millis()));
    if let Some(at) = at {
        form.append_pair("time", &at.to_string());
    }
    let form = form.finish();
    let mut request = Request::post(server.url.query_endpoint())
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, server.user_agent);
    if let Some(token) = &server.token {
        request = request.header(header::AUTHORIZATION, token.header());
    }
    if let Some(Tenant(tenant)) = &server.tenant {
        request = request.header(TENANT, tenant);
    }
    request.body(Full::new(form.into()))
}

async fn body(answer: Response<Incoming>, most: usize, url: &str) -> Result<Vec<u8>, Fault> {
    read_body(answer.into_body(), most).await.map_err(|error| match error {
        BodyError::TooLarge => Fault::TooLarge { server: url.to_owned(), limit: most },
        BodyError::Broken(why) => Fault::Unreachable { server: url.to_owned(), why },
    })
}

fn content(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|content| content.to_str().ok()).unwrap_or_default()
}

/// Scheme and host of a redirect. The rest may hold a session.
fn origin(location: &str) -> String {
    let location: Option<http::Uri> = location.parse().ok();
    let origin = location.and_then(|uri| Some(format!("{}://{}", uri.scheme_str()?, uri.host()?)));
    origin.unwrap_or_else(|| "another path".to_owned())
}

fn connection_fault(error: &(dyn Error + 'static), server: String, secret: Option<String>) -> Fault {
    if is_head_too_large(error) {
        return Fault::HeadTooLarge { server, limit: LARGEST_HEAD };
    }
    match tls_error(error) {
        // The server's alert, or bytes that are not TLS: nothing that another authority would mend.
        Some(rustls::Error::InvalidCertificate(why)) => {
            Fault::Untrusted { server, why: foreign(&why.to_string()), secret }
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            Fault::Unreachable { server, why: "it does not speak TLS: use http://".to_owned() }
        }
        Some(other) => Fault::Unreachable { server, why: foreign(&other.to_string()) },
        None => Fault::Unreachable { server, why: cause(error) },
    }
}

/// The error of TLS among the causes of an error. An `io::Error` is not the source of what it wraps.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &'e (dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_a_word() {
        assert!(Tenant::new("team-a|team-b").is_some());
        for wrong in ["", "a b", "a\r\nHost: evil", "é", &"a".repeat(151)] {
            assert!(Tenant::new(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_redirect_is_named_by_its_host_alone() {
        assert_eq!(origin("https://login.example/x?session=1"), "https://login.example");
        assert_eq!(origin("/login"), "another path");
    }
}
