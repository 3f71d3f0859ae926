//! AIInference on real nodes: models from their sources, slow and disobedient engines, rollouts, lost nodes, and rights.

mod confinement;
mod engines;
mod failure;
mod rollouts;
mod sources;
mod traffic;
mod warmup;
