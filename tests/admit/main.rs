//! What the API server makes of manifests, without controllers: validation, defaults and display of the kinds in
//! `deploy/crds`, the samples, and the manifests of the metrics-agent.
//!
//! Tables pair each refused object with a similar accepted one, so that rules that refuse too much fail as well as rules
//! that refuse too little.

mod agents;
mod aidispatcher;
mod aiinference;
mod aiscaler;
mod display;
mod fixtures;
mod inferenceendpoint;
mod manuals;
mod pods;
mod samples;
mod status;
mod table;
mod trainingjob;
mod upgrade;
