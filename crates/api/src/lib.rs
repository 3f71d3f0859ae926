//! The API: the four kinds with validation rules and printer columns, and shared names (labels, annotations, conditions,
//! reasons, exit codes of the loader and the launcher, the table of controllers).
//!
//! One file per kind, and one per shared part. `crds` generates the manifests of `deploy/crds` from the types.
//!
//! No async runtime, no HTTP client, no clock, no environment, and no decisions of controllers.

#![forbid(unsafe_code)]
#![expect(unreachable_pub, reason = "KubeSchema copies every struct, with its `pub`, into a function")]

pub mod aidispatcher;
pub mod aiinference;
pub mod aiscaler;
pub mod conditions;
pub mod controllers;
pub mod crds;
pub mod labels;
pub mod launcher;
pub mod loader;
pub mod monitor;
pub mod pods;
pub mod reasons;
pub mod source;
pub mod trainingjob;

mod rules;
mod schema;

#[cfg(test)]
mod round_trip;
