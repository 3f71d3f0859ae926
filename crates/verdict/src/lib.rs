//! Judges a candidate version beside the stable one, from counts. Pure: no clock, no network, no environment, no async, no
//! types of Kubernetes, no kinds of a project.
//!
//! Every request is bad or not: it failed, was aborted, or took longer than a bound. Each interval gives the arrivals, the
//! ended requests, the bad ones and those in flight of both tracks. A [`judge::Judged`] sums them up in a few integers, which
//! a status can hold. The verdict of [`judge::judge`] depends on these integers alone, so it can be computed again from a
//! status.
//!
//! Three rules decide:
//!
//! - Fail: a sequential test (an e-process) finds that the candidate is worse. It may be asked after each interval. The chance
//!   of a false alarm in a whole rollout is at most alpha, over all of its steps and metrics and for as long as it lasts.
//! - Pass: enough time, enough ended requests, an upper bound of the candidate's bad share that is low enough, and few
//!   requests that may hang.
//! - Inconclusive: everything else, with what is missing. Missing data never fails. Three incomplete intervals in a row forbid
//!   a pass, and so does a latency without a common bucket. One or two incomplete intervals do not.
//!
//! The tests assume that bad events occur independently, or in rare bursts, and that requests reach the tracks at random.
//! `burst.rs` and `evidence.rs` say what happens where they do not.
//!
//! What is given:
//!
//! - `counters.rs`: what the counters of pods add since the last look.
//! - `bucket.rs`: the bound of a histogram that makes a request slow.
//! - `interval.rs`: the flows of one interval.
//! - `metric.rs`: how a metric is judged: kind, tolerated ratio, limit, alpha.
//! - `invalid.rs`: numbers that cannot be.
//! - `stored.rs`: reading what other versions stored.
//!
//! What is derived:
//!
//! - `burst.rs`: how much the bad requests of one interval weigh.
//! - `load.rs`: whether the tracks carry comparable loads.
//! - `e_process.rs`: the arithmetic of a sequential test.
//! - `evidence.rs`: the totals and the two tests of a metric.
//! - `hanging.rs`: how many requests may hang.
//! - `share.rs`: shares, and the upper bound of a share.
//!
//! What is decided:
//!
//! - `judge.rs`: the verdict over all metrics, with the numbers that explain it.
//! - `judge/rules.rs`: the rules of one metric.

#![forbid(unsafe_code)]

pub mod bucket;
pub mod burst;
pub mod counters;
pub mod e_process;
pub mod evidence;
pub mod hanging;
pub mod interval;
pub mod invalid;
pub mod judge;
pub mod load;
pub mod metric;
pub mod share;
pub mod stored;
