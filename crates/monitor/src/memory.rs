//! `load-memory`: loads a vector collection into a folder before the worker starts.
//!
//! A collection that does not exist or has another dimension is an error and is not retried. Requests to a store that
//! does not answer are retried for a while; the next container of the pod continues after the last complete page.

use std::{io, path::PathBuf, time::Duration};

use api::monitor::ExitCode;
use directory::space::Volume;
use tracing::info;

use crate::{
    checkpoint::{restore::MORE_SPACE, storage::is_full},
    fault::Fault,
    retry::retry_transient,
};
use folder::{Description, Folder};
use records::Collection;
use store::{PageError, Store};

pub(crate) mod folder;
pub(crate) mod records;
pub(crate) mod store;

/// Bytes of vectors in one page, and records.
const PAGE_BYTES: u64 = 512 << 10;
const MOST_RECORDS: u64 = 256;
/// Pages with less than an eighth of the records that were asked for, of which a store has few. A store could answer for ever
/// with one record.
const MOST_SHORT_PAGES: u64 = 1_000;
/// A number of a vector as JSON, and what a record has beside its vector.
const NUMBER_BYTES: u64 = 12;
const RECORD_BYTES: u64 = 512;

/// What is to be loaded.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) endpoint: String,
    pub(crate) key: Option<String>,
    pub(crate) collection: String,
    pub(crate) dim: u64,
    pub(crate) folder: PathBuf,
    /// For how long requests to a store that does not answer are retried.
    pub(crate) patience: Duration,
    /// Limit for the bytes of the file of records. A store is not trusted and could return pages without end.
    pub(crate) most_bytes: u64,
    /// A folder on the disk of the node, if that of the memory is on it.
    pub(crate) on_node: PathBuf,
}

pub(crate) async fn load(wanted: &Wanted) -> Result<(), Fault> {
    let folder = Folder::new(&wanted.folder);
    if folder.is_whole() {
        info!("the memory is there already");
        return Ok(());
    }
    let (endpoint, name) = (&wanted.endpoint, &wanted.collection);
    let store =
        retry_transient(wanted.patience, async || Store::find(endpoint, wanted.key.clone()).await).await?;
    let collection = retry_transient(wanted.patience, async || store.collection(name).await).await?;
    check(&collection, wanted)?;
    let unwritable = |error: io::Error| of_folder(wanted, &error);
    let mut progress = folder.progress(&collection).map_err(unwritable)?;
    let volume = Volume::of(&wanted.folder, &wanted.on_node, MORE_SPACE).map_err(unwritable)?;
    let (mut limit, mut short_pages) = (records_of_a_page(wanted.dim), 0);
    loop {
        if progress.bytes > wanted.most_bytes {
            let message = format!(
                "the records of the collection {name:?} have more than {} bytes: choose a smaller collection",
                wanted.most_bytes
            );
            return Err(Fault::new(ExitCode::OutOfSpace, message));
        }
        let from = (progress.count, progress.next.as_ref());
        let read =
            retry_transient(wanted.patience, async || match store.page(&collection, from, limit).await {
                Ok(page) => Ok(Some(page)),
                Err(PageError::TooLarge) => Ok(None),
                Err(PageError::Fault(fault)) => Err(fault),
            });
        let Some(page) = read.await? else {
            if limit == 1 {
                let message = format!(
                    "a record of the collection {name:?} is larger than {} bytes: make it smaller",
                    store::LARGEST_ANSWER
                );
                return Err(Fault::new(ExitCode::StoreUnreachable, message));
            }
            limit /= 2;
            continue;
        };
        if let Some(other) = page.records.iter().find(|record| record.embedding.len() as u64 != wanted.dim) {
            return Err(mismatch(wanted, other.embedding.len() as u64));
        }
        short_pages += u64::from(page.records.len() < limit / 8);
        let is_repeated = page.records.is_empty() || page.next == progress.next;
        if page.next.is_some() && (is_repeated || short_pages > MOST_SHORT_PAGES) {
            let message = format!(
                "{} did not answer with the next records of the collection {name:?}: its pages do not end",
                store.endpoint()
            );
            return Err(Fault::new(ExitCode::StoreUnreachable, message));
        }
        volume.admit(store::LARGEST_ANSWER as u64).map_err(unwritable)?;
        progress = folder.append(progress, &page).map_err(unwritable)?;
        if page.next.is_none() {
            break;
        }
    }
    let description = Description { collection: name.clone(), dim: wanted.dim, count: progress.count };
    folder.finish(&description).map_err(unwritable)?;
    info!(collection = %name, records = description.count, "the memory is loaded");
    Ok(())
}

fn check(collection: &Collection, wanted: &Wanted) -> Result<(), Fault> {
    match collection.dim {
        Some(dim) if dim != wanted.dim => Err(mismatch(wanted, dim)),
        Some(_) | None => Ok(()),
    }
}

fn mismatch(wanted: &Wanted, found: u64) -> Fault {
    let message = format!(
        "the vectors of the collection {:?} have {found} dimensions, and memoryConfig.dim is {}",
        wanted.collection, wanted.dim
    );
    Fault::new(ExitCode::DimMismatch, message)
}

fn of_folder(wanted: &Wanted, error: &io::Error) -> Fault {
    let code = if is_full(error.kind()) { ExitCode::OutOfSpace } else { ExitCode::Usage };
    Fault::new(code, format!("failed to write into {}: {error}", wanted.folder.display()))
}

fn records_of_a_page(dim: u64) -> usize {
    let of_record = dim.saturating_mul(NUMBER_BYTES).saturating_add(RECORD_BYTES);
    usize::try_from((PAGE_BYTES / of_record).clamp(1, MOST_RECORDS)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_half_a_mebibyte_whatever_the_dimension() {
        assert_eq!([1, 1_536, 65_536].map(records_of_a_page), [256, 27, 1]);
    }
}
