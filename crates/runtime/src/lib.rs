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
//! A controller names its kinds, their relations and one function. ARCHITECTURE.md says why kube's own watcher,
//! reflector and `Controller` are not used. Writes use server-side apply, and POST for what is made once.
//!
//! **Invariant:** it knows no kind of this project.
//!
//! Life of a process:
//!
//! - `process.rs`: the life of a controller process, from start to drain.
//! - `args.rs`: the options of every controller.
//! - `lease.rs`: elects the leader.
//! - `clock.rs`: the time of decisions, and what vouches for it.
//! - `admin.rs`: serves health and metrics.
//! - `telemetry.rs`: logs and traces.
//! - `causes.rs`: writes errors with their causes into the log.
//! - `metrics.rs`: what a process counts.
//! - `object_counts.rs`: counts objects by a value of theirs, such as the phase.
//!
//! Caches and the queue:
//!
//! - `watch.rs`: fills a cache by LIST and WATCH.
//! - `health.rs`: which watches fail.
//! - `decode.rs`: reads objects without the fields that are never used.
//! - `watched.rs`: what a cache can hold, and whether a new version differs in what a decision reads.
//! - `cache.rs`: the objects of one kind, indexed by owner.
//! - `cached_child.rs`: a child that is whole in memory until it was compared.
//! - `covers.rs`: whether an object has everything that an apply would set.
//! - `relations.rs`: which objects refer to which by name.
//! - `controller.rs`: turns changes into keys, and runs the workers.
//! - `queue.rs`: which object is reconciled next.
//! - `reconcile.rs`: the life of a reconcile, from the object to what is written.
//! - `backoff.rs`: every wait after failures.
//! - `polling.rs`: calls a function for each object at its own times, for what no watch delivers.
//!
//! Requests to the API server:
//!
//! - `client.rs`: a deadline on every call, and a leader guard on every write.
//! - `apply.rs`: writes the status.
//! - `children.rs`: writes the children of an owner.
//! - `owners.rs`: refuses children of an owner that no longer exists.
//! - `contests.rs`: slows down a write that another manager takes back.
//! - `conflicts.rs`: slows down writes of a version that the API server has refused.
//! - `refusal.rs`: what the API server refuses for good.
//! - `conditions.rs`: merges what is true now with the conditions of a status.
//! - `lifetime.rs`: sets finalizers and deletes owners.
//! - `scale.rs`: reads and writes the scale subresource.
//! - `secrets.rs`: reads one Secret by its name.
//! - `events.rs`: writes Kubernetes events.
//! - `logs.rs`: reads the end of a container's log.
//! - `log_stream.rs`: follows a container's log.

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
pub mod reconcile;
pub mod refusal;
pub mod relations;
pub mod scale;
pub mod secrets;
pub mod telemetry;
pub mod watch;
pub mod watched;
