//! Which servers users may name. Pure.
//!
//! The controller reaches more than its users do, so a URL is taken apart into few parts, each of which must consist of
//! harmless characters, and compared part by part. What could be read in two ways is refused, not corrected: user
//! information, escapes, empty segments and those of dots, queries and fragments. A URL that passes is written anew.

use std::{fmt, net::IpAddr};

use engine_metrics::foreign;

use crate::Fault;

/// The longest URL in bytes.
const LONGEST: usize = 2_048;
const LONGEST_HOST: usize = 253;

/// The URL of a server in canonical form: `http://prometheus.monitoring:9090/prefix`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerUrl {
    is_https: bool,
    /// In lower case; of IPv6 in brackets.
    host: String,
    port: u16,
    /// Segments, without those that are empty at the end.
    path: Vec<String>,
}

/// The servers that the controller's configuration allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedUrls(Vec<ServerUrl>);

impl AllowedUrls {
    pub fn new(urls: Vec<ServerUrl>) -> Self {
        Self(urls)
    }

    /// The URL of a user, if an allowed one has its scheme, host and port, and a path that it begins with, segment by
    /// segment: `http://a/x` allows `http://a/x/y`, not `http://a/xy`.
    pub fn permit(&self, url: &str) -> Result<ServerUrl, Fault> {
        let url = ServerUrl::parse(url)?;
        if self.0.iter().any(|allowed| allowed.covers(&url)) {
            Ok(url)
        } else {
            Err(Fault::UrlNotAllowed { url: url.to_string() })
        }
    }
}

impl ServerUrl {
    pub fn parse(url: &str) -> Result<Self, Fault> {
        read(url).map_err(|why| Fault::InvalidUrl { url: without_user(&foreign(url)), why })
    }

    /// The address of the instant queries of this server.
    pub(crate) fn query_endpoint(&self) -> String {
        format!("{self}/api/v1/query")
    }

    /// Whether no other machine can read what is sent: by TLS, or because it stays on this one.
    pub fn is_confidential(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']');
        self.is_https || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }

    fn covers(&self, url: &Self) -> bool {
        let Self { is_https, host, port, path } = self;
        (*is_https, host, *port) == (url.is_https, &url.host, url.port) && url.path.starts_with(path)
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port != default_port(self.is_https) {
            write!(f, ":{}", self.port)?;
        }
        for segment in &self.path {
            write!(f, "/{segment}")?;
        }
        Ok(())
    }
}

fn default_port(is_https: bool) -> u16 {
    if is_https { 443 } else { 80 }
}

fn read(url: &str) -> Result<ServerUrl, &'static str> {
    if url.len() > LONGEST {
        return Err("it is longer than 2048 bytes");
    }
    let (scheme, rest) = url.split_once("://").ok_or("http:// or https:// is missing")?;
    let is_https = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err("http:// or https:// is missing"),
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    if authority.contains('@') {
        return Err("it has a user name: put a token into the Secret of prometheus.secretName");
    }
    let (host, port) = host_and_port(authority).ok_or("its host or port is not valid")?;
    let port = port.map_or(Ok(default_port(is_https)), |port| number(port).ok_or("its port is not valid"))?;
    let host = host.to_ascii_lowercase();
    if !is_host(&host) {
        return Err("its host or port is not valid");
    }
    Ok(ServerUrl { is_https, host, port, path: segments(path)? })
}

/// An IPv6 address keeps its brackets.
fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if authority.starts_with('[') {
        let (host, after) = authority.split_at(authority.find(']')? + 1);
        return match after.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => after.is_empty().then_some((host, None)),
        };
    }
    Some(authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))))
}

/// Digits alone: Rust reads `+80` as a number too.
fn number(port: &str) -> Option<u16> {
    let is_number = !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| port.parse().ok()).flatten().filter(|port| *port > 0)
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    // A dot at the end would make two names of one host.
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
    };
    host.len() <= LONGEST_HOST && host.split('.').all(is_label)
}

/// The segments of a path. Slashes at its end are dropped.
fn segments(path: &str) -> Result<Vec<String>, &'static str> {
    if path.contains(['?', '#']) {
        return Err("it has a query or a fragment");
    }
    let is_harmless = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
    };
    let path = path.trim_end_matches('/');
    let Some(path) = path.strip_prefix('/') else { return Ok(Vec::new()) };
    if !path.split('/').all(is_harmless) {
        return Err("its path may only have letters, digits, '-', '.', '_' and '~', and no segment of dots");
    }
    Ok(path.split('/').map(str::to_owned).collect())
}

/// For messages about a URL that cannot be read: nothing before the last `@`.
fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        (_, None) => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allowed(urls: &[&str]) -> AllowedUrls {
        AllowedUrls::new(urls.iter().map(|url| ServerUrl::parse(url).unwrap()).collect())
    }

    #[test]
    fn spellings_of_one_server_are_equal() {
        for (url, canonical) in [
            ("http://Prometheus.Monitoring", "http://prometheus.monitoring"),
            ("HTTP://prometheus:80/", "http://prometheus"),
            ("https://prometheus:0443", "https://prometheus"),
            ("http://prometheus:9090", "http://prometheus:9090"),
            ("http://mimir/prometheus//", "http://mimir/prometheus"),
            ("http://[::1]:9090/a/b", "http://[::1]:9090/a/b"),
            ("http://vm:8481/select/0/prometheus", "http://vm:8481/select/0/prometheus"),
        ] {
            let read = ServerUrl::parse(url).unwrap();
            assert_eq!(read.to_string(), canonical);
            assert_eq!(ServerUrl::parse(canonical).unwrap(), read);
        }
        assert_eq!(ServerUrl::parse("https://a/x").unwrap().query_endpoint(), "https://a/x/api/v1/query");
    }

    #[test]
    fn only_allowed_servers_pass() {
        let allowed = allowed(&["http://prometheus:9090", "https://mimir/prometheus"]);
        for url in [
            "http://prometheus:9090/",
            "http://PROMETHEUS:9090/any/path",
            "https://mimir:443/prometheus",
            "https://mimir/prometheus/a",
        ] {
            assert!(allowed.permit(url).is_ok(), "{url}");
        }
        for url in [
            "https://prometheus:9090",
            "http://prometheus",
            "http://prometheus:9091",
            "http://prometheus.evil:9090",
            "http://evil:9090/prometheus",
            "https://mimir",
            "https://mimir/",
            "https://mimir/prometheus2",
            "https://mimir/Prometheus",
            "https://mimir/other/prometheus",
            "http://mimir/prometheus",
        ] {
            assert!(matches!(allowed.permit(url), Err(Fault::UrlNotAllowed { .. })), "{url}");
        }
        assert!(AllowedUrls::default().permit("http://prometheus:9090").is_err());
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for url in [
            "http://prometheus:9090@evil/",
            "http://user:pass@prometheus:9090",
            "http://evil#@prometheus:9090",
            "http://prometheus:9090\\@evil",
            "http://prometheus:9090/../admin",
            "http://prometheus:9090/a/./b",
            "http://prometheus:9090/%2e%2e/admin",
            "http://prometheus:9090/a%2fb",
            "http://prometheus:9090/a//b",
            "http://prometheus:9090/a;b",
            "http://prometheus:9090/a\\..\\b",
            "http://prometheus:9090/?query=x",
            "http://prometheus:9090?x",
            "http://prometheus:9090/#x",
            "http://prometheus:9090#x",
            "http://prometheus:+9090",
            "http://prometheus:",
            "http://prometheus:0",
            "http://prometheus:65536",
            "http://prometheus.",
            "http://.prometheus",
            "http://",
            "http:///a",
            "http://pro metheus",
            "http://prometheus\t:9090",
            "http://prometheus:9090/\r\nHost: evil",
            "http://prometheus\u{ff0e}evil",
            "http://prom\u{e9}theus",
            "http://[::1",
            "http://[::1]x:80",
            "http://[fe80::1%25eth0]",
            "http://[prometheus]",
            "ftp://prometheus",
            "prometheus:9090",
            "//prometheus",
            "file:///etc/passwd",
            "",
        ] {
            assert!(matches!(ServerUrl::parse(url), Err(Fault::InvalidUrl { .. })), "{url}");
        }
        let long = format!("http://a/{}", "a".repeat(LONGEST));
        assert!(ServerUrl::parse(&long).is_err());
    }

    #[test]
    fn a_password_in_a_url_is_not_repeated() {
        for url in ["http://user:s3cret@prometheus", "user:s3cret@prometheus", "http://a:s3cret@b@c/d"] {
            let message = ServerUrl::parse(url).unwrap_err().to_string();
            assert!(!message.contains("s3cret"), "{message}");
            assert_eq!(message.contains("secretName"), url.starts_with("http"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_and_is_a_uri(url in "(http|HTTPS)://[a-zA-Z0-9.:@\\[\\]/%?#_-]{0,40}") {
            if let Ok(read) = ServerUrl::parse(&url) {
                let written = read.to_string();
                prop_assert_eq!(ServerUrl::parse(&written).unwrap(), read.clone());
                // The client reads the same host, port and path.
                let uri: http::Uri = read.query_endpoint().parse().unwrap();
                prop_assert_eq!(uri.host().unwrap(), read.host.as_str());
                prop_assert_eq!(uri.port_u16().unwrap_or(default_port(read.is_https)), read.port);
                prop_assert!(uri.path().ends_with("/api/v1/query") && uri.query().is_none());
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(url in any::<String>()) {
            let _ = ServerUrl::parse(&url);
        }
    }

    #[test]
    fn a_server_is_confidential_by_tls_or_on_loopback() {
        let is_confidential = |url| ServerUrl::parse(url).unwrap().is_confidential();
        for url in ["https://prometheus", "http://127.0.0.1:9090", "http://127.8.8.8", "http://[::1]:9090"] {
            assert!(is_confidential(url), "{url}");
        }
        for url in [
            "http://prometheus",
            "http://10.0.0.1",
            "http://localhost",
            "http://[fd00::1]",
            "http://127.0.0.1.a",
        ] {
            assert!(!is_confidential(url), "{url}");
        }
    }
}
