//! Serves a load that goes up and down, for the AIScaler of `cargo xtask up`.

#![forbid(unsafe_code)]

use std::net::SocketAddr;

use clap::Parser;
use fake_prometheus::{Wave, wander};

/// Answers every query with a load that goes up and down.
#[derive(Parser)]
#[command(name = "fake-prometheus", version)]
struct Args {
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    #[arg(long, default_value_t = 8.0)]
    low: f64,
    #[arg(long, default_value_t = 28.0)]
    high: f64,
    /// Seconds from one low to the next
    #[arg(long, default_value_t = 240.0)]
    period: f64,
}

fn main() -> anyhow::Result<()> {
    let Args { listen, low, high, period } = Args::parse();
    wander(listen, Wave { low, high, period_seconds: period })
}
