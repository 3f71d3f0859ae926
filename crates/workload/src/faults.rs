//! What is wrong with pods, and what follows from it.
//!
//! - `container.rs`: why a container does not start or keeps ending.
//! - `loader.rs`: why a model or a memory is not loaded.
//! - `crashes.rs`: why an engine crashed, by its log.
//! - `evictions.rs`: pods that were evicted or rejected.
//! - `event.rs`: events, and why a scheduled pod does not start.
//! - `gpu.rs`: how many GPUs are free, and why a pod finds none.
//! - `unplaced.rs`: why a pod has no node.
//! - `refused_pods.rs`: which field lets a pod be created that was refused.
//! - `quota.rs`: what a ResourceQuota lacks.
//! - `facts.rs`: since when a fact has been true.
//! - `stranded.rs`: which pods on lost nodes are replaced, and when.
//! - `gpu_faults.rs`: the same for errors of GPUs.
//! - `pace.rs`: how fast pods are replaced.
//! - `migrations.rs`: keeps deletions until a status records them.

pub mod container;
pub mod crashes;
pub mod event;
pub mod evictions;
pub mod facts;
pub mod gpu;
pub mod gpu_faults;
pub mod loader;
pub mod migrations;
pub mod pace;
pub mod quota;
pub mod refused_pods;
pub mod stranded;
pub mod unplaced;
