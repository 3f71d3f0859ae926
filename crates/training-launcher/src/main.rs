//! `training-launcher` is the first process of a trainer's container.
//!
//! The launcher takes the output folder for its attempt and resumes from the newest complete checkpoint. It passes the
//! trainer's output through. It asks the trainer for a checkpoint when the pod is asked to end. Its exit code and its
//! termination message state how the run ended.
//!
//! `api::launcher` has the options, the exit codes and the message.
//!
//! **Invariant:** success is proven, never assumed. No process outlives the launcher. Two attempts never write at once:
//! the launcher writes nothing into the output folder while another attempt owns it. It runs no shell, does not change
//! the trainer's output, and writes into checkpoints only the ids of models (`cache.rs`). No wait is without a
//! deadline, except the wait for the end of a trainer that was not asked to end.
//!
//! Files:
//!
//! - `cli.rs`: the command line and the environment.
//! - `prepare.rs`: claims the output folder and decides from where to resume.
//! - `marker.rs`: the marker of the output folder, which names its attempt.
//! - `checkpoints.rs`: finds complete checkpoints; `checkpoints` has a file for each form.
//! - `resume.rs`: finds the checkpoints of another job.
//! - `cache.rs`: finds and deletes what was loaded from hubs.
//! - `supervise.rs`: runs the trainer from start to end.
//! - `supervise/processes.rs`: the descendants of the trainer.
//! - `supervise/watch.rs`: finds that a later attempt owns the folder.
//! - `supervise/verdict.rs`: judges how a run ended.
//! - `output.rs`: copies the trainer's streams.
//! - `log.rs`: reads the trainer's log.
//! - `timing.rs`: the waiting times, on whose order the fence rests.
//! - `fault.rs`: an error of the launcher itself.
//! - `message.rs`: the termination message.
//! - `message/redaction.rs`: removes secrets from the message.

#![forbid(unsafe_code)]

mod cache;
mod checkpoints;
mod cli;
mod fault;
mod log;
mod marker;
mod message;
mod output;
mod prepare;
mod resume;
mod supervise;
mod timing;

use std::{path::Path, process::ExitCode};

use api::launcher::{self, Message, PROGRAM};
use clap::Parser;
use directory::install::install;

use cli::{Arguments, Command, Environment, Run, TERMINATION_LOG};
use fault::Fault;
use message::redaction::Secrets;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            return failed(&Fault::usage(error.to_string()), TERMINATION_LOG.as_ref(), &Secrets::default());
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match arguments.command {
        // The trainer's container runs the copy.
        Command::Install { folder } => match install(&folder, PROGRAM) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&Fault::of_copy(&error), TERMINATION_LOG.as_ref(), &Secrets::default()),
        },
        Command::Run(wanted) => run(&wanted),
    }
}

fn run(wanted: &Run) -> ExitCode {
    let secrets = Secrets::of_environment();
    let ended = Environment::read(wanted).and_then(|environment| {
        supervise::supervise(wanted, &environment)
            .map_err(|error| Fault::local("start", "the signal handlers", &error))
    });
    match ended {
        Ok(outcome) => {
            message::write(&wanted.termination_log, outcome.message, &secrets);
            ExitCode::from(outcome.code)
        }
        Err(fault) => failed(&fault, &wanted.termination_log, &secrets),
    }
}

/// Reports an error of a launcher that started no trainer.
fn failed(fault: &Fault, termination_log: &Path, secrets: &Secrets) -> ExitCode {
    output::note(&fault.message);
    let message = Message { error: Some(fault.message.clone()), ..Message::default() };
    message::write(termination_log, message, secrets);
    ExitCode::from(status(fault.code))
}

/// The number of an exit code in an exit status.
const fn status(code: launcher::ExitCode) -> u8 {
    code as u8
}
