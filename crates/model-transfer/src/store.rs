//! The object store: one bucket, configured by the environment and the options, and the retries of its requests.
//!
//! `object_storage` opens the bucket and says what a failed request means; `requests` retries it.

pub(crate) mod keys;
pub(crate) mod listing;
pub(crate) mod markers;
pub(crate) mod requests;
pub(crate) mod retry;

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use object_storage::{Access, Bucket, OpenError};
pub(crate) use object_storage::{EtagIsNoDigest, RequestError};
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore as _,
    aws::AmazonS3,
    list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore as _},
    path::Path,
};
use reqwest::Certificate;

use crate::{
    cli::Options,
    fault::{Cause, Fault},
    location::Location,
};
use listing::Listing;
use requests::{Requests, Side};

/// Attempts of a request that a transfer can do without.
const OPTIONAL_ATTEMPTS: u32 = 4;

/// One bucket.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) s3: Arc<AmazonS3>,
    pub(crate) requests: Requests,
}

impl Store {
    /// Sends no request. `headers` are added to each request for an object.
    pub(crate) fn open(location: &Location, options: &Options, headers: HeaderMap) -> Result<Self, Fault> {
        let access = Access {
            addressing: options.addressing,
            stall: Duration::from_secs(options.stall_seconds),
            authorities: authorities(options)?,
            headers,
            keys: None,
        };
        let Bucket { s3, name, region, identity, answered } = Bucket::open(&location.bucket, access)
            .map_err(|error| match error {
                OpenError::Usage(why) => Fault::new(Cause::Usage, why),
                OpenError::Credentials(why) => Fault::new(Cause::Unauthorized, why),
            })?;
        let side = Side::Store { region, identity };
        let requests = Requests::new(name, side, options.fields.clone(), options.patience(), answered);
        Ok(Self { s3, requests })
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
        self.requests.retried("list", all).await
    }

    /// The first object of the listing of a folder.
    pub(crate) async fn first_of(&self, folder: &Path) -> Result<Option<ObjectMeta>, Fault> {
        let first = || async {
            let mut listing = Listing::default();
            listing.add(self.page(folder, None, Some(1)).await?)?;
            Ok(listing.objects.into_iter().next())
        };
        self.requests.retried("list", first).await
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
        self.requests.retried(key.as_ref(), || self.head_once(key)).await
    }

    /// The metadata of an object, `None` also if the store refuses the request.
    pub(crate) async fn permitted_head(&self, key: &Path) -> Result<Option<GetResult>, Fault> {
        let head = || async {
            match self.head_once(key).await {
                Err(RequestError::Unauthorized(_) | RequestError::Refused(_)) => Ok(None),
                answer => answer,
            }
        };
        self.requests.retried(key.as_ref(), head).await
    }

    /// The metadata of an object, `None` also if the store does not give it within a few attempts.
    pub(crate) async fn optional_head(&self, key: &Path) -> Option<GetResult> {
        let mut attempts = self.requests.attempts();
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
}

/// The certificates of `--ca-file`.
pub(crate) fn authorities(options: &Options) -> Result<Vec<Certificate>, Fault> {
    let Some(file) = options.ca_file.as_deref() else { return Ok(Vec::new()) };
    let unusable = |why: String| {
        let (file, fields) = (file.display(), &options.fields);
        let fix = format!("give the Secret of {fields}.caSecretName a key ca.crt with certificates in PEM");
        Fault::new(Cause::Unreachable, format!("no authority can be read from {file} ({why}): {fix}"))
    };
    object_storage::authorities(file).map_err(unusable)
}
