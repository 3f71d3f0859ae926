//! How the requests of an engine ended and how long they took, since it started. Pure.
//!
//! | engine | ended | failed | aborted | repetition | first token | per token | whole request |
//! |---|---|---|---|---|---|---|---|
//! | vLLM | `request_success_total`, by reason | reason `error` | reason `abort` | reason `repetition` | yes | yes | yes |
//! | SGLang | `num_requests_total` | – | `num_aborted_requests_total` | – | yes | – | yes |
//! | TGI | success and failure | `request_failure`, by `err` | – | – | – | yes | yes |
//! | Triton | success and failure | `request_failure`, by `reason` | – | – | – | – | – |
//!
//! vLLM's counter has requests with any reason, also failed ones, whatever its name says. Requests that are refused before the
//! engine works on them (400, 401, 413), and those of clients that hang up, are in none: TGI's failures with `err` validation,
//! overloaded, dropped and cancelled, and Triton's with `reason` REJECTED and CANCELED, are left out. Triton counts a request to
//! an ensemble once for the ensemble and once for each of its models. A name that is not served is 0 where the engine serves it only after the
//! first such request.

use text::exposition::{Exposition, Series};

use crate::{
    engine::{Engine, is_bucket},
    histogram::Buckets,
    series::{Unusable, sum, sum_of, whole_number},
};

/// What takes time.
#[derive(Clone, Copy)]
enum Latency {
    FirstToken,
    /// Mean time per token of one request, after the first.
    PerToken,
    WholeRequest,
}

/// One look at one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes {
    /// Requests that ended since the start.
    pub ended: u64,
    /// Requests that run or wait now.
    pub in_flight: u64,
    /// Those that ended so; `None`: the engine does not count them.
    pub errors: Option<u64>,
    pub aborts: Option<u64>,
    pub repetitions: Option<u64>,
    /// In seconds; `None`: the engine does not measure it, or has measured none yet.
    pub first_token: Option<Buckets>,
    pub per_token: Option<Buckets>,
    pub whole_request: Option<Buckets>,
    /// Tokens of prompts and answers since the start, with TGI of answers alone. `None`: the engine does not count them.
    pub tokens: Option<u64>,
}

/// Why a look says nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{metric}: {why}")]
pub struct Unread {
    pub metric: &'static str,
    pub why: Unusable,
}

struct Names {
    /// Counters whose sum is the number of ended requests.
    ended: &'static [Counter],
    errors: Option<Counter>,
    aborts: Option<Counter>,
    repetitions: Option<Counter>,
    first_token: &'static [&'static str],
    per_token: &'static [&'static str],
    whole_request: &'static [&'static str],
    /// Counters whose sum is the number of tokens.
    tokens: &'static [&'static str],
    /// The counters are there from the start, so that a name that is missing is a fault.
    has_counters_from_the_start: bool,
}

/// A counter, or some of its series.
#[derive(Clone, Copy)]
struct Counter {
    name: &'static str,
    series: Which,
}

#[derive(Clone, Copy)]
enum Which {
    All,
    /// With this `finished_reason`.
    OfReason(&'static str),
    /// Those whose label of this name has none of these values.
    Without(&'static str, &'static [&'static str]),
}

impl Which {
    fn has(self, series: &Series<'_>) -> bool {
        match self {
            Self::All => true,
            Self::OfReason(reason) => series.label("finished_reason") == Some(reason),
            Self::Without(label, values) => series.label(label).is_none_or(|value| !values.contains(&value)),
        }
    }
}

const fn whole(name: &'static str) -> Counter {
    Counter { name, series: Which::All }
}

const fn of_reason(name: &'static str, reason: &'static str) -> Option<Counter> {
    Some(Counter { name, series: Which::OfReason(reason) })
}

const TGI_FAILED: Counter = Counter {
    name: "tgi_request_failure",
    series: Which::Without("err", &["validation", "overloaded", "dropped", "cancelled"]),
};

const TRITON_FAILED: Counter = Counter {
    name: "nv_inference_request_failure",
    series: Which::Without("reason", &["REJECTED", "CANCELED"]),
};

const VLLM_ENDED: &str = "vllm:request_success_total";

const VLLM: Names = Names {
    ended: &[whole(VLLM_ENDED)],
    errors: of_reason(VLLM_ENDED, "error"),
    aborts: of_reason(VLLM_ENDED, "abort"),
    repetitions: of_reason(VLLM_ENDED, "repetition"),
    first_token: &["vllm:time_to_first_token_seconds"],
    // One observation per request. Those of older versions have one per token, and would count tokens as requests.
    per_token: &["vllm:request_time_per_output_token_seconds"],
    whole_request: &["vllm:e2e_request_latency_seconds"],
    tokens: &["vllm:prompt_tokens_total", "vllm:generation_tokens_total"],
    has_counters_from_the_start: true,
};

const SGLANG: Names = Names {
    ended: &[whole("sglang:num_requests_total")],
    errors: None,
    aborts: Some(whole("sglang:num_aborted_requests_total")),
    repetitions: None,
    first_token: &["sglang:time_to_first_token_seconds"],
    // It has one observation per token.
    per_token: &[],
    whole_request: &["sglang:e2e_request_latency_seconds"],
    tokens: &["sglang:prompt_tokens_total", "sglang:generation_tokens_total"],
    has_counters_from_the_start: false,
};

const TGI: Names = Names {
    ended: &[whole("tgi_request_success"), TGI_FAILED],
    errors: Some(TGI_FAILED),
    aborts: None,
    repetitions: None,
    first_token: &[],
    per_token: &["tgi_request_mean_time_per_token_duration"],
    whole_request: &["tgi_request_duration"],
    // The sum of a histogram.
    tokens: &["tgi_request_generated_tokens_sum"],
    has_counters_from_the_start: false,
};

const TRITON: Names = Names {
    ended: &[whole("nv_inference_request_success"), TRITON_FAILED],
    errors: Some(TRITON_FAILED),
    aborts: None,
    repetitions: None,
    first_token: &[],
    per_token: &[],
    whole_request: &[],
    tokens: &[],
    has_counters_from_the_start: false,
};

fn names(engine: Engine) -> &'static Names {
    match engine {
        Engine::Vllm => &VLLM,
        Engine::Sglang => &SGLANG,
        Engine::Tgi => &TGI,
        Engine::Triton => &TRITON,
    }
}

fn histograms(names: &Names, latency: Latency) -> &'static [&'static str] {
    match latency {
        Latency::FirstToken => names.first_token,
        Latency::PerToken => names.per_token,
        Latency::WholeRequest => names.whole_request,
    }
}

/// Whether a series of this name is needed. For [`text::exposition::parse`].
pub fn needs(engine: Engine, series: &str) -> bool {
    let names = names(engine);
    let mut counters = [names.errors, names.aborts, names.repetitions].into_iter().flatten();
    let mut latencies = [names.first_token, names.per_token, names.whole_request].into_iter().flatten();
    names.ended.iter().any(|counter| counter.name == series)
        || engine.profile().requests.contains(&series)
        || names.tokens.contains(&series)
        || counters.any(|counter| counter.name == series)
        || latencies.any(|histogram| is_bucket(series, histogram))
}

/// What one scrape says.
pub fn read(read: &Exposition<'_>, engine: Engine) -> Result<Outcomes, Unread> {
    let names = names(engine);
    let profile = engine.profile();
    let in_flight = match profile.in_hand(read) {
        Ok(requests) => whole_number(requests),
        // TGI serves its gauges from the first request on.
        Err((_, Unusable::Missing)) if !names.has_counters_from_the_start => 0,
        Err((metric, why)) => return Err(Unread { metric, why }),
    };
    let counted = |metric: &'static str, found: Result<f64, Unusable>| match found {
        Ok(count) => Ok(whole_number(count)),
        Err(Unusable::Missing) if !names.has_counters_from_the_start => Ok(0),
        Err(why) => Err(Unread { metric, why }),
    };
    let mut ended = 0_u64;
    let sum_of_counter = |Counter { name, series }: Counter| sum_of(read, name, |found| series.has(found));
    for counter in names.ended {
        ended = ended.saturating_add(counted(counter.name, sum_of_counter(*counter))?);
    }
    let counter = |counter: Option<Counter>| {
        counter
            .and_then(|counter| match (sum_of_counter(counter), counter.series) {
                // A version that does not know the reason.
                (Err(Unusable::Missing), Which::OfReason(_)) => None,
                (found, _) => Some(counted(counter.name, found)),
            })
            .transpose()
    };
    let latency = |latency| {
        let of = |histogram: &&str| {
            let mut buckets =
                read.series.iter().filter(|series| is_bucket(series.name, histogram)).peekable();
            buckets.peek()?;
            Buckets::of(buckets)
        };
        histograms(names, latency).iter().find_map(of)
    };
    Ok(Outcomes {
        ended,
        in_flight,
        errors: counter(names.errors)?,
        aborts: counter(names.aborts)?,
        repetitions: counter(names.repetitions)?,
        first_token: latency(Latency::FirstToken),
        per_token: latency(Latency::PerToken),
        whole_request: latency(Latency::WholeRequest),
        tokens: tokens(read, names),
    })
}

/// They are shown and judge nothing, so that a name which is missing is no fault.
fn tokens(read: &Exposition<'_>, names: &Names) -> Option<u64> {
    let counts = names.tokens.iter().filter_map(|name| sum(read, name).ok()).map(whole_number);
    // TGI serves its histograms from the first request on.
    let none_yet = (!names.tokens.is_empty() && !names.has_counters_from_the_start).then_some(0);
    counts.reduce(u64::saturating_add).or(none_yet)
}

#[cfg(test)]
mod tests {
    use text::exposition::parse;

    use super::*;

    fn of(engine: Engine, text: &str) -> Result<Outcomes, Unread> {
        read(&parse(text, |series| needs(engine, series)), engine)
    }

    const VLLM_PAGE: &str = "\
vllm:num_requests_running{model_name=\"a\"} 2
vllm:num_requests_waiting{model_name=\"a\"} 1
vllm:request_success_total{finished_reason=\"stop\",model_name=\"a\"} 90
vllm:request_success_total{finished_reason=\"length\",model_name=\"a\"} 5
vllm:request_success_total{finished_reason=\"error\",model_name=\"a\"} 4
vllm:request_success_total{finished_reason=\"abort\",model_name=\"a\"} 1
vllm:time_to_first_token_seconds_bucket{le=\"0.1\"} 60
vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 100
vllm:inter_token_latency_seconds_bucket{le=\"+Inf\"} 7
";

    #[test]
    fn vllm_counts_by_reason_and_failed_requests_are_among_those_that_ended() {
        let read = of(Engine::Vllm, VLLM_PAGE).unwrap();
        assert_eq!((read.ended, read.in_flight), (100, 3));
        assert_eq!((read.errors, read.aborts), (Some(4), Some(1)));
        assert_eq!(read.repetitions, None, "a version that does not know the reason");
        let buckets: Vec<_> = read.first_token.unwrap().iter().collect();
        assert_eq!(buckets, [(0.1, 60.0), (f64::INFINITY, 100.0)]);
        assert_eq!(read.per_token, None, "the histogram of another version counts tokens");
        assert_eq!(read.whole_request, None);
        assert_eq!(read.tokens, None, "they are not served, which is no fault");
    }

    #[test]
    fn tokens_are_those_of_prompts_and_answers() {
        let page = format!(
            "{VLLM_PAGE}vllm:prompt_tokens_total 700\nvllm:generation_tokens_total{{engine=\"0\"}} 30\n"
        );
        assert_eq!(of(Engine::Vllm, &page).unwrap().tokens, Some(730));
        let page = "tgi_request_success 7\ntgi_request_generated_tokens_sum 55\ntgi_request_generated_tokens_count 7\n";
        assert_eq!(of(Engine::Tgi, page).unwrap().tokens, Some(55));
        assert_eq!(
            of(Engine::Triton, "nv_inference_request_success 1\nnv_inference_pending_request_count 0\n")
                .unwrap()
                .tokens,
            None
        );
    }

    #[test]
    fn a_missing_counter_of_vllm_is_no_zero() {
        let without: String = VLLM_PAGE
            .lines()
            .filter(|line| !line.contains("success"))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(
            of(Engine::Vllm, &without).unwrap_err().to_string(),
            "vllm:request_success_total: it is not served"
        );
        let gauge = VLLM_PAGE.replace("vllm:num_requests_waiting", "other");
        assert!(of(Engine::Vllm, &gauge).is_err());
    }

    #[test]
    fn tgi_and_triton_serve_a_counter_from_the_first_such_request_on() {
        let read =
            of(Engine::Tgi, "tgi_request_success 7\ntgi_queue_size 1\ntgi_batch_current_size 2\n").unwrap();
        assert_eq!((read.ended, read.errors, read.in_flight, read.aborts), (7, Some(0), 3, None));
        let text = "tgi_request_success 7\ntgi_request_failure{err=\"generation\"} 2\ntgi_request_failure{err=\"validation\"} 50\n\
                    tgi_request_failure{err=\"overloaded\"} 60\n";
        let read = of(Engine::Tgi, text).unwrap();
        assert_eq!((read.ended, read.errors), (9, Some(2)), "what was refused says nothing about a version");
        let text = "nv_inference_request_success{model=\"a\"} 7\nnv_inference_request_failure{model=\"a\",reason=\"x\"} 2\n\
                    nv_inference_request_failure{model=\"a\",reason=\"y\"} 1\n\
                    nv_inference_request_failure{model=\"a\",reason=\"CANCELED\"} 40\nnv_inference_pending_request_count 4\n";
        let read = of(Engine::Triton, text).unwrap();
        assert_eq!((read.ended, read.errors, read.in_flight), (10, Some(3), 4));
        assert_eq!(
            of(Engine::Tgi, "other 1\n").unwrap(),
            Outcomes { errors: Some(0), tokens: Some(0), ..Outcomes::default() }
        );
    }
}
