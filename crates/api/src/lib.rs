//! The API of the six kinds, and the names that several programs share.
//!
//! The types have validation rules, print columns and docs. `crds` generates the manifests of `deploy/crds` from them.
//!
//! **Invariant:** no async runtime, no HTTP client, no clock, no environment, and no decisions of controllers. The
//! crate compiles without tokio.
//!
//! Files:
//!
//! - `aiinference.rs`: AIInference, and the flags of each engine that only the controller may set.
//! - `aiinference/source.rs`: where a model is. `aiinference/status.rs`: the status of an AIInference.
//! - `aiinference/traffic.rs`: routes and the canary. `aiinference/analysis.rs`: what its analysis counts and decides.
//! - `aiinference/endpoint.rs`: InferenceEndpoint, which is an AIInference with an autoscaler.
//! - `aiinference/evaluation.rs`: ModelEvaluation, which compares two models on temporary AIInferences.
//! - `aiinference/evaluation/status.rs`: the status of a ModelEvaluation.
//! - `trainingjob.rs`: TrainingJob, its mutable fields, and the flags of the trainer that only the controller may set.
//! - `trainingjob/status.rs`: the status of a TrainingJob.
//! - `aidispatcher.rs`: AIDispatcher.
//! - `aiscaler.rs`: AIScaler.
//! - `pods.rs`: the pod options of all kinds.
//! - `pods/scheduling.rs`: on which nodes pods run.
//! - `pods/volumes.rs`: volumes that users add.
//! - `pods/store.rs`: how an object store is addressed, and uploads of results.
//! - `schema.rs`: schemas that cannot be derived.
//! - `schema/rules.rs`: CEL rules of several fields, and their messages.
//! - `crds.rs`: the custom resource definitions.
//! - `crds/compatibility.rs`: compares them with `released`, which has `deploy/crds` of the last release.
//! - `crds/round_trip.rs`: the Rust types and the published schema are equivalent.
//! - `conditions.rs`: types of conditions.
//! - `reasons.rs`: reasons of conditions, events and failures.
//! - `labels.rs`: keys and values of labels and annotations.
//! - `loader.rs`: what controllers and the model loader agree on.
//! - `launcher.rs`: what the training-controller and the training-launcher agree on.
//! - `launcher/evaluator.rs`: what the evaluation-controller and the eval-runner agree on.
//! - `launcher/evaluator/limits.rs`: which test sets a harness cannot ask.
//! - `monitor.rs`: what the dispatcher-controller and the monitor agree on.
//! - `controllers.rs`: the table of controllers and programs.

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
pub mod trainingjob;

mod schema;
