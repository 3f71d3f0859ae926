//! Counts the requests of the metric custom by queries to a Prometheus-compatible server.
//!
//! A query gives series of counters. What each has gained since the look before is counted, of both versions at once.
//!
//! | what is seen of a series | what it adds |
//! |---|---|
//! | it rose | the difference |
//! | it fell by half or more, in two looks in a row: its counter began anew | its value |
//! | it fell otherwise: another replica of the server is behind | nothing, until it is above its largest value |
//! | it is new | its value: a new pod, or the first error |
//! | it is new in the first two minutes of the queries: it may be old | nothing |
//! | it is new, and new series of one query have over 100 and over ten times the requests of the known ones | nothing |
//! | it is new, and no series is known any more: all have new labels | nothing |
//! | it is gone, as after a scrape that failed | nothing; it is known for when it comes back |
//!
//! Where stable never had a series in the step, the candidate is counted after two minutes, and a text says so. Where the
//! candidate has none, nothing is counted. The same holds where stable has none any more, unless it had no request when
//! they were counted last, or the candidate has a weight of 100. After new series of the candidate that are not counted,
//! it does not pass for two minutes, or for ten if each look has such series. A text says so.
//!
//! So queries must keep a label of each pod. One number for all of them would fall with each pod that goes, and rise by
//! all that it has ever counted when it comes back.
//!
//! The first look also asks for the values of the time up to which the status has counted. So a restart of the
//! controller loses little: what was read and is not in the status. It asks for those of 300 s earlier as well: a
//! series with a value there alone is old. It goes on from what is known, or begins with the first value that is read
//! later.
//!
//! Servers scrape both versions at their own times, which may be further apart than two looks. So what is gained is
//! kept until both versions have gained, or two minutes are over. Bad requests that come later than their requests wait
//! for the next ones, up to as many as requests of the step were counted as good. Those of the candidate keep it from
//! passing for two minutes.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use api::aiinference::analysis::AnalysisPrometheus;
use engine_metrics::bodies::Bodies;
use futures::future::{join, join_all};
use prometheus_api::{
    Counters, Fault, MOST_SERIES,
    answer::Moment,
    args::{Prometheus, Source},
    promql::{Query, Target},
};
use tokio::time::timeout;
use verdict::{
    counters::MISSING_AFTER,
    interval::{Counts, Flow, MOST_REQUESTS, Tracks},
};

use super::{Found, OfQueries};

/// Seconds of a step in which the candidate may have no series: a server scrapes new pods after a while.
const APPEARS_WITHIN: i64 = 150;
/// Seconds for which one version waits for requests of the other.
const POOLED_FOR: i64 = 120;
/// Seconds of the queries in which a new series is not counted from 0: its pod may not have been scraped when they
/// began.
const OLD_SERIES_APPEAR_WITHIN: i64 = 120;
/// The first look also asks for values of so many seconds earlier: the last scrape may have failed.
const EARLIER: i64 = 300;
/// All queries of a look. It is less than the time of a whole look.
const DEADLINE: Duration = Duration::from_secs(8);
/// New series may have so many times what the known ones gained in the same look.
const MOST_NEW: f64 = 10.0;
/// So many always count: from now on, all requests may fail and have another label.
const FEW_NEW: f64 = 100.0;
const FIELD: &str = "spec.canary.analysis.prometheus";

/// What is asked for the metric custom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Queries {
    pub(crate) prometheus: Box<AnalysisPrometheus>,
    /// Names of the Services.
    pub(crate) services: Tracks<String>,
    /// Stable gets no requests in this step, and gateways may forget it.
    pub(crate) stable_may_be_silent: bool,
}

/// What a look has read.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    queries: Queries,
    read: Result<Tracks<Answers>, String>,
}

/// Of one version.
#[derive(Clone, Debug, Default)]
struct Answers {
    requests: Answer,
    bad: Answer,
}

#[derive(Clone, Debug, Default)]
struct Answer {
    /// Earlier, and at the time up to which is counted. `None`: they are known.
    before: Option<[Counters; 2]>,
    now: Counters,
}

/// What is known of the queries.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// Counters of other queries are no continuation.
    queries: Option<Queries>,
    versions: Tracks<Version>,
    /// When they were asked first, when they were answered last, and when requests were counted last, in Unix seconds.
    began: i64,
    answered: i64,
    counted: i64,
    missed: u32,
    /// Since when bad requests of the candidate wait.
    waits_since: Option<i64>,
    /// When new series of the candidate, which may be old ones, were left out first and last.
    left_out: Option<LeftOut>,
    /// The step has begun, and the values of its beginning are not known.
    is_new_step: bool,
}

#[derive(Clone, Debug, Default)]
struct Version {
    requests: Known,
    bad: Known,
    /// Not counted yet.
    gained: Gained,
    /// Requests that were counted last in this step.
    last: Option<u64>,
    /// Requests of this step that were counted as good.
    good: u64,
    /// It has had series in this step.
    has_spoken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Gained {
    requests: f64,
    bad: f64,
}

/// Each series, by the hash of its labels. `None`: it is old, and no value of this step is known.
#[derive(Clone, Debug, Default)]
struct Known(BTreeMap<u64, Option<Series>>);

/// What known series have gained in a look, and the values of new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Risen {
    of_known: f64,
    of_new: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Series {
    /// Its largest value.
    value: f64,
    /// It was half of that or less in the last look.
    fell: bool,
}

/// Of the server and the queries, without its Secrets.
pub(crate) fn hash(prometheus: &AnalysisPrometheus) -> u64 {
    let AnalysisPrometheus { url, requests_query, bad_requests_query, secret_name: _, ca_secret_name: _ } =
        prometheus;
    let mut hasher = DefaultHasher::new();
    (url, requests_query, bad_requests_query).hash(&mut hasher);
    hasher.finish()
}

/// Asks both queries for both versions. `since`: up to when is counted, if nothing is known of the queries.
pub(super) async fn answered(
    (prometheus, turns): (&Prometheus, &Bodies),
    queries: &Queries,
    namespace: &str,
    since: Option<i64>,
    asked: Moment,
) -> Answered {
    let reading = async {
        // Answers take memory.
        let _turn = turns.permit(namespace).await;
        read(prometheus, queries, namespace, since, asked).await
    };
    let read = timeout(DEADLINE, reading).await.unwrap_or_else(|_| {
        let time = DEADLINE.as_secs();
        Err(format!(
            "{FIELD}: the server did not answer the queries of this namespace within {time} s; select fewer series, or \
             raise intervalSeconds"
        ))
    });
    Answered { queries: queries.clone(), read }
}

async fn read(
    prometheus: &Prometheus,
    queries: &Queries,
    namespace: &str,
    since: Option<i64>,
    asked: Moment,
) -> Result<Tracks<Answers>, String> {
    let AnalysisPrometheus { url, requests_query, bad_requests_query, secret_name, ca_secret_name } =
        &*queries.prometheus;
    let source = Source {
        namespace,
        url: url.as_deref(),
        secret: secret_name.as_deref(),
        ca_secret: ca_secret_name.as_deref(),
    };
    let Tracks { stable, candidate } = &queries.services;
    let mut asks = Vec::new();
    for (name, text) in [("requestsQuery", requests_query), ("badRequestsQuery", bad_requests_query)] {
        let of = |service| parsed(text, Target { namespace, name: service }, prometheus, name);
        let (of_stable, of_candidate) = (of(stable)?, of(candidate)?);
        if of_stable.text() == of_candidate.text() {
            return Err(format!(
                "{FIELD}.{name} is the same query for both versions: write $name as the value of a label, as in \
                 service=\"$name\""
            ));
        }
        for query in [of_stable, of_candidate] {
            asks.push(async move {
                let ask = async |at| prometheus.counters(source, &query, at, asked).await;
                let answer = async {
                    let before = match since {
                        Some(since) => {
                            let earlier = since.saturating_sub(EARLIER);
                            // Together, because three in a row may take longer than a look.
                            let (earlier, begun) = join(ask(Some(earlier)), ask(Some(since))).await;
                            Some([earlier?, begun?])
                        }
                        None => None,
                    };
                    Ok(Answer { before, now: ask(None).await? })
                };
                answer.await.map_err(|fault: Fault| match fault.is_of_query() {
                    true => format!("{FIELD}.{name}: {fault}"),
                    false => format!("{FIELD}: {fault}"),
                })
            });
        }
    }
    // The first fault is always the same one.
    let answers = join_all(asks).await.into_iter().collect::<Result<Vec<Answer>, String>>()?;
    let [requests, of_candidate, bad, bad_of_candidate] = <[Answer; 4]>::try_from(answers)
        .map_err(|answers| format!("{} answers to 4 queries", answers.len()))?;
    let both = [(&bad, stable), (&bad_of_candidate, candidate)];
    if let Some((_, service)) = both.into_iter().find(|(bad, _)| bad.now.is_empty()) {
        return Err(format!(
            "{FIELD}.badRequestsQuery has no value for the Service {service}: end it with \"or vector(0)\", and check the \
             name of the metric and its labels"
        ));
    }
    Ok(Tracks {
        stable: Answers { requests, bad },
        candidate: Answers { requests: of_candidate, bad: bad_of_candidate },
    })
}

fn parsed(text: &str, target: Target<'_>, prometheus: &Prometheus, name: &str) -> Result<Query, String> {
    let query = Query::parse(text, target, prometheus.scope)
        .map_err(|refusal| format!("{FIELD}.{name}: {}", Fault::InvalidQuery(refusal)))?;
    if name == "requestsQuery" && query.text().contains("vector(") {
        return Err(format!(
            "{FIELD}.{name} has vector(): leave it out, because a version that is not scraped would seem to have no requests"
        ));
    }
    match (query.rate(), query.total()) {
        (Some(rate), _) => Err(format!(
            "{FIELD}.{name} has {rate}(): write the counter itself, such as http_requests_total{{service=\"$name\"}}"
        )),
        (None, Some(sum)) => Err(format!(
            "{FIELD}.{name} has {sum}() of several pods: keep the label pod or instance, as in {sum} by (pod) (...)"
        )),
        (None, None) => Ok(query),
    }
}

fn without_series(service: &str, has_spoken: bool) -> String {
    if has_spoken {
        return format!(
            "{FIELD}.requestsQuery has no series any more for the Service {service}: check what the server scrapes"
        );
    }
    format!(
        "{FIELD}.requestsQuery has no series for the Service {service}: it has had no request yet, or the query is \
         wrong; check that its labels have $name, that the series have the label namespace unless the controller reads \
         all namespaces, and what the server scrapes"
    )
}

fn not_counted(service: &str, delays: bool) -> String {
    let delay = if delays { "; no step follows for two minutes" } else { "" };
    format!(
        "{FIELD}: new series of the Service {service} are not counted, because they may be old ones with new labels{delay}"
    )
}

/// Labels that are new in each look delay a pass for so long, and not for ever. After as long without any, others delay it
/// again.
const LEFT_OUT_FOR: i64 = 600;

#[derive(Clone, Copy, Debug)]
struct LeftOut {
    first: i64,
    last: i64,
}

impl LeftOut {
    fn delays(self, at: i64) -> bool {
        is_recent(self.last, at) && at.saturating_sub(self.first) < LEFT_OUT_FOR
    }
}

/// Of what a pass waits for.
fn is_recent(since: i64, at: i64) -> bool {
    at.saturating_sub(since) < POOLED_FOR
}

impl Answered {
    fn hash(&self) -> u64 {
        hash(&self.queries.prometheus)
    }
}

impl Counting {
    /// Whether the values of the time up to which is counted are needed.
    pub(super) fn begins(&self, queries: &Queries) -> bool {
        self.is_new_step || self.asks_others(queries)
    }

    fn asks_others(&self, queries: &Queries) -> bool {
        self.queries.as_ref().is_none_or(|known| {
            (&known.prometheus, &known.services) != (&queries.prometheus, &queries.services)
        })
    }

    /// What is found, and what the look says of the queries. The times and `age` are those of `found`.
    pub(super) fn look(&mut self, answered: &Answered, times: (i64, i64), age: i64) -> (Found, OfQueries) {
        let (found, fault) = self.found(answered, times, age);
        let (_, at) = times;
        let may_pass = self.may_pass(&found, at);
        let left_out = self.left_out.filter(|left_out| is_recent(left_out.last, at));
        let candidate = &answered.queries.services.candidate;
        let fault = fault.or_else(|| left_out.map(|left_out| not_counted(candidate, left_out.delays(at))));
        (found, OfQueries { hash: answered.hash(), fault, may_pass })
    }

    /// Whether a canary may go on. Bad requests that wait for their requests would be lost with the step. Those of
    /// stable only make a pass harder. Where there are always more bad ones than requests, some would wait for ever.
    fn may_pass(&self, found: &Found, at: i64) -> bool {
        let waits = self.waits_since.is_some_and(|since| is_recent(since, at))
            || self.left_out.is_some_and(|left_out| left_out.delays(at));
        matches!(found, Found::Counted { .. }) && self.counts_new(at) && !waits
    }

    /// Whether a series that is new now began at 0.
    fn counts_new(&self, at: i64) -> bool {
        at.saturating_sub(self.began) > OLD_SERIES_APPEAR_WITHIN
    }

    /// What both versions have gained since requests were counted last. `since`: up to when is counted, in Unix
    /// seconds. `age`: seconds of the step. The text says what is wrong.
    fn found(&mut self, answered: &Answered, (since, at): (i64, i64), age: i64) -> (Found, Option<String>) {
        match &answered.read {
            Ok(answers) => {
                let found = self.advanced(&answered.queries, answers, (since, at), age);
                // Until then, bad requests wait with their own requests.
                if let (Found::Counted { .. }, _) = &found {
                    let waits = whole(self.versions.candidate.gained.bad) > 0;
                    self.waits_since = self.waits_since.or(Some(at)).filter(|_| waits);
                }
                found
            }
            Err(why) => self.missing(why.clone()),
        }
    }

    fn advanced(
        &mut self,
        queries: &Queries,
        answers: &Tracks<Answers>,
        (since, at): (i64, i64),
        age: i64,
    ) -> (Found, Option<String>) {
        let is_new_step = std::mem::take(&mut self.is_new_step);
        // What is known of a candidate of long ago is of pods that may be gone, or not be scraped just now.
        let is_old = is_new_step && since.saturating_sub(self.answered) > EARLIER;
        if is_old || self.asks_others(queries) {
            *self = Self { queries: Some(queries.clone()), began: since, counted: since, ..Self::default() };
        }
        if is_new_step {
            (self.counted, self.waits_since, self.left_out) = (since, None, None);
        }
        self.answered = at;
        let counts_new = self.counts_new(at);
        let Tracks { stable, candidate } = &mut self.versions;
        stable.advance(&answers.stable, counts_new);
        let leaves_out = candidate.advance(&answers.candidate, counts_new);
        if leaves_out {
            let before = self.left_out.filter(|before| at.saturating_sub(before.last) < LEFT_OUT_FOR);
            self.left_out = Some(LeftOut { first: before.map_or(at, |before| before.first), last: at });
        }
        // The server has answered. So long a gap before it is no interval: as with the counters of pods.
        let is_gap = std::mem::take(&mut self.missed) >= MISSING_AFTER;
        if is_gap {
            self.drop_gained(at);
        }
        let Tracks { stable, candidate } = &mut self.versions;
        let is_late = age > APPEARS_WITHIN;
        // Without requests, stable soon has no series.
        let stable_is_late = if stable.has_spoken { stable.last != Some(0) } else { is_late };
        let stable_must = stable_is_late && !queries.stable_may_be_silent;
        let Tracks { stable: of_stable, candidate: of_candidate } = &queries.services;
        if (candidate.has_spoken || is_late) && answers.candidate.requests.now.is_empty() {
            return (Found::Incomplete, Some(without_series(of_candidate, candidate.has_spoken)));
        }
        let is_silent = stable_must && answers.stable.requests.now.is_empty();
        let why = is_silent.then(|| without_series(of_stable, stable.has_spoken));
        if is_silent && stable.has_spoken {
            // It had requests. Without them, the candidate would be judged by itself.
            return (Found::Incomplete, why);
        }
        // It may have no requests. The candidate is counted all the same, because a limit may be enough.
        if is_gap {
            return (Found::Pooled, why);
        }
        let is_over = at.saturating_sub(self.counted) >= POOLED_FOR;
        let have_gained = stable.gained.requests + candidate.gained.requests > 0.0;
        let is_complete = have_gained && stable.is_complete() && candidate.is_complete();
        if !is_over && !is_complete {
            return (Found::Pooled, why);
        }
        self.counted = at;
        let flows = Tracks { stable: stable.counted(), candidate: candidate.counted() };
        (Found::Counted { flows, bound: None }, why)
    }

    /// Requests of the next step are counted by themselves. Its series are known, unless it begins much later.
    pub(super) fn in_next_step(mut self) -> Self {
        let Tracks { stable, candidate } = &mut self.versions;
        for version in [stable, candidate] {
            let Version { requests, bad, .. } = std::mem::take(version);
            *version = Version { requests, bad, ..Version::default() };
        }
        Self { is_new_step: true, missed: 0, ..self }
    }

    fn drop_gained(&mut self, at: i64) {
        let Tracks { stable, candidate } = &mut self.versions;
        for version in [stable, candidate] {
            version.gained = Gained::default();
        }
        self.counted = at;
    }

    fn missing(&mut self, why: String) -> (Found, Option<String>) {
        self.missed = self.missed.saturating_add(1);
        (Found::Incomplete, Some(why))
    }
}

impl Version {
    /// Returns whether new series were left out after the first two minutes.
    fn advance(&mut self, Answers { requests, bad }: &Answers, counts_new: bool) -> bool {
        for (known, answer) in [(&mut self.requests, requests), (&mut self.bad, bad)] {
            if let Some(before) = &answer.before {
                known.begin(before);
            }
        }
        self.has_spoken |= !requests.now.is_empty();
        let goes_on = self.requests.goes_on(&requests.now);
        let [requests, bad] = [self.requests.advance(&requests.now), self.bad.advance(&bad.now)];
        let most = (requests.of_known * MOST_NEW).max(FEW_NEW);
        // Of both queries: requests without their bad ones would be good ones.
        let of_new = requests.of_new.max(bad.of_new);
        let counts_all = counts_new && goes_on && of_new <= most;
        self.gained.requests += requests.counted(counts_all);
        self.gained.bad += bad.counted(counts_all);
        counts_new && !counts_all && of_new > 0.0
    }

    /// Whether no other version need wait for it. Bad requests may be read before their requests.
    fn is_complete(&self) -> bool {
        self.gained.requests > 0.0 || self.last == Some(0) && whole(self.gained.bad) == 0
    }

    /// The flow of what is gained. Bad requests without a request wait for the next ones. No more of them than requests
    /// of this step were counted as good: a counter that says more is none of these requests.
    fn counted(&mut self) -> Flow {
        let Gained { requests, bad } = self.gained;
        let all = whole(requests);
        let counted = whole(bad).min(all);
        self.last = Some(all);
        self.good = self.good.saturating_add(all - counted);
        self.gained = Gained { requests: 0.0, bad: (bad - counted as f64).clamp(0.0, self.good as f64) };
        let ended = Counts::new(all, counted).unwrap_or_default();
        Flow { arrivals: ended.requests(), ended, ..Flow::default() }
    }
}

impl Known {
    /// Begins with the values of the beginning, also where they are less than what was known long ago.
    fn begin(&mut self, [earlier, begun]: &[Counters; 2]) {
        for series in earlier.keys() {
            // Its earlier value would add requests of before the beginning.
            self.0.entry(*series).or_insert(None);
        }
        self.0.extend(begun.iter().map(|(series, value)| (*series, Some(Series::new(*value)))));
    }

    fn goes_on(&self, now: &Counters) -> bool {
        now.keys().any(|series| self.0.contains_key(series))
    }

    fn advance(&mut self, now: &Counters) -> Risen {
        let mut risen = Risen::default();
        for (series, value) in now {
            let next = match self.0.get(series) {
                Some(Some(last)) => {
                    let (more, next) = last.next(*value);
                    risen.of_known += more;
                    next
                }
                Some(None) => Series::new(*value),
                None => {
                    risen.of_new += value.max(0.0);
                    Series::new(*value)
                }
            };
            self.0.insert(*series, Some(next));
        }
        if self.0.len() > MOST_SERIES * 2 {
            self.0.retain(|series, _| now.contains_key(series));
        }
        risen
    }
}

impl Risen {
    fn counted(self, counts_new: bool) -> f64 {
        if counts_new { self.of_known + self.of_new } else { self.of_known }
    }
}

impl Series {
    fn new(value: f64) -> Self {
        Self { value, fell: false }
    }

    /// What it has gained, and what is known of it then.
    fn next(self, value: f64) -> (f64, Self) {
        if value >= self.value {
            return (value - self.value, Self::new(value));
        }
        if value > self.value / 2.0 {
            return (0.0, Self::new(self.value));
        }
        match self.fell {
            true => (value.max(0.0), Self::new(value)),
            false => (0.0, Self { fell: true, ..Self::new(self.value) }),
        }
    }
}

fn whole(number: f64) -> u64 {
    // The type ends where the number is too large.
    (number.max(0.0).round() as u64).min(MOST_REQUESTS)
}

#[cfg(test)]
mod tests;
