//! Templates of pods and of other children, and what Deployments record of them.
//!
//! - `template.rs`: parts of a restricted pod.
//! - `options.rs`: what the pod options of a spec make of a pod.
//! - `deployment.rs`: narrow views of Deployments and ReplicaSets.
//! - `rendered.rs`: a child as JSON with the fields that its owner sets alone.
//! - `revision.rs`: which recorded template a spec gets.
//! - `pinned_template.rs`: compares a recorded template with a newer rendering.
//! - `stored_template.rs`: hash, token and record of the template that the API server has stored.

pub mod deployment;
pub mod options;
pub mod pinned_template;
pub mod rendered;
pub mod revision;
pub(crate) mod stored_template;
pub mod template;
