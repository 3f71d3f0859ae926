//! Reads what ms-swift prints: progress, checkpoints and errors. Pure.
//!
//! The controller follows the log of a rank with it, and the launcher reads the output of its trainer. The forms are
//! those of transformers 4 and 5, tqdm, DPO, PPO and Megatron-SWIFT (`tests/fixtures`), and the errors those of Python,
//! torchrun, PyTorch and the hubs.
//!
//! **Invariant:** memory is bounded, and the entries do not depend on the chunks in which bytes arrive. The crate does
//! not decide whether a training has failed. A line in the form of an error may belong to an exception that the trainer
//! handled, and any line may be text of the user's data. The exit code decides; the log explains it.
//!
//! Files:
//!
//! - `segments.rs`: splits the bytes of a log into segments.
//! - `line.rs`: reads a segment.
//! - `bar.rs`: progress bars.
//! - `dict.rs`: logged dicts.
//! - `megatron.rs`: lines of Megatron-SWIFT 3.
//! - `exception.rs`: lines in the form of an error.
//! - `cause.rs`: the causes of errors.
//! - `hub.rs`: errors of the hubs.
//! - `errors.rs`: keeps the error that counts.
//! - `position.rs`: positions, such as `21/27`.
//! - `remaining.rs`: durations.
//! - `number.rs`: numbers.

#![forbid(unsafe_code)]

use std::time::Duration;

mod bar;
mod cause;
mod dict;
mod errors;
mod exception;
mod hub;
mod line;
mod megatron;
mod number;
mod position;
mod remaining;
mod segments;

pub use bar::shown_progress;
pub use errors::Errors;
pub use segments::Parser;

/// What a segment of the log says. Text is that of the log without the whitespace at its end; it may contain secrets
/// and control sequences.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry<'a> {
    /// A logged step of the training. With several ranks on a node, each may print the same step.
    Step(Step),
    /// The result of an evaluation after a step.
    Evaluation(Position),
    /// The summary at the end of the training. It is also printed by runs that fail or are stopped.
    Summary(Position),
    /// The trainer's progress bar. It is redrawn without progress, too.
    Bar(Position),
    /// The trainer has written a checkpoint into this folder. Other ranks may still write their part of it.
    Saving(&'a str),
    /// The trainer's last checkpoint, at the end of its run.
    LastCheckpoint(&'a str),
    /// A line in the form of an error. The cause is absent if the line only reports the end of a process, or follows
    /// from another error.
    Error { cause: Option<Cause>, line: &'a str },
    /// Any other text.
    Text(&'a str),
}

/// How far the training is: 0 ≤ step ≤ total, and 1 ≤ total < 10¹².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub step: i64,
    pub total: i64,
}

/// A logged step. Numbers are decimal texts of at most 24 bytes, `NaN`, `Inf` or `-Inf`.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub position: Position,
    pub loss: Option<String>,
    pub gradient_norm: Option<String>,
    pub learning_rate: Option<String>,
    pub epoch: Option<String>,
    pub seconds_per_step: Option<String>,
    /// The trainer's estimate.
    pub remaining: Option<Duration>,
}

/// Why a training fails, by its log. Of two causes the first one in this order counts, also of those of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The memory of an accelerator is exhausted.
    CudaOutOfMemory,
    /// The memory of the host, or its shared memory, is exhausted.
    HostOutOfMemory,
    /// A volume is full.
    OutOfSpace,
    /// The hub refuses the token, or there is none. Hugging Face also answers this if a model does not exist.
    SourceUnauthorized,
    /// The hub has no such model or dataset.
    SourceNotFound,
    /// The hub cannot be reached, or cannot answer.
    SourceUnreachable,
    /// The trainer refuses its arguments.
    InvalidArguments,
    /// Any other error of the trainer's program.
    UserError,
    /// The connection to another rank ended. The last one, because each error of a rank ends the connections to it.
    PeerLost,
}

impl Entry<'_> {
    /// Whether the training works: a step, an evaluation or a checkpoint. A bar shows it only if its position advances.
    pub fn is_sign_of_life(&self) -> bool {
        match self {
            Self::Step(_) | Self::Evaluation(_) | Self::Saving(_) => true,
            Self::Summary(_)
            | Self::Bar(_)
            | Self::LastCheckpoint(_)
            | Self::Error { .. }
            | Self::Text(_) => false,
        }
    }

    pub fn position(&self) -> Option<Position> {
        match self {
            Self::Step(step) => Some(step.position),
            Self::Evaluation(position) | Self::Summary(position) | Self::Bar(position) => Some(*position),
            Self::Saving(_) | Self::LastCheckpoint(_) | Self::Error { .. } | Self::Text(_) => None,
        }
    }
}
