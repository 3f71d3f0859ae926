//! On real nodes: kubelets and containers, real bytes, real probes, real signals. Linux, as root.

mod claims;
mod cluster;
mod confinement;
mod controllers;
mod engines;
mod failure;
mod pods;
mod rollouts;
mod sources;
mod store;
mod warmup;
