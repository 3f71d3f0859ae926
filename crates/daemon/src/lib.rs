//! What every long-running program has, whatever it does.
//!
//! Files:
//!
//! - `http.rs`: a server for probes and Prometheus, whose clients are bounded.
//! - `listener.rs`: where a program listens.
//! - `pem.rs`: certificates and keys from files.
//! - `args.rs`: options that programs share.

#![forbid(unsafe_code)]

pub mod args;
pub mod http;
pub mod listener;
pub mod pem;
