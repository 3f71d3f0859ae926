//! Views, faults and templates of pods, nodes, claims and GPUs, for all controllers.
//!
//! The crate uses Kubernetes' own kinds and the field types that this project's kinds share (`api::pods`), but none of
//! those kinds. Controllers own conditions, retries and writes.
//!
//! **Invariant:** no async, no client, no cache of objects, no clock, no environment. Everything is pure except six
//! bounded records in memory: `node::NodeLosses`, `gpu_faults::GpuFaults`, `pace::Pace`, `migrations::Migrations`,
//! `facts::FactTimes` and `crashes::Crashes`. Controllers own the records and pass the time. All may be empty after a
//! restart. `stored_template` keeps results of pure functions for the process, also bounded. Without them the same is
//! computed again.
//!
//! Views, decoded from watch events:
//!
//! - `pod.rs`: narrow views of pods.
//! - `node.rs`: narrow views of nodes: loss, extended resources, taints.
//! - `claim.rs`: narrow views of claims, and why a claim cannot be used.
//! - `deployment.rs`: narrow views of Deployments and ReplicaSets.
//! - `event.rs`: events, and why a scheduled pod does not start.
//! - `metadata.rs`: the parts of metadata that every view has.
//! - `amounts.rs`: amounts of extended resources of pods and nodes.
//!
//! Faults:
//!
//! - `container.rs`: why a container does not start or keeps ending.
//! - `loader.rs`: why a model or a memory is not loaded.
//! - `crashes.rs`: why an engine crashed, by its log.
//! - `evictions.rs`: pods that were evicted or rejected.
//! - `gpu.rs`: how many GPUs are free, and why a pod finds none.
//! - `quota.rs`: what a ResourceQuota lacks.
//! - `facts.rs`: since when a fact has been true.
//! - `stranded.rs`: which pods on lost nodes are replaced, and when.
//! - `gpu_faults.rs`: the same for errors of GPUs.
//! - `pace.rs`: how fast pods are replaced.
//! - `migrations.rs`: keeps deletions until a status records them.
//!
//! Children:
//!
//! - `template.rs`: parts of a restricted pod.
//! - `revision.rs`: which recorded template a spec gets.
//! - `pinned_template.rs`: compares a recorded template with a newer rendering.
//! - `stored_template.rs`: hash, token and record of the template that the API server has stored.
//! - `name.rs`: names of children.
//! - `digest.rs`: truncated SHA-256.
//! - `time.rs`: how long ago something was.

#![forbid(unsafe_code)]

use std::time::Duration;

pub mod amounts;
pub mod claim;
pub mod container;
pub mod crashes;
pub mod deployment;
pub mod digest;
pub mod event;
pub mod evictions;
pub mod facts;
pub mod gpu;
pub mod gpu_faults;
pub mod loader;
pub mod migrations;
pub mod name;
pub mod node;
pub mod pace;
pub mod pinned_template;
pub mod pod;
pub mod quota;
pub mod revision;
pub mod stranded;
pub mod template;
pub mod time;

mod metadata;
mod stored_template;

/// The present fault, if any, and when to check again even if no object changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    pub cause: Option<Cause>,
    pub requeue_after: Option<Duration>,
}

/// A reason of `api::reasons` and a message that names the object and the fix.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
}
