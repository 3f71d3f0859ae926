//! Tests on real nodes, with kubelets, containers, probes and signals. They need Linux and root.

mod agents;
mod claims;
mod cluster;
mod confinement;
mod controllers;
mod dispatcher;
mod engines;
mod failure;
mod memory;
mod pods;
mod rollouts;
mod scaling;
mod sources;
mod store;
mod training;
mod warmup;
