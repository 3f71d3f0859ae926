//! Objects of a model as the store listed them. Data only.

use std::collections::BTreeMap;

use object_store::path::Path as Key;

use crate::digest::Expected;

/// A file of the model, as the store listed it.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) key: Key,
    /// The path below the folder.
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) etag: Option<String>,
    /// Time of the last change, in seconds since 1970.
    pub(super) changed: i64,
    /// Changes with the content: the ETag or, from stores that give none, the time of the last change.
    pub(super) version: String,
    pub(super) expected: Expected,
}

/// A model, by path below the folder.
#[derive(Debug)]
pub(super) struct Listed {
    /// Not empty.
    pub(super) files: BTreeMap<String, Object>,
    /// Folders without a file, and their versions.
    pub(super) empty_folders: BTreeMap<String, String>,
    /// Two paths that differ only in case, which are one file on some volumes.
    pub(super) case_twins: Option<(String, String)>,
    /// The list of checksums; for a source of one object, the list in the same folder.
    pub(super) sums: Option<Object>,
    /// Whether the source names an object instead of a folder.
    pub(super) is_one_object: bool,
    /// Of a hub: the commit. Empty for a store, and if the hub does not name it.
    pub(super) commit: String,
}
