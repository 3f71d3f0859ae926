//! End-to-end tests with a real control plane, the controllers as processes, and simulated nodes and pods.

mod admission;
mod agents;
mod cluster;
mod dispatcher;
mod endpoint;
mod evaluation;
mod inference;
mod monitoring;
mod scaler;
mod training;
mod users;
mod writes;
