//! How a controller process lives: caches, a work queue, workers, leader election, an admin server, telemetry and
//! writes.
//!
//! ```text
//!  watch task A ─┐ decode what is read         ┌ worker 1 ┐
//!  watch task B ─┤→ Cache<K> ─ subscribers ─→ Queue ─ …    ├→ deadline + catch_unwind → reconcile(Arc<K>)
//!  watch task C ─┘ (shared, owner index)       └ worker 32┘        │
//!     own backoff, own health     keyed, two lanes  ←──────────────┘ Done | After(d) | Err
//!  every HTTP call: deadline on headers and body, leader guard on writes, no hidden retries
//! ```
//!
//! A controller names its kinds, their relations and one function. `tests/promises/kube_runtime.rs` says why kube's own
//! watcher, reflector and `Controller` are not used. Writes use server-side apply, and POST for what is made once.
//!
//! **Invariant:** it knows no kind of this project.
//!
//! - `process.rs`: the life of a controller process, from start to drain.
//!   - `process/args.rs`: the options of every controller.
//!   - `process/lease.rs`: elects the leader.
//!   - `process/admin.rs`: serves health and metrics.
//!   - `process/telemetry.rs`: logs and traces.
//! - `watch.rs`: fills a cache by LIST and WATCH; its folder has the caches and what they hold.
//!   - `watch/cache.rs`: the objects of one kind, indexed by owner.
//!   - `watch/cached_child.rs`: a child that is whole in memory until it was compared.
//!   - `watch/covers.rs`: whether an object has everything that an apply would set.
//!   - `watch/decode.rs`: reads objects without the fields that are never used.
//!   - `watch/health.rs`: which watches fail.
//!   - `watch/object_counts.rs`: counts objects by a value of theirs, such as the phase.
//!   - `watch/relations.rs`: which objects refer to which by name.
//!   - `watch/watched.rs`: what a cache can hold, and whether a new version differs in what a decision reads.
//! - `key.rs`: the name of an object in caches, queues and logs.
//! - `controller.rs`: turns changes into keys, and runs the workers.
//! - `queue.rs`: which object is reconciled next. `queue/state.rs`: which key is due.
//! - `polling.rs`: calls a function for each object at its own times, for what no watch delivers.
//! - `reconcile.rs`: the life of a reconcile, from the object to what is written.
//! - `client.rs`: a deadline on every call, and a leader guard on every write.
//! - `write.rs`: writes to the API server, a file for each in its folder.
//! - `read.rs`: reads of what no cache holds.
//! - `backoff.rs`: every wait after failures.
//! - `clock.rs`: the time of decisions, and what vouches for it.
//! - `causes.rs`: writes errors with their causes into the log.
//! - `metrics.rs`: what a process counts.

#![forbid(unsafe_code)]

mod backoff;
pub mod causes;
pub mod client;
pub mod clock;
pub mod controller;
pub mod key;
pub mod metrics;
pub mod polling;
pub mod process;
pub mod queue;
pub mod read;
pub mod reconcile;
pub mod watch;
pub mod write;
