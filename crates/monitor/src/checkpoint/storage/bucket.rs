//! Listings of a bucket, page by page.

use object_storage::{Bucket, OnlyNames, PAGE};

use super::{Listing, is_name};

/// A page of a monitor's own objects has names alone.
const NAMES: OnlyNames = OnlyNames { is_name };
/// All that can be removed by its key.
pub(super) const ANY: OnlyNames = OnlyNames { is_name: |name| !name.is_empty() };
/// Several times the objects of the largest state. What is left is removed by the next attempt.
pub(super) const MOST_PAGES_REMOVED: usize = 1_000;

/// Why there is no listing.
pub(super) enum Refused {
    Request(object_store::Error),
    /// More than the limit.
    Large(String),
}

/// What is directly below the prefix, which ends with a slash.
pub(super) async fn list(bucket: &Bucket, prefix: &str, most: usize) -> Result<Listing, Refused> {
    // A store may give less than a page.
    let most_pages = 2 * most.div_ceil(PAGE);
    let mut listing = Listing::default();
    let mut token = None;
    for _ in 0..most_pages {
        let page = bucket.names(prefix, token, NAMES).await.map_err(Refused::Request)?;
        let name = |key: &object_store::path::Path| key.filename().unwrap_or_default().to_owned();
        listing.folders.extend(page.found.common_prefixes.iter().map(name));
        let files = page.found.objects.iter();
        listing.files.extend(files.map(|object| (name(&object.location), object.last_modified.into())));
        if listing.odd.is_empty() {
            listing.odd.extend(page.odd);
        }
        if listing.folders.len().max(listing.files.len()) > most {
            return Err(Refused::Large(format!("more than {most} names")));
        }
        token = page.next;
        if token.is_none() {
            return Ok(listing);
        }
    }
    Err(Refused::Large(format!("more than {most_pages} pages of names")))
}
