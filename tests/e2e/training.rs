//! TrainingJob on simulated nodes: the real controller with its own rights, and simulated pods.

mod lifecycle;
