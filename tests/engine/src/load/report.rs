//! What a load came to: counts by kind, by pod and by revision, and how long answers took.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::client::{Answer, Failure};

/// Of one request.
#[derive(Debug)]
pub(super) struct Outcome {
    /// After the load began.
    pub(super) due: Duration,
    pub(super) took: Duration,
    pub(super) answer: Result<Answer, Failure>,
}

/// How many failures are listed with their times.
const LISTED_FAILURES: usize = 10;

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    sent: u64,
    succeeded: u64,
    failed: u64,
    failures: BTreeMap<String, u64>,
    /// Kept connections that were found closed and opened anew; no failures.
    reconnected: u64,
    /// Of answers, not of failures.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// How late the latest request was sent: if this is long, the load was not what was asked for.
    latest_start_ms: f64,
    by_pod: BTreeMap<String, u64>,
    by_revision: BTreeMap<String, u64>,
    first_failures: Vec<ListedFailure>,
    /// By the second in which a request was due.
    failed_by_second: BTreeMap<u64, u64>,
    #[serde(skip)]
    took: Vec<Duration>,
}

#[derive(Debug, Serialize)]
struct ListedFailure {
    second: f64,
    kind: String,
}

impl Report {
    pub(super) fn late(&mut self, late: Duration) {
        self.latest_start_ms = self.latest_start_ms.max(milliseconds(late));
    }

    pub(super) fn count(&mut self, outcome: Outcome) {
        let Outcome { due, took, answer } = outcome;
        self.sent += 1;
        match answer {
            Ok(Answer { pod, revision, reconnected }) => {
                self.succeeded += 1;
                self.took.push(took);
                self.reconnected += u64::from(reconnected);
                *self.by_pod.entry(pod).or_default() += 1;
                *self.by_revision.entry(revision).or_default() += 1;
            }
            Err(failure) => {
                self.failed += 1;
                *self.failures.entry(failure.kind()).or_default() += 1;
                *self.failed_by_second.entry(due.as_secs()).or_default() += 1;
                self.first_failures.push(ListedFailure { second: due.as_secs_f64(), kind: failure.kind() });
            }
        }
    }

    pub(super) fn finished(mut self) -> Self {
        self.took.sort();
        self.p50_ms = milliseconds(share(&self.took, 50));
        self.p99_ms = milliseconds(share(&self.took, 99));
        self.max_ms = milliseconds(share(&self.took, 100));
        // They came in the order of their ends.
        self.first_failures.sort_by(|one, other| one.second.total_cmp(&other.second));
        self.first_failures.truncate(LISTED_FAILURES);
        self
    }
}

/// The time within which so many percent were answered.
fn share(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// To the microsecond.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_times_that_were_measured() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let shares = [50, 99, 100].map(|percent| share(&times, percent).as_millis());
        assert_eq!(shares, [100, 198, 200]);
        assert_eq!((share(&times[..1], 50), share(&[], 99)), (times[0], Duration::ZERO));
    }

    #[test]
    fn failures_are_counted_by_kind_and_the_first_ones_told_in_order() {
        let mut report = Report::default();
        for second in (0..12).rev() {
            let answer = Err(if second == 0 { Failure::Refused } else { Failure::Timeout });
            report.count(Outcome { due: Duration::from_secs(second), took: Duration::ZERO, answer });
        }
        let report = report.finished();
        assert_eq!((report.sent, report.failed, report.succeeded), (12, 12, 0));
        assert_eq!((report.failures["refused"], report.failures["timeout"]), (1, 11));
        assert_eq!(report.failed_by_second.values().sum::<u64>(), 12);
        let seconds: Vec<f64> = report.first_failures.iter().map(|failure| failure.second).collect();
        assert_eq!(seconds, (0..10).map(f64::from).collect::<Vec<_>>());
    }
}
