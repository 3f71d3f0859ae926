//! What is wanted of an engine's metrics, or of a metric that a user names, and what one scrape says of it. Pure.

use engine_metrics::{
    engine::{Profile, is_bucket, is_count},
    histogram::Buckets,
    series::{self, Unusable},
};
use text::exposition::{Exposition, Kind};

use prometheus_api::{Fault as ServerFault, promql::looks_like_a_counter};

use super::{Fault, WantedKind};

pub use engine_metrics::engine::Engine;

/// What engines are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Load {
    /// Requests that wait or run.
    QueueDepth,
    /// 95th percentile of the time of whole requests in milliseconds.
    Latency,
    TokensPerMinute,
}

/// How a metric that a user names is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Meaning {
    /// The value as it is.
    Level,
    /// The growth of a counter per minute; a gauge as it is.
    PerMinute,
    /// The 95th percentile of a histogram in milliseconds; a gauge as it is. The unit of the histogram is seconds unless its
    /// name ends with `_ms`, `_milliseconds`, `_us` or `_microseconds`.
    P95Milliseconds,
}

/// What is read of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wanted {
    /// `None`: the engine is recognised by what it serves.
    OfEngine(Option<Engine>, Load),
    Named(String, Meaning),
}

/// What one scrape says.
#[derive(Clone, Debug, PartialEq)]
pub struct Scrape {
    /// Of a pod that has served no request yet, there may be no value, and requests all the same.
    pub value: Result<Scraped, Fault>,
    /// Of an engine that counts those that it has finished.
    pub requests: Option<Requests>,
}

/// The value that is wanted. All numbers are finite.
#[derive(Clone, Debug, PartialEq)]
pub enum Scraped {
    Level(f64),
    /// A sum since the start of the engine. Its growth per minute is the sample.
    Count(f64),
    /// Observations since the start of the engine, in milliseconds after the factor.
    Times(Buckets, MillisecondsPerUnit, InFlight),
}

/// What waits and what runs now, and how many were finished since the start of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    pub waiting: f64,
    pub running: f64,
    pub finished: f64,
    /// Tokens since the start of the engine; 0 if they are not wanted.
    pub tokens: f64,
}

/// Requests that an engine has in hand while its times are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    None,
    Some,
    /// The metric is of no known engine, or the engine does not say.
    Unknown,
}

/// 1000 for seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MillisecondsPerUnit(pub f64);

const SECONDS: MillisecondsPerUnit = MillisecondsPerUnit(1_000.0);

impl Load {
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueDepth => "queue depth",
            Self::Latency => "latency",
            Self::TokensPerMinute => "token rate",
        }
    }
}

impl Wanted {
    /// Whether a series of this name is needed. For [`text::exposition::parse`].
    pub fn needs(&self, series: &str) -> bool {
        match self {
            Self::OfEngine(engine, load) => Engine::profiles()
                .iter()
                .filter(|profile| engine.is_none_or(|engine| engine == profile.engine))
                .any(|profile| needs(profile, *load, series)),
            Self::Named(name, Meaning::P95Milliseconds) => series == name || is_bucket(series, name),
            Self::Named(name, Meaning::Level | Meaning::PerMinute) => series == name,
        }
    }

    /// Whether the value is a percentile of times.
    pub fn is_latency(&self) -> bool {
        match self {
            Self::OfEngine(_, load) => *load == Load::Latency,
            Self::Named(_, meaning) => *meaning == Meaning::P95Milliseconds,
        }
    }

    /// Whether it may be the load of an engine that counts its finished requests.
    pub fn may_count_requests(&self) -> bool {
        match self {
            Self::OfEngine(engine, _) => engine.is_none_or(|engine| engine.profile().latency.is_some()),
            Self::Named(..) => false,
        }
    }

    /// For messages.
    pub fn name(&self) -> &str {
        match self {
            Self::OfEngine(_, load) => load.name(),
            Self::Named(name, _) => name,
        }
    }
}

fn needs(profile: &Profile, load: Load, series: &str) -> bool {
    let is_of_load = match load {
        Load::QueueDepth => false,
        Load::Latency => profile.latency.is_some_and(|name| is_bucket(series, name)),
        Load::TokensPerMinute => profile.tokens.contains(&series),
    };
    is_of_load
        || profile.requests.contains(&series)
        || profile.latency.is_some_and(|name| is_count(series, name))
}

/// What one scrape of a pod says of what is wanted. `pod`: namespace and name, for messages.
pub fn read(read: &Exposition<'_>, wanted: &Wanted, pod: &str) -> Scrape {
    match wanted {
        Wanted::OfEngine(engine, load) => match engine.or_else(|| Engine::of(read)) {
            Some(engine) => of_engine(read, engine.profile(), *load, pod),
            None => Scrape { value: Err(Fault::UnknownEngine { pod: pod.to_owned() }), requests: None },
        },
        Wanted::Named(name, meaning) => Scrape { value: named(read, name, *meaning, pod), requests: None },
    }
}

fn of_engine(read: &Exposition<'_>, profile: &Profile, load: Load, pod: &str) -> Scrape {
    let value = load_of(read, profile, load, pod);
    let tokens = match (load, &value) {
        (Load::TokensPerMinute, Ok(Scraped::Count(tokens))) => *tokens,
        _ => 0.0,
    };
    Scrape { value, requests: counted(read, profile, pod).map(|counted| Requests { tokens, ..counted }) }
}

fn load_of(read: &Exposition<'_>, profile: &Profile, load: Load, pod: &str) -> Result<Scraped, Fault> {
    let is_not_served = |instead| Fault::NotServed { engine: profile.name, metric: load.name(), instead };
    Ok(match load {
        Load::QueueDepth => Scraped::Level(requests(read, profile, pod)?),
        Load::Latency => {
            let name = profile.latency.ok_or_else(|| {
                is_not_served("use queue_depth, or source.prometheus with the summaries of --metrics-config=summary_latencies=true")
            })?;
            let in_flight = match requests(read, profile, pod) {
                Ok(requests) if requests <= 0.0 => InFlight::None,
                Ok(_) => InFlight::Some,
                Err(_) => InFlight::Unknown,
            };
            Scraped::Times(buckets(read, name, pod)?, SECONDS, in_flight)
        }
        Load::TokensPerMinute if profile.tokens.is_empty() => {
            return Err(is_not_served("use queue_depth, or source.prometheus with a metric of the model"));
        }
        Load::TokensPerMinute => {
            let mut tokens = 0.0;
            for name in profile.tokens {
                tokens += sum(read, name, pod)?;
            }
            Scraped::Count(tokens)
        }
    })
}

/// SGLang and TGI serve the number of finished requests from the first one on. Without it, the load can be used still.
fn counted(read: &Exposition<'_>, profile: &Profile, pod: &str) -> Option<Requests> {
    let (histogram, [waiting, running]) = (profile.latency?, profile.requests) else { return None };
    let finished = match across_ranks(read, &format!("{histogram}_count"), pod) {
        Ok(finished) => finished,
        Err(Fault::NoSuchMetric { .. }) => 0.0,
        Err(_) => return None,
    };
    let waiting = across_ranks(read, waiting, pod).ok()?;
    Some(Requests { waiting, running: across_ranks(read, running, pod).ok()?, finished, tokens: 0.0 })
}

fn requests(read: &Exposition<'_>, profile: &Profile, pod: &str) -> Result<f64, Fault> {
    profile.in_hand(read).map_err(|(name, why)| fault(why, name, pod))
}

fn named(read: &Exposition<'_>, name: &str, meaning: Meaning, pod: &str) -> Result<Scraped, Fault> {
    let kind = read.kind(name);
    // A series without a type has the one that its name promises.
    let counts = kind == Kind::Counter || kind == Kind::Untyped && looks_like_a_counter(name);
    let is_histogram = kind == Kind::Histogram && !read.has(name);
    let wrong =
        |found, wanted| Err(Fault::WrongKind { pod: pod.to_owned(), metric: name.to_owned(), found, wanted });
    match meaning {
        Meaning::Level if counts => wrong(Kind::Counter, WantedKind::Gauge),
        Meaning::Level if is_histogram || is_summary(kind) => wrong(kind, WantedKind::Gauge),
        Meaning::Level => Ok(Scraped::Level(sum(read, name, pod)?)),
        // The sum and the count of a histogram are counters.
        Meaning::PerMinute if counts || kind == Kind::Histogram && !is_histogram => {
            Ok(Scraped::Count(sum(read, name, pod)?))
        }
        Meaning::PerMinute if is_histogram || is_summary(kind) => wrong(kind, WantedKind::CounterOrGauge),
        Meaning::PerMinute => Ok(Scraped::Level(sum(read, name, pod)?)),
        Meaning::P95Milliseconds if counts => wrong(Kind::Counter, WantedKind::HistogramOrGauge),
        Meaning::P95Milliseconds if is_summary(kind) => wrong(kind, WantedKind::HistogramOrGauge),
        Meaning::P95Milliseconds if kind == Kind::Histogram || read.has(&format!("{name}_bucket")) => {
            Ok(Scraped::Times(buckets(read, name, pod)?, unit(name), InFlight::Unknown))
        }
        Meaning::P95Milliseconds => Ok(Scraped::Level(sum(read, name, pod)?)),
    }
}

/// Quantiles of a summary cannot be added up over the series of a pod.
fn is_summary(kind: Kind) -> bool {
    kind == Kind::Summary
}

fn unit(histogram: &str) -> MillisecondsPerUnit {
    let ends = |suffixes: [&str; 2]| suffixes.iter().any(|suffix| histogram.ends_with(suffix));
    if ends(["_ms", "_milliseconds"]) {
        MillisecondsPerUnit(1.0)
    } else if ends(["_us", "_microseconds"]) {
        MillisecondsPerUnit(0.001)
    } else {
        SECONDS
    }
}

fn sum(read: &Exposition<'_>, name: &str, pod: &str) -> Result<f64, Fault> {
    series::sum(read, name).map_err(|why| fault(why, name, pod))
}

fn across_ranks(read: &Exposition<'_>, name: &str, pod: &str) -> Result<f64, Fault> {
    series::across_ranks(read, name).map_err(|why| fault(why, name, pod))
}

fn buckets(read: &Exposition<'_>, histogram: &str, pod: &str) -> Result<Buckets, Fault> {
    let series = || read.series.iter().filter(|series| is_bucket(series.name, histogram));
    if series().next().is_none() {
        return Err(no_such(histogram, pod));
    }
    Buckets::of(series()).ok_or_else(|| {
        ServerFault::NotANumber { origin: format!("histogram {histogram} of pod {pod}") }.into()
    })
}

/// `pods::Batch` adds the similar names.
fn no_such(name: &str, pod: &str) -> Fault {
    Fault::NoSuchMetric { pod: pod.to_owned(), metric: name.to_owned(), similar: Vec::new() }
}

fn fault(why: Unusable, name: &str, pod: &str) -> Fault {
    let origin = || format!("{name} of pod {pod}");
    match why {
        Unusable::Missing => no_such(name, pod),
        Unusable::TooManyLabelSets { limit } => {
            Fault::TooManyLabelSets { pod: pod.to_owned(), metric: name.to_owned(), limit }
        }
        Unusable::NotANumber => ServerFault::NotANumber { origin: origin() }.into(),
        Unusable::Infinite { is_negative } => ServerFault::Infinite { origin: origin(), is_negative }.into(),
    }
}

#[cfg(test)]
mod tests;
