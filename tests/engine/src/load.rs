//! `test-engine load`: open-loop load. When each request is sent is fixed beforehand, so a server that answers late is
//! not asked less; nothing is retried but what any client retries: a kept connection that turns out to be closed.
//!
//! Every failure is counted by its kind and none is hidden: zero failures is what rollouts are tested for.
#![expect(clippy::print_stdout, reason = "the report is what this command is for")]

mod client;
mod report;
pub(crate) mod streams;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use client::{Client, Target};
use report::{Outcome, Report};

/// Sends requests at fixed times and prints what came back, as one line of JSON
#[derive(Debug, clap::Parser)]
#[command(name = "test-engine load")]
pub(crate) struct Args {
    /// Where to, as in http://host:8000/path; the name is looked up for each connection
    #[arg(long)]
    url: Target,
    /// Sent as POST
    #[arg(long, default_value = r#"{"prompt":"test"}"#)]
    body: String,
    /// Requests per second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Keeps connections for further requests instead of opening one for each
    #[arg(long)]
    keep_alive: bool,
    /// How long a request may take in all
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    timeout_seconds: u32,
    /// Begins when a request has been answered, which may take so long: a new Service is not known everywhere at once
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=600))]
    first_answer_seconds: u32,
}

/// Between two tries to get a first answer.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// If no answer comes in time, the load begins all the same.
async fn until_answered(client: &Client, within: Duration) {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline && client.send().await.is_err() {
        sleep(TRY_AGAIN_AFTER).await;
    }
}

/// Ends with success whatever was counted: the test decides what is too many.
pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args { url, body, rate, seconds, keep_alive, timeout_seconds, first_answer_seconds } = args;
    let patience = Duration::from_secs((*timeout_seconds).into());
    let client = Arc::new(Client::new(url.clone(), body.clone(), patience, *keep_alive));
    until_answered(&client, Duration::from_secs((*first_answer_seconds).into())).await;
    let began = Instant::now();
    let mut report = Report::default();
    let mut requests = JoinSet::new();
    for number in 0..u64::from(*rate) * u64::from(*seconds) {
        let due = Duration::from_secs(number) / *rate;
        sleep_until(began + due).await;
        report.late(began.elapsed().saturating_sub(due));
        let client = Arc::clone(&client);
        requests.spawn(async move {
            let sent = Instant::now();
            let answer = client.send().await;
            Outcome { due, took: sent.elapsed(), answer }
        });
        while let Some(outcome) = requests.try_join_next() {
            report.count(outcome.context("a request was lost")?);
        }
    }
    while let Some(outcome) = requests.join_next().await {
        report.count(outcome.context("a request was lost")?);
    }
    let line = serde_json::to_string(&report.finished()).context("failed to write the report")?;
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}
