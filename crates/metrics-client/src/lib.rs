//! Subscribes to sources of load (`proto/metrics/v1`) and keeps the latest snapshot of each.
//!
//! ```text
//!  EndpointSlices ─ discovery ─▶ set of endpoints ─▶ one task per endpoint: connect, subscribe, receive, back off
//!  static addresses ────────────▶                          │ gRPC, mTLS
//!                                                          ▼
//!  consumers ◀─ views at one moment ◀─ latest snapshot per source ── change ─▶ subscribers, at once
//! ```
//!
//! It connects, judges the order of snapshots and computes how old values are; what values mean is decided by its users. A
//! source is silent after three of its intervals without a snapshot: its values are stale, and the stream is opened again.
//! Ages count from the local time of receipt and from the uptime of the source, never from a clock of another machine.
//! Memory does not grow with time: sources, subjects, holders, events and texts are limited, and of each subject only the
//! metrics that a user names are kept. A user that reads smaller sources sets narrower limits.
//!
//! It knows no kind of this project and sends no request to an API server.

#![forbid(unsafe_code)]

pub mod args;
mod backoff;
mod connection;
mod continuity;
pub mod discovery;
pub mod endpoint;
pub mod limits;
pub mod metrics;
pub mod snapshot;
pub mod sources;
mod tls;
pub mod view;
mod wire;
