//! ModelEvaluation on simulated nodes: the real controllers with their own rights, and runs that invent their counts.

mod faults;
mod lifecycle;
mod pipeline;
mod uploads;
