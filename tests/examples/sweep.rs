//! `cargo xtask sweep`: plays the lives of `tests::sweep`, and prints how they went.

use std::process::ExitCode;

use api::controllers::CONTROLLERS;
use clap::{Parser, builder::PossibleValuesParser};
use tests::sweep::{Choice, Mode, sweep};

/// Lets each write of a controller go wrong in every way, and compares what comes of it with an undisturbed life
#[derive(Parser)]
#[command(name = "cargo xtask sweep")]
struct Args {
    /// Its name, as in deploy
    controller: String,

    /// One way instead of all
    #[arg(long, value_parser = PossibleValuesParser::new(Mode::ALL.map(Mode::name)))]
    mode: Option<String>,

    /// One write instead of all; the first is number 1
    #[arg(long)]
    write: Option<usize>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let Some(controller) = CONTROLLERS.iter().find(|known| known.name == args.controller) else {
        let known: Vec<&str> = CONTROLLERS.iter().map(|known| known.name).collect();
        eprintln!("error: there is no {}; there is {}", args.controller, known.join(", "));
        return ExitCode::FAILURE;
    };
    let modes = args.mode.and_then(|mode| Mode::named(&mode)).map_or(Mode::ALL.to_vec(), |mode| vec![mode]);
    match sweep(controller, &Choice::All { modes, write: args.write }).await {
        Ok(report) => {
            print!("{}", report.table());
            if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
