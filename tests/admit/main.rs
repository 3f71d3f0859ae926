//! Validation, defaults and display of the kinds by the API server, without controllers.
//!
//! Only the definitions in `deploy/crds`, and the manifests of the metrics-agent, are tested. Tables pair each refused object with a similar accepted one, so that
//! rules that refuse too much fail as well as rules that refuse too little.

mod agents;
mod aidispatcher;
mod aiinference;
mod aiscaler;
mod display;
mod fixtures;
mod pods;
mod status;
mod table;
mod trainingjob;
mod upgrade;
