//! Subscribes to sources of load (`proto/metrics/v1`) and keeps the latest snapshot of each.
//!
//! ```text
//!  EndpointSlices ─ discovery ─▶ set of endpoints ─▶ one task per endpoint: connect, subscribe, receive, back off
//!  static addresses ────────────▶                          │ gRPC, mTLS
//!                                                          ▼
//!  consumers ◀─ views at one moment ◀─ latest snapshot per source ── change ─▶ subscribers, at once
//! ```
//!
//! It connects, judges the order of snapshots and computes how old values are. Its users decide what values mean. A
//! source is silent after three of its intervals without a snapshot: its values are stale, and the stream is opened
//! again.
//!
//! **Invariant:** it knows no kind of this project and sends no request to an API server. Ages count from the local
//! time of receipt and the uptime of the source, never from a clock of another machine. Memory is bounded whatever
//! sources send: sources, subjects, holders, events and texts are limited. Of each subject only the metrics that a user
//! names are kept. A user that reads smaller sources sets narrower limits. Streams without TLS need an option.
//!
//! Files:
//!
//! - `sources.rs`: one stream to each source, and its latest snapshot.
//! - `discovery.rs`: finds sources in EndpointSlices.
//! - `endpoint.rs`: where a source is, and what it may speak for.
//! - `connection.rs`: opens one stream.
//! - `tls.rs`: mTLS from files.
//! - `wire.rs`: decodes messages within limits.
//! - `limits.rs`: the limits.
//! - `snapshot.rs`: what is kept of a message.
//! - `continuity.rs`: finds gaps, duplicates, restarts and delays.
//! - `view.rs`: how a source and its values stand at one moment.
//! - `backoff.rs`: when a stream is opened again.
//! - `args.rs`: the options of a controller.
//! - `metrics.rs`: metrics of the client itself.

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
