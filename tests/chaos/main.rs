//! The real controller on a real control plane, and what fails between them: the API server, etcd's memory of the past,
//! certificates, tokens. Every test breaks a cluster of its own.
//!
//! What the runtime promises about each fault is proven against a scripted server in `crates/runtime/tests/promises`;
//! here Kubernetes itself is the one who fails.

mod api_server;
mod certificates;
mod defaults;
mod etcd;
mod given;
mod tokens;
