//! Requests of the past, from a CSV file. Pure.

use anyhow::{Context as _, bail, ensure};
use jiff::civil::DateTime;

/// A request: when it arrived, after the first one, and how long a replica works on it. In seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) at: f64,
    pub(crate) takes: f64,
}

/// Seconds per token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) context: f64,
    pub(crate) generated: f64,
}

/// No engine answers sooner.
const SHORTEST: f64 = 0.2;
/// A week of a large service is shown by an hour of it.
const MOST: usize = 5_000_000;

/// Times of two units, such as seconds and milliseconds, would span more.
const LONGEST: f64 = 31.0 * 86_400.0;

/// Lines of a time and two numbers of tokens, or of a time and seconds. A first line without numbers is a heading. Times are
/// seconds, or dates as `2023-11-16 18:15:46.68`, in UTC unless an offset follows.
pub(crate) fn parse(text: &str, costs: &Costs, repeat: u32) -> anyhow::Result<Vec<Request>> {
    for (name, seconds) in [("context", costs.context), ("generated", costs.generated)] {
        ensure!(seconds.is_finite() && seconds >= 0.0, "the seconds per {name} token are not 0 or more");
    }
    let mut requests = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || index == 0 && time(line.split(',').next().unwrap_or_default()).is_none() {
            continue;
        }
        let request = request(line, costs).with_context(|| format!("line {}: {line:?}", index + 1))?;
        ensure!(requests.len() + repeat as usize <= MOST, "more than {MOST} requests: cut the file");
        requests.extend(std::iter::repeat_n(request, repeat as usize));
    }
    requests.sort_by(|one, other| one.at.total_cmp(&other.at));
    let Some(first) = requests.first().map(|first| first.at) else { bail!("it has no requests") };
    requests.iter_mut().for_each(|request| request.at -= first);
    let span = requests.last().map_or(0.0, |last| last.at);
    ensure!(span <= LONGEST, "its times span {:.0} days, and at most 31 can be played", span / 86_400.0);
    Ok(requests)
}

fn request(line: &str, costs: &Costs) -> anyhow::Result<Request> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let at = time(fields.first().copied().unwrap_or_default());
    let at = at.context("no time: write seconds, or a date as 2023-11-16 18:15:46")?;
    let number = |index: usize, what: &str| {
        let number = fields.get(index).and_then(|text| text.parse::<f64>().ok());
        let number = number.filter(|number| number.is_finite() && *number >= 0.0);
        number.with_context(|| format!("no {what} in field {}", index + 1))
    };
    let takes = match fields.len() {
        2 => number(1, "seconds")?,
        3 => {
            let context = number(1, "number of context tokens")?;
            costs.context * context + costs.generated * number(2, "number of generated tokens")?
        }
        other => bail!("{other} fields: write a time and two numbers of tokens, or a time and seconds"),
    };
    Ok(Request { at, takes: takes.max(SHORTEST) })
}

/// In seconds, since any moment.
fn time(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    if let Ok(time) = text.replacen(' ', "T", 1).parse::<jiff::Timestamp>() {
        return Some(time.as_millisecond() as f64 / 1e3);
    }
    let date: DateTime = text.replace(' ', "T").parse().ok()?;
    let whole = date.duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0));
    Some(whole.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { context: 0.001, generated: 0.1 };

    #[test]
    fn a_request_is_a_time_with_tokens_or_seconds() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:48.5,1000,10\n2023-11-16 18:15:46.0000000,0,0\n";
        let parsed = parse(text, &COSTS, 1).unwrap();
        assert_eq!(parsed, [Request { at: 0.0, takes: 0.2 }, Request { at: 2.5, takes: 2.0 }]);
        let parsed = parse("5,1.5\n7,3\n", &COSTS, 2).unwrap();
        assert_eq!(parsed.len(), 4);
        assert_eq!(parsed[3], Request { at: 2.0, takes: 3.0 });
    }

    #[test]
    fn an_offset_of_a_date_counts() {
        let parsed = parse(
            "\u{feff}2026-01-01 10:00:00+01:00,1\n2026-01-01 09:00:02Z,1\n2026-01-01 09:00:03,1",
            &COSTS,
            1,
        );
        assert_eq!(parsed.unwrap().iter().map(|request| request.at).collect::<Vec<_>>(), [0.0, 2.0, 3.0]);
    }

    #[test]
    fn what_is_no_request_is_named_with_its_line() {
        for (text, words) in [
            ("", "no requests"),
            ("0,1\nyesterday,1", "line 2: \"yesterday,1\": no time"),
            ("0,1,x", "no number of generated tokens in field 3"),
            ("0,1\n1,-1", "line 2"),
            ("0,NaN", "no seconds in field 2"),
            ("0,1,2,3", "4 fields"),
            ("0,1\n1700000000,1", "span 19676 days"),
        ] {
            let error = format!("{:#}", parse(text, &COSTS, 1).unwrap_err());
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
