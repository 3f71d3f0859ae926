//! Where a pull reads: a store or a hub.

use std::ops::Range;

use object_store::{GetOptions, GetRange, GetResult, ObjectStore as _, path::Path as Key};
use tokio::time::Duration;

use super::object::Object;
use crate::{
    cli::{Options, Pull},
    fault::Fault,
    hub::Hub,
    location::{Location, Source},
    store::{RequestError, Store, requests::Requests},
};

#[derive(Debug)]
pub(super) enum Origin {
    Store(Store, Location),
    Hub(Box<Hub>),
}

impl Origin {
    /// Sends no request.
    pub(super) fn open(wanted: &Pull, options: &Options) -> Result<Self, Fault> {
        match &wanted.source {
            Source::Store(location) => {
                let store = Store::open(location, options, super::checksums_wanted())?;
                Ok(Self::Store(store, location.clone()))
            }
            Source::Hub(model) => {
                Ok(Self::Hub(Box::new(Hub::open(model, wanted.hub_endpoint.as_deref(), options)?)))
            }
        }
    }

    pub(super) fn requests(&self) -> &Requests {
        match self {
            Origin::Store(store, _) => &store.requests,
            Origin::Hub(hub) => &hub.requests,
        }
    }

    pub(super) async fn silence(&self, within: Option<Duration>) -> Fault {
        self.requests().silence(within).await
    }

    /// The bytes of an object, or a range of them.
    pub(super) async fn get(
        &self,
        object: &Object,
        range: Option<Range<u64>>,
    ) -> Result<GetResult, RequestError> {
        match self {
            Origin::Store(store, _) => {
                let options = GetOptions {
                    range: range.map(GetRange::Bounded),
                    if_match: object.etag.clone(),
                    ..GetOptions::default()
                };
                let answer = store.s3.get_opts(&object.key, options).await;
                answer.map_err(|error| RequestError::of(&error))
            }
            Origin::Hub(hub) => {
                hub.get((&object.path, &object.key), range, object.size, object.etag.clone()).await
            }
        }
    }

    /// The metadata of an object, `None` if it cannot be had. The list of a hub has all that there is.
    pub(super) async fn optional_head(&self, key: &Key) -> Option<GetResult> {
        match self {
            Origin::Store(store, _) => store.optional_head(key).await,
            Origin::Hub(_) => None,
        }
    }
}
