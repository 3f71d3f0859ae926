//! From measured values and a policy to a number of replicas. Pure: no clock, no client, no environment, no async.
//!
//! The rules are those of the HorizontalPodAutoscaler (`autoscaling/v2`), named in the docs as "HPA v2, rule …". With
//! [`policy::Extras::none`] the result is HPA's for the same inputs. Each addition is one field of [`policy::Extras`].
//!
//! [`decide::decide`] turns everything observed into [`decide::record::Inputs`], a few bounded numbers.
//! [`decide::conclusion::conclude`] computes the replicas from these numbers alone. So a recorded decision can be computed
//! again ([`decide::conclusion::recompute`]).
//!
//! **Invariant:** only `spec.rs` knows kinds of this project and types of Kubernetes. Equal numbers give equal replicas.
//! The history is bounded, and merging its entries never allows more. Callers observe, write replicas, and own
//! conditions and statuses.
//!
//! What is given:
//!
//! - `spec.rs`: the scaling fields of kinds, as values of this crate.
//! - `policy.rs`: bounds, metrics, rates, fallback, extras.
//! - `behavior.rs`: windows, rates and tolerance of each direction.
//! - `target.rs`: replicas and pods, as observed.
//! - `reading.rs`: what a source of metrics answered, or why it did not.
//! - `history.rs`: what a restart needs: serializable, bounded.
//!
//! What is derived:
//!
//! - `supply.rs`: which pods serve, start, or will not start.
//! - `flow.rs`: how many requests arrive and how long they take, from counters.
//! - `flow/pods.rs`: adds up the counts of pods that come, go, fall silent and begin anew.
//! - `flow/total.rs`: the same from the sums that a server knows.
//! - `cold_start.rs`: how long pods of this target take to become Ready.
//! - `constancy.rs`: metrics that do not move with the load.
//! - `measurement.rs`: a reading, as the numbers that the arithmetic needs.
//! - `rate.rs`: the range that the rates of the behavior allow.
//!
//! What is decided:
//!
//! - `decide.rs`: the entry point.
//! - `decide/record.rs`: a decision that can be computed again.
//! - `decide/proposal.rs`: replicas by one metric, with HPA's arithmetic or the arithmetic of its kind.
//! - `decide/conclusion.rs`: replicas by all metrics, windows, rates and bounds.
//! - `time.rs`: how long ago something was.

#![forbid(unsafe_code)]

pub mod behavior;
pub mod cold_start;
pub mod constancy;
pub mod decide;
pub mod flow;
pub mod history;
pub mod measurement;
pub mod policy;
pub mod rate;
pub mod reading;
pub mod spec;
pub mod supply;
pub mod target;

mod time;
