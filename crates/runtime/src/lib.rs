//! How a controller process lives: caches fed by watches, a keyed work queue, workers, leader election, an admin
//! server, telemetry, and writes: by server-side apply, and by POST for what is made once.
//!
//! ```text
//!  watch task A ─┐ decode what is read         ┌ worker 1 ┐
//!  watch task B ─┤→ Cache<K> ─ subscribers ─→ Queue ─ …    ├→ deadline + catch_unwind → reconcile(Arc<K>)
//!  watch task C ─┘ (shared, owner index)       └ worker 32┘        │
//!     own backoff, own health     keyed, two lanes  ←──────────────┘ Done | After(d) | Err
//!  every HTTP call: deadline on headers and body, leader guard on writes, no hidden retries
//! ```
//!
//! It knows no kind of this project: a controller names its kinds, their relations and one function. Why it does not use
//! kube's own watcher, reflector and `Controller` is said in ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod admin;
pub mod apply;
pub mod args;
mod backoff;
pub mod cache;
pub mod cached_child;
pub mod causes;
pub mod children;
pub mod client;
pub mod clock;
pub mod conditions;
mod conflicts;
mod contests;
pub mod controller;
mod covers;
mod decode;
pub mod events;
pub mod health;
pub mod lease;
mod lifetime;
pub mod log_stream;
pub mod logs;
pub mod metrics;
pub mod object_counts;
mod owners;
pub mod polling;
pub mod process;
pub mod queue;
pub mod refusal;
pub mod relations;
pub mod scale;
pub mod secrets;
pub mod telemetry;
pub mod watch;
pub mod watched;
