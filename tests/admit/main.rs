//! What the API server refuses, takes, fills in and shows for our kinds, with no controller running.
//!
//! Everything here is done by the definitions in `deploy/crds` alone. Tables pair each refusal with its nearest valid
//! neighbour, so that a rule that refuses too much fails as well as one that refuses too little.

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
