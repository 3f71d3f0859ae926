//! The book of `docs`. `build` writes it as HTML, and `reference` writes the pages of `docs/reference` from the code.
//!
//! The checks of all manuals are the tests of this crate: `links`, `commands`, `prose`, `conditions` and `reference`. The
//! YAML of the pages is applied by `tests/admit/manuals.rs`, which has an API server.

mod book;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod conditions;
#[cfg(test)]
mod links;
mod pages;
mod prose;
mod reference;
mod sources;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo run --package manual --")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes the book as HTML into this folder
    Build { folder: PathBuf },
    /// Writes the pages of docs/reference from the code
    Reference {
        /// Changes nothing and fails if a page is not what would be written
        #[arg(long)]
        check: bool,
    },
    /// Prints sentences, mean and longest of each manual
    Sentences,
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Build { folder } => book::build(folder),
        Command::Reference { check } => reference::run(check),
        Command::Sentences => prose::print(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
