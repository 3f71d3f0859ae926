//! Objects that stand for empty folders: without a byte, and with a slash at the end of their keys, which object_store
//! leaves out of what it lists.

use object_store::path::Path as Key;

use crate::{fault::Fault, store::Store};

/// The key with a slash at its end.
pub(crate) fn marker(folder: &Key) -> Key {
    folder.clone().join("")
}

/// Whether the object that is listed as `key` stands for a folder: only then is it also in the listing of that folder,
/// where its key with a slash is the first.
pub(crate) async fn is_marker(store: &Store, key: &Key) -> Result<bool, Fault> {
    Ok(store.first_of(key).await?.is_some_and(|first| first.location == *key))
}
