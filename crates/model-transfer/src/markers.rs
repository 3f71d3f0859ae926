//! Objects that stand for empty folders: without a byte, and with a slash at the end of their keys, which object_store
//! leaves out of what it lists.

use object_store::path::Path as Key;

use crate::{fault::Fault, store::Store};

/// The key with a slash at its end.
pub(crate) fn marker(folder: &Key) -> Key {
    folder.clone().join("")
}

/// Whether what is listed as `key` stands for a folder: only then is it below itself as well.
pub(crate) async fn is_marker(store: &Store, key: &Key) -> Result<bool, Fault> {
    Ok(store.list(key.as_ref()).await?.iter().any(|found| found.location == *key))
}
