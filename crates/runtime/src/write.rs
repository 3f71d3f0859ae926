//! Writes to the API server. All but what is made once use server-side apply.
//!
//! - `apply.rs`: the status.
//! - `children.rs`: the children of an owner.
//! - `owners.rs`: refuses children of an owner that no longer exists.
//! - `contests.rs`: slows down a write that another manager takes back.
//! - `conflicts.rs`: slows down writes of a version that the API server has refused.
//! - `refusal.rs`: what the API server refuses for good.
//! - `conditions.rs`: merges what is true now with the conditions of a status.
//! - `lifetime.rs`: finalizers, and the deletion of owners.
//! - `scale.rs`: the scale subresource.
//! - `events.rs`: Kubernetes events.

pub mod apply;
pub mod children;
pub mod conditions;
pub(crate) mod conflicts;
pub(crate) mod contests;
pub mod events;
pub(crate) mod lifetime;
pub(crate) mod owners;
pub mod refusal;
pub mod scale;
