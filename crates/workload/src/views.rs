//! Narrow views of objects, decoded from watch events.
//!
//! - `pod.rs`: pods.
//! - `node.rs`: nodes: loss, extended resources, taints.
//! - `claim.rs`: claims, and why a claim cannot be used.
//! - `job.rs`: Jobs.
//! - `metadata.rs`: the parts of metadata that every view has.
//! - `amounts.rs`: amounts of extended resources of pods and nodes.

pub mod amounts;
pub mod claim;
pub mod job;
pub(crate) mod metadata;
pub mod node;
pub mod pod;
