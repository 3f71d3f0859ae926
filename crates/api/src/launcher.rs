//! The interface between the training-controller and the training-launcher: options, exit codes and the termination message.
//!
//! The launcher is the first process of each trainer's container. Its exit code says how the run ended, and its termination
//! message what the controller cannot see: the volume with the checkpoints, and the log of every rank.

use serde::{Deserialize, Serialize};

pub mod evaluator;

/// Names of the subcommand `run` and of its options, without dashes. The command of the trainer follows after `--`.
pub mod options {
    /// Number of the attempt, from 1 on.
    pub const ATTEMPT: &str = "attempt";
    /// An argument of the trainer for a run without a checkpoint to resume from. May be repeated.
    pub const FRESH_ARG: &str = "fresh-arg";
    /// `terminationGracePeriodSeconds` of the pod.
    pub const GRACE_SECONDS: &str = "grace-seconds";
    /// Folder of what the attempts load from hubs; removed after success.
    pub const HUB_CACHE: &str = "hub-cache";
    /// uid of the TrainingJob.
    pub const JOB_UID: &str = "job-uid";
    /// Flag: the trainer cannot go on from a checkpoint, and starts anew.
    pub const NEVER_RESUME: &str = "never-resume";
    /// Number of pods of the gang.
    pub const NODES: &str = "nodes";
    /// Folder of the checkpoints.
    pub const OUTPUT_DIR: &str = "output-dir";
    /// Folder of checkpoints of an earlier job, or one of them, to go on from while the output has none.
    pub const RESUME_FROM: &str = "resume-from";
    /// File at whose appearance the trainer saves a checkpoint and ends; absent if the trainer knows none.
    pub const STOP_FILE: &str = "stop-file";
}

/// Environment variables of the launcher.
pub mod variables {
    /// Rank of the pod in its gang; Kubernetes sets it in the pods of an Indexed Job.
    pub const RANK: &str = "JOB_COMPLETION_INDEX";
    /// uid of the pod.
    pub const POD_UID: &str = "POD_UID";
    /// ms-swift's own: processes of a node.
    pub const PROCESSES: &str = "NPROC_PER_NODE";
}

/// Folders of the hubs in the folder of [`options::HUB_CACHE`], which their libraries find by variables.
pub mod hub_folders {
    /// Below where the claim of the output is mounted, the folders that jobs have for what they load, each by its name.
    pub const BELOW_MOUNT: &str = ".cache/hub";
    /// `HF_HOME`.
    pub const HUGGING_FACE: &str = "huggingface";
    /// `MODELSCOPE_CACHE`.
    pub const MODELSCOPE: &str = "modelscope";
}

/// The name of the program, also in the folder into which `install` copies it.
pub const PROGRAM: &str = "training-launcher";

/// How a run ended, if the trainer's exit code does not say it. 0 means that the last step was reached and its checkpoint is
/// complete. The numbers are a contract between images of different releases; trainers do not use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Stopped before the last step, because the pod was asked to end.
    Stopped = 80,
    /// A later attempt, or another pod of this one, has taken over the output.
    Superseded = 81,
    /// The output has checkpoints of another job.
    OutputNotEmpty = 82,
    /// The trainer ended without an error before the last step, or without a complete checkpoint of it.
    Incomplete = 83,
    /// The volume of the output is full.
    OutOfSpace = 84,
    /// The output cannot be read or written, or the folder of an earlier job cannot be read.
    OutputUnusable = 85,
    /// The command line or the environment of the launcher is invalid: a fault of the controller, not of the user.
    Usage = 86,
    /// The trainer's program cannot be started.
    TrainerNotFound = 87,
    /// There is no checkpoint in the folder of an earlier job, or the trainer cannot go on from it.
    CannotResume = 88,
}

impl ExitCode {
    pub const ALL: [ExitCode; 9] = [
        ExitCode::Stopped,
        ExitCode::Superseded,
        ExitCode::OutputNotEmpty,
        ExitCode::Incomplete,
        ExitCode::OutOfSpace,
        ExitCode::OutputUnusable,
        ExitCode::Usage,
        ExitCode::TrainerNotFound,
        ExitCode::CannotResume,
    ];

    /// The exit code of a terminated container, if the launcher defines it.
    pub fn from_code(code: i32) -> Option<ExitCode> {
        ExitCode::ALL.into_iter().find(|known| known.code() == code)
    }

    /// The number in the state of a container.
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }
}

/// Begin of the name of a checkpoint's folder, which lies in the folder of the output.
const CHECKPOINT_PREFIX: &str = "checkpoint-";

/// The name of the folder of a checkpoint.
pub fn checkpoint_name(step: i64) -> String {
    format!("{CHECKPOINT_PREFIX}{step}")
}

/// The step of the checkpoint in a folder of this name. Each step has one name: without sign and leading zeros.
pub fn checkpoint_step(name: &str) -> Option<i64> {
    let step: i64 = name.strip_prefix(CHECKPOINT_PREFIX)?.parse().ok()?;
    (step >= 0 && checkpoint_name(step) == name).then_some(step)
}

/// The longest termination message that a kubelet reads, in bytes.
pub const LONGEST_MESSAGE: usize = 4_096;

/// The termination message, as JSON of at most `LONGEST_MESSAGE` bytes. Fields that a release does not know are ignored.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Message {
    /// Exit code of the trainer; absent if it was ended by a signal, or not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Last step in the trainer's log or in its newest checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Steps of the whole training. For people: the controller has the number from the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<i64>,
    /// Newest complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The trainer itself decided to end before the last step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped_early: bool,
    /// Why the trainer failed, by its log: a reason of `crate::reasons`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The line of the log that names the cause, or the launcher's own error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// End of the trainer's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
}

/// A complete checkpoint.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct Checkpoint {
    pub path: String,
    pub step: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exit_codes_of_the_launcher_are_parsed() {
        for known in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(known.code()), Some(known));
        }
        for foreign in [0, 1, 2, 79, 89, 137, 143, 247, -1] {
            assert_eq!(ExitCode::from_code(foreign), None);
        }
    }

    #[test]
    fn the_folder_of_a_checkpoint_has_one_name() {
        for step in [0, 7, 1_000, i64::MAX] {
            assert_eq!(checkpoint_step(&checkpoint_name(step)), Some(step));
        }
        for name in [
            "checkpoint-",
            "checkpoint-+5",
            "checkpoint-007",
            "checkpoint--1",
            "checkpoint-5 ",
            "checkpoint-5-merged",
            "checkpoint-5/",
            "checkpoint-9223372036854775808",
            "last-checkpoint-5",
            "checkpoint",
        ] {
            assert_eq!(checkpoint_step(name), None, "{name}");
        }
    }

    #[test]
    fn a_message_of_another_release_is_read() {
        let text =
            r#"{"exitCode": 1, "checkpoint": {"path": "/output/checkpoint-5", "step": 5}, "later": [1]}"#;
        let read: Message = serde_json::from_str(text).unwrap();
        let checkpoint = Checkpoint { path: "/output/checkpoint-5".into(), step: 5 };
        assert_eq!(read, Message { exit_code: Some(1), checkpoint: Some(checkpoint), ..Message::default() });
        assert_eq!(serde_json::to_string(&Message::default()).unwrap(), "{}");
    }
}
