//! Texts of a storage, which is not trusted: each is bounded while it is read, and a large one is in memory alone.

use std::{io::Read as _, time::SystemTime};

use futures::StreamExt as _;
use object_store::{GetResult, ObjectStoreExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{Opened, REQUEST_WITHIN, Storage, of_disk, volume::open_regular};
use crate::{
    checkpoint::bounded::{LARGEST_MANIFEST, beyond_manifest, is_nested_within},
    fault::Fault,
};

/// Of a heartbeat or a claim, of which several are read at once.
const LARGEST_TEXT: u64 = 64 << 10;

/// Several times what a monitor writes.
const DEEPEST: usize = 16;

/// A text, and when it was written by the clock of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Text<T> {
    Missing,
    /// It is too large or not in the expected form: no monitor wrote it.
    Unreadable(SystemTime),
    Read(T, SystemTime),
}

impl Storage {
    /// As JSON. A text that is not in the expected form counts as missing: it was not written by a monitor.
    pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(
        &self,
        key: &str,
    ) -> Result<Option<T>, Fault> {
        Ok(match self.text(key, LARGEST_TEXT).await? {
            Text::Missing | Text::Unreadable(_) => None,
            Text::Read(parsed, _) => Some(parsed),
        })
    }

    pub(crate) async fn manifest<T: DeserializeOwned + Send + 'static>(
        &self,
        key: &str,
    ) -> Result<Text<T>, Fault> {
        self.text(key, LARGEST_MANIFEST).await
    }

    async fn text<T: DeserializeOwned + Send + 'static>(
        &self,
        key: &str,
        most: u64,
    ) -> Result<Text<T>, Fault> {
        // Before the request: a part of its answer is in memory before it is read, and the length that a store names may be
        // wrong. A volume reads and parses in one step.
        let _alone = if most > LARGEST_TEXT { self.large.acquire().await.ok() } else { None };
        match &self.place {
            Opened::Folder(_) => {
                self.on_folder(key, move |path| {
                    let Some(file) = open_regular(&path)? else { return Ok(Text::Missing) };
                    let known = file.metadata()?;
                    let mut text =
                        Vec::with_capacity(usize::try_from(known.len().min(most)).unwrap_or_default());
                    let written = known.modified()?;
                    if known.len() > most || file.take(most + 1).read_to_end(&mut text)? as u64 > most {
                        return Ok(Text::Unreadable(written));
                    }
                    Ok(parsed(&text, written))
                })
                .await
            }
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                let Some(found) = self.answered(bucket.s3.get(&key)).await? else { return Ok(Text::Missing) };
                let written = SystemTime::from(found.meta.last_modified);
                if found.meta.size > most {
                    return Ok(Text::Unreadable(written));
                }
                match timeout(REQUEST_WITHIN, bytes(found, most)).await {
                    Err(_) => Err(self.late(REQUEST_WITHIN)),
                    Ok(Err(error)) => Err(self.fault(&error)),
                    Ok(Ok(None)) => Ok(Text::Unreadable(written)),
                    Ok(Ok(Some(text))) => Ok(parsed(&text, written)),
                }
            }
        }
    }
}

/// `None`: there are more than the store has named, which are at most these.
async fn bytes(found: GetResult, most: u64) -> object_store::Result<Option<Vec<u8>>> {
    // Never grown: step by step, it would take up to three times as much.
    let named = usize::try_from(found.meta.size.min(most)).unwrap_or_default();
    let (mut chunks, mut text) = (found.into_stream(), Vec::with_capacity(named));
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        if text.len() + chunk.len() > named {
            return Ok(None);
        }
        text.extend_from_slice(&chunk);
    }
    Ok(Some(text))
}

fn parsed<T: DeserializeOwned>(text: &[u8], written: SystemTime) -> Text<T> {
    if !is_nested_within(text, DEEPEST) {
        return Text::Unreadable(written);
    }
    serde_json::from_slice(text).map_or(Text::Unreadable(written), |parsed| Text::Read(parsed, written))
}

/// The text of a manifest that can be read again.
pub(crate) fn of_manifest(manifest: &impl serde::Serialize) -> Result<Vec<u8>, Fault> {
    let text = serde_json::to_vec(manifest).unwrap_or_default();
    if text.len() as u64 <= LARGEST_MANIFEST {
        return Ok(text);
    }
    // `StateFolder::files` has counted less: a file has grown since then.
    Err(of_disk(&beyond_manifest()))
}
