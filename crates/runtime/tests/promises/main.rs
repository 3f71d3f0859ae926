//! The promises of this crate, each proven under the fault that threatens it, against a scripted API server.
//!
//! One module per part of the crate. Times are options, so they are short here; what is asserted are orders, counts
//! and lower bounds of waits, which a busy machine does not change. `kube_runtime` runs the same faults against
//! kube's own runtime and says what happens there today.

#![cfg(test)]

mod applying;
mod calling;
mod churning;
mod controlling;
mod electing;
mod given;
mod kube_runtime;
mod living;
mod owning;
mod relabelling;
mod trusting;
mod watching;

use fake_api as fake;
