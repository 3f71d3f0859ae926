//! Single objects: narrow views of some kinds, and what an object says by itself. Pure.

pub(crate) mod pod;
pub(crate) mod training_job;
pub(crate) mod volume_snapshot;
