//! What the store listed.

use std::collections::BTreeMap;

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

/// A model, by path below the folder.
#[derive(Debug)]
pub(super) struct Listed {
    /// Never none.
    pub(super) files: BTreeMap<String, Object>,
    /// Folders without a file, and their versions.
    pub(super) empty_folders: BTreeMap<String, String>,
    /// Two paths that are one on a volume that does not tell upper from lower case.
    pub(super) case_twins: Option<(String, String)>,
    /// The list of checksums, which for a source of one object lies beside it.
    pub(super) sums: Option<Object>,
    /// The source names an object and no folder.
    pub(super) is_one_object: bool,
}
