//! Judges a candidate version beside the stable one, from counts. Pure: no clock, no client, no environment, no async, no
//! types of Kubernetes, no kinds of a project.
//!
//! Every request is bad or not: it failed, was aborted, or took longer than a bound. Each interval gives the requests and
//! the bad ones of both tracks. An [`evidence::Evidence`] sums them up in a few integers, which a status can hold. The verdict
//! of [`judge::judge`] depends on these integers alone, so it can be computed again from a status.
//!
//! Three rules decide:
//!
//! - Fail: a sequential test finds that bad events prefer the candidate. It may be asked after each interval. The chance of
//!   a false alarm stays at most alpha, over all metrics and for as long as a step lasts.
//! - Pass: enough time, enough requests, and an upper bound of the candidate's bad share that is low enough.
//! - Inconclusive: everything else, with what is missing. Missing data never fails and never passes.
//!
//! The test assumes that bad events occur independently and that requests reach the tracks at random. `evidence.rs` says
//! what happens where they do not.
//!
//! What is given:
//!
//! - `counters.rs`: what the counters of pods add since the last look.
//! - `bucket.rs`: the bound of a histogram that makes a request slow.
//! - `interval.rs`: the counts and loads of one interval.
//! - `metric.rs`: how a metric is judged: kind, tolerated ratio, limit, alpha.
//! - `invalid.rs`: numbers that cannot be.
//!
//! What is derived:
//!
//! - `evidence.rs`: the totals and the sequential test.
//! - `share.rs`: shares, and the upper bound of a share.
//!
//! What is decided:
//!
//! - `judge.rs`: the verdict over all metrics, with the numbers that explain it.

#![forbid(unsafe_code)]

pub mod bucket;
pub mod counters;
pub mod evidence;
pub mod interval;
pub mod invalid;
pub mod judge;
pub mod metric;
pub mod share;
