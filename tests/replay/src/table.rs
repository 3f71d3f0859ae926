//! The results as text. Pure.

use crate::model::Outcome;

/// Percentiles of the wait in seconds, the share beyond the promise, and what it cost.
pub(crate) fn of(rows: &[(String, Outcome)], promise: f64) -> String {
    let width = rows.iter().map(|(label, _)| label.len()).chain([6]).max().unwrap_or_default();
    let mut lines = vec![format!(
        "{:width$} {:>8} {:>8} {:>8} {:>10} {:>16} {:>6} {:>6}",
        "policy",
        "p50 s",
        "p95 s",
        "p99 s",
        format!("> {promise} s"),
        "replica-minutes",
        "most",
        "turns"
    )];
    lines.extend(rows.iter().map(|(label, outcome)| {
        format!(
            "{label:width$} {:>8.1} {:>8.1} {:>8.1} {:>9.2}% {:>16.0} {:>6} {:>6}",
            outcome.percentile(0.5),
            outcome.percentile(0.95),
            outcome.percentile(0.99),
            outcome.beyond(promise) * 100.0,
            outcome.replica_minutes,
            outcome.most,
            outcome.turns
        )
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_is_a_line_below_the_heading() {
        let outcome = Outcome {
            waits: vec![0.0, 0.0, 0.0, 12.0],
            replica_minutes: 30.4,
            most: 3,
            turns: 1,
            course: Vec::new(),
        };
        let table = of(&[("AIScaler chat".to_owned(), outcome)], 10.0);
        let expected = "\
policy           p50 s    p95 s    p99 s     > 10 s  replica-minutes   most  turns
AIScaler chat      0.0     12.0     12.0     25.00%               30      3      1";
        assert_eq!(table, expected);
    }
}
