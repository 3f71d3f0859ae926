//! Whole behaviour on simulated nodes: a real control plane, our controllers as processes, pods that are played.

mod cluster;
mod inference;
mod users;
mod writes;
