//! The command line of Triton (2.51), as its `getopt_long` reads it: abbreviations are taken, anything unknown ends it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};

use super::{Engine, Invocation};

/// What only Triton has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Triton {
    /// The flag adds up.
    pub(crate) repositories: Vec<PathBuf>,
    pub(crate) loads: Loads,
    pub(crate) restricted: Vec<Restriction>,
}

/// Which models are loaded at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Loads {
    #[default]
    All,
    /// `--model-control-mode=explicit`.
    Named(Vec<String>),
}

/// An API that asks for a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restriction {
    pub(crate) api: &'static str,
    pub(crate) header: String,
    pub(crate) value: String,
}

/// What can be restricted.
const APIS: [&str; 9] = [
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Bool,
    Number,
    Text,
}

static FLAGS: &[(&str, Takes)] = &[
    ("help", Takes::Nothing),
    ("id", Takes::Text),
    ("exit-timeout-secs", Takes::Number),
    ("model-store", Takes::Text),
    (REPOSITORY, Takes::Text),
    ("exit-on-error", Takes::Bool),
    ("disable-auto-complete-config", Takes::Nothing),
    ("strict-readiness", Takes::Bool),
    ("model-control-mode", Takes::Text),
    ("repository-poll-secs", Takes::Number),
    ("load-model", Takes::Text),
    ("model-load-thread-count", Takes::Number),
    ("model-load-retry-count", Takes::Number),
    ("model-namespacing", Takes::Bool),
    ("allow-http", Takes::Bool),
    ("http-address", Takes::Text),
    ("http-port", Takes::Number),
    ("reuse-http-port", Takes::Bool),
    ("http-header-forward-pattern", Takes::Text),
    ("http-thread-count", Takes::Number),
    ("http-restricted-api", Takes::Text),
    ("allow-grpc", Takes::Bool),
    ("grpc-address", Takes::Text),
    ("grpc-port", Takes::Number),
    ("reuse-grpc-port", Takes::Bool),
    ("grpc-header-forward-pattern", Takes::Text),
    ("grpc-infer-allocation-pool-size", Takes::Number),
    ("grpc-use-ssl", Takes::Bool),
    ("grpc-use-ssl-mutual", Takes::Bool),
    ("grpc-server-cert", Takes::Text),
    ("grpc-server-key", Takes::Text),
    ("grpc-root-cert", Takes::Text),
    ("grpc-infer-response-compression-level", Takes::Text),
    ("grpc-keepalive-time", Takes::Number),
    ("grpc-keepalive-timeout", Takes::Number),
    ("grpc-keepalive-permit-without-calls", Takes::Bool),
    ("grpc-http2-max-pings-without-data", Takes::Number),
    ("grpc-http2-min-recv-ping-interval-without-data", Takes::Number),
    ("grpc-http2-max-ping-strikes", Takes::Number),
    ("grpc-max-connection-age", Takes::Number),
    ("grpc-max-connection-age-grace", Takes::Number),
    ("grpc-restricted-protocol", Takes::Text),
    ("log-verbose", Takes::Number),
    ("log-info", Takes::Bool),
    ("log-warning", Takes::Bool),
    ("log-error", Takes::Bool),
    ("log-format", Takes::Text),
    ("log-file", Takes::Text),
    ("allow-sagemaker", Takes::Bool),
    ("sagemaker-port", Takes::Number),
    ("sagemaker-safe-port-range", Takes::Text),
    ("sagemaker-thread-count", Takes::Number),
    ("allow-vertex-ai", Takes::Bool),
    ("vertex-ai-port", Takes::Number),
    ("vertex-ai-thread-count", Takes::Number),
    ("vertex-ai-default-model", Takes::Text),
    ("allow-metrics", Takes::Bool),
    ("allow-gpu-metrics", Takes::Bool),
    ("allow-cpu-metrics", Takes::Bool),
    ("metrics-address", Takes::Text),
    ("metrics-port", Takes::Number),
    ("metrics-interval-ms", Takes::Number),
    ("metrics-config", Takes::Text),
    ("trace-config", Takes::Text),
    ("cache-config", Takes::Text),
    ("cache-directory", Takes::Text),
    ("rate-limit", Takes::Text),
    ("rate-limit-resource", Takes::Text),
    ("pinned-memory-pool-byte-size", Takes::Number),
    ("cuda-memory-pool-byte-size", Takes::Text),
    ("cuda-virtual-address-size", Takes::Text),
    ("min-supported-compute-capability", Takes::Number),
    ("buffer-manager-thread-count", Takes::Number),
    ("host-policy", Takes::Text),
    ("model-load-gpu-limit", Takes::Text),
    ("backend-directory", Takes::Text),
    ("backend-config", Takes::Text),
    ("repoagent-directory", Takes::Text),
    ("strict-model-config", Takes::Bool),
    ("response-cache-byte-size", Takes::Number),
    ("trace-file", Takes::Text),
    ("trace-level", Takes::Text),
    ("trace-rate", Takes::Number),
    ("trace-count", Takes::Number),
    ("trace-log-frequency", Takes::Number),
];

const REPOSITORY: &str = "model-repository";

/// `words`: those behind `tritonserver`.
pub(super) fn parse(words: &[String]) -> anyhow::Result<Invocation> {
    let given = Given(flags(words)?);
    let repositories: Vec<PathBuf> = given.all(REPOSITORY).map(PathBuf::from).collect();
    let loads = match given.last("model-control-mode") {
        None | Some("none" | "poll") => Loads::All,
        Some("explicit") => match given.all("load-model").collect::<Vec<_>>().as_slice() {
            ["*"] => Loads::All,
            names => Loads::Named(names.iter().map(|name| (*name).to_owned()).collect()),
        },
        Some(other) => bail!("invalid argument for --model-control-mode: {other}"),
    };
    let restricted = restrictions("http-restricted-api", &given)?;
    // Refused for the same mistakes; the one call that is answered here is open.
    restrictions("grpc-restricted-protocol", &given)?;
    Ok(Invocation {
        model_path: repositories.first().context("--model-repository is missing")?.clone(),
        engine: Engine::Triton(Triton { repositories, loads, restricted }),
        served_model_name: None,
        port: given.number("http-port", 8000)?,
        grpc_port: Some(given.number("grpc-port", 8001)?),
        metrics_port: Some(given.number("metrics-port", 8002)?),
        drain: Duration::from_secs(given.number("exit-timeout-secs", 30)?),
    })
}

/// Flags and their values, in their order.
struct Given(Vec<(&'static str, String)>);

impl Given {
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    fn last(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    fn number<N: std::str::FromStr>(&self, name: &str, default: N) -> anyhow::Result<N> {
        let Some(value) = self.last(name) else { return Ok(default) };
        value.parse().ok().with_context(|| format!("--{name}: {value:?} is out of bound"))
    }
}

fn flags(words: &[String]) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut given = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            bail!("unexpected argument: {word}");
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let (name, takes) = known(name)?;
        let value = match (takes, value) {
            (Takes::Nothing, None) => String::new(),
            (Takes::Nothing, Some(_)) => bail!("option '--{name}' doesn't allow an argument"),
            (_, Some(value)) => value.to_owned(),
            (_, None) => {
                words.next().with_context(|| format!("option '--{name}' requires an argument"))?.clone()
            }
        };
        match takes {
            Takes::Bool => ensure!(is_bool(&value), "invalid value for bool option: {value}"),
            Takes::Number => {
                ensure!(value.parse::<f64>().is_ok(), "invalid option value for --{name}: got {value}");
            }
            Takes::Nothing | Takes::Text => {}
        }
        given.push((if name == "model-store" { REPOSITORY } else { name }, value));
    }
    Ok(given)
}

/// By its full name, or by a beginning that only one flag has.
fn known(name: &str) -> anyhow::Result<(&'static str, Takes)> {
    if let Some(flag) = FLAGS.iter().find(|(flag, _)| *flag == name) {
        return Ok(*flag);
    }
    let mut candidates = FLAGS.iter().filter(|(flag, _)| flag.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(flag), None) => Ok(*flag),
        (Some(_), Some(_)) => bail!("option '--{name}' is ambiguous"),
        (None, _) => bail!("unrecognized option '--{name}'"),
    }
}

fn is_bool(value: &str) -> bool {
    ["true", "on", "1", "false", "off", "0"].contains(&value.to_ascii_lowercase().as_str())
}

/// `<api>,<api>:<header>=<value>`; an API may be in one group only.
fn restrictions(flag: &str, given: &Given) -> anyhow::Result<Vec<Restriction>> {
    let mut all: Vec<Restriction> = Vec::new();
    for group in given.all(flag) {
        let parts = group.split_once(':').and_then(|(apis, key)| Some((apis, key.split_once('=')?)));
        let (apis, (header, value)) = parts
            .filter(|(apis, (header, value))| {
                ![*apis, *header, *value].iter().any(|part| part.trim().is_empty())
            })
            .with_context(|| format!("--{flag} requires the format <apis>:<header>=<value>, got {group}"))?;
        for api in apis.trim().split(',') {
            let known = APIS.into_iter().find(|known| *known == api);
            let api = known.with_context(|| format!("unknown restricted api '{api}' found in --{flag}"))?;
            let is_new = all.iter().all(|restriction| restriction.api != api);
            ensure!(is_new, "restricted api '{api}' can not be specified in multiple config groups");
            all.push(Restriction { api, header: header.trim().to_owned(), value: value.trim().to_owned() });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> anyhow::Result<Invocation> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    fn triton(line: &str) -> Triton {
        match parsed(line).unwrap().engine {
            Engine::Triton(triton) => triton,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flag_may_be_abbreviated_as_long_as_it_is_one() {
        assert_eq!(parsed("--model-repo=/models --http-po 8100").unwrap().port, 8100);
        assert!(parsed("--model-repo=/models --http-p=8100 --http=1").is_err(), "ambiguous");
        // A full name is no abbreviation of a longer one.
        parsed("--model-repository=/models --rate-limit=off --grpc-use-ssl=false").unwrap();
    }

    #[test]
    fn repositories_add_up_and_of_other_flags_the_last_one_counts() {
        let line = "--model-repository=/one --http-port=1 --model-store=/two --http-port=2";
        assert_eq!(triton(line).repositories, [PathBuf::from("/one"), PathBuf::from("/two")]);
        assert_eq!(parsed(line).unwrap().port, 2);
    }

    #[test]
    fn what_it_does_not_know_ends_it() {
        for more in [
            "--unknown=1",
            "stray",
            "-v",
            "--",
            "--exit-on-error=maybe",
            "--http-port=many",
            "--http-port",
            "--disable-auto-complete-config=true",
            "--model-control-mode=some",
        ] {
            assert!(parsed(&format!("--model-repository=/models {more}")).is_err(), "{more}");
        }
        assert!(parsed("--http-port=1").is_err(), "no repository");
    }

    #[test]
    fn explicit_control_loads_what_is_named() {
        let line = "--model-repository=/models --model-control-mode=explicit";
        assert_eq!(triton(line).loads, Loads::Named(Vec::new()));
        assert_eq!(triton(&format!("{line} --load-model=a")).loads, Loads::Named(vec!["a".to_owned()]));
        assert_eq!(triton(&format!("{line} --load-model=*")).loads, Loads::All);
        assert_eq!(triton("--model-repository=/models --load-model=a").loads, Loads::All);
    }

    #[test]
    fn restrictions_are_groups_of_apis_with_a_header() {
        let line = "--model-repository=/models --http-restricted-api=trace,logging:x-closed=a=b";
        let restriction = |api| Restriction { api, header: "x-closed".to_owned(), value: "a=b".to_owned() };
        assert_eq!(triton(line).restricted, [restriction("trace"), restriction("logging")]);
        for wrong in ["logging", "logging,x-closed=a", "logging:x-closed", "logging:=a", ":x=a", "logs:x=a"] {
            for flag in ["http-restricted-api", "grpc-restricted-protocol"] {
                assert!(
                    parsed(&format!("--model-repository=/models --{flag}={wrong}")).is_err(),
                    "{flag}={wrong}"
                );
            }
        }
        let twice = format!("{line} --http-restricted-api=health,trace:x-other=c");
        assert!(parsed(&twice).unwrap_err().to_string().contains("multiple config groups"));
    }
}
