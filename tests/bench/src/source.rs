//! A program that streams readings, in a process of its own, and its subscribers.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use proto::metrics::v1::{Snapshot, SubscribeRequest, metrics_client::MetricsClient};
use tokio::time::timeout;
use tonic::{Streaming, transport::Channel};

const PATIENCE: Duration = Duration::from_secs(60);

/// The process ends with this value.
pub(crate) struct Source {
    process: Child,
    address: String,
}

impl Source {
    /// Starts the program on free ports of loopback, and reads its addresses from its log.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let process = command
            .args(["--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {}", command.get_program().display()))?;
        let mut source = Self { process, address: String::new() };
        let log = BufReader::new(source.process.stderr.take().context("no log")?);
        let mut lines = log.lines();
        let line = loop {
            let Some(line) = lines.next() else { bail!("the program has ended") };
            let line: serde_json::Value = serde_json::from_str(&line?)?;
            if line["message"] == "listening" {
                break line;
            }
        };
        // A full pipe would block the program at its next line.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        source.address = format!("http://{}", line["grpc"].as_str().context("no address")?);
        Ok(source)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) async fn subscribe(&self) -> anyhow::Result<Streaming<Snapshot>> {
        let channel = Channel::from_shared(self.address.clone())?.connect().await?;
        let request = SubscribeRequest { subscriber: "bench".to_owned(), min_interval: None };
        Ok(MetricsClient::new(channel).subscribe(request).await?.into_inner())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) async fn next(stream: &mut Streaming<Snapshot>) -> anyhow::Result<Snapshot> {
    timeout(PATIENCE, stream.message()).await.context("no snapshot in time")??.context("the stream has ended")
}
