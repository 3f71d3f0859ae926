//! Counts the tokens that all runs of the worker in a pod have used. The counter of a worker restarts at zero with its
//! process; the total never decreases.
//!
//! The total is stored in a file of the pod, so that a restarted monitor counts each token once. Tokens that a worker
//! uses after the last scrape are not counted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::replace;

/// In the folder of the monitor.
const FILE: &str = "tokens.json";

/// The total, and what it contains of the counter of the worker that runs.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Ledger {
    total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<Counted>,
}

/// The counter of one process.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Counted {
    pub(crate) tokens: u64,
    /// `process_start_time_seconds` in microseconds, if the worker serves it. With it a new process is recognized however
    /// much it has used. A whole number, because a fraction can change when it is written to JSON and read again.
    #[serde(skip_serializing_if = "Option::is_none", rename = "startedMicroseconds")]
    pub(crate) started: Option<u64>,
}

impl Ledger {
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// `None` as long as no worker has served its counter.
    pub(crate) fn counted(&self) -> Option<u64> {
        self.worker.map(|_| self.total)
    }

    /// Adds the increase of the counter since the last reading. Returns whether the ledger has changed.
    pub(crate) fn count(&mut self, read: Counted) -> bool {
        if self.worker == Some(read) {
            return false;
        }
        let known = self.worker.filter(|known| is_same_process(known, &read)).map_or(0, |known| known.tokens);
        self.total = self.total.saturating_add(read.tokens.saturating_sub(known));
        self.worker = Some(read);
        true
    }
}

/// A counter falls only with its process.
fn is_same_process(known: &Counted, read: &Counted) -> bool {
    let have_same_start = match (known.started, read.started) {
        (Some(known), Some(read)) => known == read,
        (None, _) | (_, None) => true,
    };
    have_same_start && read.tokens >= known.tokens
}

/// The file of a ledger.
#[derive(Clone, Debug)]
pub(crate) struct LedgerFile(PathBuf);

impl LedgerFile {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self(folder.join(FILE))
    }

    /// Of an earlier monitor of this pod. A file that cannot be read is an empty ledger, because the worker waits for this
    /// process to start.
    pub(crate) fn read(&self) -> Ledger {
        let read = fs::read(&self.0).and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let path = self.0.display();
                warn!(%error, %path, "failed to read the tokens: those of earlier workers of this pod are lost");
            }
            Ledger::default()
        })
    }

    /// Blocks.
    pub(crate) fn write(&self, ledger: &Ledger) -> io::Result<()> {
        replace(&self.0, &serde_json::to_vec(ledger)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(tokens: u64, started: f64) -> Counted {
        Counted { tokens, started: Some((started * 1e6) as u64) }
    }

    /// As a restarted monitor reads it.
    #[test]
    fn a_ledger_that_is_written_and_read_again_knows_the_process_by_its_start() {
        for number in 0..10_000_u32 {
            let started = 1_795_600_000.013 + f64::from(number) * 0.01;
            let page = format!("agent_tokens_total 5\nprocess_start_time_seconds {started}\n");
            let counted = crate::load::Load::of(&page).unwrap().tokens.unwrap();
            let mut ledger = Ledger::default();
            ledger.count(counted);
            let mut again: Ledger = serde_json::from_slice(&serde_json::to_vec(&ledger).unwrap()).unwrap();
            again.count(Counted { tokens: 7, ..counted });
            assert_eq!(again.total(), 7, "{started}");
        }
    }

    #[test]
    fn a_counter_that_grows_is_counted_once() {
        let mut ledger = Ledger::default();
        assert!(ledger.count(read(5, 1.0)) && ledger.count(read(7, 1.0)));
        assert!(!ledger.count(read(7, 1.0)), "nothing to write");
        assert_eq!(ledger.total(), 7);
    }

    #[test]
    fn a_counter_that_falls_is_that_of_a_new_process() {
        let mut ledger = Ledger::default();
        for tokens in [100, 30, 40] {
            ledger.count(Counted { tokens, started: None });
        }
        assert_eq!(ledger.total(), 140);
    }

    #[test]
    fn a_new_process_that_has_used_more_already_is_known_by_its_start() {
        let mut ledger = Ledger::default();
        ledger.count(read(100, 1.0));
        ledger.count(read(150, 2.0));
        assert_eq!(ledger.total(), 250);
        let mut unnamed = Ledger::default();
        unnamed.count(Counted { tokens: 100, started: None });
        unnamed.count(Counted { tokens: 150, started: None });
        assert_eq!(unnamed.total(), 150, "without a start time, a restart looks like growth");
    }

    #[test]
    fn a_monitor_that_is_started_again_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = LedgerFile::in_folder(folder.path());
        let mut first = file.read();
        first.count(read(100, 1.0));
        file.write(&first).unwrap();
        let mut second = file.read();
        second.count(read(120, 1.0));
        assert_eq!(second.total(), 120);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_empty_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let file = LedgerFile::in_folder(folder.path());
        for text in ["", "{"] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(file.read(), Ledger::default(), "{text:?}");
        }
    }

    proptest! {
        /// Restarts of workers and monitors in any order, each process with its start: the total is the sum.
        #[test]
        fn the_total_is_the_sum_over_all_processes(
            processes in prop::collection::vec(prop::collection::vec((0u64..1_000, any::<bool>()), 1..5), 1..8),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = LedgerFile::in_folder(folder.path());
            let mut ledger = Ledger::default();
            let mut sum = 0;
            for (number, growth) in processes.iter().enumerate() {
                let mut tokens = 0;
                for (more, monitor_restarts) in growth {
                    tokens += more;
                    ledger.count(read(tokens, number as f64));
                    if *monitor_restarts {
                        file.write(&ledger).unwrap();
                        ledger = file.read();
                    }
                }
                sum += tokens;
            }
            prop_assert_eq!(ledger.total(), sum);
        }
    }
}
