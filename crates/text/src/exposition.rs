//! Parser of the text format of Prometheus, and of OpenMetrics as far as the two differ. Pure.
//!
//! The parser keeps only the series of the wanted families. Workloads are not trusted: bytes, lines, series and names
//! are limited. A line that cannot be read is counted and skipped, so that one odd metric does not hide the others. The
//! scaler-controller and the monitor use the parser.
//!
//! **Invariant:** it copies no text. Names and labels are borrowed from the text.

use std::{borrow::Cow, collections::BTreeSet};

/// Series of the wanted families of one answer. A workload has some hundred.
pub const MOST_SERIES: usize = 20_000;
/// Lines of one answer.
pub const MOST_LINES: usize = 200_000;
/// Labels of one series.
const MOST_LABELS: usize = 64;
/// Names of metrics of one answer. An engine has some hundred.
const MOST_NAMES: usize = 20_000;
/// Bytes of the name of a series: the limit of spec.source.pods.metric, and the suffix of a histogram.
const LONGEST_NAME: usize = 256 + "_bucket".len();
/// Names that are compared for a message.
const MOST_COMPARED: usize = 2_000;

/// What a `# TYPE` line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    /// No line, or another word.
    Untyped,
}

impl Kind {
    fn of(word: &str) -> Self {
        match word {
            "counter" => Self::Counter,
            "gauge" => Self::Gauge,
            "histogram" => Self::Histogram,
            "summary" => Self::Summary,
            _ => Self::Untyped,
        }
    }

    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "metric without a type",
        }
    }
}

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Series<'t> {
    /// With its suffix: `x_bucket`.
    pub name: &'t str,
    pub labels: Vec<(&'t str, Cow<'t, str>)>,
    /// May be NaN or infinite.
    pub value: f64,
}

impl Series<'_> {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_ref())
    }
}

/// What was read of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition<'t> {
    pub series: Vec<Series<'t>>,
    /// Types of all families, also of those that were not wanted.
    types: Vec<(&'t str, Kind)>,
    /// Names of all series.
    names: BTreeSet<&'t str>,
    /// Lines that could not be read.
    pub unreadable: usize,
    /// Whether a limit ended the parsing: values may be missing.
    pub is_cut: bool,
}

impl Exposition<'_> {
    /// Whether the answer has no series at all, wanted or not.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The type of a family; the suffixes of a histogram's or counter's series are ignored.
    pub fn kind(&self, name: &str) -> Kind {
        let named = |name: &str| self.types.iter().find(|(family, _)| *family == name).map(|(_, kind)| *kind);
        let of_family = || SUFFIXES.iter().find_map(|suffix| named(name.strip_suffix(suffix)?));
        named(name).or_else(of_family).unwrap_or(Kind::Untyped)
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether a series begins with this prefix.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.names.range(prefix..).next().is_some_and(|name| name.starts_with(prefix))
    }

    /// At most `most` names that the pod serves, the most similar to `name` first.
    pub fn similar(&self, name: &str, most: usize) -> Vec<String> {
        // Farther than that it is not a slip of the pen.
        let nearest = name.len() * 2 / 3;
        let may_be_near = |other: &&&str| other.len().abs_diff(name.len()) <= nearest;
        let compared = self.names.iter().filter(may_be_near).take(MOST_COMPARED);
        let mut ranked: Vec<(usize, &str)> = compared.map(|other| (distance(name, other), *other)).collect();
        ranked.sort_unstable();
        let near = ranked.into_iter().filter(|(distance, _)| *distance <= nearest);
        near.take(most).map(|(_, name)| name.to_owned()).collect()
    }
}

const SUFFIXES: [&str; 5] = ["_total", "_bucket", "_sum", "_count", "_created"];

/// Reads the series whose name passes. The caller limits the bytes.
pub fn parse<'t>(text: &'t str, wanted: impl Fn(&str) -> bool) -> Exposition<'t> {
    let mut read = Exposition::default();
    for (number, line) in text.lines().enumerate() {
        if number == MOST_LINES || read.series.len() == MOST_SERIES {
            read.is_cut = true;
            break;
        }
        let line = line.trim_ascii();
        if line == "# EOF" {
            break;
        } else if let Some(comment) = line.strip_prefix('#') {
            read.types.extend(type_of(comment));
        } else if !line.is_empty() {
            match series(line, &wanted) {
                Some((name, series)) => {
                    if read.names.len() < MOST_NAMES {
                        read.names.insert(name);
                    }
                    read.series.extend(series);
                }
                None => read.unreadable += 1,
            }
        }
    }
    read
}

/// ` TYPE name kind`
fn type_of(comment: &str) -> Option<(&str, Kind)> {
    let mut words = comment.split_ascii_whitespace();
    (words.next() == Some("TYPE")).then_some(())?;
    let name = words.next().filter(|name| name.len() <= LONGEST_NAME)?;
    Some((name, Kind::of(words.next()?)))
}

/// The name of a line, and its series if it is wanted.
fn series<'t>(line: &'t str, wanted: &impl Fn(&str) -> bool) -> Option<(&'t str, Option<Series<'t>>)> {
    let end = line.find(|c: char| !is_name(c)).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if !wanted(name) {
        // It is counted as a name if it looks like a series; its labels and value are not read.
        return rest.starts_with(['{', ' ', '\t']).then_some((name, None));
    }
    let mut labels = Vec::new();
    let rest = match rest.trim_ascii_start().strip_prefix('{') {
        Some(inside) => read_labels(inside, &mut labels)?,
        None => rest,
    };
    let mut words = rest.split_ascii_whitespace();
    let value = value(words.next()?)?;
    // A timestamp, in milliseconds or, in OpenMetrics, in seconds; then an exemplar.
    match words.next() {
        None | Some("#") => {}
        Some(time) => drop(time.parse::<f64>().ok()?),
    }
    Some((name, Some(Series { name, labels, value })))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// `a="x",b="y"}`; returns what follows.
fn read_labels<'t>(mut rest: &'t str, labels: &mut Vec<(&'t str, Cow<'t, str>)>) -> Option<&'t str> {
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_ascii();
        if name.is_empty() || !name.chars().all(is_name) || labels.len() == MOST_LABELS {
            return None;
        }
        let (value, after) = quoted(after.trim_ascii_start())?;
        labels.push((name, value));
        let after = after.trim_ascii_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after,
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
}

/// A value in quotes, and what follows. Unknown escapes stay as they are, as in Prometheus.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let mut has_escapes = false;
    let end = inside.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        has_escapes |= is_escaped;
        ends
    })?;
    let (value, after) = (&inside[..end], &inside[end + 1..]);
    if !has_escapes {
        return Some((Cow::Borrowed(value), after));
    }
    let mut decoded = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, false) => decoded.push(c),
            (_, true) => match chars.next() {
                Some('n') => decoded.push('\n'),
                Some(next @ ('"' | '\\')) => decoded.push(next),
                Some(next) => decoded.extend(['\\', next]),
                None => decoded.push('\\'),
            },
        }
    }
    Some((Cow::Owned(decoded), after))
}

/// A number, `+Inf`, `-Inf` or `NaN`. Hexadecimal numbers, which Go reads too, are not written by engines.
fn value(word: &str) -> Option<f64> {
    word.parse().ok()
}

/// Edits between two names. Both are short.
fn distance(one: &str, other: &str) -> usize {
    const LONGEST: usize = 128;
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let (one, other) = (&one[..one.len().min(LONGEST)], &other[..other.len().min(LONGEST)]);
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, from) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, to) in other.iter().enumerate() {
            let above = row[column + 1];
            let changed = diagonal + usize::from(from != to);
            row[column + 1] = changed.min(above + 1).min(row[column] + 1);
            diagonal = above;
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VLLM: &str = r#"
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 7.307144e+06
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 1.0 1700000000000
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} NaN
"#;

    fn all(text: &str) -> Exposition<'_> {
        parse(text, |_| true)
    }

    #[test]
    fn only_the_wanted_series_are_kept() {
        let read = parse(VLLM, |name| name == "vllm:num_requests_running");
        assert_eq!(read.series.len(), 1);
        assert_eq!(read.series[0].value, 3.0);
        assert_eq!(read.series[0].label("model_name"), Some("m"));
        assert!(read.has("vllm:generation_tokens_total") && !read.has("vllm:generation_tokens"));
        assert_eq!((read.unreadable, read.is_cut, read.is_empty()), (0, false, false));
    }

    #[test]
    fn values_have_exponents_and_may_not_be_finite() {
        for (word, expected) in [
            ("7.307144e+06", 7_307_144.0),
            ("+Inf", f64::INFINITY),
            ("-Inf", f64::NEG_INFINITY),
            ("-0", 0.0),
            ("1E3", 1e3),
        ] {
            assert_eq!(all(&format!("a {word}\n")).series[0].value, expected, "{word}");
        }
        assert!(all("a NaN").series[0].value.is_nan());
        assert!(all("a nan").series[0].value.is_nan());
    }

    #[test]
    fn types_are_found_by_family_and_by_series() {
        let read = all(VLLM);
        assert_eq!(read.kind("vllm:num_requests_running"), Kind::Gauge);
        assert_eq!(read.kind("vllm:generation_tokens_total"), Kind::Counter);
        assert_eq!(read.kind("vllm:e2e_request_latency_seconds_bucket"), Kind::Histogram);
        assert_eq!(read.kind("other"), Kind::Untyped);
    }

    #[test]
    fn escapes_in_labels_are_decoded() {
        let read = all(r#"a{b="x\"y\\z\nw\q",c="}",d=""} 1"#);
        let series = &read.series[0];
        assert_eq!(series.label("b"), Some("x\"y\\z\nw\\q"));
        assert_eq!((series.label("c"), series.label("d")), (Some("}"), Some("")));
    }

    #[test]
    fn what_is_no_series_is_counted_and_skipped() {
        let text = "a{b=\"c} 1\na{b} 2\na 1 2 3\n1a 2\n\u{feff}b 1\n<html>\na{b=\"c\" d=\"e\"} 1\nc\nd x\ngood 5 #x\ngood 6\n";
        let read = all(text);
        assert_eq!(read.series.last().map(|series| series.value), Some(6.0));
        assert!(read.unreadable >= 7, "{read:?}");
    }

    #[test]
    fn open_metrics_ends_with_eof_and_may_have_exemplars() {
        let text = "# TYPE a counter\na_total{x=\"y\"} 5 1700000000.123 # {trace=\"t\"} 1 1\na_total 6 # {} 1\n# EOF\na_total 7\n";
        let read = all(text);
        let values: Vec<f64> = read.series.iter().map(|series| series.value).collect();
        assert_eq!(values, [5.0, 6.0]);
        assert_eq!(read.kind("a_total"), Kind::Counter);
    }

    #[test]
    fn lines_and_series_are_limited() {
        let many = "a 1\n".repeat(MOST_SERIES + 1);
        let read = all(&many);
        assert_eq!((read.series.len(), read.is_cut), (MOST_SERIES, true));
        let many = "\n".repeat(MOST_LINES + 1);
        assert!(all(&many).is_cut);
    }

    #[test]
    fn similar_names_come_nearest_first() {
        let read =
            all("vllm:num_requests_waiting 1\nvllm:num_requests_running 1\nprocess_cpu_seconds_total 1\n");
        let similar = read.similar("vllm:num_request_waiting", 5);
        assert_eq!(similar, ["vllm:num_requests_waiting", "vllm:num_requests_running"]);
        assert_eq!(read.similar("x", 5), [""; 0]);
        assert_eq!(distance("kitten", "sitting"), 3);
        let text: String = (0..9).map(|index| format!("queue_depth_{index} 1\n")).collect();
        assert_eq!(all(&text).similar("queue_depth", 5).len(), 5);
    }

    #[test]
    fn a_name_that_is_longer_than_any_in_a_spec_is_not_read() {
        let text = format!("{} 1\n{} 1\n", "a".repeat(LONGEST_NAME), "b".repeat(LONGEST_NAME + 1));
        let read = all(&text);
        assert_eq!((read.names.len(), read.unreadable), (1, 1));
    }

    #[test]
    fn prefixes_are_found_among_all_names() {
        let read = parse("sglang:a 1\n", |_| false);
        assert!(read.has_prefix("sglang:") && !read.has_prefix("vllm:"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            all(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn anything_like_the_format_is_read_without_a_panic(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "a", "{", "}", "=", "\"", "\\", ",", " ", "\n", "1", "e", "+Inf", "NaN", "# TYPE ", "gauge", "é", "# EOF",
                ]),
                0..200,
            )
        ) {
            let text = pieces.concat();
            let read = all(&text);
            prop_assert!(read.series.len() + read.unreadable <= text.lines().count());
        }

        #[test]
        fn what_is_written_is_read(value in any::<f64>(), label in "[ -~\n]{0,20}") {
            let escaped = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let text = format!("a_total{{x=\"{escaped}\"}} {value:e}\n");
            let read = all(&text);
            prop_assert_eq!(read.series[0].label("x"), Some(label.as_str()));
            let found = read.series[0].value;
            prop_assert!(found == value || found.is_nan() && value.is_nan());
        }
    }
}
