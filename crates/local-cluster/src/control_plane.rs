//! What the control plane of a cluster consists of: command lines, credentials, and the provisioner of its StorageClass.

pub(crate) mod command_lines;
pub(crate) mod credentials;
pub mod storage;
