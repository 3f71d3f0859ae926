//! TrainingJob on simulated nodes: the real controller with its own rights, and simulated pods.

mod bad_days;
mod dependencies;
mod ends;
mod labels;
mod lifecycle;
mod progress;
mod uploads;
