//! What is done at the API server of a cluster: requests with all rights, files that are applied, waits, and its audit log.

pub(crate) mod admin_client;
pub mod audit;
pub mod install;
pub mod watch;
