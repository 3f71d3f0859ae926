//! From what a source read, or its fault, to what the arithmetic and the condition need. Pure.

use jiff::Timestamp;
use prometheus_api::Fault as ServerFault;
use scaling::{
    flow::Flow,
    reading::{Fault as Cause, Milli, PodSample as PodValue, Reading},
};

use super::{
    Fault, Sample,
    pods::scrapes::{ScrapedPod, Times, combined},
};

/// What was read for one metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) reading: Reading,
    /// What is wrong with it, for the condition; empty if nothing is.
    pub(crate) message: String,
    /// Since when the value has risen with every sample, if there were many of them.
    pub(crate) only_grows_since: Option<Timestamp>,
    /// What its counters say of the requests, if it has any.
    pub(crate) flow: Option<Flow>,
}

const NO_SAMPLE_YET: &str = "no sample has arrived yet";

impl Answer {
    pub(crate) fn new(reading: Reading, message: String) -> Self {
        Self { reading, message, only_grows_since: None, flow: None }
    }

    /// Before the first answer of a source.
    pub(crate) fn pending() -> Self {
        Self::new(Reading::Missing(Cause::Empty), NO_SAMPLE_YET.to_owned())
    }

    pub(crate) fn without_ready_pods() -> Self {
        let message = "no pod of the target is Ready, so none can be measured";
        Self::new(Reading::Missing(Cause::NoSettledPods), message.to_owned())
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.message == NO_SAMPLE_YET
    }
}

/// Of one value for the whole target.
pub(crate) fn of_total(read: Result<Sample, Fault>) -> Answer {
    match read {
        Ok(Sample { value, at, caution: Some(caution) }) => {
            Answer::new(Reading::partial_total(value, at), format!("some data was missing: {caution}"))
        }
        Ok(Sample { value, at, caution: None }) => Answer::new(Reading::total(value, at), String::new()),
        Err(fault) => Answer::new(Reading::Missing(cause(&fault)), fault.to_string()),
    }
}

/// Of latencies of pods. Each pod that has been Ready for long enough gets the percentile of the requests of all of them. A
/// mean of percentiles is none, and pods without requests would lower it. Gauges, which a user names, stay as they are.
///
/// `is_settled`: the first requests of a new pod are slow, and count where there are no others.
pub(crate) fn of_latencies(read: Vec<Latency>) -> Answer {
    let times = |is_settled: bool| {
        let of = move |latency: &Latency| {
            let known = latency.read.as_ref().ok()?;
            (latency.is_settled || !is_settled).then_some(known.times.as_ref()).flatten().cloned()
        };
        read.iter().filter_map(of).collect::<Vec<Times>>()
    };
    let settled = times(true);
    let counted = if settled.is_empty() { times(false) } else { settled };
    let all = combined(&counted);
    let value = |known: ScrapedPod| match (&known.times, all) {
        (Some(_), Some(all)) => Sample { value: all, ..known.sample },
        (Some(_), None) | (None, _) => known.sample,
    };
    of_pods(read.into_iter().map(|Latency { uid, read, .. }| (uid, read.map(value))).collect())
}

/// What was read of the latency of one pod.
pub(crate) struct Latency {
    pub(crate) uid: String,
    pub(crate) is_settled: bool,
    pub(crate) read: Result<ScrapedPod, Fault>,
}

/// Of values of pods, by uid. A pod without a value is missing, not zero; the first fault is shown, and how many there are.
pub(crate) fn of_pods(read: Vec<(String, Result<Sample, Fault>)>) -> Answer {
    let mut samples = Vec::new();
    let mut faults = Vec::new();
    let asked = read.len();
    for (uid, read) in read {
        match read.and_then(|sample| pod_sample(uid, &sample)) {
            Ok(sample) => samples.push(sample),
            Err(fault) => faults.push(fault),
        }
    }
    let message = match faults.as_slice() {
        [] => String::new(),
        [only] if asked == 1 => only.to_string(),
        [first, ..] => format!("{} of {asked} pods have no value: {first}", faults.len()),
    };
    match faults.first() {
        Some(fault) if samples.is_empty() => Answer::new(Reading::Missing(cause(fault)), message),
        None if samples.is_empty() => Answer::without_ready_pods(),
        Some(_) | None => Answer::new(Reading::Pods(samples), message),
    }
}

fn pod_sample(uid: String, Sample { value, at, caution: _ }: &Sample) -> Result<PodValue, Fault> {
    let value = Milli::parse(*value).map_err(|_| ServerFault::NotANumber { origin: "a pod".to_owned() })?;
    Ok(PodValue { uid, value, at: *at })
}

fn cause(fault: &Fault) -> Cause {
    match fault {
        Fault::Server(fault) => cause_of_server(fault),
        Fault::NoSuchMetric { .. } | Fault::NoRequests { .. } | Fault::FirstScrape { .. } => Cause::Empty,
        Fault::InvalidAddress { .. } => Cause::Unreachable,
        Fault::NotServed { .. } => Cause::Refused,
        Fault::WrongKind { .. }
        | Fault::UnknownEngine { .. }
        | Fault::TooManyMetrics { .. }
        | Fault::TooManyLabelSets { .. }
        | Fault::TooManyPods { .. }
        | Fault::TooMuchKept { .. } => Cause::Malformed,
    }
}

fn cause_of_server(fault: &ServerFault) -> Cause {
    match fault {
        ServerFault::Empty { .. } => Cause::Empty,
        ServerFault::NotANumber { .. } => Cause::NotANumber,
        ServerFault::Infinite { .. } => Cause::Infinite,
        ServerFault::Stale { .. } => Cause::Stale,
        ServerFault::Slow { .. } => Cause::Slow,
        ServerFault::Unreachable { .. }
        | ServerFault::Untrusted { .. }
        | ServerFault::SecretUnreadable { .. } => Cause::Unreachable,
        ServerFault::Rejected { .. }
        | ServerFault::Unauthorized { .. }
        | ServerFault::Failed { .. }
        | ServerFault::Redirected { .. }
        | ServerFault::InvalidUrl { .. }
        | ServerFault::NoServer
        | ServerFault::UrlNotAllowed { .. }
        | ServerFault::TokenOverHttp { .. }
        | ServerFault::InvalidQuery(_)
        | ServerFault::InvalidSecret { .. }
        | ServerFault::NoSecret { .. }
        | ServerFault::NoKey { .. }
        | ServerFault::SecretForbidden { .. } => Cause::Refused,
        ServerFault::TooManySeries { .. }
        | ServerFault::TooManyCounters { .. }
        | ServerFault::Partial { .. }
        | ServerFault::WrongResult { .. }
        | ServerFault::TooLarge { .. }
        | ServerFault::CountersTooLarge { .. }
        | ServerFault::HeadTooLarge { .. }
        | ServerFault::WrongContent { .. } => Cause::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use text::exposition::parse;

    use engine_metrics::histogram::Buckets;

    use super::*;
    use crate::sources::{
        engines::{InFlight, MillisecondsPerUnit, Scraped},
        pods::scrapes::Scrapes,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    /// Requests that took less than 1 s and less than 10 s since the engine began, and whether it has any in hand.
    fn scrape(fast: u32, all: u32, in_flight: InFlight) -> Scraped {
        let text = format!(
            "x_bucket{{le=\"1\"}} {fast}\nx_bucket{{le=\"10\"}} {all}\nx_bucket{{le=\"+Inf\"}} {all}\n"
        );
        let buckets = Buckets::of(parse(&text, |_| true).series.iter()).unwrap();
        Scraped::Times(buckets, MillisecondsPerUnit(1_000.0), in_flight)
    }

    fn latency(uid: &str, is_settled: bool, gained: (u32, u32), in_flight: InFlight) -> Latency {
        let mut history = Scrapes::new(Duration::from_secs(30));
        let record = |history: &mut Scrapes, seconds, scraped| {
            history.record(uid, uid, "latency", scraped, at(seconds))
        };
        record(&mut history, 0, scrape(0, 0, in_flight)).unwrap_err();
        let read = record(&mut history, 30, scrape(gained.0, gained.1, in_flight));
        Latency { uid: uid.to_owned(), is_settled, read }
    }

    fn values(answer: &Answer) -> Vec<(String, i64)> {
        match &answer.reading {
            Reading::Pods(pods) => {
                pods.iter().map(|pod| (pod.uid.clone(), pod.value.count() / 1_000)).collect()
            }
            Reading::Total { .. } | Reading::PartialTotal { .. } | Reading::Missing(_) => Vec::new(),
        }
    }

    #[test]
    fn idle_pods_do_not_lower_the_latency_of_those_that_serve() {
        let answer = of_latencies(vec![
            latency("busy", true, (0, 100), InFlight::Some),
            latency("idle", true, (0, 0), InFlight::None),
        ]);
        assert_eq!(values(&answer), [("busy".to_owned(), 9_550), ("idle".to_owned(), 9_550)]);
    }

    #[test]
    fn without_any_request_there_is_no_load_and_an_engine_that_hangs_is_missing() {
        let idle = of_latencies(vec![latency("a", true, (0, 0), InFlight::None)]);
        assert_eq!((values(&idle), idle.message.as_str()), (vec![("a".to_owned(), 0)], ""));
        for in_flight in [InFlight::Some, InFlight::Unknown] {
            let hangs = of_latencies(vec![latency("a", true, (0, 0), in_flight)]);
            assert_eq!(hangs.reading, Reading::Missing(Cause::Empty));
            assert_eq!(hangs.message, "pod a has finished no request in 30 s, so latency has no value");
        }
    }

    #[test]
    fn the_first_requests_of_new_pods_count_only_where_there_are_no_others() {
        let new = || latency("new", false, (0, 100), InFlight::Some);
        let old = latency("old", true, (100, 100), InFlight::Some);
        assert_eq!(
            values(&of_latencies(vec![new(), old])),
            [("new".to_owned(), 950), ("old".to_owned(), 950)]
        );
        assert_eq!(values(&of_latencies(vec![new()])), [("new".to_owned(), 9_550)]);
    }

    #[test]
    fn a_pod_without_a_value_is_missing_and_the_message_counts_such_pods() {
        let slow = || {
            Fault::Server(ServerFault::Slow { server: "pod demo/b".into(), limit: Duration::from_secs(1) })
        };
        let fine = || Ok(Sample { value: 3.0, at: at(0), caution: None });
        let answer =
            of_pods(vec![("a".into(), fine()), ("b".into(), Err(slow())), ("c".into(), Err(slow()))]);
        assert_eq!(values(&answer), [("a".to_owned(), 3)]);
        assert_eq!(answer.message, "2 of 3 pods have no value: pod demo/b did not answer within 1 s");
        let none = of_pods(vec![("b".into(), Err(slow()))]);
        assert_eq!(
            (none.reading, none.message.as_str()),
            (Reading::Missing(Cause::Slow), "pod demo/b did not answer within 1 s")
        );
        assert_eq!(of_pods(Vec::new()).reading, Reading::Missing(Cause::NoSettledPods));
        let negative = Sample { value: -1.0, at: at(0), caution: None };
        assert!(matches!(of_pods(vec![("a".into(), Ok(negative))]).reading, Reading::Missing(_)));
    }

    #[test]
    fn a_total_that_the_server_warns_of_is_partial_and_keeps_its_words() {
        let warned = Sample { value: 7.0, at: at(0), caution: Some("a store is down".into()) };
        let answer = of_total(Ok(warned));
        let message = "some data was missing: a store is down".to_owned();
        assert_eq!(answer, Answer::new(Reading::partial_total(7.0, at(0)), message));
    }
}
