//! What users write: the four kinds with their validation rules and columns, and the names that everything
//! else shares (labels, annotations, conditions, reasons, loader exit codes, the table of controllers).
//!
//! One file per kind; what the kinds share sits in files named for what they hold. `crds` turns the types into
//! the manifests of `deploy/crds`.
//!
//! This crate must not pull an async runtime, an HTTP stack or the Kubernetes client, must not read the clock or
//! the environment, and decides nothing: a controller's behaviour lives in the controller.

#![forbid(unsafe_code)]
#![expect(unreachable_pub, reason = "KubeSchema copies every struct, with its `pub`, into a function")]

pub mod aidispatcher;
pub mod aiinference;
pub mod aiscaler;
pub mod conditions;
pub mod controllers;
pub mod crds;
pub mod labels;
pub mod loader;
pub mod pods;
pub mod reasons;
pub mod source;
pub mod trainingjob;

mod rules;
mod schema;

#[cfg(test)]
mod round_trip;
