//! Whether the server answers and serves the model. It asks `/v1/models` alone, and sends no question.
//!
//! Redirects are not followed: they would take the key to any host. Proxies that the environment names are not used.

use std::{error::Error, sync::Arc, time::Duration};

use api::launcher::evaluator::ExitCode;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use crate::{cli::Key, fault::Fault};

/// One request. An engine that loads a model does not answer; a busy one answers this path soon.
const REQUEST: Duration = Duration::from_secs(10);
/// Between two requests before the first answer.
const PAUSE: Duration = Duration::from_secs(2);
/// Between two requests while the harness runs.
const WATCH: Duration = Duration::from_secs(15);
/// A list of models has less.
const LARGEST_ANSWER: usize = 1 << 20;
/// Names in a message.
const MOST_NAMES: usize = 8;

type Client = legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

pub(crate) struct Server {
    client: Client,
    url: String,
    models: Uri,
    key: Key,
    divisor: u32,
}

/// Why there is no list of models.
enum NoAnswer {
    /// Another try may have one.
    Yet(String),
    /// The server refuses the key.
    Refused(String),
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

impl Server {
    /// The URL has the path of the API, such as `/v1`.
    pub(crate) fn new(url: &str, key: &Key, divisor: u32) -> Result<Self, Fault> {
        let url = url.trim_end_matches('/');
        let invalid =
            || Fault::usage(format!("{url:?} is no URL: it must be http://host:port/v1 or https://host/v1"));
        let models: Uri = format!("{url}/models").parse().map_err(|_| invalid())?;
        let is_https = match models.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(invalid()),
        };
        let client = client(is_https).map_err(|error| {
            Fault::usage(format!("the system's authorities for https cannot be used: {error}"))
        })?;
        Ok(Self { client, url: url.to_owned(), models, key: key.clone(), divisor })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until the server answers, and returns the name of the model.
    pub(crate) async fn model(&self, wanted: Option<&str>, within: Duration) -> Result<String, Fault> {
        let deadline = Instant::now() + within / self.divisor;
        loop {
            match self.list().await {
                Ok(models) => return self.chosen(models, wanted),
                Err(NoAnswer::Refused(cause)) => {
                    let message =
                        format!("{} refuses the API key ({cause}); set it by a Secret", self.models);
                    return Err(Fault::new(ExitCode::ServerFailed, message));
                }
                Err(NoAnswer::Yet(cause)) if Instant::now() >= deadline => {
                    let seconds = within.as_secs();
                    let message =
                        format!("{} gave no list of models within {seconds} s: {cause}", self.models);
                    return Err(Fault::new(ExitCode::ServerFailed, message));
                }
                Err(NoAnswer::Yet(_)) => sleep(PAUSE / self.divisor).await,
            }
        }
    }

    /// Returns when the server has not answered for so long, with the last cause.
    pub(crate) async fn lost(&self, within: Duration) -> String {
        let mut answered = Instant::now();
        loop {
            sleep(WATCH / self.divisor).await;
            match self.list().await {
                Ok(_) => answered = Instant::now(),
                Err(NoAnswer::Refused(cause) | NoAnswer::Yet(cause)) => {
                    if answered.elapsed() >= within / self.divisor {
                        return cause;
                    }
                }
            }
        }
    }

    /// Why the server gives no answer at this moment; `None` if it does.
    pub(crate) async fn fails(&self) -> Option<String> {
        match self.list().await {
            Ok(_) => None,
            Err(NoAnswer::Refused(cause) | NoAnswer::Yet(cause)) => Some(cause),
        }
    }

    async fn list(&self) -> Result<Vec<String>, NoAnswer> {
        let mut request = Request::get(self.models.clone());
        if let Some(key) = self.key.reveal() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request
            .body(Empty::new())
            .map_err(|_| NoAnswer::Refused("the key has characters that a header cannot have".to_owned()))?;
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| cause(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
            Ok::<_, String>((status, body.map_err(|error| cause(&*error))?.to_bytes()))
        };
        let (status, body) = match timeout(REQUEST, answer).await {
            Ok(answer) => answer.map_err(NoAnswer::Yet)?,
            Err(_) => return Err(NoAnswer::Yet(format!("no answer within {} s", REQUEST.as_secs()))),
        };
        match status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(NoAnswer::Refused(format!("status {}", status.as_u16())));
            }
            _ => return Err(NoAnswer::Yet(format!("status {}", status.as_u16()))),
        }
        let models: Models = serde_json::from_slice(&body)
            .map_err(|error| NoAnswer::Yet(format!("the answer is no list of models: {error}")))?;
        Ok(models.data.into_iter().map(|model| model.id).collect())
    }

    fn chosen(&self, models: Vec<String>, wanted: Option<&str>) -> Result<String, Fault> {
        let names = || models.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
        let failed = |message| Err(Fault::new(ExitCode::ServerFailed, message));
        match wanted {
            Some(wanted) if models.iter().any(|model| model == wanted) => Ok(wanted.to_owned()),
            Some(wanted) => {
                failed(format!("{} does not serve the model {wanted:?}; it serves: {}", self.url, names()))
            }
            None => match models.as_slice() {
                [only] => Ok(only.clone()),
                [] => failed(format!("{} serves no model", self.url)),
                [_, ..] => failed(format!("{} serves several models, name one of: {}", self.url, names())),
            },
        }
    }
}

/// Certificates are of the system's authorities, which are read for `https` alone: they take memory.
fn client(is_https: bool) -> Result<Client, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = match is_https {
        true => builder.with_platform_verifier()?,
        false => builder.with_root_certificates(RootCertStore::empty()),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(REQUEST));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls.with_no_client_auth())
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    // No connection is kept: an idle one would hide that the server has gone.
    Ok(legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector))
}

/// The last cause of an error, which names what happened: `Connection refused (os error 111)`.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
