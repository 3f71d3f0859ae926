//! Views, faults and templates of pods, nodes, claims and GPUs, for all controllers.
//!
//! ```text
//!  views:     pod, node, claim, deployment, event narrow views, decoded from watch events
//!  faults:    container, loader, crashes, event  why a pod does not start or keeps ending
//!             claim, evictions, gpu, quota       what is missing: volumes, GPUs, quota
//!             facts                              since when a fact has been true
//!             stranded, pace, migrations         pods on lost nodes: which are replaced, when, how fast
//!  children:  template, pinned_template, name    restricted pod templates, their records, names of children
//!             revision                           which recorded template the current spec uses
//!             stored_template                    hash, token and record of the template that the API server has
//!             digest                             truncated SHA-256
//!  basics:    amounts, metadata, time            amounts of extended resources, metadata of every view, durations
//! ```
//!
//! No client, no cache of objects, no clock, no environment. It uses Kubernetes' own kinds and the field types shared by
//! this project's kinds (`api::pods`), but none of those kinds. Controllers own conditions, retries and writes.
//!
//! Everything is pure except five bounded in-memory records, which the controllers own: `node::NodeLosses`, `pace::Pace`,
//! `migrations::Migrations`, `facts::FactTimes` and `crashes::Crashes`. All may be empty after a restart. `stored_template`
//! keeps results of pure functions, for the process; without them the same is computed again.

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
