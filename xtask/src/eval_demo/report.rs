//! What the demo prints. Pure: lines with columns.

use std::time::Duration;

use comparison::{Comparison, Counts, Verdict};

use super::{planted::Side, runner::Ended};

const SIDES: [(&str, usize); 7] = [
    ("SIDE", 9),
    ("MODEL", 7),
    ("QUESTIONS", 9),
    ("RIGHT", 7),
    ("UNREADABLE", 10),
    ("SECONDS", 7),
    ("MEMORY", 7),
];
const PAIRS: [(&str, usize); 6] = [
    ("CANDIDATE", 9),
    ("BOTH RIGHT", 10),
    ("ONLY BASELINE", 13),
    ("ONLY CANDIDATE", 14),
    ("BOTH WRONG", 10),
    ("SECONDS", 7),
];
const VERDICTS: [(&str, usize); 4] = [("CANDIDATE", 9), ("BUDGET", 6), ("DIFFERENCE", 22), ("VERDICT", 7)];

pub(super) fn heading_of_sides() -> String {
    row(SIDES.map(|(_, width)| width), SIDES.map(|(name, _)| name.to_owned()))
}

pub(super) fn heading_of_pairs() -> String {
    row(PAIRS.map(|(_, width)| width), PAIRS.map(|(name, _)| name.to_owned()))
}

pub(super) fn heading_of_verdicts() -> String {
    row(VERDICTS.map(|(_, width)| width), VERDICTS.map(|(name, _)| name.to_owned()))
}

pub(super) fn side(name: &str, model: &str, counted: Side, planted: Option<Side>, ended: &Ended) -> String {
    let cells = [
        name.to_owned(),
        model.to_owned(),
        both(counted.questions, planted.map(|planted| planted.questions)),
        both(counted.right, planted.map(|planted| planted.right)),
        both(counted.unreadable, planted.map(|planted| planted.unreadable)),
        seconds(ended.took),
        memory(ended.most_kib),
    ];
    row(SIDES.map(|(_, width)| width), cells)
}

/// The null control is paired together with a candidate, so it has no time of its own.
pub(super) fn pair(name: &str, counted: Counts, planted: Option<Counts>, took: Option<Duration>) -> String {
    let cells = [
        name.to_owned(),
        both(counted.both_right, planted.map(|planted| planted.both_right)),
        both(counted.only_baseline, planted.map(|planted| planted.only_baseline)),
        both(counted.only_candidate, planted.map(|planted| planted.only_candidate)),
        both(counted.both_wrong, planted.map(|planted| planted.both_wrong)),
        took.map(seconds).unwrap_or_default(),
    ];
    row(PAIRS.map(|(_, width)| width), cells)
}

pub(super) fn verdict(model: &str, budget: &str, compared: &Comparison, verdict: Verdict) -> String {
    let shown = &compared.shown;
    let needed = compared.needed.map(|needed| format!(": {needed} questions needed")).unwrap_or_default();
    let cells = [
        model.to_owned(),
        budget.to_owned(),
        format!("{} [{}, {}]", signed(&shown.difference), signed(&shown.low), signed(&shown.high)),
        format!("{verdict}{needed}"),
    ];
    row(VERDICTS.map(|(_, width)| width), cells)
}

fn row<const N: usize>(widths: [usize; N], cells: [String; N]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    padded.collect::<Vec<_>>().join("   ").trim_end().to_owned()
}

/// Of a server of the user nothing is planted.
fn both(counted: u64, planted: Option<u64>) -> String {
    planted.map_or_else(|| counted.to_string(), |planted| format!("{counted}/{planted}"))
}

/// A pairing takes milliseconds.
fn seconds(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds < 1.0 { format!("{seconds:.3}") } else { format!("{seconds:.1}") }
}

fn memory(kib: Option<u64>) -> String {
    kib.map_or_else(|| "-".to_owned(), |kib| format!("{:.1} MiB", kib as f64 / 1_024.0))
}

/// As the status of a ModelEvaluation has it.
fn signed(text: &str) -> String {
    if text.starts_with('-') { text.to_owned() } else { format!("+{text}") }
}
