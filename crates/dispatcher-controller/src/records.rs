//! What this process keeps in memory about pods and pools, beside the caches. A restart may lose all of it.

pub(crate) mod deleted_pods;
pub(crate) mod pools;
pub(crate) mod revisions;
pub(crate) mod tokens;
