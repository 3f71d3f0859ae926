//! Views, faults and templates of pods, nodes, claims and GPUs, for all controllers.
//!
//! The crate uses Kubernetes' own kinds and the field types that this project's kinds share (`api::pods`, and `Upload` with its
//! `Artifact`), but none of those kinds. Controllers own conditions, retries and writes.
//!
//! **Invariant:** no async, no client, no cache of objects, no clock, no environment. Everything is pure except six
//! bounded records in memory: `NodeLosses`, `GpuFaults`, `Pace`, `Migrations`, `FactTimes` and `Crashes`. Controllers own
//! the records and pass the time. All may be empty after a restart. `stored_template` keeps results of pure functions for
//! the process, also bounded. Without them the same is computed again.
//!
//! - `views.rs`: what watches deliver of pods, nodes and claims.
//! - `faults.rs`: what is wrong with pods, and what follows from it.
//! - `templates.rs`: templates of pods, and what Deployments record of them.
//! - `own_account.rs`: the account of a controller, which no pod of a user may run with.
//! - `products.rs`: short names of GPU products, and the node labels that they select.
//! - `uploads.rs`: uploads of results: the container, and what its pods say.
//! - `reporting.rs`: how soon a status is written that differs only in details.
//! - `name.rs`: names of children.
//! - `digest.rs`: truncated SHA-256.
//! - `time.rs`: how long ago something was.

#![forbid(unsafe_code)]

use std::time::Duration;

pub mod digest;
pub mod faults;
pub mod name;
pub mod own_account;
pub mod products;
pub mod reporting;
pub mod templates;
pub mod time;
pub mod uploads;
pub mod views;

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
