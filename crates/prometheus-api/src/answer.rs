//! What an answer of the HTTP API says: one number, or the numbers of its series, or why there is none. Pure.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{Counters, Fault, MOST_SERIES, ResultKind, Sample, secret::Repeated};

/// Warnings of one answer that are repeated.
const MOST_WARNINGS: usize = 2;
/// VictoriaMetrics says this in a field of its own, and Prometheus, Thanos and Mimir in warnings.
const PARTIAL: &str = "the server calls its answer partial";

/// The time of a call, by two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time that the sample is judged by later.
    pub now: Timestamp,
    /// The clock of this machine, which may be wrong. `now` may be wrong as well: it may come from the API server.
    pub wall: Timestamp,
}

impl Moment {
    /// By that clock of the two by which it is younger.
    pub(crate) fn age(self, at: Timestamp, server: &str, limit: Duration) -> Result<SignedDuration, Fault> {
        let Self { now, wall } = self;
        let age = now.duration_since(at).min(wall.duration_since(at)).max(SignedDuration::ZERO);
        if age > SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX) {
            return Err(Fault::Stale { server: server.to_owned(), limit });
        }
        Ok(age)
    }
}

/// The value that a server gave, and when it evaluated the query by its own clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// May be NaN or infinite.
    pub value: f64,
    pub at: Timestamp,
    pub warnings: Vec<String>,
}

impl Evaluated {
    /// The sample of an answer that was asked for at this moment. It is too old only if both clocks say so: either may be
    /// wrong, and a wrong clock of the API server must not take every value from every object.
    ///
    /// Servers stamp an instant query with the time of its evaluation, not with that of the newest scrape: they repeat a
    /// series for five minutes after its target has gone. `limit` therefore finds caches and wrong clocks alone; the age
    /// of the data itself is asked for with `time() - timestamp(x)`. It should exceed the difference of the clocks.
    pub fn sample(self, server: &str, limit: Duration, asked: Moment) -> Result<Sample, Fault> {
        let Self { value, at, warnings } = self;
        let age = asked.age(at, server, limit)?;
        is_finite(value, server)?;
        let caution = (!warnings.is_empty()).then(|| warnings.join("; "));
        let at = asked.now.saturating_sub(age).unwrap_or(Timestamp::MIN);
        Ok(Sample { value, at, caution })
    }
}

/// The one number of the body of an answer with status 200. `content`: its content type, for messages.
pub(crate) fn evaluated(
    server: &str,
    content: &str,
    body: &[u8],
    repeated: Repeated<'_>,
) -> Result<Evaluated, Fault> {
    let other = || wrong_content(server.to_owned(), content, repeated);
    let (mut series, warnings) = given(server, content, body, repeated)?;
    let found = series.len();
    let value = match (series.pop(), found) {
        (None, _) => return Err(Fault::Empty { server: server.to_owned() }),
        (Some(series), 1) => series.value(server).ok_or_else(other)??,
        (Some(_), series) => return Err(Fault::TooManySeries { server: server.to_owned(), series }),
    };
    let (seconds, value) = value;
    let at = time(seconds).ok_or_else(other)?;
    let value = value.parse().map_err(|_| other())?;
    Ok(Evaluated { value, at, warnings })
}

/// All series of the body of an answer with status 200. A part of them is none: the others would seem to have ended. `fresh`:
/// whether the time of the evaluation is the one that was asked for.
pub(crate) fn counters(
    server: &str,
    content: &str,
    body: &[u8],
    repeated: Repeated<'_>,
    fresh: impl Fn(Timestamp) -> Result<(), Fault>,
) -> Result<Counters, Fault> {
    let other = || wrong_content(server.to_owned(), content, repeated);
    let (series, warnings) = given(server, content, body, repeated).map_err(Fault::of_counters)?;
    if !warnings.is_empty() {
        return Err(Fault::Partial { server: server.to_owned(), why: warnings.join("; ") });
    }
    if series.len() > MOST_SERIES {
        return Err(Fault::TooManyCounters { server: server.to_owned(), limit: MOST_SERIES });
    }
    let numbers = series.into_iter().map(|mut series| {
        let labels = hash(&std::mem::take(&mut series.metric));
        let (seconds, value) = series.value(server).ok_or_else(other)?.map_err(Fault::of_counters)?;
        fresh(time(seconds).ok_or_else(other)?)?;
        let value: f64 = value.parse().map_err(|_| other())?;
        is_finite(value, server)?;
        Ok((labels, value))
    });
    numbers.collect()
}

/// The series of an answer, of which a scalar has one, and what the server warns of.
fn given(
    server: &str,
    content: &str,
    body: &[u8],
    repeated: Repeated<'_>,
) -> Result<(Vec<Series>, Vec<String>), Fault> {
    let server = || server.to_owned();
    let other = || wrong_content(server(), content, repeated);
    let wrong = |found| Fault::WrongResult { server: server(), found };
    let answer: Answer<'_> = serde_json::from_slice(body).map_err(|_| other())?;
    let data = match (answer.status.as_ref(), answer.data) {
        ("success", Some(data)) => data,
        ("error", _) => {
            let why = repeated.text(&answer.error.unwrap_or_default());
            return Err(Fault::Rejected { server: server(), status: 200, why });
        }
        _ => return Err(other()),
    };
    let series = match data.result_type.as_ref() {
        "vector" => serde_json::from_str(data.result.get()).map_err(|_| other())?,
        "scalar" => {
            let value = serde_json::from_str(data.result.get()).map_err(|_| other())?;
            vec![Series { value: Some(value), ..Series::default() }]
        }
        "matrix" => return Err(wrong(ResultKind::Matrix)),
        "string" => return Err(wrong(ResultKind::Text)),
        _ => return Err(wrong(ResultKind::Unknown)),
    };
    // Infos, of queries that are merely unusual, are not warnings.
    let partial = answer.is_partial.unwrap_or_default().then(|| PARTIAL.to_owned());
    let warnings = answer.warnings.unwrap_or_default();
    let warnings = warnings.iter().map(|warning| repeated.text(warning));
    Ok((series, partial.into_iter().chain(warnings).take(MOST_WARNINGS).collect()))
}

/// The same for as long as the process runs.
fn hash(labels: &BTreeMap<String, String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    labels.hash(&mut hasher);
    hasher.finish()
}

fn is_finite(value: f64, server: &str) -> Result<(), Fault> {
    if value.is_nan() {
        return Err(Fault::NotANumber { origin: server.to_owned() });
    }
    if value.is_infinite() {
        return Err(Fault::Infinite { origin: server.to_owned(), is_negative: value < 0.0 });
    }
    Ok(())
}

/// The reason that a server gives for a refusal or a failure.
pub(crate) fn reason(body: &[u8], repeated: Repeated<'_>) -> String {
    let named = serde_json::from_slice::<Failure>(body).ok().map(|failure| failure.error);
    match named {
        Some(why) if !why.is_empty() => repeated.text(&why),
        // The page of a proxy says less than the status.
        _ => "no reason given".to_owned(),
    }
}

fn wrong_content(server: String, content: &str, repeated: Repeated<'_>) -> Fault {
    let content = if content.is_empty() { "no content type".to_owned() } else { repeated.text(content) };
    Fault::WrongContent { server, content, wanted: "the JSON of the Prometheus API" }
}

fn time(seconds: f64) -> Option<Timestamp> {
    let duration = SignedDuration::try_from_secs_f64(seconds).ok()?;
    Timestamp::from_duration(duration).ok()
}

#[derive(Deserialize)]
struct Answer<'b> {
    #[serde(borrow)]
    status: Cow<'b, str>,
    #[serde(borrow)]
    data: Option<Data<'b>>,
    error: Option<String>,
    warnings: Option<Vec<String>>,
    #[serde(rename = "isPartial")]
    is_partial: Option<bool>,
}

#[derive(Deserialize)]
struct Data<'b> {
    #[serde(rename = "resultType", borrow)]
    result_type: Cow<'b, str>,
    #[serde(borrow)]
    result: &'b RawValue,
}

/// Seconds since 1970 and the value as text: `[1700000000.123, "12"]`.
type Value = (f64, String);

#[derive(Deserialize, Default)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    value: Option<Value>,
    histogram: Option<IgnoredAny>,
}

impl Series {
    /// `None`: it has neither a number nor a histogram.
    fn value(self, server: &str) -> Option<Result<Value, Fault>> {
        let found = ResultKind::NativeHistogram;
        let histogram =
            || self.histogram.map(|_| Err(Fault::WrongResult { server: server.to_owned(), found }));
        self.value.map(Ok).or_else(histogram)
    }
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    error: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::secret::Token;

    const SERVER: &str = "http://prometheus:9090";

    fn of(body: &str) -> Result<Evaluated, Fault> {
        evaluated(SERVER, "application/json", body.as_bytes(), Repeated(None))
    }

    fn vector(result: &str) -> String {
        format!(r#"{{"status":"success","data":{{"resultType":"vector","result":{result}}}}}"#)
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    fn moment() -> Moment {
        Moment { now: now(), wall: now() }
    }

    fn sampled(body: &str) -> Result<Sample, Fault> {
        of(body)?.sample(SERVER, Duration::from_secs(120), moment())
    }

    #[test]
    fn one_series_or_a_scalar_is_a_sample() {
        let one = vector(r#"[{"metric":{"pod":"a"},"value":[1699999999.5,"12.5"]}]"#);
        let expected = Sample { value: 12.5, at: now() - SignedDuration::from_millis(500), caution: None };
        assert_eq!(sampled(&one), Ok(expected));
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1700000000,"3"]},"infos":["unusual"]}"#;
        assert_eq!(sampled(scalar), Ok(Sample { value: 3.0, at: now(), caution: None }));
    }

    #[test]
    fn zero_is_a_sample_and_nothing_is_none() {
        assert_eq!(sampled(&vector(r#"[{"metric":{},"value":[1700000000,"0"]}]"#)).unwrap().value, 0.0);
        assert_eq!(sampled(&vector("[]")), Err(Fault::Empty { server: SERVER.into() }));
    }

    #[test]
    fn counters_are_all_series_by_their_labels() {
        let of =
            |body: &str| counters(SERVER, "application/json", body.as_bytes(), Repeated(None), |_| Ok(()));
        let two = vector(
            r#"[{"metric":{"pod":"a","code":"200"},"value":[1700000000,"12"]},{"metric":{},"value":[1700000000,"0"]}]"#,
        );
        let labels = |labels: &[(&str, &str)]| {
            hash(&labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let expected = Counters::from([(labels(&[("code", "200"), ("pod", "a")]), 12.0), (labels(&[]), 0.0)]);
        assert_eq!(of(&two), Ok(expected));
        assert_eq!(of(&vector("[]")), Ok(Counters::default()), "the caller knows what that means");
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1700000000,"3"]}}"#;
        assert_eq!(of(scalar), Ok(Counters::from([(labels(&[]), 3.0)])));
        let nan = vector(r#"[{"metric":{},"value":[1700000000,"NaN"]}]"#);
        assert_eq!(of(&nan), Err(Fault::NotANumber { origin: SERVER.into() }));
        let partial = two.replacen('{', r#"{"warnings":["a store is gone"],"#, 1);
        assert_eq!(
            of(&partial),
            Err(Fault::Partial { server: SERVER.into(), why: "a store is gone".into() })
        );
        let histogram = vector(r#"[{"metric":{},"histogram":[1700000000,{"count":"1"}]}]"#);
        assert!(matches!(of(&histogram), Err(Fault::WrongResult { .. })));
        assert!(matches!(of(&vector(r#"[{"metric":{}}]"#)), Err(Fault::WrongContent { .. })));
        let many: Vec<String> = (0..=MOST_SERIES)
            .map(|pod| format!(r#"{{"metric":{{"pod":"{pod}"}},"value":[1700000000,"1"]}}"#))
            .collect();
        let too_many = Fault::TooManyCounters { server: SERVER.into(), limit: MOST_SERIES };
        assert_eq!(of(&vector(&format!("[{}]", many.join(",")))), Err(too_many));
        let range = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
        let said = of(range).unwrap_err().to_string();
        assert!(
            said.ends_with("a range of values where counters are needed: remove the range, as in [5m]"),
            "{said}"
        );
    }

    #[test]
    fn each_unusable_result_has_its_own_reason() {
        let server = || SERVER.to_owned();
        let one = r#"{"metric":{},"value":[1700000000,"1"]}"#;
        for (body, fault) in [
            (vector(r#"[{"metric":{},"value":[1700000000,"NaN"]}]"#), Fault::NotANumber { origin: server() }),
            (
                vector(r#"[{"metric":{},"value":[1700000000,"+Inf"]}]"#),
                Fault::Infinite { origin: server(), is_negative: false },
            ),
            (
                vector(r#"[{"metric":{},"value":[1700000000,"-Inf"]}]"#),
                Fault::Infinite { origin: server(), is_negative: true },
            ),
            (vector(&format!("[{one},{one},{one}]")), Fault::TooManySeries { server: server(), series: 3 }),
            (
                vector(r#"[{"metric":{},"histogram":[1700000000,{"count":"1"}]}]"#),
                Fault::WrongResult { server: server(), found: ResultKind::NativeHistogram },
            ),
            (
                r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}"#.to_owned(),
                Fault::WrongResult { server: server(), found: ResultKind::Matrix },
            ),
            (
                r#"{"status":"success","data":{"resultType":"string","result":[1,"x"]}}"#.to_owned(),
                Fault::WrongResult { server: server(), found: ResultKind::Text },
            ),
            (
                r#"{"status":"success","data":{"resultType":"streams","result":[]}}"#.to_owned(),
                Fault::WrongResult { server: server(), found: ResultKind::Unknown },
            ),
            (
                r#"{"status":"error","errorType":"bad_data","error":"no\nsuch thing"}"#.to_owned(),
                Fault::Rejected { server: server(), status: 200, why: "no such thing".into() },
            ),
            (
                vector(r#"[{"metric":{},"value":[1699999000,"1"]}]"#),
                Fault::Stale { server: server(), limit: Duration::from_secs(120) },
            ),
        ] {
            assert_eq!(sampled(&body), Err(fault), "{body}");
        }
    }

    #[test]
    fn a_token_that_is_repeated_is_in_no_message_not_even_in_part() {
        let token = Token::new("demo/prom", "s3cret".repeat(50).as_bytes()).unwrap();
        let repeated = Repeated(Some(&token));
        let said = |text: &str| format!("{} {} end", "x".repeat(120), text);
        let is_clean = |text: &str| assert!(!text.contains("s3c") && text.contains("(redacted)"), "{text}");
        let word = "s3cret".repeat(50);
        let failed = format!(r#"{{"status":"error","error":"{}"}}"#, said(&word));
        is_clean(&reason(failed.as_bytes(), repeated));
        is_clean(&evaluated(SERVER, "", failed.as_bytes(), repeated).unwrap_err().to_string());
        is_clean(&evaluated(SERVER, &said(&word), b"<html>", repeated).unwrap_err().to_string());
        let warned = vector(r#"[{"metric":{},"value":[1700000000,"1"]}]"#);
        let warned = warned.replacen('{', &format!(r#"{{"warnings":["{}"],"#, said(&word)), 1);
        let sample = evaluated(SERVER, "", warned.as_bytes(), repeated).unwrap();
        is_clean(&sample.sample(SERVER, Duration::from_secs(120), moment()).unwrap().caution.unwrap());
    }

    #[test]
    fn other_content_is_named_and_not_repeated() {
        for body in [
            "",
            "<html>log in</html>",
            "[]",
            "{}",
            "null",
            r#"{"status":"success"}"#,
            r#"{"status":"success","data":{"resultType":"vector","result":{}}}"#,
            r#"{"status":"success","data":{"resultType":"scalar","result":[]}}"#,
            r#"{"status":"success","data":{"resultType":"scalar","result":[1,"x"]}}"#,
            r#"{"status":"success","data":{"resultType":"scalar","result":[1e300,"1"]}}"#,
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}"#,
        ] {
            let fault = evaluated(SERVER, "text/html", body.as_bytes(), Repeated(None)).unwrap_err();
            assert_eq!(fault, wrong_content(SERVER.into(), "text/html", Repeated(None)), "{body}");
            assert!(!fault.to_string().contains("log in"));
        }
    }

    #[test]
    fn a_warning_is_a_reason_for_caution() {
        let partial = r#"{"status":"success","warnings":["store\ngone","b","c"],
            "data":{"resultType":"scalar","result":[1700000000,"3"]}}"#;
        assert_eq!(sampled(partial).unwrap().caution.as_deref(), Some("store gone; b"));
    }

    #[test]
    fn an_answer_that_victoria_metrics_calls_partial_is_a_reason_for_caution() {
        let caution = |is_partial: &str| {
            let body = format!(
                r#"{{"status":"success","isPartial":{is_partial},"data":{{"resultType":"vector",
                "result":[{{"metric":{{}},"value":[1700000000,"3"]}}]}},"stats":{{"seriesFetched":"1"}}}}"#
            );
            sampled(&body).unwrap().caution
        };
        assert_eq!(caution("true").as_deref(), Some(PARTIAL));
        assert_eq!((caution("false"), caution("null")), (None, None));
    }

    #[test]
    fn a_server_whose_clock_is_ahead_gives_a_sample_of_now() {
        let ahead = vector(r#"[{"metric":{},"value":[1700000060,"1"]}]"#);
        assert_eq!(sampled(&ahead).unwrap().at, now());
        let behind = vector(r#"[{"metric":{},"value":[1699999940,"1"]}]"#);
        assert!(sampled(&behind).is_ok(), "a minute behind is not stale");
    }

    #[test]
    fn a_wrong_clock_of_the_api_server_or_of_this_machine_makes_no_value_stale() {
        let a_day = SignedDuration::from_hours(24);
        let limit = Duration::from_secs(120);
        let of = |asked| {
            let evaluated = of(&vector(r#"[{"metric":{},"value":[1699999990,"1"]}]"#)).unwrap();
            evaluated.sample(SERVER, limit, asked).map(|sample| sample.at)
        };
        let ten = SignedDuration::from_secs(10);
        let ahead = now() + a_day;
        assert_eq!(
            of(Moment { now: ahead, wall: now() }),
            Ok(ahead - ten),
            "its age is that by the other clock"
        );
        assert_eq!(of(Moment { now: now(), wall: ahead }), Ok(now() - ten));
        assert_eq!(
            of(Moment { now: ahead, wall: ahead }),
            Err(Fault::Stale { server: SERVER.into(), limit })
        );
    }

    /// They are written to a status, which must not change while the same thing is wrong.
    #[test]
    fn a_message_is_the_same_while_its_numbers_change() {
        let limit = Duration::from_secs(120);
        let asked = moment();
        let old = |seconds: i64| {
            asked.age(now() - SignedDuration::from_secs(seconds), SERVER, limit).unwrap_err().to_string()
        };
        assert_eq!(old(130), old(145));
        let many = |count: usize| {
            let series = |pod| format!(r#"{{"metric":{{"pod":"{pod}"}},"value":[1700000000,"1"]}}"#);
            let all: Vec<String> = (0..count).map(series).collect();
            let body = vector(&format!("[{}]", all.join(",")));
            counters(SERVER, "application/json", body.as_bytes(), Repeated(None), |_| Ok(()))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(many(MOST_SERIES + 1), many(MOST_SERIES + 2));
    }

    #[test]
    fn the_reason_is_that_of_the_server_or_none() {
        assert_eq!(
            reason(br#"{"status":"error","error":"parse error: unexpected \"}\""}"#, Repeated(None)),
            "parse error: unexpected \"}\""
        );
        assert_eq!(reason(b"<html>\x1b[31m</html>", Repeated(None)), "no reason given");
        let long = format!(r#"{{"error":"{}"}}"#, "a".repeat(9_999));
        assert!(reason(long.as_bytes(), Repeated(None)).len() <= 256);
    }

    proptest! {
        #[test]
        fn any_value_is_a_finite_sample_or_a_fault(value in any::<f64>(), seconds in any::<f64>()) {
            let body = vector(&format!(r#"[{{"metric":{{}},"value":[{seconds:?},"{value}"]}}]"#));
            if let Ok(sample) = sampled(&body) {
                prop_assert!(sample.value.is_finite() && sample.at <= now());
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = evaluated(SERVER, "", &bytes, Repeated(None));
            reason(&bytes, Repeated(None));
        }
    }
}
