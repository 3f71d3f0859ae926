//! From measured values and a policy to a number of replicas. Pure: no clock, no client, no environment, no async.
//!
//! ```text
//!  what is given:   policy, behavior   bounds, metrics, rates, fallback, extras
//!                   target             replicas and pods, as observed
//!                   reading            what a source of metrics answered, or why it did not
//!                   history            what a restart needs: serializable, bounded
//!  what is derived: supply             which pods serve, start, or will not start
//!                   cold_start         how long pods of this target take to become Ready
//!                   constancy          metrics that do not move with the load
//!                   measurement        a reading, as the numbers that the arithmetic needs
//!                   rate               the range that the rates of the behavior allow
//!  what is decided: proposal           replicas by one metric: HPA's arithmetic or that of its kind
//!                   conclusion         replicas by all metrics, windows, rates and bounds
//!                   decide             the entry point; record: a decision that can be computed again
//! ```
//!
//! The rules are those of the HorizontalPodAutoscaler (`autoscaling/v2`), named in the docs as "HPA v2, rule …"; with
//! [`policy::Extras::none`] the result is HPA's for the same inputs. Each addition is one field of [`policy::Extras`].
//!
//! [`decide::decide`] turns everything observed into [`record::Inputs`], a few bounded numbers, and
//! [`conclusion::conclude`] computes the replicas from these numbers alone. So a recorded decision can be computed
//! again ([`record::recompute`]).
//!
//! This crate knows no kind of this project and no Kubernetes type. Callers observe, write replicas, and own conditions
//! and statuses.

#![forbid(unsafe_code)]

pub mod behavior;
pub mod cold_start;
pub mod conclusion;
pub mod constancy;
pub mod decide;
pub mod history;
pub mod measurement;
pub mod policy;
pub mod rate;
pub mod reading;
pub mod record;
pub mod supply;
pub mod target;

mod proposal;
mod time;
