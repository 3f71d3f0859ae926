//! The command line. The environment is read here and, for credentials only, by the store's own client.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::location::Location;

/// Copies a model between an S3-compatible store and a folder
///
/// Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from the files of workload
/// identity; without any, requests are anonymous. AWS_ENDPOINT_URL and AWS_REGION say where the store is.
#[derive(Debug, Parser)]
#[command(name = "model-transfer", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Brings everything below SOURCE into DIR
    Pull {
        /// s3://bucket[/prefix]
        source: Location,
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Do not wait until the files are on disk; after a reboot of the machine they are fetched again
        #[arg(long, env = "TRANSFER_NO_SYNC")]
        no_sync: bool,
    },
    /// Uploads everything in DIR below DESTINATION, and SHA256SUMS last
    Push {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// s3://bucket[/prefix]
        destination: Location,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Seconds until the transfer is given up; the next run goes on from there
    #[arg(long, global = true, env = "TRANSFER_TIMEOUT_SECONDS", default_value_t = 3600)]
    pub(crate) timeout_seconds: u64,
    /// Seconds to wait, without any progress, for a store that does not answer or for a fault to be mended
    #[arg(long, global = true, env = "TRANSFER_PATIENCE_SECONDS", default_value_t = 180)]
    pub(crate) patience_seconds: u64,
    /// Seconds without a byte after which a request is sent anew
    #[arg(long, global = true, env = "TRANSFER_STALL_SECONDS", default_value_t = 30)]
    pub(crate) stall_seconds: u64,
    /// Where the reason of a failure goes, if the file exists
    #[arg(long, global = true, default_value = "/dev/termination-log")]
    pub(crate) termination_log: PathBuf,
}

impl Options {
    /// Shorter than the whole time: a time-out that came first would not say what was waited for.
    pub(crate) fn patience(&self) -> Duration {
        let timeout = Duration::from_secs(self.timeout_seconds);
        Duration::from_secs(self.patience_seconds).min(timeout * 3 / 4)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_may_follow_the_command() {
        let line = ["model-transfer", "pull", "s3://models/qwen", "/models", "--timeout-seconds=60"];
        assert_eq!(Arguments::try_parse_from(line).unwrap().options.timeout_seconds, 60);
    }

    #[test]
    fn patience_ends_before_the_time_does() {
        let patience = |timeout: &str| {
            let line = ["model-transfer", "pull", "s3://models", "/models", "--timeout-seconds", timeout];
            Arguments::try_parse_from(line).unwrap().options.patience().as_secs()
        };
        assert_eq!([patience("3600"), patience("240"), patience("60")], [180, 180, 45]);
    }

    #[test]
    fn a_wrong_command_line_ends_with_the_code_of_usage() {
        let error =
            Arguments::try_parse_from(["model-transfer", "pull", "http://models", "/models"]).unwrap_err();
        assert_eq!(error.exit_code(), api::loader::ExitCode::Usage.code());
        assert!(error.to_string().contains("s3://bucket/prefix"), "{error}");
    }
}
