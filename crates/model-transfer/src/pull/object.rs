//! A file of the model.

use object_store::path::Path as Key;

use crate::digest::Expected;

/// A file of the model, as the store listed it.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) key: Key,
    /// Below the folder.
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) etag: Option<String>,
    /// Time of the last change, in seconds since 1970.
    pub(super) changed: i64,
    /// Changes with the content: the ETag or, from stores that give none, the time of the last change.
    pub(super) version: String,
    pub(super) expected: Expected,
}
