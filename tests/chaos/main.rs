//! Faults of the control plane under the real controller: the API server, etcd compaction, certificates, tokens. Every test
//! starts its own cluster.
//!
//! `crates/runtime/tests/promises` tests the runtime against a scripted API server; these tests use Kubernetes itself.

mod api_server;
mod certificates;
mod defaults;
mod etcd;
mod setup;
mod tokens;
