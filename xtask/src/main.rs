//! `cargo xtask`: the project's own commands, a thin command line over the crates.
//!
//! It parses and dispatches; each command is a file beside this one. It holds no logic of a crate.

#[cfg(test)]
mod architecture;
mod bench;
mod ci;
mod cluster;
mod codegen;
mod demo;
mod dev_cluster;
mod docs;
mod eval_demo;
mod hub_clients;
mod images;
mod python;
mod replay;
mod setup;
mod steps;
mod sweep;
mod swift_args;
mod swift_environment;
mod test;
mod train_demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use steps::PassedOn;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Cluster(cluster::Command),
    /// Writes deploy/crds, the admission policies, the generated part of proto and docs/reference from the code
    Codegen(codegen::Args),
    /// Builds the tools and the binaries, then runs every test
    Test(test::Args),
    /// Everything that must hold before a change lands: format, lints, licences, tests, docs
    Ci,
    /// Builds an OCI image of each program, and prints the size of each
    Images(images::Args),
    /// Makes a node fail, the load rise or a new version come, and shows it second by second, as text and as a picture
    Demo(PassedOn),
    /// What autoscalers would have done with past arrivals: waits and replica-minutes, as a table
    Replay(PassedOn),
    /// Lets the real ms-swift train on the CPU of a real node, be killed, resume and upload (Linux, as root)
    TrainDemo,
    /// Lets the real EvalScope or lm-eval ask servers whose right answers are known, and compares the counts
    EvalDemo(eval_demo::Args),
    /// Lets the real huggingface_hub and modelscope download from the stand-in of hubs that the tests use
    HubClients,
    /// Shows the golden command lines of trainings to the argument parser of the real ms-swift
    SwiftArgs,
    /// Writes the book of docs as HTML into target/book
    Docs,
    /// Figures of speed and memory, from release builds
    Bench(PassedOn),
    /// Lets each write of a controller fail in every way, and compares the result with an undisturbed run
    Sweep(PassedOn),
    /// Installs what the project needs, or names what is missing
    Setup,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Cluster(command) => cluster::run(command),
        Command::Codegen(args) => codegen::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Ci => ci::run(),
        Command::Images(args) => images::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::TrainDemo => train_demo::run(),
        Command::EvalDemo(args) => eval_demo::run(&args),
        Command::HubClients => hub_clients::run(),
        Command::SwiftArgs => swift_args::run(),
        Command::Docs => docs::run(),
        Command::Bench(args) => bench::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Setup => setup::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes on one line: a backtrace does not help a user.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bench_gets_its_options_and_the_question_for_help_as_they_are() {
        for args in [&["runtime", "--objects", "7"][..], &["inference", "--help"], &["--help"]] {
            let line = ["xtask", "bench"].iter().chain(args);
            let parsed = Cli::try_parse_from(line).unwrap_or_else(|refused| panic!("{refused}"));
            let Command::Bench(bench) = parsed.command else { panic!("no bench") };
            assert_eq!(bench.args, args);
        }
    }
}
