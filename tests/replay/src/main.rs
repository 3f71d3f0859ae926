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
//! **Invariant:** equal arrivals and arguments give equal output. Nothing is asked of a cluster.
//!
//! - `arrivals.rs`: reads requests from a file.
//! - `past.rs`: makes requests from rates that a Prometheus-compatible server remembers.
//! - `model.rs`: the queue and the replicas.
//! - `policies.rs`: the scaling policies.
//! - `quality.rs`: how well the AIScaler scales, against goals.
//! - `random.rs`: random numbers that are the same on every machine.
//! - `table.rs`: the results as text; `picture.rs`: as a picture.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is its output")]

mod arrivals;
mod model;
mod past;
mod picture;
mod policies;
mod quality;
mod random;
mod table;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser;

use crate::{
    arrivals::{Costs, Request},
    model::{ColdStart, Model},
    past::Past,
    policies::{Policy, scaler_of},
    quality::{COLD_STARTS, HEADING, SHAPES, Shape, row, summary},
};

/// Replays past arrivals against autoscalers, and compares how long requests waited and what the replicas cost
#[derive(Parser)]
#[command(name = "replay", version)]
struct Cli {
    /// CSV file of requests: time, context tokens, generated tokens; or time, seconds that it takes
    #[arg(long, value_name = "FILE", required_unless_present_any = ["quality", "prometheus"], conflicts_with = "prometheus")]
    arrivals: Option<PathBuf>,
    #[command(flatten)]
    past: Past,
    /// AIScaler manifest to try, once for each; one metric, `queue_depth` or `latency`
    #[arg(long = "scaler", value_name = "FILE", required_unless_present = "quality")]
    scalers: Vec<PathBuf>,
    /// A fixed number of replicas to compare with, once for each
    #[arg(long = "fixed", value_name = "REPLICAS", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    fixed: Vec<i32>,
    /// Each request of a file arrives so many times
    #[arg(long, default_value_t = 1, conflicts_with = "prometheus", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Requests that a replica works on at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: u32,
    /// Seconds per context token of a file
    #[arg(long, default_value_t = 0.000_15, conflicts_with = "prometheus")]
    context_seconds: f64,
    /// Seconds per generated token of a file
    #[arg(long, default_value_t = 0.025, conflicts_with = "prometheus")]
    generated_seconds: f64,
    /// Seconds from when a replica is ordered until it serves; or a range such as 30..120, each equally likely
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = ColdStart::parse)]
    cold_start: ColdStart,
    /// Writes what waits and how many replicas there are, over the time, as a picture (SVG)
    #[arg(long, value_name = "FILE", conflicts_with = "quality")]
    picture: Option<PathBuf>,
    /// Compare with goals instead: on arrivals of several shapes, or on those of files, each request so many times
    #[arg(long, value_name = "FILE:TIMES", num_args = 0.., conflicts_with_all = ["arrivals", "prometheus", "scalers", "fixed"])]
    quality: Option<Vec<String>>,
    /// Who counts what arrives, for the AIScalers that are compared with goals
    #[arg(long, value_enum, default_value_t = CountedBy::Engines, requires = "quality")]
    counted_by: CountedBy,
    /// How much longer a request takes on a full replica: 0.5 for half as long again
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    slowdown: f64,
    /// A wait in seconds; the table shows the share of requests that waited longer
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    promise: f64,
}

#[derive(clap::ValueEnum, Clone, Copy)]
enum CountedBy {
    /// Engines, whose pods are read
    Engines,
    /// A Prometheus server, with a completionsQuery
    Prometheus,
}

impl CountedBy {
    /// As in a manifest.
    fn source(self) -> &'static str {
        match self {
            Self::Engines => "",
            Self::Prometheus => "source: {prometheus: {query: in_hand, completionsQuery: finished}}, ",
        }
    }
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
    if let Some(files) = &cli.quality {
        return compared_with_goals(cli, files);
    }
    let requests = match &cli.past.prometheus {
        Some(server) => cli.past.read(server)?,
        None => read(cli, &cli.arrivals.clone().unwrap_or_default(), cli.repeat)?,
    };
    let model = Model { slots: cli.slots, cold_start: cli.cold_start, slowdown: cli.slowdown };
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
    if let Some(path) = &cli.picture {
        std::fs::write(path, picture::svg(&rows))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(table::of(&rows, cli.promise))
}

fn read(cli: &Cli, path: &Path, repeat: u32) -> anyhow::Result<Vec<Request>> {
    let costs = Costs { context: cli.context_seconds, generated: cli.generated_seconds };
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
    arrivals::parse(&text, &costs, repeat).with_context(|| format!("{name}"))
}

/// Of each load, with two cold starts and two targets.
fn compared_with_goals(cli: &Cli, files: &[String]) -> anyhow::Result<String> {
    let mut loads = Vec::new();
    for file in files {
        let (path, times) = file.rsplit_once(':').unwrap_or((file, "1"));
        let times = times.parse().with_context(|| format!("{file}: write FILE:TIMES"))?;
        let path = Path::new(path);
        let name = format!("{} x{times}", path.file_stem().unwrap_or_default().to_string_lossy());
        let model =
            |seconds| Model { slots: cli.slots, cold_start: ColdStart::of(seconds), slowdown: cli.slowdown };
        loads.push((name, read(cli, path, times)?, COLD_STARTS.map(model)));
    }
    if files.is_empty() {
        let of = |shape: &Shape| {
            (
                shape.name.to_owned(),
                shape.requests(SEED),
                COLD_STARTS.map(|cold_start| shape.model(cold_start)),
            )
        };
        loads = SHAPES.iter().map(of).collect();
    }
    let mut lines = vec![HEADING.to_owned()];
    let source = cli.counted_by.source();
    for target in [5, 8] {
        let text = format!(
            "kind: AIScaler\nspec: {{deploymentName: chat, metricType: queue_depth, {source}targetValue: {target}, minReplicas: 2, \
             maxReplicas: 64}}"
        );
        let scaler = scaler_of(&text, "chat")?;
        let mut rows = Vec::new();
        for (name, requests, models) in &loads {
            for model in models {
                rows.push(row(format!("{name}, {}, {target}", model.cold_start), model, requests, &scaler)?);
            }
        }
        lines.extend(rows.iter().map(ToString::to_string));
        lines.push(format!("\ntarget {target}\n{}", summary(&rows)));
    }
    Ok(lines.join("\n"))
}

/// Any number will do.
const SEED: u64 = 7;

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
