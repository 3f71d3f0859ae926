//! The HTTP API of Prometheus, which Mimir, Thanos and VictoriaMetrics have as well: instant queries of users, to servers
//! that an administrator allows.
//!
//! ```text
//!  url ─▶ AllowedUrls ─▶ ServerUrl ┐
//!  Secrets ─▶ Token, Authorities ──┼─▶ client ── POST /api/v1/query ──▶ Sample, or Counters
//!  query ─▶ promql::Query ─────────┘     └─────────────────────────────▶ Fault
//! ```
//!
//! - `args.rs`: the options of a controller, and how a question is asked with them.
//! - `url.rs`: which servers users may name.
//! - `secret.rs`: a token and authorities of a Secret; `credentials.rs` reads and keeps them.
//! - `promql.rs`: restricts a query to its namespace, or refuses it; its parser is in `promql`.
//! - `client.rs`: sends one query.
//! - `answer.rs`: judges the answer.
//! - `fault.rs`: why there is none.
//!
//! A missing value is never zero: it is a [`Fault`], whose message names the object, the number and the fix.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use jiff::Timestamp;

pub use fault::{Fault, ResultKind};

pub mod answer;
pub mod args;
pub mod client;
pub mod credentials;
mod fault;
pub mod promql;
pub mod secret;
pub mod url;

/// A measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Finite. In the unit of the metric type; for a query as the query says.
    pub value: f64,
    /// When the value was true: the time at which a server evaluated the query, or at which a pod was scraped. It is never
    /// later than the time that the caller has passed as now.
    pub at: Timestamp,
    /// Why the value may be too low, in the words of the server: some of its data was missing. Such a value may add
    /// replicas, and removes none.
    pub caution: Option<String>,
}

/// The values of all series of an answer, by a hash of their labels that is the same in this process. All are finite.
pub type Counters = BTreeMap<u64, f64>;

/// Series of one [`Counters`], at most.
pub const MOST_SERIES: usize = 500;
