//! What every source of load serves: the gRPC stream of snapshots, and health and metrics for probes and Prometheus.
//!
//! ```text
//!  snapshot ─▶ stream: Hub ─┬─▶ server: gRPC (mTLS by tls) ─▶ subscribers
//!                           └─▶ admin: /livez, /readyz, /metrics
//! ```
//!
//! Clients may be slow, hostile or unreachable.
//!
//! **Invariant:** it measures nothing and does not depend on the kind of source. The cost of each client is bounded.
//!
//! Files:
//!
//! - `stream.rs`: pushes snapshots to subscribers.
//! - `server.rs`: the gRPC connections.
//! - `tls.rs`: certificates.
//! - `admin.rs`: answers probes, Prometheus and further pages of a program.
//! - `places.rs`: the places for connections; when all are taken, a new client gets the place of an older client.
//! - `moment.rs`: reads the clocks.

#![forbid(unsafe_code)]

pub mod admin;
pub mod moment;
mod places;
pub mod server;
pub mod stream;
pub mod tls;
