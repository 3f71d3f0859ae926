//! `test-engine streams`: answers that are streamed, so many at a time and one after the other. Counts those that were cut.
#![expect(clippy::print_stdout, reason = "the report is what this command is for")]

use std::{collections::BTreeMap, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use serde::Serialize;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::client::{Client, Streamed, Target};

/// Keeps streams open and prints how they ended, as one line of JSON
#[derive(Debug, clap::Parser)]
#[command(name = "test-engine streams")]
pub(crate) struct Args {
    /// Where to, as in http://host:8000/path
    #[arg(long)]
    url: Target,
    /// Streams that are open at any time
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    count: u32,
    /// Tokens of each
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    tokens: u32,
    /// The first ones are opened in so many seconds, so that they do not end together
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    ramp_seconds: u32,
    /// So long new ones are opened; the last ones end later
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// How long a stream may take in all
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=7_200))]
    timeout_seconds: u32,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    opened: u64,
    /// All of its tokens came, and then its end.
    complete: u64,
    /// Opened, and not complete.
    cut: u64,
    /// Not opened, by kind.
    failures: BTreeMap<String, u64>,
    /// Complete ones.
    by_revision: BTreeMap<String, u64>,
    /// The longest time of a complete one.
    longest_seconds: f64,
}

impl Report {
    fn count(&mut self, streamed: Streamed, tokens: u64, took: Duration) {
        self.opened += 1;
        if streamed.is_done && streamed.tokens == tokens {
            self.complete += 1;
            *self.by_revision.entry(streamed.answer.revision).or_default() += 1;
            self.longest_seconds = self.longest_seconds.max(took.as_secs_f64());
        } else {
            self.cut += 1;
        }
    }

    fn add(&mut self, other: Self) {
        let Self { opened, complete, cut, failures, by_revision, longest_seconds } = other;
        self.opened += opened;
        self.complete += complete;
        self.cut += cut;
        for (sum, more) in [(&mut self.failures, failures), (&mut self.by_revision, by_revision)] {
            for (key, count) in more {
                *sum.entry(key).or_default() += count;
            }
        }
        self.longest_seconds = self.longest_seconds.max(longest_seconds);
    }
}

/// So that a server that refuses is not asked without end.
const AFTER_A_FAILURE: Duration = Duration::from_millis(200);

/// Ends with success whatever was counted, as a load.
pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args { url, count, tokens, ramp_seconds, seconds, timeout_seconds } = args;
    let body = format!(r#"{{"prompt":"test","stream":true,"max_tokens":{tokens}}}"#);
    let patience = Duration::from_secs((*timeout_seconds).into());
    let client = Arc::new(Client::new(url.clone(), body, patience, false));
    let began = Instant::now();
    let (until, tokens) = (began + Duration::from_secs((*seconds).into()), u64::from(*tokens));
    let ramp = Duration::from_secs((*ramp_seconds).into());
    let mut slots = JoinSet::new();
    for number in 0..*count {
        let from = began + ramp * number / *count;
        slots.spawn(one_after_the_other(Arc::clone(&client), tokens, from, until));
    }
    let mut report = Report::default();
    while let Some(of_one) = slots.join_next().await {
        report.add(of_one.context("a stream was lost")?);
    }
    println!("{}", serde_json::to_string(&report).context("failed to write the report")?);
    Ok(ExitCode::SUCCESS)
}

async fn one_after_the_other(client: Arc<Client>, tokens: u64, from: Instant, until: Instant) -> Report {
    let mut report = Report::default();
    sleep_until(from).await;
    while Instant::now() < until {
        let began = Instant::now();
        match client.stream().await {
            Ok(streamed) => report.count(streamed, tokens, began.elapsed()),
            Err(failure) => {
                *report.failures.entry(failure.kind()).or_default() += 1;
                sleep(AFTER_A_FAILURE).await;
            }
        }
    }
    report
}
