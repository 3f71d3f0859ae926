//! HTTP clients: connections to the model and to siblings, and bodies up to a limit.
//!
//! Redirects are not followed: they would take the key to any host. Proxies that the environment names are not used.

use std::{error::Error, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt as _;

/// Of a message.
const LONGEST_CAUSE: usize = 256;
/// hyper's own limit is 400 KiB for each connection.
const LARGEST_HEAD: usize = 16 << 10;
/// Tasks of one session follow each other on a connection.
const IDLE_CONNECTIONS: usize = 4;
/// Shorter than servers and proxies keep an idle connection, mostly a minute or more.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// A peer that has gone is found after 30 s.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

pub(crate) type Client = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Certificates are of the system's authorities, which are read for `https` alone: they take memory.
pub(crate) fn client(is_https: bool, connect_within: Duration) -> Result<Client, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = match is_https {
        true => builder.with_platform_verifier()?,
        false => builder.with_root_certificates(RootCertStore::empty()),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(connect_within));
    // A node that dies sends nothing, and an answer may take minutes to begin.
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls.with_no_client_auth())
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Ok(legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(LARGEST_HEAD)
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .build(connector))
}

/// The body, or why it cannot be read.
pub(crate) async fn read_body(mut body: Incoming, most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| cause(&error))?.into_data() {
            if bytes.len() + data.len() > most {
                return Err(format!("the answer has more than {most} bytes"));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

/// The last cause of an error, which names what happened: `Connection refused (os error 111)`.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    text::cut(text::printable(&last.to_string()), LONGEST_CAUSE)
}

/// Whether the certificate of the server is refused. Another attempt would end in the same way.
pub(crate) fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
            return true;
        }
        // An `io::Error` is not the source of what it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
}
