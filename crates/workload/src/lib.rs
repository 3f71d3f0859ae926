//! Pods, nodes, claims and GPUs as controllers see and render them.
//!
//! ```text
//!  seen:      pod, node, claim, deployment, event narrow views, decoded from what a watch delivers
//!  judged:    container, loader, crashes, event  why a pod does not start or stay
//!             claim, evictions, gpu, quota       what fits where, what a quota lacks
//!             lasting                            since when something is true
//!             stranded, pace, departures         which pods leave lost nodes, how fast, and which have left
//!  repeated:  redaction                          texts of others, without what looks like a secret
//!  rendered:  template, kept_template, name      restricted pod templates, what is kept of them, names of children
//!             revision                           which recorded template a spec gets
//!             digest                             short names of content
//! ```
//!
//! No client, no cache of objects, no clock, no environment. It knows no kind of this project, only Kubernetes' own kinds
//! and the field types that the kinds share (`api::pods`). Controllers own conditions, retries and every decision.
//!
//! All of it is pure but five memories, which controllers own and pass the time to: `node::Losses`, `pace::Pace`,
//! `departures::Departures`, `lasting::Lasting` and `crashes::Crashes`. Each is bounded, and may begin anew.

#![forbid(unsafe_code)]

use std::time::Duration;

pub mod amounts;
pub mod claim;
pub mod container;
pub mod crashes;
pub mod departures;
pub mod deployment;
pub mod digest;
pub mod event;
pub mod evictions;
pub mod gpu;
pub mod kept_template;
pub mod lasting;
pub mod loader;
pub mod name;
pub mod node;
pub mod pace;
pub mod pod;
pub mod quota;
pub mod redaction;
pub mod revision;
pub mod stranded;
pub mod template;
pub mod time;

mod metadata;

/// What is wrong now, if anything is, and when that may be different although no object changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    pub cause: Option<Cause>,
    pub look_again: Option<Duration>,
}

/// What is wrong: a reason of `api::reasons`, and a message that names the object and the fix.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
}
