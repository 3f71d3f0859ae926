//! Sums of series. Pure.

use std::collections::BTreeMap;

use text::exposition::{Exposition, Series};

/// Why series have no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("it is not served")]
    Missing,
    #[error("it has more than {limit} sets of labels")]
    TooManyLabelSets { limit: usize },
    #[error("it is not a number")]
    NotANumber,
    #[error("it is infinite")]
    Infinite { is_negative: bool },
}

/// Series of one gauge of an engine. One has a series per model and rank, so some tens.
pub const MOST_OF_GAUGE: usize = 1_024;

/// The sum of all series of this name.
pub fn sum(read: &Exposition<'_>, name: &str) -> Result<f64, Unusable> {
    sum_of(read, name, |_| true)
}

/// The sum of the series of this name that are wanted.
pub fn sum_of(
    read: &Exposition<'_>,
    name: &str,
    is_wanted: impl Fn(&Series<'_>) -> bool,
) -> Result<f64, Unusable> {
    let mut series = read.series.iter().filter(|series| series.name == name && is_wanted(series)).peekable();
    if series.peek().is_none() {
        return Err(Unusable::Missing);
    }
    finite(series.map(|series| series.value).sum())
}

/// The sum over the replicas within a pod. The ranks of one replica serve the same value, if they all serve it, as with
/// SGLang's `--enable-metrics-for-all-schedulers`; it counts once.
pub fn across_ranks(read: &Exposition<'_>, name: &str) -> Result<f64, Unusable> {
    const RANKS: [&str; 3] = ["tp_rank", "pp_rank", "moe_ep_rank"];
    fn replica<'s>(series: &'s Series<'_>) -> Vec<(&'s str, &'s str)> {
        let labels = series.labels.iter().map(|(label, value)| (*label, value.as_ref()));
        let mut labels: Vec<_> = labels.filter(|(label, _)| !RANKS.contains(label)).collect();
        labels.sort_unstable();
        labels
    }
    let mut replicas: BTreeMap<Vec<(&str, &str)>, f64> = BTreeMap::new();
    for (index, series) in read.series.iter().filter(|series| series.name == name).enumerate() {
        if index == MOST_OF_GAUGE {
            return Err(Unusable::TooManyLabelSets { limit: MOST_OF_GAUGE });
        }
        let value = replicas.entry(replica(series)).or_insert(series.value);
        *value = if value.is_nan() || series.value.is_nan() { f64::NAN } else { value.max(series.value) };
    }
    if replicas.is_empty() {
        return Err(Unusable::Missing);
    }
    finite(replicas.values().sum())
}

/// Counters of Prometheus are floating-point numbers. The conversion ends at both ends of the range.
pub fn whole_number(count: f64) -> u64 {
    count.round() as u64
}

fn finite(value: f64) -> Result<f64, Unusable> {
    if value.is_nan() {
        Err(Unusable::NotANumber)
    } else if value.is_infinite() {
        Err(Unusable::Infinite { is_negative: value < 0.0 })
    } else {
        Ok(value)
    }
}
