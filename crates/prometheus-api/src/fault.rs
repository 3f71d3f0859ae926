//! Why a server gave no value. Every text of another program in it is one line, cut and printable; no variant holds a
//! secret.

use std::time::Duration;

use crate::promql;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    // The answer was read, and has no value that can be used.
    // `or vector(0)` is not advised: it would make a zero of every outage of the exporter.
    #[error(
        "{server} has no series for the query in this namespace, to which the controller restricts it: correct the name of \
         the metric or its labels, or what the server scrapes"
    )]
    Empty { server: String },
    #[error("{origin} gave NaN: a division by zero, or a quantile without observations")]
    NotANumber { origin: String },
    #[error("{origin} gave {}infinity: a division by zero, or a quantile in the last bucket", if *.is_negative { "-" } else { "+" })]
    Infinite { origin: String, is_negative: bool },
    #[error("{server} gave {series} series where one is needed: aggregate them, as in sum(...)")]
    TooManySeries { server: String, series: usize },
    // Without the number of series: it may change with each look, and a status has the message.
    #[error(
        "{server} gave more than {limit} series, which are not counted: select fewer, or aggregate them, as in sum by (pod) (...)"
    )]
    TooManyCounters { server: String, limit: usize },
    #[error("{server} gave {found} where {} needed: {}", found.wanted(), found.fix())]
    WrongResult { server: String, found: ResultKind },
    #[error("{server} gave a part of its data alone: {why}; repair what it reads from")]
    Partial { server: String, why: String },
    #[error("{server} evaluated the query more than {} s ago: a cache in front of it, or a wrong clock", .limit.as_secs())]
    Stale { server: String, limit: Duration },

    // The server refused or failed.
    #[error("{server} refused the query with {status}: {why}")]
    Rejected { server: String, status: u16, why: String },
    #[error("{server} refused access with {status}: {}", access_fix(secret.as_deref()))]
    Unauthorized { server: String, status: u16, secret: Option<String> },
    #[error("{server} failed with {status}: {why}")]
    Failed { server: String, status: u16, why: String },
    #[error("{server} redirects to {to}, and redirects are not followed: use the address that answers")]
    Redirected { server: String, to: String },
    #[error("{server} did not answer within {} s{}", .limit.as_secs_f32(), slow_fix(server))]
    Slow { server: String, limit: Duration },
    #[error("{server} cannot be reached: {why}{}", reach_fix(server))]
    Unreachable { server: String, why: String },
    #[error("{server} has no certificate that can be trusted: {why}; {}", trust_fix(secret.as_deref()))]
    Untrusted { server: String, why: String, secret: Option<String> },
    #[error(
        "{server} answered with more than {limit} bytes: too many series, or something else than metrics"
    )]
    TooLarge { server: String, limit: usize },
    #[error("{server} answered with more than {limit} bytes: select fewer series, or sum by (pod) (...)")]
    CountersTooLarge { server: String, limit: usize },
    #[error(
        "{server} answered with headers of more than {limit} bytes: remove headers that a proxy adds, or correct the address"
    )]
    HeadTooLarge { server: String, limit: usize },
    #[error(
        "{server} answered with {content}, not with {wanted}: a login page, or the address of something else"
    )]
    WrongContent { server: String, content: String, wanted: &'static str },

    // What the user or the configuration says cannot be used.
    #[error(
        "prometheus.url is not set, and the controller has no --prometheus-url (PROMETHEUS_URL): set one of them"
    )]
    NoServer,
    #[error("{url} is not a URL of a server ({why})")]
    InvalidUrl { url: String, why: &'static str },
    #[error(
        "{url} is not among the servers that --allowed-prometheus-urls of the controller allows: have it added, or leave \
         prometheus.url out"
    )]
    UrlNotAllowed { url: String },
    #[error(
        "{url} is not https, so a token would be sent in clear: use https, or start the controller with --tokens-over-http"
    )]
    TokenOverHttp { url: String },
    #[error("the query cannot be used: {0}")]
    InvalidQuery(promql::Refusal),
    #[error("the key {key} of Secret {secret} {why}")]
    InvalidSecret { secret: String, key: &'static str, why: &'static str },

    #[error(
        "Secret {secret} does not exist: create it with the key {key}, or correct its name in prometheus"
    )]
    NoSecret { secret: String, key: &'static str },
    #[error("Secret {secret} has no key {key}: add it")]
    NoKey { secret: String, key: &'static str },
    #[error(
        "this controller may not read Secret {secret}: create a Role and a RoleBinding in that namespace that let it get this Secret"
    )]
    SecretForbidden { secret: String },
    #[error("Secret {secret} cannot be read: {why}")]
    SecretUnreadable { secret: String, why: String },
}

impl Fault {
    /// The words for a query of counters.
    pub(crate) fn of_counters(self) -> Self {
        match self {
            Self::WrongResult { server, found } => {
                let found = match found {
                    ResultKind::Matrix => ResultKind::MatrixOfCounters,
                    ResultKind::NativeHistogram => ResultKind::HistogramOfCounters,
                    other => other,
                };
                Self::WrongResult { server, found }
            }
            Self::TooLarge { server, limit } => Self::CountersTooLarge { server, limit },
            other => other,
        }
    }

    /// Whether another query would mend it, and not another server or another Secret.
    pub fn is_of_query(&self) -> bool {
        match self {
            Self::Empty { .. }
            | Self::NotANumber { .. }
            | Self::Infinite { .. }
            | Self::TooManySeries { .. }
            | Self::TooManyCounters { .. }
            | Self::WrongResult { .. }
            | Self::Rejected { .. }
            | Self::TooLarge { .. }
            | Self::CountersTooLarge { .. }
            | Self::InvalidQuery(_) => true,
            Self::Partial { .. }
            | Self::Stale { .. }
            | Self::Unauthorized { .. }
            | Self::Failed { .. }
            | Self::Redirected { .. }
            | Self::Slow { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::HeadTooLarge { .. }
            | Self::WrongContent { .. }
            | Self::NoServer
            | Self::InvalidUrl { .. }
            | Self::UrlNotAllowed { .. }
            | Self::TokenOverHttp { .. }
            | Self::InvalidSecret { .. }
            | Self::NoSecret { .. }
            | Self::NoKey { .. }
            | Self::SecretForbidden { .. }
            | Self::SecretUnreadable { .. } => false,
        }
    }
}

/// What a server gave in the place of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    Matrix,
    /// In the place of counters.
    MatrixOfCounters,
    Text,
    NativeHistogram,
    /// In the place of counters.
    HistogramOfCounters,
    /// A word that the API does not have.
    Unknown,
}

impl ResultKind {
    fn wanted(self) -> &'static str {
        match self {
            Self::MatrixOfCounters | Self::HistogramOfCounters => "counters are",
            Self::Matrix | Self::Text | Self::NativeHistogram | Self::Unknown => "one number is",
        }
    }

    fn fix(self) -> &'static str {
        match self {
            Self::MatrixOfCounters => "remove the range, as in [5m]",
            Self::Matrix => "remove the range of the outermost selector, or wrap it, as in sum(rate(x[5m]))",
            Self::Text => "the query is a string",
            Self::HistogramOfCounters => "count what is in it, as in histogram_count(...)",
            Self::NativeHistogram => "wrap it, as in histogram_quantile(0.95, ...)",
            Self::Unknown => "it is not a Prometheus-compatible server",
        }
    }
}

impl std::fmt::Display for ResultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Matrix | Self::MatrixOfCounters => "a range of values",
            Self::Text => "a string",
            Self::NativeHistogram | Self::HistogramOfCounters => "a histogram",
            Self::Unknown => "an unknown type of result",
        })
    }
}

fn access_fix(secret: Option<&str>) -> String {
    match secret {
        Some(secret) => format!("correct the key token of Secret {secret}"),
        None => "name a Secret with its token in prometheus.secretName".to_owned(),
    }
}

fn trust_fix(secret: Option<&str>) -> String {
    match secret {
        Some(secret) => format!("correct the key ca.crt of Secret {secret}"),
        None => "name a Secret with its CA in prometheus.caSecretName".to_owned(),
    }
}

/// Pods are servers as well, and are not asked with a query.
fn slow_fix(server: &str) -> &'static str {
    if server.starts_with("http") { ": select fewer series, or give the server more CPU" } else { "" }
}

/// The server may be one that the user never wrote: that of the controller.
fn reach_fix(server: &str) -> &'static str {
    if server.starts_with("http") {
        "; correct prometheus.url, or --prometheus-url (PROMETHEUS_URL) of the controller"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_object_the_number_and_the_fix() {
        let server = || "http://prometheus:9090".to_owned();
        for (fault, message) in [
            (
                Fault::TooManySeries { server: server(), series: 3 },
                "http://prometheus:9090 gave 3 series where one is needed: aggregate them, as in sum(...)",
            ),
            (
                Fault::Unauthorized { server: server(), status: 401, secret: Some("demo/prom".into()) },
                "http://prometheus:9090 refused access with 401: correct the key token of Secret demo/prom",
            ),
            (
                Fault::Infinite { origin: server(), is_negative: true },
                "http://prometheus:9090 gave -infinity: a division by zero, or a quantile in the last bucket",
            ),
            (
                Fault::Partial { server: server(), why: "a store is gone".into() },
                "http://prometheus:9090 gave a part of its data alone: a store is gone; repair what it reads from",
            ),
            (
                Fault::Slow { server: server(), limit: Duration::from_secs(3) },
                "http://prometheus:9090 did not answer within 3 s: select fewer series, or give the server more CPU",
            ),
        ] {
            assert_eq!(fault.to_string(), message);
        }
    }
}
