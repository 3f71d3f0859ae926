//! `check-store`: whether a push may be expected to work. It lists the prefix, and writes, reads and deletes a small object.
//!
//! It must not touch any other object. The object has one of the program's own names, which a pull leaves out. One that a
//! killed check has left is replaced and deleted by the next check of the same name.

use futures::StreamExt as _;
use object_store::{
    GetOptions, ObjectStore as _, ObjectStoreExt as _, PutOptions, PutPayload, path::Path as Key,
};
use tracing::warn;

use crate::{
    cli::Options,
    fault::{Cause, Fault},
    location::Location,
    push,
    store::{RequestError, Store, keys},
};

/// Reads of an object that may not have reached all machines of the store.
const READS: usize = 4;

pub(crate) async fn check_store(
    destination: &Location,
    name: &str,
    options: &Options,
) -> Result<String, Fault> {
    let store = Store::open(destination, options, http::HeaderMap::new())?;
    let folder =
        Key::parse(&destination.prefix).map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
    store.first_of(&folder).await?;
    let path = format!("{}check-{name}", keys::OWN_NAMES);
    let key = push::key(destination, &path)?;
    let content = format!("{name} {:016x}\n", fastrand::u64(..));
    let write = || async {
        let payload = PutPayload::from(content.clone());
        let written = store.s3.put_opts(&key, payload, PutOptions::default()).await;
        written.map(drop).map_err(|error| RequestError::of(&error))
    };
    store.requests.retried(&path, write).await?;
    let read = read_back(&store, &key, &path, content.as_bytes()).await;
    delete(&store, &key, &path).await?;
    read?;
    Ok(format!("{destination} takes objects and gives them back"))
}

async fn read_back(store: &Store, key: &Key, path: &str, expected: &[u8]) -> Result<(), Fault> {
    for _ in 0..READS {
        if store.requests.retried(path, || beginning_of(store, key, expected.len())).await? == expected {
            return Ok(());
        }
    }
    let message = format!("{path} was read with another content than was written: is the store a cache?");
    Err(Fault::new(Cause::Checksum, message))
}

/// At most a few bytes more than were written, whatever the store sends.
async fn beginning_of(store: &Store, key: &Key, length: usize) -> Result<Vec<u8>, RequestError> {
    let answer = store.s3.get_opts(key, GetOptions::default()).await;
    let mut chunks = answer.map_err(|error| RequestError::of(&error))?.into_stream();
    let mut text = Vec::new();
    while text.len() <= length
        && let Some(chunk) = chunks.next().await
    {
        let chunk = chunk.map_err(|error| RequestError::of(&error))?;
        text.extend(chunk.iter().take(length + 1));
    }
    text.truncate(length + 1);
    Ok(text)
}

/// A push deletes nothing, so a store that does not let the object be deleted is no fault.
async fn delete(store: &Store, key: &Key, path: &str) -> Result<(), Fault> {
    let delete = || async {
        match store.s3.delete(key).await.map_err(|error| RequestError::of(&error)) {
            Err(RequestError::Missing(_)) => Ok(()),
            Err(RequestError::Unauthorized(why) | RequestError::Refused(why)) => {
                warn!("{path} stays, because the store refuses to delete it ({why})");
                Ok(())
            }
            deleted => deleted,
        }
    };
    store.requests.retried(path, delete).await
}
