//! Reads of what no cache holds.
//!
//! - `endpoints.rs`: whether a Service has a ready endpoint.
//! - `logs.rs`: the end of a container's log.
//! - `log_stream.rs`: follows a container's log.
//! - `secrets.rs`: one Secret by its name.

pub mod endpoints;
pub mod log_stream;
pub mod logs;
pub mod secrets;
