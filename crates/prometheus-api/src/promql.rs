//! Restricts a user's query to one namespace and fills in `$namespace` and `$name`. Pure.
//!
//! ```text
//!  query ─▶ tokens ─▶ grammar ─▶ the same query, written anew from its tokens
//!                        └── each selector: {namespace="demo", …}, or a refusal with its position
//! ```
//!
//! The query of one user must not read another namespace, so it is understood completely or refused. Refused are unknown
//! functions, metrics that are called like an operator, and syntax that only one of the servers has. The result is written
//! from tokens and never copied, so that what was checked and what a server reads cannot differ. In it, braces follow every
//! name of a metric, and every string is quoted in the same way.
//!
//! It does not check types or the number of arguments; the server does.

use std::hash::{Hash, Hasher};

use crate::promql::{grammar::Grammar, lexer::tokens};

mod grammar;
mod lexer;
mod words;

/// The longest query in bytes; the API server allows 4096 characters.
pub const LONGEST_QUERY: usize = 16 << 10;
/// Nested brackets; a query that a person writes has a few.
const DEEPEST: usize = 48;

/// Which series a query may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those with the label `namespace` of the object.
    Namespace,
    /// All that the server gives; only if the controller's configuration allows it.
    Everything,
}

/// What a query's variables are replaced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

/// A query that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    text: String,
    bare_counters: Vec<String>,
    rate: Option<&'static str>,
    total: Option<&'static str>,
}

/// Of what is stored with histories of scaling, so that they go on: without what the text implies.
impl Hash for Query {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { text, bare_counters, rate: _, total: _ } = self;
        (text, bare_counters).hash(state);
    }
}

impl Query {
    /// Reads a query of at most [`LONGEST_QUERY`] bytes for this target.
    ///
    /// `$namespace` and `$name`, also as `${namespace}` and `${name}`, are replaced in the values of matchers, quoted or not.
    /// They are escaped where the value is a regular expression. Other strings stay as they are, because `$name` in the arguments of `label_replace` is a group
    /// of its expression.
    pub fn parse(query: &str, target: Target<'_>, scope: Scope) -> Result<Self, Refusal> {
        if query.len() > LONGEST_QUERY {
            return Err(Refusal::new(query, LONGEST_QUERY, "the query is longer than 16 KiB"));
        }
        Grammar::new(query, tokens(query)?, target, scope).query()
    }

    /// The query to be sent.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The counters whose value is used although only their increase means something, at most 8: a counter where a gauge
    /// was meant.
    pub fn bare_counters(&self) -> &[String] {
        &self.bare_counters
    }

    /// The first function that makes a rate or an increase of a counter, such as `rate`.
    pub fn rate(&self) -> Option<&'static str> {
        self.rate
    }

    /// The first operator that makes one series of several pods, such as `sum` without `by`, or `sum by (code)`.
    pub fn total(&self) -> Option<&'static str> {
        self.total
    }
}

/// Whether a metric of this name only ever rises: `http_requests_total`, `latency_seconds_bucket`. A convention of names,
/// not a proof.
pub fn looks_like_a_counter(metric: &str) -> bool {
    metric.ends_with("_total") || metric.ends_with("_bucket")
}

/// A query that is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position} {why}")]
pub struct Refusal {
    /// The first character is 1.
    pub position: usize,
    /// What was found and how it can be written.
    pub why: String,
}

impl Refusal {
    /// `at`: a byte offset.
    fn new(query: &str, at: usize, why: impl Into<String>) -> Self {
        let before = &query[..query.floor_char_boundary(at)];
        Self { position: 1 + before.chars().count(), why: why.into() }
    }
}

#[cfg(test)]
mod tests;
