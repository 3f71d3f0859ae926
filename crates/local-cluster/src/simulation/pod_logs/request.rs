//! What a request for a log asks for: the path and the options that the API server sends to a kubelet. Pure.

use std::time::Duration;

use http::Uri;
use jiff::Timestamp;

/// The log of one container, and which part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// Goes on until the container has ended.
    pub(super) follow: bool,
    /// Each line begins with its time.
    pub(super) timestamps: bool,
    pub(super) previous: bool,
    /// Lines of this time and later ones.
    pub(super) since: Option<Since>,
    /// So many of the lines that are there already.
    pub(super) tail: Option<usize>,
    pub(super) limit_bytes: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    Time(Timestamp),
    /// Before now.
    Ago(Duration),
}

/// They are kept in memory. Clients of this project ask for 1000.
const LONGEST_TAIL: usize = 2_000;

impl Query {
    /// `None`: the path is not that of a log. An option that is not understood is left out, as kubelets do.
    pub(super) fn parse(uri: &Uri) -> Option<Self> {
        let mut parts = uri.path().strip_prefix("/containerLogs/")?.split('/');
        let mut next = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        let (namespace, pod, container) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return None;
        }
        let mut query = Self { namespace, pod, container, ..Self::default() };
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let is_true = matches!(&*value, "true" | "1");
            match &*name {
                "follow" => query.follow = is_true,
                "timestamps" => query.timestamps = is_true,
                "previous" => query.previous = is_true,
                "sinceTime" => query.since = value.parse().ok().map(Since::Time),
                "sinceSeconds" => query.since = value.parse().ok().map(Duration::from_secs).map(Since::Ago),
                "tailLines" => query.tail = value.parse().ok().map(|lines: usize| lines.min(LONGEST_TAIL)),
                "limitBytes" => query.limit_bytes = value.parse().ok(),
                _ => {}
            }
        }
        Some(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_log_are_read() {
        let uri = "/containerLogs/demo/qwen-1-0/trainer?follow=true&sinceTime=2026-01-01T00%3A00%3A05Z&timestamps=true";
        let query = Query::parse(&uri.parse().unwrap()).unwrap();
        let since = Since::Time("2026-01-01T00:00:05Z".parse().unwrap());
        let expected = Query {
            namespace: "demo".to_owned(),
            pod: "qwen-1-0".to_owned(),
            container: "trainer".to_owned(),
            follow: true,
            timestamps: true,
            since: Some(since),
            ..Query::default()
        };
        assert_eq!(query, expected);
        let query = Query::parse(&"/containerLogs/a/b/c?tailLines=1000000".parse().unwrap()).unwrap();
        assert_eq!(query.tail, Some(LONGEST_TAIL));
    }

    #[test]
    fn other_paths_are_no_logs() {
        for path in ["/", "/pods", "/containerLogs/a/b", "/containerLogs/a//c", "/containerLogs/a/b/c/d"] {
            assert_eq!(Query::parse(&path.parse().unwrap()), None, "{path}");
        }
    }
}
