//! Requests to one source, a store or a hub: their retries, and what it means when there are no more.
//!
//! Requests are retried here, because the time for which one may fail depends on the progress of the others.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use object_storage::{Identity, RequestError};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::retry::Backoff;
use crate::fault::{Cause, Fault, visitor::Visitor};

/// One source, and how it behaves.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// For messages: `s3://models at http://minio:9000`.
    name: String,
    side: Side,
    /// For messages: the field of the user's object that describes the store.
    fields: String,
    patience: Duration,
    /// When the source last sent a byte, on any connection.
    progress: Arc<Mutex<Instant>>,
    /// Whether the source has answered a request with success.
    answered: Arc<AtomicBool>,
    failures: Arc<Failures>,
}

/// What a user can do about a refusal.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    Store { region: String, identity: Identity },
    Hub(Visitor),
}

impl Requests {
    pub(crate) fn new(
        name: String,
        side: Side,
        fields: String,
        patience: Duration,
        answered: Arc<AtomicBool>,
    ) -> Self {
        let progress = Arc::new(Mutex::new(Instant::now()));
        Self { name, side, fields, patience, progress, answered, failures: Arc::default() }
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
        Attempts { requests: self, backoff: Backoff::new(self.patience), began: Instant::now(), malformed: 0 }
    }

    /// Completes only if the store has answered no request with success within this time.
    pub(crate) async fn silence(&self, within: Option<Duration>) -> Fault {
        let Some(within) = within else { return std::future::pending().await };
        sleep(within).await;
        if self.answered.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let (source, seconds) = (&self.name, within.as_secs());
        let why = self.failures.last().unwrap_or_else(|| "no answer".to_owned());
        Fault::new(Cause::Unreachable, format!("{source} has not answered for {seconds} s ({why})"))
    }

    /// Records that the store has sent or accepted bytes.
    pub(crate) fn progressed(&self) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last_progress(&self) -> Instant {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a request is not sent again.
    fn fault(&self, error: RequestError, what: &str) -> Fault {
        let Self { name, side, fields, .. } = self;
        match side {
            Side::Store { region, identity } => of_store(error, what, name, (region, identity), fields),
            Side::Hub(visitor) => visitor.fault(error, what, name, fields),
        }
    }
}

fn of_store(
    error: RequestError,
    what: &str,
    store: &str,
    (own, identity): (&str, &Identity),
    fields: &str,
) -> Fault {
    let (cause, message) = match error {
        RequestError::Transient(why)
        | RequestError::UnknownAuthority(why)
        | RequestError::MalformedAnswer(why) => (Cause::Checksum, format!("{store}, {what}: {why}")),
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
        RequestError::Missing(why) => (Cause::NotFound, format!("{store} does not have it ({why}): {what}")),
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
    Fault::new(cause, message)
}

/// Counts failures without progress, waits between them, and ends with the patience.
///
/// Progress on any connection counts, because it shows that the source works, and requests wait for each other.
#[derive(Debug)]
pub(crate) struct Attempts<'s> {
    requests: &'s Requests,
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
        let why = match error {
            RequestError::Transient(why) => return self.wait(&why, what).await,
            RequestError::UnknownAuthority(why) => {
                let why = format!("{why}: name it in {}.caSecretName", self.requests.fields);
                return self.wait(&why, what).await;
            }
            RequestError::MalformedAnswer(why) if self.malformed < MALFORMED_ANSWERS => {
                self.malformed += 1;
                return self.wait(&why, what).await;
            }
            permanent => permanent,
        };
        Err(self.requests.fault(why, what))
    }

    /// Waits before the next attempt, unless the store has been silent for the whole patience.
    async fn wait(&mut self, why: &str, what: &str) -> Result<(), Fault> {
        let source = &self.requests.name;
        let silence = self.requests.last_progress().max(self.began).elapsed();
        let Some(step) = self.backoff.next(silence, fastrand::f64()) else {
            let seconds = silence.as_secs();
            let message = format!("{source} has not answered for {seconds} s ({why}): {what}");
            return Err(Fault::new(Cause::Unreachable, message));
        };
        self.requests.failures.record(why, step);
        sleep(step).await;
        Ok(())
    }
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
