//! Tests on real nodes, with kubelets, containers, probes and signals. They need Linux and root.

mod agents;
mod claims;
mod cluster;
mod controllers;
mod dispatcher;
mod evaluation;
mod hub;
mod inference;
mod pods;
mod scaling;
mod store;
mod training;
