//! What the kubelet starts in the container of an engine: the preStop hook and the liveness probe.

pub(crate) mod alive;
pub(crate) mod pre_stop;
