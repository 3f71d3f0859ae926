//! Buckets of a classic histogram: their growth between two scrapes, and quantiles of it. Pure.

use text::exposition::Series;

/// Buckets of one histogram; an engine has about 20, TGI 35.
const MOST_BUCKETS: usize = 128;

/// Cumulative counts by upper bound, in ascending order of the bounds; the last bound is infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets(Vec<Bucket>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    upper: f64,
    count: f64,
}

impl Buckets {
    /// The buckets of the series `x_bucket`, summed over all labels but `le`. `None` if there is no bucket with an infinite
    /// bound, if a count is not a finite number, or if there are more than 128 bounds.
    pub fn of<'s, 't: 's>(series: impl Iterator<Item = &'s Series<'t>>) -> Option<Self> {
        let mut found: Vec<Bucket> = Vec::new();
        for series in series {
            let upper: f64 = series.label("le")?.parse().ok()?;
            if upper.is_nan() || !series.value.is_finite() || series.value < 0.0 {
                return None;
            }
            match found.iter().position(|bucket| bucket.upper == upper) {
                Some(at) => found[at].count += series.value,
                None if found.len() == MOST_BUCKETS => return None,
                None => found.push(Bucket { upper, count: series.value }),
            }
        }
        found.shrink_to_fit();
        found.sort_unstable_by(|one, other| one.upper.total_cmp(&other.upper));
        found.last().is_some_and(|last| last.upper == f64::INFINITY).then_some(Self(found))
    }

    /// What was counted since `earlier`. After a reset, which a falling count shows, everything was. `None` if the bounds
    /// differ: the engine was configured anew.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        if !self.has_bounds_of(earlier) {
            return None;
        }
        let pairs = || self.0.iter().zip(&earlier.0);
        if pairs().any(|(now, before)| now.count < before.count) {
            return Some(self.clone());
        }
        let grown = pairs().map(|(now, before)| Bucket { count: now.count - before.count, ..*now });
        Some(Self(grown.collect()))
    }

    /// The counts of both. `None` if the bounds differ.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let sum = || self.0.iter().zip(&other.0);
        self.has_bounds_of(other).then(|| {
            Self(sum().map(|(one, other)| Bucket { count: one.count + other.count, ..*one }).collect())
        })
    }

    /// Of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }

    /// Upper bounds and cumulative counts, in ascending order; the last bound is infinite.
    pub fn iter(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.0.iter().map(|bucket| (bucket.upper, bucket.count))
    }

    /// Number of observations.
    pub fn total(&self) -> f64 {
        self.0.last().map_or(0.0, |last| last.count)
    }

    /// The quantile as `histogram_quantile` of Prometheus computes it: linear within a bucket. The first bucket begins at zero if
    /// its bound is positive. In the last bucket, the quantile is the highest finite bound. `None` without observations.
    ///
    /// `quantile`: between 0 and 1.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.total();
        if total <= 0.0 {
            return None;
        }
        let rank = quantile.clamp(0.0, 1.0) * total;
        // Counts that are not cumulative, as of a scrape during an update, are read as if they were.
        let mut highest = 0.0_f64;
        let mut before = Bucket { upper: 0.0, count: 0.0 };
        for (index, bucket) in self.0.iter().enumerate() {
            highest = highest.max(bucket.count);
            if highest < rank && bucket.upper.is_finite() {
                before = Bucket { upper: bucket.upper, count: highest };
                continue;
            }
            if bucket.upper.is_infinite() {
                return (index > 0).then_some(before.upper);
            }
            if index == 0 && bucket.upper <= 0.0 {
                return Some(bucket.upper);
            }
            let within = highest - before.count;
            let part = if within > 0.0 { (rank - before.count) / within } else { 0.0 };
            return Some(before.upper + (bucket.upper - before.upper) * part);
        }
        None
    }

    fn has_bounds_of(&self, other: &Self) -> bool {
        let bounds = |buckets: &Self| buckets.0.iter().map(|bucket| bucket.upper).collect::<Vec<f64>>();
        bounds(self) == bounds(other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use text::exposition::parse;

    fn buckets(counts: &[(&str, f64)]) -> Buckets {
        let text: String =
            counts.iter().map(|(le, count)| format!("x_bucket{{le=\"{le}\"}} {count}\n")).collect();
        Buckets::of(parse(&text, |_| true).series.iter()).unwrap()
    }

    #[test]
    fn a_histogram_of_more_bounds_than_an_engine_has_is_none() {
        let of = |bounds: usize| {
            let text: String =
                (1..bounds).map(|bound| format!("x_bucket{{le=\"{bound}\"}} {bound}\n")).collect();
            Buckets::of(parse(&format!("{text}x_bucket{{le=\"+Inf\"}} 999\n"), |_| true).series.iter())
        };
        assert!(of(MOST_BUCKETS).is_some());
        assert_eq!(of(MOST_BUCKETS + 1), None);
    }

    #[test]
    fn quantiles_are_interpolated_as_prometheus_does() {
        let read = buckets(&[("0.1", 50.0), ("0.2", 90.0), ("0.4", 100.0), ("+Inf", 100.0)]);
        for (quantile, expected) in [(0.5, 0.1), (0.25, 0.05), (0.7, 0.15), (0.95, 0.3), (1.0, 0.4)] {
            let found = read.quantile(quantile).unwrap();
            assert!((found - expected).abs() < 1e-9, "{quantile}: {found}");
        }
        let slow = buckets(&[("1", 1.0), ("2", 1.0), ("+Inf", 10.0)]);
        assert_eq!(slow.quantile(0.95), Some(2.0), "the highest finite bound");
        assert_eq!(buckets(&[("-1", 5.0), ("+Inf", 5.0)]).quantile(0.5), Some(-1.0));
        assert_eq!(buckets(&[("+Inf", 5.0)]).quantile(0.5), None, "no finite bound");
        assert_eq!(buckets(&[("1", 0.0), ("+Inf", 0.0)]).quantile(0.5), None, "no observation");
        let torn = buckets(&[("1", 5.0), ("2", 3.0), ("3", 10.0), ("+Inf", 10.0)]);
        assert_eq!(torn.quantile(0.95), Some(2.9), "a scrape during an update");
    }

    #[test]
    fn only_the_growth_counts_and_a_reset_counts_from_zero() {
        let before = buckets(&[("1", 10.0), ("+Inf", 20.0)]);
        let after = buckets(&[("1", 12.0), ("+Inf", 25.0)]);
        assert_eq!(after.since(&before), Some(buckets(&[("1", 2.0), ("+Inf", 5.0)])));
        let restarted = buckets(&[("1", 1.0), ("+Inf", 30.0)]);
        assert_eq!(restarted.since(&before), Some(restarted.clone()));
        let other = buckets(&[("2", 12.0), ("+Inf", 25.0)]);
        assert_eq!(other.since(&before), None);
    }

    #[test]
    fn series_of_several_models_are_summed() {
        let text =
            "x_bucket{m=\"a\",le=\"1\"} 1\nx_bucket{m=\"b\",le=\"1.0\"} 2\nx_bucket{m=\"a\",le=\"+Inf\"} 3\n";
        let read = Buckets::of(parse(text, |_| true).series.iter());
        assert_eq!(read, Some(buckets(&[("1", 3.0), ("+Inf", 3.0)])));
    }

    #[test]
    fn incomplete_histograms_are_not_read() {
        for text in [
            "x_bucket{le=\"1\"} 1\n",
            "x_bucket 1\n",
            "x_bucket{le=\"+Inf\"} NaN\n",
            "x_bucket{le=\"NaN\"} 1\n",
            "x_bucket{le=\"+Inf\"} -1\n",
            "",
        ] {
            assert_eq!(Buckets::of(parse(text, |_| true).series.iter()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_finite_within_the_bounds_and_rises(
            counts in prop::collection::vec(0.0..1e9_f64, 1..20),
            quantile in 0.0..=1.0_f64,
        ) {
            let mut cumulative = 0.0;
            let mut bounded: Vec<Bucket> = counts
                .iter()
                .enumerate()
                .map(|(index, count)| {
                    cumulative += count;
                    Bucket { upper: (index + 1) as f64, count: cumulative }
                })
                .collect();
            bounded.push(Bucket { upper: f64::INFINITY, count: cumulative + 1.0 });
            let read = Buckets(bounded);
            let found = read.quantile(quantile).unwrap();
            prop_assert!((0.0..=counts.len() as f64).contains(&found), "{found}");
            prop_assert!(read.quantile(1.0).unwrap() >= found);
        }

        #[test]
        fn any_counts_give_no_nan(counts in prop::collection::vec((0.0..1e3_f64, -10.0..10.0_f64), 0..9)) {
            let text: String = counts
                .iter()
                .map(|(count, le)| format!("x_bucket{{le=\"{le}\"}} {count}\n"))
                .chain(["x_bucket{le=\"+Inf\"} 5\n".to_owned()])
                .collect();
            let read = Buckets::of(parse(&text, |_| true).series.iter()).unwrap();
            prop_assert!(read.quantile(0.95).is_none_or(f64::is_finite));
        }
    }
}
