//! TrainingJob on simulated nodes: the real controller with its own rights, and simulated pods.

mod dependencies;
mod ends;
mod lifecycle;
