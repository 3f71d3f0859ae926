//! Objects that stand for empty folders: they are empty, and their keys end with a slash, which object_store removes from
//! the keys of a listing.

use object_store::path::Path as Key;

use crate::{fault::Fault, store::Store};

/// The key with a slash at its end.
pub(crate) fn marker(folder: &Key) -> Key {
    folder.clone().join("")
}

/// Whether the object that is listed as `key` stands for a folder. Only then is it also in the listing of that folder. Its key
/// with a slash is the first there.
pub(crate) async fn is_marker(store: &Store, key: &Key) -> Result<bool, Fault> {
    Ok(store.first_of(key).await?.is_some_and(|first| first.location == *key))
}
