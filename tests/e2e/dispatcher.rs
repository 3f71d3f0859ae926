//! AIDispatcher on simulated nodes: the real controller with its own rights; the tests answer for the monitors of the pods
//! (`tests::dispatcher::Monitors`).

mod disruptions;
mod faults;
mod lifecycle;
mod scaling;
mod services;
mod sources;
mod tokens;
mod writes;
