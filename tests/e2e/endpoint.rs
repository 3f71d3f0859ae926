//! InferenceEndpoint on simulated nodes: the real controllers with their own rights.

mod faults;
mod lifecycle;
mod replicas;
