//! The command line and the environment. No other file reads the environment, except that `redaction` reads the values
//! of secrets.

use std::{env, ffi::OsString, path::PathBuf};

use api::launcher::{PROGRAM, options, variables};
use clap::{Args, Parser, Subcommand};

use crate::fault::Fault;

/// Where a kubelet reads the termination message.
pub(crate) const TERMINATION_LOG: &str = "/dev/termination-log";

/// First process of a trainer's container
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copies this program into DIR, from which the trainer's container runs it
    Install {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Runs a trainer until it ends, or until the pod is asked to end
    ///
    /// JOB_COMPLETION_INDEX is the rank of the pod, and POD_UID its uid.
    Run(Run),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Folder of the checkpoints, which all ranks share
    #[arg(long = options::OUTPUT_DIR, value_name = "DIR")]
    pub(crate) output_dir: PathBuf,
    /// Number of the attempt, from 1 on
    #[arg(long = options::ATTEMPT, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: u32,
    /// uid of the TrainingJob
    #[arg(long = options::JOB_UID, value_name = "UID")]
    pub(crate) job_uid: String,
    /// Number of pods of the gang
    #[arg(long = options::NODES, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: u32,
    /// terminationGracePeriodSeconds of the pod
    #[arg(long = options::GRACE_SECONDS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) grace_seconds: u32,
    /// File at whose appearance the trainer saves a checkpoint and ends
    #[arg(long = options::STOP_FILE, value_name = "FILE")]
    pub(crate) stop_file: Option<PathBuf>,
    /// Argument of the trainer for a run without a checkpoint to resume from; may be repeated
    #[arg(long = options::FRESH_ARG, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) fresh_args: Vec<OsString>,
    /// Folder of checkpoints of an earlier job, or one of them, to go on from while the output has none; it is only read
    #[arg(long = options::RESUME_FROM, value_name = "DIR")]
    pub(crate) resume_from: Option<PathBuf>,
    /// Folder of what the trainer loads from hubs; it is deleted after success
    #[arg(long = options::HUB_CACHE, value_name = "DIR")]
    pub(crate) hub_cache: Option<PathBuf>,
    /// Start anew although there is a checkpoint, for a trainer that cannot go on from one
    #[arg(long = options::NEVER_RESUME)]
    pub(crate) never_resume: bool,
    #[arg(long, hide = true, default_value = TERMINATION_LOG)]
    pub(crate) termination_log: PathBuf,
    /// For tests: divides every internal waiting time
    #[arg(long, hide = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) time_divisor: u32,
    /// The trainer and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) trainer: Vec<OsString>,
}

/// Environment variables of the pod.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) rank: u32,
    pub(crate) pod_uid: String,
    /// Of the trainer, on this node.
    pub(crate) processes: u32,
}

impl Environment {
    pub(crate) fn read(wanted: &Run) -> Result<Self, Fault> {
        let rank = env::var(variables::RANK).ok();
        let pod_uid = env::var(variables::POD_UID).ok();
        let processes = env::var(variables::PROCESSES).ok().and_then(|count| count.parse().ok());
        let own = Self::parse(rank.as_deref(), pod_uid.as_deref(), wanted.nodes)?;
        Ok(Self { processes: processes.unwrap_or(own.processes), ..own })
    }

    fn parse(rank: Option<&str>, pod_uid: Option<&str>, nodes: u32) -> Result<Self, Fault> {
        let rank = rank.unwrap_or("0");
        let number = rank.parse().ok().filter(|rank| *rank < nodes);
        let rank = number.ok_or_else(|| {
            let name = variables::RANK;
            Fault::usage(format!(
                "environment variable {name} is {rank:?}: it must be a number below {nodes}"
            ))
        })?;
        let pod_uid = pod_uid.filter(|uid| !uid.is_empty()).ok_or_else(|| {
            let name = variables::POD_UID;
            Fault::usage(format!("environment variable {name} is not set: it must be the uid of the pod"))
        })?;
        Ok(Self { rank, pod_uid: pod_uid.to_owned(), processes: 1 })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    const RUN: [&str; 11] = [
        PROGRAM,
        "run",
        "--output-dir=/output",
        "--attempt=2",
        "--job-uid=a",
        "--nodes=1",
        "--grace-seconds=60",
        "--fresh-arg=--adapters",
        "--fresh-arg",
        "--x",
        "--",
    ];

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_trainers_arguments_are_not_options_of_the_launcher() {
        let line = RUN.iter().chain(&["swift", "sft", "--attempt", "x", "--", "--help"]);
        let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else { panic!("a run") };
        assert_eq!(run.trainer, ["swift", "sft", "--attempt", "x", "--", "--help"]);
        assert_eq!(run.fresh_args, ["--adapters", "--x"]);
        assert_eq!((run.attempt, run.grace_seconds, run.stop_file), (2, 60, None));
    }

    #[test]
    fn a_run_needs_a_trainer_and_an_attempt() {
        assert!(Arguments::try_parse_from(RUN).is_err());
        let zero =
            RUN.iter().map(|one| if *one == "--attempt=2" { "--attempt=0" } else { one }).chain(["swift"]);
        assert!(Arguments::try_parse_from(zero).is_err());
    }

    #[test]
    fn the_rank_is_a_number_below_the_number_of_nodes() {
        let rank = |text| Environment::parse(text, Some("pod"), 2).map(|environment| environment.rank);
        assert_eq!(rank(None).unwrap(), 0);
        assert_eq!(rank(Some("1")).unwrap(), 1);
        assert!(rank(Some("2")).unwrap_err().message.contains("below 2"));
        assert!(rank(Some("first")).unwrap_err().message.contains("JOB_COMPLETION_INDEX"));
        assert!(Environment::parse(None, Some(""), 2).unwrap_err().message.contains("POD_UID"));
    }
}
