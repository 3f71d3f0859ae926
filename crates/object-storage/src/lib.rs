//! Access to one bucket of an S3-compatible store, as the environment and options describe it.
//!
//! object_store signs, sends and parses requests. Callers retry them, because the time for which a request may fail
//! depends on the progress of other requests.
//!
//! **Invariant:** it uses no credentials of the node, and no message contains a secret.
//!
//! Files:
//!
//! - `endpoint.rs`: the URL of a bucket, by the addressing style of its store.
//! - `credentials.rs`: the identity of requests: that of a Secret, of the pod, or none.
//! - `http.rs`: limits of waits and sizes; redirects are not followed. Hubs of models are read with the same client.
//! - `answers.rs`: what a failed request means.
//! - `expected.rs`: the checksum that an answer promises.
//! - `names.rs`: listings of names, page by page, for programs with little memory.

#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use ::http::HeaderMap;
use api::aiinference::Addressing;
use object_store::{
    ClientOptions, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
};
use reqwest::Certificate;

mod answers;
mod credentials;
mod endpoint;
mod expected;
mod http;
mod names;

pub use answers::{RequestError, innermost};
pub use credentials::Identity;
pub use expected::{Expected, hex, is_hex};
pub use http::{Client, EtagIsNoDigest, origin};
pub use names::{Names, OnlyNames, PAGE};

use credentials::{OfPod, OfSecret};
pub use endpoint::without_password;
use endpoint::{endpoint, token_service};

const DEFAULT_REGION: &str = "us-east-1";

/// A bucket to which requests can be sent.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub s3: Arc<AmazonS3>,
    /// For messages: `s3://models at http://minio:9000`.
    pub name: String,
    pub region: String,
    pub identity: Identity,
    /// Whether the store has answered a request with success.
    pub answered: Arc<AtomicBool>,
}

/// Beside the environment.
#[derive(Clone, Debug)]
pub struct Access {
    pub addressing: Addressing,
    /// A request without a byte for so long has failed.
    pub stall: Duration,
    /// Trusted in addition to those of the system.
    pub authorities: Vec<Certificate>,
    /// Added to each request for an object.
    pub headers: HeaderMap,
    /// A mounted Secret with the keys of the environment, for programs that run longer than the keys are valid.
    pub keys: Option<PathBuf>,
}

/// The certificates of a PEM file, or why there are none.
pub fn authorities(file: &Path) -> Result<Vec<Certificate>, String> {
    let pem = std::fs::read(file).map_err(|error| error.to_string())?;
    let found = Certificate::from_pem_bundle(&pem).map_err(|error| innermost(&error))?;
    if found.is_empty() { Err("it has no certificate".to_owned()) } else { Ok(found) }
}

/// Why a bucket cannot be opened. No request was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Credentials(String),
}

impl Bucket {
    /// Sends no request.
    pub fn open(bucket: &str, access: Access) -> Result<Self, OpenError> {
        let Access { addressing, stall, authorities, headers, keys } = access;
        let environment = AmazonS3Builder::from_env();
        let setting = |key| environment.get_config_value(&key).filter(|value| !value.is_empty());
        let given = setting(AmazonS3ConfigKey::S3Endpoint).or(setting(AmazonS3ConfigKey::Endpoint));
        let region = setting(AmazonS3ConfigKey::Region).unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let at = endpoint(bucket, &region, given.as_deref(), addressing)
            .map_err(|error| OpenError::Usage(error.to_string()))?;
        let token_service = setting(AmazonS3ConfigKey::StsEndpoint).unwrap_or_else(|| token_service(&region));
        let identity = Identity::of(setting).map_err(|half| OpenError::Credentials(half.to_string()))?;
        let token_file = setting(AmazonS3ConfigKey::WebIdentityTokenFile)
            .or(setting(AmazonS3ConfigKey::ContainerAuthorizationTokenFile))
            .map(PathBuf::from);

        let name = format!("s3://{bucket} at {}", without_password(&at.url));
        let builder = environment
            .with_bucket_name(bucket)
            .with_region(&region)
            .with_virtual_hosted_style_request(at.is_virtual_hosted)
            .with_config(AmazonS3ConfigKey::S3Endpoint, &at.url)
            .with_config(AmazonS3ConfigKey::StsEndpoint, token_service)
            // For a public bucket. With the node's credentials any user could read what the node may read.
            .with_skip_signature(identity == Identity::Anonymous)
            // One request for each object: each has an answer of its own, and every store knows it.
            .with_disable_bulk_delete(true)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_client_options(
                ClientOptions::new()
                    .with_allow_http(at.url.starts_with("http://"))
                    .with_default_headers(headers),
            );
        let build = |builder: AmazonS3Builder, answered: &Arc<AtomicBool>| {
            let connector = http::Connector::new(stall, Arc::clone(answered), authorities.clone());
            let built = builder.with_http_connector(connector).build();
            built.map_err(|error| OpenError::Usage(innermost(&error)))
        };
        let answered = Arc::<AtomicBool>::default();
        let s3 = match identity {
            Identity::Pod => {
                // Answers of the token service do not count as answers of the store.
                let of_pod = build(builder.clone(), &Arc::default())?.credentials().clone();
                let of_pod = OfPod::new(of_pod, token_file);
                build(builder.with_credentials(Arc::new(of_pod)), &answered)?
            }
            Identity::Keys => match keys {
                Some(folder) => {
                    let environment = build(builder.clone(), &Arc::default())?.credentials().clone();
                    build(builder.with_credentials(Arc::new(OfSecret::new(folder, environment))), &answered)?
                }
                None => build(builder, &answered)?,
            },
            Identity::Anonymous => build(builder, &answered)?,
        };
        Ok(Self { s3: Arc::new(s3), name, region, identity, answered })
    }
}
