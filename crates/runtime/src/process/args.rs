//! The options that every controller has. This is the only file of the crate that names an environment variable.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use daemon::args::{LogFormat, seconds};

/// Flags of the process; a controller flattens them beside its own.
#[derive(Args, Clone, Debug)]
pub struct RuntimeArgs {
    /// Watch this namespace only, with a Role instead of a ClusterRole; default: all namespaces
    #[arg(long)]
    pub namespace: Option<String>,

    /// Kubeconfig file; default: the service account of the pod
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// Address of /livez, /readyz and /metrics
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub admin_address: SocketAddr,

    /// Objects that are reconciled at the same time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: u16,

    /// Format of the log
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,

    /// Log filter: a level, or directives such as `info,runtime=debug`
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: String,

    /// OTLP endpoint (gRPC) that traces are sent to; none: no traces
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,

    /// Name of this replica, unique for each start of a process; default: host name and process id
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,

    /// Namespace of the Lease; default: the namespace of the pod
    #[arg(long, env = "POD_NAMESPACE", default_value = "ai-system")]
    pub lease_namespace: String,

    /// Seconds after which a silent leader is replaced
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub lease_duration: Duration,

    /// Seconds after which a leader that cannot renew gives up; below --lease-duration
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub lease_renew_deadline: Duration,

    /// Seconds between two tries to get or renew the Lease
    #[arg(long, default_value = "2", value_parser = seconds)]
    pub lease_retry_period: Duration,

    /// Seconds after which children that the API server refused are tried again, if nothing else changes
    #[arg(long, default_value = "60", value_parser = seconds)]
    pub refusal_retry_period: Duration,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        runtime: RuntimeArgs,
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_may_be_fractions_and_must_be_sensible() {
        let parse = |text: &str| Cli::try_parse_from(["test", "--lease-duration", text]);
        assert_eq!(parse("0.5").unwrap().runtime.lease_duration, Duration::from_millis(500));
        for bad in ["0", "-1", "NaN", "inf", "soon"] {
            assert!(Cli::try_parse_from(["test", &format!("--lease-duration={bad}")]).is_err(), "{bad}");
        }
    }
}
