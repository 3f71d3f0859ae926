//! AIInference on real nodes: models from their sources and hubs, slow and disobedient engines, rollouts, lost nodes, and rights.

mod confinement;
mod engines;
mod failure;
mod hubs;
mod rollouts;
mod sources;
mod traffic;
mod warmup;
