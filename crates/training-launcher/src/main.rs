//! `training-launcher` is the first process of a trainer's container. It takes the output folder for its attempt,
//! resumes from the newest complete checkpoint, passes the trainer's output through, asks the trainer for a checkpoint
//! when the pod is asked to end, and says by its exit code and its termination message how the run ended.
//!
//! `api::launcher` has the options, the exit codes and the message. The launcher must not run a shell, change the
//! trainer's output, write into checkpoints (but for the ids of models, see `cache`), or write into the output folder while another attempt owns it. No wait is
//! without a deadline, except that for the end of a trainer that was not asked to end.

#![forbid(unsafe_code)]

mod cache;
mod checkpoints;
mod cli;
mod fault;
mod install;
mod log;
mod marker;
mod message;
mod output;
mod prepare;
mod processes;
mod redaction;
mod resume;
mod supervise;
mod timing;
mod verdict;
mod watch;

use std::{path::Path, process::ExitCode};

use api::launcher::{self, Message};
use clap::Parser;

use cli::{Arguments, Command, Environment, Run, TERMINATION_LOG};
use fault::Fault;
use redaction::Secrets;

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
        Command::Install { folder } => match install::install(&folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => failed(&fault, TERMINATION_LOG.as_ref(), &Secrets::default()),
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
