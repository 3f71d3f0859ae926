//! Parses the load of a worker from one scrape. Pure.
//!
//! A value that is missing is never zero. A metric with several series, as by queue or by model, is their sum.

use api::monitor::metrics::{QUEUE_DEPTH, TASKS, TASKS_IN_FLIGHT, TOKENS};

use crate::ledger::Counted;

/// As Prometheus' client libraries serve it.
const PROCESS_START: &str = "process_start_time_seconds";
/// Above it, not every whole number is an `f64`.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// The values of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) queued: Option<u64>,
    pub(crate) in_flight: Option<u64>,
    pub(crate) tokens: Option<Counted>,
    /// Tasks that have ended. The contract does not require it.
    pub(crate) finished: Option<u64>,
}

impl Load {
    /// `None`: the text is not in the format of Prometheus.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let wanted = [QUEUE_DEPTH, TASKS_IN_FLIGHT, TOKENS, TASKS, PROCESS_START];
        let read = text::exposition::parse(text, |name| wanted.contains(&name));
        if read.is_empty() && read.unreadable > 0 {
            return None;
        }
        let sum = |name: &str| {
            let mut values =
                read.series.iter().filter(|series| series.name == name).map(|series| series.value);
            let first = values.next()?;
            let sum: f64 = values.fold(first, |sum, value| sum + value);
            (sum.is_finite() && sum >= 0.0).then_some(sum)
        };
        let whole = |name: &str| sum(name).map(|value| value.round().min(LARGEST) as u64);
        Some(Self {
            queued: whole(QUEUE_DEPTH),
            in_flight: whole(TASKS_IN_FLIGHT),
            tokens: whole(TOKENS)
                .map(|tokens| Counted { tokens, started: sum(PROCESS_START).map(microseconds) }),
            finished: whole(TASKS),
        })
    }

    /// Whether the worker serves any metric that the contract requires.
    pub(crate) fn is_reported(&self) -> bool {
        self.queued.is_some() || self.in_flight.is_some() || self.tokens.is_some()
    }

    /// The metrics of the contract that the worker does not serve.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &'static str> {
        let served = [
            (QUEUE_DEPTH, self.queued.is_some()),
            (TASKS_IN_FLIGHT, self.in_flight.is_some()),
            (TOKENS, self.tokens.is_some()),
        ];
        served.into_iter().filter(|(_, is_served)| !is_served).map(|(name, _)| name)
    }
}

/// The conversion ends at the largest value.
fn microseconds(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "\
# TYPE agent_queue_depth gauge
agent_queue_depth 3
# TYPE agent_tasks_in_flight gauge
agent_tasks_in_flight{queue=\"a\"} 1
agent_tasks_in_flight{queue=\"b\"} 2
# TYPE agent_tokens_total counter
agent_tokens_total{model=\"m\"} 1.5e3
# TYPE agent_tasks_total counter
agent_tasks_total{outcome=\"done\"} 8
agent_tasks_total{outcome=\"failed\"} 1
process_start_time_seconds 1.767e9
other 1
";

    #[test]
    fn all_are_read_and_series_are_added() {
        let load = Load::of(WHOLE).unwrap();
        let tokens = Counted { tokens: 1_500, started: Some(1_767_000_000_000_000) };
        let expected = Load { queued: Some(3), in_flight: Some(3), tokens: Some(tokens), finished: Some(9) };
        assert_eq!(load, expected);
        assert_eq!(load.missing().count(), 0);
    }

    #[test]
    fn what_is_missing_is_not_zero() {
        let load = Load::of("agent_queue_depth 0\n").unwrap();
        assert_eq!((load.queued, load.in_flight, load.tokens), (Some(0), None, None));
        assert_eq!(load.missing().collect::<Vec<_>>(), ["agent_tasks_in_flight", "agent_tokens_total"]);
        assert_eq!(load.finished, None, "and it is not required");
    }

    #[test]
    fn a_value_that_is_no_number_of_things_is_missing() {
        for value in ["NaN", "+Inf", "-1"] {
            assert_eq!(Load::of(&format!("agent_queue_depth {value}\n")).unwrap().queued, None, "{value}");
        }
        assert_eq!(Load::of("agent_tokens_total 1e300\n").unwrap().tokens.unwrap().tokens, 1 << 53);
    }

    #[test]
    fn another_format_is_not_a_worker_without_metrics() {
        assert_eq!(Load::of("<html>not found</html>\n"), None);
        assert_eq!(Load::of(""), Some(Load::default()));
    }
}
