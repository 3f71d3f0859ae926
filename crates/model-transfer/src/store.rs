//! The object store: one bucket, as the environment and the options name it, and what its answers mean for the next
//! request.
//!
//! object_store signs, sends and parses. It must not retry: how long a request may fail depends on what the others got.

mod answers;
mod credentials;
mod endpoint;
mod http;

use std::{
    fs,
    path::Path as FilePath,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::HeaderMap;
use futures::TryStreamExt as _;
use object_store::{
    ClientOptions, GetOptions, GetResult, ObjectMeta, ObjectStore as _, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path,
};
use reqwest::Certificate;
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
use credentials::{Identity, OfPod};
use endpoint::{endpoint, token_service, without_password};

/// Models have tens to thousands of files. What a listing holds in memory is bounded by this number.
const MOST_OBJECTS: usize = 50_000;
/// Attempts of a request without which a transfer can continue.
const OPTIONAL_ATTEMPTS: u32 = 4;
const DEFAULT_REGION: &str = "us-east-1";

/// One bucket.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) s3: Arc<AmazonS3>,
    /// For messages: `s3://models at http://minio:9000`.
    name: String,
    region: String,
    identity: Identity,
    patience: Duration,
    /// When the store last sent a byte, on any connection.
    progress: Arc<Mutex<Instant>>,
    /// Whether it has ever given a good answer.
    answered: Arc<AtomicBool>,
    failures: Arc<Failures>,
}

impl Store {
    /// Sends nothing yet. `headers`: of each request for an object.
    pub(crate) fn open(location: &Location, options: &Options, headers: HeaderMap) -> Result<Self, Fault> {
        let stall = Duration::from_secs(options.stall_seconds);
        let environment = AmazonS3Builder::from_env();
        let setting = |key| environment.get_config_value(&key).filter(|value| !value.is_empty());
        let given = setting(AmazonS3ConfigKey::S3Endpoint).or(setting(AmazonS3ConfigKey::Endpoint));
        let region = setting(AmazonS3ConfigKey::Region).unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let at = endpoint(&location.bucket, &region, given.as_deref(), options.addressing)
            .map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
        let token_service = setting(AmazonS3ConfigKey::StsEndpoint).unwrap_or_else(|| token_service(&region));
        let identity =
            Identity::of(setting).map_err(|half| Fault::new(Cause::Unauthorized, half.to_string()))?;
        let authorities = options.ca_file.as_deref().map_or(Ok(Vec::new()), authorities)?;

        let name = format!("s3://{} at {}", location.bucket, without_password(&at.url));
        let builder = environment
            .with_bucket_name(&location.bucket)
            .with_region(&region)
            .with_virtual_hosted_style_request(at.is_virtual_hosted)
            .with_config(AmazonS3ConfigKey::S3Endpoint, &at.url)
            .with_config(AmazonS3ConfigKey::StsEndpoint, token_service)
            // A public bucket; the machine's own credentials would serve any user who names a model.
            .with_skip_signature(identity == Identity::Anonymous)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_client_options(
                ClientOptions::new()
                    .with_allow_http(at.url.starts_with("http://"))
                    .with_default_headers(headers),
            );
        let build = |builder: AmazonS3Builder, answered: &Arc<AtomicBool>| {
            let connector = http::Connector::new(stall, Arc::clone(answered), authorities.clone());
            let built = builder.with_http_connector(connector).build();
            built.map_err(|error| Fault::new(Cause::Usage, answers::innermost(&error)))
        };
        let answered = Arc::<AtomicBool>::default();
        let s3 = match identity {
            Identity::Pod => {
                // Answers of the token service do not count as answers of the store.
                let of_pod = build(builder.clone(), &Arc::default())?.credentials().clone();
                build(builder.with_credentials(Arc::new(OfPod(of_pod))), &answered)?
            }
            Identity::Keys | Identity::Anonymous => build(builder, &answered)?,
        };
        Ok(Self {
            s3: Arc::new(s3),
            name,
            region,
            identity,
            patience: options.patience(),
            progress: Arc::new(Mutex::new(Instant::now())),
            answered,
            failures: Arc::default(),
        })
    }

    /// Everything below a folder of the bucket.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>, Fault> {
        let folder = Path::parse(folder).map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
        self.retried("list", || async {
            let mut objects = Vec::new();
            let mut listed = self.s3.list(Some(&folder));
            while let Some(object) = listed.try_next().await.map_err(|error| Trouble::of(&error))? {
                if objects.len() == MOST_OBJECTS {
                    return Err(Trouble::TooManyObjects);
                }
                objects.push(object);
            }
            Ok(objects)
        })
        .await
    }

    /// The first object of the listing of a folder.
    pub(crate) async fn first_of(&self, folder: &Path) -> Result<Option<ObjectMeta>, Fault> {
        let first =
            || async { self.s3.list(Some(folder)).try_next().await.map_err(|error| Trouble::of(&error)) };
        self.retried("list", first).await
    }

    /// The metadata of an object, `None` if there is no such object.
    pub(crate) async fn head(&self, key: &Path) -> Result<Option<GetResult>, Fault> {
        self.retried(key.as_ref(), || self.head_once(key)).await
    }

    /// The metadata of an object, `None` also if the store refuses the request.
    pub(crate) async fn permitted_head(&self, key: &Path) -> Result<Option<GetResult>, Fault> {
        let head = || async {
            match self.head_once(key).await {
                Err(Trouble::Unauthorized(_) | Trouble::Refused(_)) => Ok(None),
                answer => answer,
            }
        };
        self.retried(key.as_ref(), head).await
    }

    /// The metadata of an object, `None` also if the store does not give it within a few attempts.
    pub(crate) async fn optional_head(&self, key: &Path) -> Option<GetResult> {
        let mut attempts = self.attempts();
        for _ in 0..OPTIONAL_ATTEMPTS {
            match self.head_once(key).await {
                Ok(answer) => return answer,
                Err(trouble) => attempts.failed(trouble, key.as_ref()).await.ok()?,
            }
        }
        None
    }

    async fn head_once(&self, key: &Path) -> Result<Option<GetResult>, Trouble> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.s3.get_opts(key, options).await.map_err(|error| Trouble::of(&error)) {
            Ok(found) => Ok(Some(found)),
            Err(Trouble::Missing(_)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Sends a request until it succeeds, fails for good, or the store has been silent for the whole patience.
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

    /// Completes only if the store has given no good answer within this time.
    pub(crate) async fn silence(&self, within: Option<Duration>) -> Fault {
        let Some(within) = within else { return std::future::pending().await };
        sleep(within).await;
        if self.answered.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let (store, seconds) = (&self.name, within.as_secs());
        let why = self.failures.last().unwrap_or_else(|| "no answer".to_owned());
        Fault::new(Cause::Unreachable, format!("{store} has not answered for {seconds} s ({why})"))
    }

    /// The store has sent bytes: it lives.
    pub(crate) fn progressed(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last_progress(&self) -> Instant {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts failures without progress, waits between them, and ends with the patience.
///
/// Progress on any connection counts: the store lives, and a request that waited for its turn has lost no time.
#[derive(Debug)]
pub(crate) struct Attempts<'s> {
    store: &'s Store,
    backoff: Backoff,
    began: Instant,
    garbled: u32,
}

/// Malformed answers tolerated per request.
const GARBLED_ANSWERS: u32 = 4;

impl Attempts<'_> {
    /// This request has made progress: the waits begin short again.
    pub(crate) fn progressed(&mut self) {
        self.backoff.reset();
    }

    /// Waits before the next attempt, or returns why there is none.
    pub(crate) async fn failed(&mut self, trouble: Trouble, what: &str) -> Result<(), Fault> {
        let Store { name: store, region: own, identity, .. } = self.store;
        let (cause, message) = match trouble {
            Trouble::Passing(why) => return self.wait(&why, what).await,
            Trouble::Garbled(why) => {
                self.garbled += 1;
                if self.garbled <= GARBLED_ANSWERS {
                    return self.wait(&why, what).await;
                }
                (Cause::Checksum, format!("{store}, {what}: {why}"))
            }
            Trouble::Unauthorized(why) => {
                let (refused, fix) = identity.refused();
                (Cause::Unauthorized, format!("{store} {refused} ({why}): {fix}"))
            }
            Trouble::NoCredentials(why) => {
                (Cause::Unauthorized, format!("no credentials for {store}: {why}"))
            }
            Trouble::ClockSkew(why) => {
                let message =
                    format!("{store} refused the time of the request ({why}): correct the clock of the node");
                (Cause::Unauthorized, message)
            }
            Trouble::Missing(why) => (Cause::NotFound, format!("{store} does not have it ({why}): {what}")),
            Trouble::NoBucket => {
                let message = format!("{store}: there is no such bucket: create it, or correct its name");
                (Cause::NotFound, message)
            }
            Trouble::Changed => {
                (Cause::Changed, format!("{store}, {what}: it was changed while it was read"))
            }
            Trouble::OtherRegion { region, why } => {
                let message = if region == *own {
                    format!("{store} refused to answer ({why}), although region {region} is right: {what}")
                } else {
                    format!(
                        "{store}: the bucket is in region {region}, not in {own} ({why}): set \
                         spec.modelStore.region (AWS_REGION) to {region}, and the endpoint, if any, to one there"
                    )
                };
                (Cause::Unreachable, message)
            }
            Trouble::Redirected { to, why } => {
                let to = to.map_or(String::new(), |to| format!(" to {to}"));
                let message = format!(
                    "{store} redirects{to} ({why}), and redirects are not followed: correct \
                     spec.modelStore.endpoint (AWS_ENDPOINT_URL)"
                );
                (Cause::Unreachable, message)
            }
            Trouble::PathRefused(why) => {
                let message = format!(
                    "{store} takes the bucket in the host alone ({why}): set spec.modelStore.addressing to \
                     VirtualHosted (--addressing=virtual-hosted)"
                );
                (Cause::Unreachable, message)
            }
            Trouble::Refused(why) => {
                (Cause::Unreachable, format!("{store} refused to answer ({why}): {what}"))
            }
            Trouble::TooManyObjects => {
                let message = format!(
                    "{store} has more than {MOST_OBJECTS} objects below the prefix: name the folder of one model"
                );
                (Cause::NotFound, message)
            }
            Trouble::HostileKey(why) => (Cause::NotFound, format!("{store}: {why}")),
        };
        Err(Fault::new(cause, message))
    }

    /// Waits before the next attempt, unless the store has been silent for the whole patience.
    async fn wait(&mut self, why: &str, what: &str) -> Result<(), Fault> {
        let store = &self.store.name;
        let silence = self.store.last_progress().max(self.began).elapsed();
        let Some(step) = self.backoff.next(silence, fastrand::f64()) else {
            let seconds = silence.as_secs();
            let message = format!("{store} has not answered for {seconds} s ({why}): {what}");
            return Err(Fault::new(Cause::Unreachable, message));
        };
        self.store.failures.record(why, step);
        sleep(step).await;
        Ok(())
    }
}

/// The certificates of a PEM file.
fn authorities(file: &FilePath) -> Result<Vec<Certificate>, Fault> {
    let unusable = |why: String| {
        let file = file.display();
        let fix = "give the Secret of spec.modelStore.caSecretName a key ca.crt with certificates in PEM";
        Fault::new(Cause::Unreachable, format!("no authority can be read from {file} ({why}): {fix}"))
    };
    let pem = fs::read(file).map_err(|error| unusable(error.to_string()))?;
    let found = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(answers::innermost(&error)))?;
    if found.is_empty() { Err(unusable("it has no certificate".to_owned())) } else { Ok(found) }
}

/// Failures of requests, of which sixteen for one reason are one line in the log.
#[derive(Debug, Default)]
struct Failures(Mutex<Logged>);

#[derive(Debug, Default)]
struct Logged {
    line_at: Option<Instant>,
    last: Option<String>,
}

impl Failures {
    fn record(&self, why: &str, step: Duration) {
        const LINE_EVERY: Duration = Duration::from_secs(5);
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.last = Some(why.to_owned());
        if logged.line_at.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            logged.line_at = Some(Instant::now());
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
