//! The object store: one bucket, configured by the environment and the options, and the retries of its requests.
//!
//! `object_storage` opens the bucket and says what a failed request means. Requests are retried here, because the time for
//! which one may fail depends on the progress of the others.

pub(crate) mod keys;
mod listing;
pub(crate) mod markers;
pub(crate) mod retry;

use std::{
    path::Path as FilePath,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::HeaderMap;
use object_storage::{Access, Bucket, Identity, OpenError};
pub(crate) use object_storage::{EtagIsNoDigest, RequestError};
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore as _,
    aws::AmazonS3,
    list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore as _},
    path::Path,
};
use reqwest::Certificate;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::{
    cli::Options,
    fault::{Cause, Fault},
    location::Location,
};
use listing::Listing;
use retry::Backoff;

/// Attempts of a request that a transfer can do without.
const OPTIONAL_ATTEMPTS: u32 = 4;

/// One bucket.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) s3: Arc<AmazonS3>,
    /// For messages: `s3://models at http://minio:9000`.
    name: String,
    region: String,
    identity: Identity,
    /// For messages: the field of the user's object that describes the store.
    fields: String,
    patience: Duration,
    /// When the store last sent a byte, on any connection.
    progress: Arc<Mutex<Instant>>,
    /// Whether the store has answered a request with success.
    answered: Arc<AtomicBool>,
    failures: Arc<Failures>,
}

impl Store {
    /// Sends no request. `headers` are added to each request for an object.
    pub(crate) fn open(location: &Location, options: &Options, headers: HeaderMap) -> Result<Self, Fault> {
        let access = Access {
            addressing: options.addressing,
            stall: Duration::from_secs(options.stall_seconds),
            authorities: options
                .ca_file
                .as_deref()
                .map_or(Ok(Vec::new()), |file| authorities(file, &options.fields))?,
            headers,
            keys: None,
        };
        let Bucket { s3, name, region, identity, answered } = Bucket::open(&location.bucket, access)
            .map_err(|error| match error {
                OpenError::Usage(why) => Fault::new(Cause::Usage, why),
                OpenError::Credentials(why) => Fault::new(Cause::Unauthorized, why),
            })?;
        Ok(Self {
            s3,
            name,
            region,
            identity,
            fields: options.fields.clone(),
            patience: options.patience(),
            progress: Arc::new(Mutex::new(Instant::now())),
            answered,
            failures: Arc::default(),
        })
    }

    /// All objects below a folder of the bucket.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>, Fault> {
        let folder = Path::parse(folder).map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
        let all = || async {
            let mut listing = Listing::default();
            let mut next = None;
            loop {
                next = listing.add(self.page(&folder, next, None).await?)?;
                if next.is_none() {
                    return Ok(listing.objects);
                }
            }
        };
        self.retried("list", all).await
    }

    /// The first object of the listing of a folder.
    pub(crate) async fn first_of(&self, folder: &Path) -> Result<Option<ObjectMeta>, Fault> {
        let first = || async {
            let mut listing = Listing::default();
            listing.add(self.page(folder, None, Some(1)).await?)?;
            Ok(listing.objects.into_iter().next())
        };
        self.retried("list", first).await
    }

    /// One page of the listing of a folder: the first, or the one that a token stands for.
    async fn page(
        &self,
        folder: &Path,
        page_token: Option<String>,
        max_keys: Option<usize>,
    ) -> Result<PaginatedListResult, RequestError> {
        let prefix =
            Some(folder.as_ref()).filter(|folder| !folder.is_empty()).map(|folder| format!("{folder}/"));
        let options = PaginatedListOptions { page_token, max_keys, ..PaginatedListOptions::default() };
        let page = self.s3.list_paginated(prefix.as_deref(), options).await;
        page.map_err(|error| RequestError::of(&error))
    }

    /// The metadata of an object, `None` if there is no such object.
    pub(crate) async fn head(&self, key: &Path) -> Result<Option<GetResult>, Fault> {
        self.retried(key.as_ref(), || self.head_once(key)).await
    }

    /// The metadata of an object, `None` also if the store refuses the request.
    pub(crate) async fn permitted_head(&self, key: &Path) -> Result<Option<GetResult>, Fault> {
        let head = || async {
            match self.head_once(key).await {
                Err(RequestError::Unauthorized(_) | RequestError::Refused(_)) => Ok(None),
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
                Err(error) => attempts.failed(error, key.as_ref()).await.ok()?,
            }
        }
        None
    }

    async fn head_once(&self, key: &Path) -> Result<Option<GetResult>, RequestError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.s3.get_opts(key, options).await.map_err(|error| RequestError::of(&error)) {
            Ok(found) => Ok(Some(found)),
            Err(RequestError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Repeats a request until it succeeds, fails with a permanent error, or the store has been silent for the whole patience.
    pub(crate) async fn retried<T, F>(&self, what: &str, mut request: impl FnMut() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let mut attempts = self.attempts();
        loop {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(error) => attempts.failed(error, what).await?,
            }
        }
    }

    /// The attempts of one request, or of the requests for one range.
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        Attempts { store: self, backoff: Backoff::new(self.patience), began: Instant::now(), malformed: 0 }
    }

    /// Completes only if the store has answered no request with success within this time.
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

    /// Records that the store has sent or accepted bytes.
    pub(crate) fn progressed(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last_progress(&self) -> Instant {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts failures without progress, waits between them, and ends with the patience.
///
/// Progress on any connection counts, because it shows that the store works, and requests wait for each other.
#[derive(Debug)]
pub(crate) struct Attempts<'s> {
    store: &'s Store,
    backoff: Backoff,
    began: Instant,
    malformed: u32,
}

/// Malformed answers tolerated per request.
const MALFORMED_ANSWERS: u32 = 4;

impl Attempts<'_> {
    /// Records that this request has made progress: the waits begin short again.
    pub(crate) fn progressed(&mut self) {
        self.backoff.reset();
    }

    /// Waits before the next attempt, or returns the reason why there is none.
    pub(crate) async fn failed(&mut self, error: RequestError, what: &str) -> Result<(), Fault> {
        let Store { name: store, region: own, identity, fields, .. } = self.store;
        let (cause, message) = match error {
            RequestError::Transient(why) => return self.wait(&why, what).await,
            RequestError::UnknownAuthority(why) => {
                let why = format!("{why}: name it in {fields}.caSecretName");
                return self.wait(&why, what).await;
            }
            RequestError::MalformedAnswer(why) => {
                self.malformed += 1;
                if self.malformed <= MALFORMED_ANSWERS {
                    return self.wait(&why, what).await;
                }
                (Cause::Checksum, format!("{store}, {what}: {why}"))
            }
            RequestError::Unauthorized(why) => {
                let (refused, fix) = (identity.refused(), identity.fix(fields));
                (Cause::Unauthorized, format!("{store} {refused} ({why}): {fix}"))
            }
            RequestError::CredentialsUnavailable(why) => {
                (Cause::Unauthorized, format!("no credentials for {store}: {why}"))
            }
            RequestError::ClockSkew(why) => {
                let message =
                    format!("{store} refused the time of the request ({why}): correct the clock of the node");
                (Cause::Unauthorized, message)
            }
            RequestError::Missing(why) => {
                (Cause::NotFound, format!("{store} does not have it ({why}): {what}"))
            }
            RequestError::NoBucket => {
                let message = format!("{store}: there is no such bucket: create it, or correct its name");
                (Cause::NotFound, message)
            }
            RequestError::Changed => {
                (Cause::Changed, format!("{store}, {what}: it was changed while it was read"))
            }
            RequestError::OtherRegion { region, why } => {
                let message = if region == *own {
                    format!("{store} refused to answer ({why}), although region {region} is right: {what}")
                } else {
                    format!(
                        "{store}: the bucket is in region {region}, not in {own} ({why}): set \
                         {fields}.region (AWS_REGION) to {region}, and the endpoint, if any, to one there"
                    )
                };
                (Cause::Unreachable, message)
            }
            RequestError::Redirected { to, why } => {
                let to = to.map_or(String::new(), |to| format!(" to {to}"));
                let message = format!(
                    "{store} redirects{to} ({why}), and redirects are not followed: correct \
                     {fields}.endpoint (AWS_ENDPOINT_URL)"
                );
                (Cause::Unreachable, message)
            }
            RequestError::PathRefused(why) => {
                let message = format!(
                    "{store} accepts only virtual-hosted requests ({why}): set {fields}.addressing to \
                     VirtualHosted (--addressing=virtual-hosted)"
                );
                (Cause::Unreachable, message)
            }
            RequestError::Refused(why) => {
                (Cause::Unreachable, format!("{store} refused to answer ({why}): {what}"))
            }
            RequestError::LargeListing(what) => {
                let message = format!("{store} has {what} below the prefix: name the folder of one model");
                (Cause::NotFound, message)
            }
            RequestError::InvalidKey(why) => (Cause::NotFound, format!("{store}: {why}")),
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
fn authorities(file: &FilePath, fields: &str) -> Result<Vec<Certificate>, Fault> {
    let unusable = |why: String| {
        let file = file.display();
        let fix = format!("give the Secret of {fields}.caSecretName a key ca.crt with certificates in PEM");
        Fault::new(Cause::Unreachable, format!("no authority can be read from {file} ({why}): {fix}"))
    };
    object_storage::authorities(file).map_err(unusable)
}

/// Logs failures of requests, at most one line in a few seconds, because many requests fail for one reason.
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

    /// The reason of the last failure.
    fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }
}
