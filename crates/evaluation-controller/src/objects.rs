//! Single objects, as caches show them and as they are written.

pub(crate) mod inference;
pub(crate) mod job_view;
