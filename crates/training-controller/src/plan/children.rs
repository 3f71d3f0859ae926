//! The children of a TrainingJob, as they are created. Pure.

pub(crate) mod attempt_job;
pub(crate) mod claim;
pub(crate) mod metadata;
pub(crate) mod mitigation;
pub(crate) mod pod;
pub(crate) mod service;
mod template;
pub(crate) mod upload_job;
