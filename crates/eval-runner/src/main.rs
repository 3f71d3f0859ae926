//! `eval-runner` is the first process of a container that evaluates a model.
//!
//! `run` starts a harness (EvalScope or lm-eval), which asks a server the questions of one test set. It reduces the
//! files of the harness to one small file of scores on the volume. `pair` compares the scores of two sides.
//!
//! `api::launcher::evaluator` has the options, the exit codes and the message.
//!
//! **Invariant:** no result without proof. A side is a file with a checksum, which appears whole or not at all. Fewer
//! answers than questions never make a result, whatever the harness says of itself. It runs no shell. The API key is
//! in no argument, file or log. Memory is bounded: files are read line by line. No wait is without a deadline, except
//! the wait for the end of a harness whose server answers.
//!
//! Files:
//!
//! - `cli.rs`: the command line and the environment.
//! - `run.rs`: asks one side one test set.
//! - `questions.rs`: checks that the questions are there, and may be used.
//! - `server.rs`: whether the server answers and serves the model.
//! - `harness.rs`: how each harness is started, and where its answers are.
//! - `process.rs`: the process of the harness, from its start to its end.
//! - `log.rs`: what the log of the harness says.
//! - `answers.rs`: reads the answers of a harness; `answers` has a file for each.
//! - `scores.rs`: the file of one side's scores.
//! - `pair.rs`: pairs the scores of two sides.
//! - `fault.rs`: why a run has failed.
//! - `message.rs`: the termination message.

#![forbid(unsafe_code)]

mod answers;
mod cli;
mod fault;
mod harness;
mod log;
mod message;
mod pair;
mod process;
mod questions;
mod run;
mod scores;
mod server;

use std::{path::Path, process::ExitCode};

use api::launcher::evaluator::{Message, PROGRAM};
use clap::Parser as _;
use directory::install::install;

use cli::{Arguments, Command, Key, TERMINATION_LOG};
use fault::Fault;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            return ended(Err(Fault::usage(error.to_string())), TERMINATION_LOG.as_ref(), &Key::none());
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match arguments.command {
        // The container of the harness runs the copy.
        Command::Install { folder } => match install(&folder, PROGRAM) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => ended(Err(Fault::of_copy(&error)), TERMINATION_LOG.as_ref(), &Key::none()),
        },
        Command::Run(wanted) => {
            let key = Key::of_environment();
            ended(run::run(&wanted, &key), &wanted.termination_log, &key)
        }
        Command::Pair(wanted) => ended(pair::pair(&wanted), &wanted.termination_log, &Key::none()),
    }
}

/// Reports the end of a run.
fn ended(result: Result<Message, Fault>, termination_log: &Path, key: &Key) -> ExitCode {
    let (message, code) = match result {
        Ok(message) => (message, ExitCode::SUCCESS),
        Err(fault) => {
            message::note(&key.removed(&fault.message));
            let code = ExitCode::from(fault.code as u8);
            (fault.into_message(), code)
        }
    };
    message::write(termination_log, message, key);
    code
}
