//! The command line. Nothing else reads the environment.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use daemon::args::{LogFormat, seconds};
use tracing_subscriber::filter::Targets;

/// Streams what each accelerator of a node does, and for which pod
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Name of the node, in snapshots and labels
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub(crate) node_name: String,
    /// NVIDIA's library: a path, or a name that the dynamic loader finds
    #[arg(long, env = "NVML_LIBRARY", default_value = "libnvidia-ml.so.1", value_name = "PATH")]
    pub(crate) nvml_library: PathBuf,
    /// Replays a machine from this file instead of reading devices
    #[arg(long, env = "RECORDED", value_name = "FILE")]
    pub(crate) recorded: Option<PathBuf>,
    /// Also lists the processes of each device, which are visible only with hostPID
    #[arg(long)]
    pub(crate) processes: bool,
    /// Seconds between two readings of all devices
    #[arg(long, default_value = "1", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) interval: Duration,
    /// Seconds after which a device that has not answered is stale
    #[arg(long, default_value = "0.25", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) read_within: Duration,
    /// The kubelet's pod-resources socket, usually /var/lib/kubelet/pod-resources/kubelet.sock. Without it no pod is
    /// named
    #[arg(long, env = "POD_RESOURCES", value_name = "SOCKET")]
    pub(crate) pod_resources: Option<PathBuf>,
    /// Seconds between two questions to the kubelet; at least 1
    #[arg(long, default_value = "5", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) pod_resources_interval: Duration,
    /// Address of the gRPC server. Beyond loopback it needs the three files of mTLS, or --plaintext
    #[arg(long, default_value = "127.0.0.1:9401")]
    pub(crate) listen: SocketAddr,
    /// Serves gRPC without TLS beyond loopback: every client that reaches the address is admitted
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) plaintext: bool,
    /// Certificate chain of the server, PEM; loaded again when it changes
    #[arg(long, requires_all = ["tls_key", "tls_client_ca"], value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities whose clients are admitted, PEM
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Address of /livez, /readyz and /metrics
    #[arg(long, default_value = "127.0.0.1:9400")]
    pub(crate) admin_address: SocketAddr,
    /// Leaves the names of pods out of /metrics, which has no TLS. Streams still name them
    #[arg(long, env = "METRICS_WITHOUT_PODS")]
    pub(crate) metrics_without_pods: bool,
    /// A level, or levels by module: info,metrics_agent=debug
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_name = "FILTER")]
    pub(crate) log_level: Targets,
    /// Format of the log
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub(crate) log_format: LogFormat,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_files_of_mutual_tls_come_together_or_not_at_all() {
        let parse = |args: &[&str]| Args::try_parse_from([&["metrics-agent"], args].concat());
        assert!(parse(&["--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"]).is_ok());
        for part in [["--tls-cert=c", "--tls-key=k"], ["--tls-client-ca=a", "--tls-key=k"]] {
            assert!(parse(&part).is_err(), "{part:?}");
        }
        assert!(parse(&["--plaintext", "--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"]).is_err());
        assert!(parse(&["--interval=0"]).is_err() && parse(&["--interval=nan"]).is_err());
    }

    #[test]
    fn the_arguments_in_the_manifests_are_accepted() {
        let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/metrics-agent");
        for manifest in ["base/daemonset.yaml", "overlays/dev/daemonset.yaml"] {
            let text = std::fs::read_to_string(deploy.join(manifest)).unwrap();
            let args: Vec<&str> = text
                .lines()
                .filter_map(|line| line.trim().strip_prefix("- "))
                .filter(|it| it.starts_with("--"))
                .collect();
            assert!(args.len() >= 4, "{manifest}: {args:?}");
            let parsed = Args::try_parse_from([&["metrics-agent"], args.as_slice()].concat()).unwrap();
            assert!(!parsed.listen.ip().is_loopback() && (parsed.plaintext || parsed.tls_cert.is_some()));
        }
    }
}
