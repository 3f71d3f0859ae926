//! The page `/metrics` of the contract of agents. Pure.

use std::time::Duration;

/// Gauge: tasks that wait.
pub(crate) const QUEUE_DEPTH: &str = "agent_queue_depth";
/// Gauge: tasks that are worked on.
pub(crate) const TASKS_IN_FLIGHT: &str = "agent_tasks_in_flight";
/// Counter: tokens used since the process started.
pub(crate) const TOKENS: &str = "agent_tokens_total";
/// Gauge: with it a restart is seen.
pub(crate) const START: &str = "process_start_time_seconds";
/// Counter: tasks that have ended.
const TASKS: &str = "agent_tasks_total";

/// What the page shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) waiting: usize,
    pub(crate) in_hand: usize,
    pub(crate) tokens: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
}

/// `started`: since 1970.
pub(crate) fn page(counts: Counts, started: Duration) -> String {
    let Counts { waiting, in_hand, tokens, done, failed } = counts;
    let started = started.as_secs_f64();
    format!(
        "# HELP {QUEUE_DEPTH} Tasks that wait\n\
         # TYPE {QUEUE_DEPTH} gauge\n\
         {QUEUE_DEPTH} {waiting}\n\
         # HELP {TASKS_IN_FLIGHT} Tasks that are worked on\n\
         # TYPE {TASKS_IN_FLIGHT} gauge\n\
         {TASKS_IN_FLIGHT} {in_hand}\n\
         # HELP {TOKENS} Tokens that models have used since the process started\n\
         # TYPE {TOKENS} counter\n\
         {TOKENS} {tokens}\n\
         # HELP {TASKS} Tasks that have ended since the process started\n\
         # TYPE {TASKS} counter\n\
         {TASKS}{{outcome=\"done\"}} {done}\n\
         {TASKS}{{outcome=\"failed\"}} {failed}\n\
         # HELP {START} Start of the process\n\
         # TYPE {START} gauge\n\
         {START} {started:.3}\n"
    )
}

#[cfg(test)]
mod tests {
    use text::exposition::parse;

    use super::*;

    #[test]
    fn the_names_are_those_of_the_contract() {
        use api::monitor::metrics;
        assert_eq!(
            [QUEUE_DEPTH, TASKS_IN_FLIGHT, TOKENS, TASKS],
            [metrics::QUEUE_DEPTH, metrics::TASKS_IN_FLIGHT, metrics::TOKENS, metrics::TASKS]
        );
    }

    #[test]
    fn the_page_is_read_by_the_parser_of_the_monitor() {
        let counts = Counts { waiting: 3, in_hand: 1, tokens: 1_500, done: 2, failed: 0 };
        let page = page(counts, Duration::from_millis(1_767_268_800_250));
        let read = parse(&page, |_| true);
        assert_eq!(read.unreadable, 0);
        let value = |name: &str| read.series.iter().find(|series| series.name == name).unwrap().value;
        assert_eq!((value(QUEUE_DEPTH), value(TASKS_IN_FLIGHT), value(TOKENS)), (3.0, 1.0, 1_500.0));
        assert_eq!(value(START), 1_767_268_800.25);
    }
}
