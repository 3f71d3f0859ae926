//! The object store: one bucket, reached as the environment says, and what its answers mean for the next request.
//!
//! object_store signs, sends and parses; it never retries here, since only we know what came and for how long.

mod answers;
mod http;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt as _;
use object_store::{
    ClientOptions, GetOptions, GetResult, ObjectMeta, ObjectStore as _, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path,
};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

pub(crate) use answers::Trouble;
pub(crate) use http::EtagIsNoDigest;

use crate::{
    cli::Options,
    fault::{Cause, Fault},
    location::Location,
    retry::Backoff,
};

/// Connections beyond this many are opened and closed again; as many as there are requests at once.
const IDLE_CONNECTIONS: usize = 32;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// One bucket.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) s3: Arc<AmazonS3>,
    /// For messages: `s3://models at http://minio:9000`.
    name: String,
    patience: Duration,
    /// When the store last gave us a byte, on any connection.
    progress: Arc<Mutex<Instant>>,
    /// Whether it ever gave a good answer.
    answered: Arc<AtomicBool>,
    complaints: Arc<Complaints>,
}

impl Store {
    /// Sends nothing yet.
    pub(crate) fn open(location: &Location, options: &Options) -> Result<Self, Fault> {
        let stall = Duration::from_secs(options.stall_seconds);
        let environment = AmazonS3Builder::from_env();
        let setting = |key| environment.get_config_value(&key).filter(|value| !value.is_empty());
        let endpoint = setting(AmazonS3ConfigKey::S3Endpoint).or(setting(AmazonS3ConfigKey::Endpoint));
        let has_credentials = [
            AmazonS3ConfigKey::AccessKeyId,
            AmazonS3ConfigKey::SecretAccessKey,
            AmazonS3ConfigKey::WebIdentityTokenFile,
            AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
            AmazonS3ConfigKey::ContainerCredentialsFullUri,
        ]
        .into_iter()
        .any(|key| setting(key).is_some());
        let answered = Arc::<AtomicBool>::default();
        let client = ClientOptions::new()
            .with_allow_http(endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")))
            .with_connect_timeout(CONNECT_WITHIN)
            // Ours are per answer and per byte: a model may take hours.
            .with_timeout_disabled()
            .with_http1_only()
            .with_pool_max_idle_per_host(IDLE_CONNECTIONS);
        let s3 = environment
            .with_bucket_name(&location.bucket)
            .with_virtual_hosted_style_request(false)
            // A public bucket; asking the machine for its own credentials would lend them to whoever names a model.
            .with_skip_signature(!has_credentials)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_client_options(client)
            .with_http_connector(http::Connector::new(stall, Arc::clone(&answered)))
            .build()
            .map_err(|error| Fault::new(Cause::Usage, answers::innermost(&error)))?;
        let name = match endpoint {
            Some(endpoint) => format!("s3://{} at {}", location.bucket, without_password(&endpoint)),
            None => format!("s3://{}", location.bucket),
        };
        Ok(Self {
            s3: Arc::new(s3),
            name,
            patience: options.patience(),
            progress: Arc::new(Mutex::new(Instant::now())),
            answered,
            complaints: Arc::default(),
        })
    }

    /// Everything below a folder of the bucket.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>, Fault> {
        let folder = Path::parse(folder).map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
        self.retried("list", || async {
            let listed: Result<Vec<ObjectMeta>, _> = self.s3.list(Some(&folder)).try_collect().await;
            listed.map_err(|error| Trouble::of(&error))
        })
        .await
    }

    /// One object's size and so on, if it is there.
    pub(crate) async fn head(&self, key: &Path) -> Result<Option<GetResult>, Fault> {
        self.retried(key.as_ref(), || async {
            let options = GetOptions { head: true, ..GetOptions::default() };
            match self.s3.get_opts(key, options).await.map_err(|error| Trouble::of(&error)) {
                Ok(found) => Ok(Some(found)),
                Err(Trouble::Missing(_)) => Ok(None),
                Err(trouble) => Err(trouble),
            }
        })
        .await
    }

    /// Sends a request until it succeeds, fails for good, or has failed in passing for too long.
    pub(crate) async fn retried<T, F>(&self, what: &str, mut request: impl FnMut() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let mut attempts = self.attempts();
        loop {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => attempts.failed(trouble, what).await?,
            }
        }
    }

    /// The attempts of one request or of one run of bytes.
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        Attempts { store: self, backoff: Backoff::new(self.patience), began: Instant::now(), garbled: 0 }
    }

    /// Ends only if the store has given no good answer within this time.
    pub(crate) async fn silence(&self, within: Option<Duration>) -> Fault {
        let Some(within) = within else { return std::future::pending().await };
        sleep(within).await;
        if self.answered.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let (store, seconds) = (&self.name, within.as_secs());
        let why = self.complaints.last().unwrap_or_else(|| "no answer".to_owned());
        Fault::new(Cause::Unreachable, format!("{store} has not answered for {seconds} s ({why})"))
    }

    /// Bytes came: the store lives.
    pub(crate) fn progressed(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last_progress(&self) -> Instant {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts failures without progress, waits between them, and says when it is enough.
///
/// Progress on any connection is progress: the store lives, and a request that waited for its turn lost no time.
#[derive(Debug)]
pub(crate) struct Attempts<'s> {
    store: &'s Store,
    backoff: Backoff,
    began: Instant,
    garbled: u32,
}

/// How often other bytes than asked for may come in the place of one run of bytes.
const GARBLED_ANSWERS: u32 = 4;

impl Attempts<'_> {
    /// This request got somewhere: begin with short waits again.
    pub(crate) fn progressed(&mut self) {
        self.backoff.reset();
    }

    /// Waits before the next attempt, or says why there is none.
    pub(crate) async fn failed(&mut self, trouble: Trouble, what: &str) -> Result<(), Fault> {
        let store = &self.store.name;
        let why = match trouble {
            Trouble::Passing(why) => why,
            Trouble::Garbled(why) => {
                self.garbled += 1;
                if self.garbled > GARBLED_ANSWERS {
                    return Err(Fault::new(Cause::Checksum, format!("{store}, {what}: {why}")));
                }
                why
            }
            Trouble::Unauthorized(why) => {
                let message =
                    format!("{store} refused the credentials ({why}): correct the Secret, or what it allows");
                return Err(Fault::new(Cause::Unauthorized, message));
            }
            Trouble::Missing(why) => {
                return Err(Fault::new(Cause::NotFound, format!("{store} does not have it ({why}): {what}")));
            }
            Trouble::NoBucket => {
                let message = format!("{store}: there is no such bucket: create it, or correct its name");
                return Err(Fault::new(Cause::NotFound, message));
            }
            Trouble::Changed => {
                let message = format!("{store}, {what}: it was changed while it was read");
                return Err(Fault::new(Cause::Changed, message));
            }
            Trouble::Refused(why) => {
                return Err(Fault::new(
                    Cause::Unreachable,
                    format!("{store} refused to answer ({why}): {what}"),
                ));
            }
            Trouble::HostileKey(why) => return Err(Fault::new(Cause::NotFound, format!("{store}: {why}"))),
        };
        let silence = self.store.last_progress().max(self.began).elapsed();
        let Some(step) = self.backoff.next(silence, fastrand::f64()) else {
            let seconds = silence.as_secs();
            let message = format!("{store} has not answered for {seconds} s ({why}): {what}");
            return Err(Fault::new(Cause::Unreachable, message));
        };
        self.store.complaints.tell(&why, step);
        sleep(step).await;
        Ok(())
    }
}

/// `http://user:password@host` is allowed, and not repeated.
fn without_password(endpoint: &str) -> String {
    match (endpoint.split_once("://"), endpoint.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => endpoint.to_owned(),
    }
}

/// Sixteen requests that fail for one reason are one line in the log.
#[derive(Debug, Default)]
struct Complaints(Mutex<Complained>);

#[derive(Debug, Default)]
struct Complained {
    line_at: Option<Instant>,
    last: Option<String>,
}

impl Complaints {
    fn tell(&self, why: &str, step: Duration) {
        const LINE_EVERY: Duration = Duration::from_secs(5);
        let mut complained = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        complained.last = Some(why.to_owned());
        if complained.line_at.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            complained.line_at = Some(Instant::now());
            warn!("the store failed ({why}); trying again in {:.1} s", step.as_secs_f64());
        } else {
            debug!("the store failed ({why}); trying again in {:.1} s", step.as_secs_f64());
        }
    }

    /// Why the store failed last.
    fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_endpoint_is_not_repeated() {
        assert_eq!(without_password("http://user:p@ss@minio:9000"), "http://minio:9000");
        assert_eq!(without_password("http://minio:9000"), "http://minio:9000");
    }
}
