//! `replay`: what an AIScaler, a HorizontalPodAutoscaler and a fixed number of replicas would have done with past arrivals.
//!
//! ```text
//! CSV ─▶ arrivals ─▶ queue model, step by step ─▶ waits, replica-minutes, changes of direction ─▶ table
//!                      ▲        │
//!            replicas  └ policy ┘  waiting + running
//! ```
//!
//! The policies are those of `crates/scaling`, the same code that the controller runs. The HorizontalPodAutoscaler is that
//! crate without its additions; its tests compare it with a transcription of Kubernetes' rules.
//!
//! **Invariant:** equal arguments give equal output. Nothing is asked of a cluster.
//!
//! - `arrivals.rs`: reads requests from a file.
//! - `model.rs`: the queue and the replicas.
//! - `policies.rs`: the scaling policies.
//! - `table.rs`: the results as text.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is its output")]

mod arrivals;
mod model;
mod policies;
mod table;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Parser;

use crate::{
    arrivals::Costs,
    model::Model,
    policies::{Policy, scaler_of},
};

/// Replays past arrivals against autoscalers, and compares how long requests waited and what the replicas cost
#[derive(Parser)]
#[command(name = "replay", version)]
struct Cli {
    /// CSV file of requests: time, context tokens, generated tokens; or time, seconds that it takes
    #[arg(long, value_name = "FILE")]
    arrivals: PathBuf,
    /// AIScaler manifest to try, once for each; `metricType: queue_depth` alone
    #[arg(long = "scaler", value_name = "FILE", required = true)]
    scalers: Vec<PathBuf>,
    /// A fixed number of replicas to compare with, once for each
    #[arg(long = "fixed", value_name = "REPLICAS", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    fixed: Vec<i32>,
    /// Each request arrives so many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Requests that a replica works on at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: u32,
    /// Seconds per context token
    #[arg(long, default_value_t = 0.000_15)]
    context_seconds: f64,
    /// Seconds per generated token
    #[arg(long, default_value_t = 0.025)]
    generated_seconds: f64,
    /// Seconds from when a replica is ordered until it serves
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=7_200))]
    cold_start: u32,
    /// A wait in seconds; the table shows the share of requests that waited longer
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    promise: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| format!("{text:?} is no number of seconds: write 10 or 2.5"))
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<String> {
    let costs = Costs { context: cli.context_seconds, generated: cli.generated_seconds };
    let name = cli.arrivals.display();
    let text = std::fs::read_to_string(&cli.arrivals).with_context(|| format!("failed to read {name}"))?;
    let requests = arrivals::parse(&text, &costs, cli.repeat).with_context(|| format!("{name}"))?;
    let model = Model { slots: cli.slots, cold_start: cli.cold_start };
    let mut rows = Vec::new();
    for path in &cli.scalers {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let scaler = scaler_of(&text, &stem).with_context(|| format!("{name}"))?;
        for policy in [Policy::scaler(&scaler)?, Policy::hpa(&scaler)?] {
            let label = format!("{} {}", policy.kind(), scaler.name);
            rows.push((label, model::run(&model, &requests, policy)));
        }
    }
    for replicas in &cli.fixed {
        rows.push((format!("fixed {replicas}"), model::run(&model, &requests, Policy::Fixed(*replicas))));
    }
    Ok(table::of(&rows, cli.promise))
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
    fn a_run_prints_a_row_for_each_policy() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let arrivals: String = (0..600).map(|second| format!("{second},5\n")).collect();
        let arrivals = file("arrivals.csv", &arrivals);
        let scaler = file("chat.yaml", policies::SAMPLE);
        let line = ["replay", "--arrivals", &arrivals, "--scaler", &scaler, "--fixed=4", "--cold-start=30"];
        let table = run(&Cli::try_parse_from(line).unwrap()).unwrap();
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 4, "{table}");
        for (row, label) in rows[1..].iter().zip(["AIScaler chat", "HPA chat", "fixed 4"]) {
            assert!(row.starts_with(label), "{table}");
        }
        assert_eq!(run(&Cli::try_parse_from(line).unwrap()).unwrap(), table, "it is deterministic");
        let wrong = ["replay", "--arrivals", &scaler, "--scaler", &scaler];
        let refused = run(&Cli::try_parse_from(wrong).unwrap()).unwrap_err();
        assert!(format!("{refused:#}").contains("line 2"), "{refused:#}");
    }
}
