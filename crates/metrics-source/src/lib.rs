//! What every source of load serves: the gRPC stream of snapshots, and health and metrics for probes and Prometheus.
//!
//! ```text
//!  snapshot ─▶ stream: Hub ─┬─▶ server: gRPC (mTLS by tls) ─▶ subscribers
//!                           └─▶ admin: /livez, /readyz, /metrics
//! ```
//!
//! It measures nothing and does not depend on the kind of source. Clients may be slow, hostile or unreachable: the
//! resources for each are limited.

#![forbid(unsafe_code)]

pub mod admin;
pub mod moment;
mod places;
pub mod server;
pub mod stream;
pub mod tls;
