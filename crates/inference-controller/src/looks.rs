//! Looks at the engines of both versions of a canary. A plan asks for one, and it is done beside the reconciles. What it finds
//! is kept until a status has it. It counts, and judges nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::aiinference::{AIInference, analysis::MetricName};
use engine_metrics::{
    bodies::Bodies,
    engine::Engine,
    fetch::{self, Failure, Limits, Page, Reader, fetch},
    histogram::Buckets,
    outcomes::{self, Outcomes},
    series::whole_number,
};
use futures::{
    StreamExt as _,
    future::{OptionFuture, join},
    stream,
};
use prometheus_api::answer::Moment;
use runtime::polling::{Polled, Polling};
use serde::Serialize;
use text::exposition::parse;
use tokio::time::timeout;
use verdict::{
    bucket::{self, Bound, Bucket, Mismatch},
    counters::{Counters, Numbers, Scrape, Track},
    interval::{Counts, Flow, MOST_REQUESTS, Tracks},
};

use crate::Context;
pub(crate) use custom::{Queries, hash};

mod custom;

/// A plan asks for a look when it is due, so that nothing is called at rest.
pub(crate) const POLLING: Polling = Polling {
    period: Duration::from_secs(86_400),
    at_once: 32,
    deadline: Duration::from_secs(10),
    gap: Duration::from_secs(1),
};
/// Pods of one object that are read at once.
const PODS_AT_ONCE: usize = 8;
/// Answers that are read at once, for all objects together: each has up to 2 MiB.
const BODIES_AT_ONCE: usize = 8;
/// Of these, those of one namespace.
const BODIES_OF_ONE_NAMESPACE: usize = 4;
/// Objects whose queries are asked at once: up to 8 answers each, with up to 128 KiB that take ten times as much while they
/// are read.
const ASKING_AT_ONCE: usize = 8;
/// Of these, those of one namespace.
const ASKING_OF_ONE_NAMESPACE: usize = 4;
/// Looks that no status has yet. A status that cannot be written for longer loses the oldest, of both versions alike.
const MOST_KEPT: usize = 32;
/// All pods of an object. It is less than the time of a whole look, so that what has answered is kept.
const PODS_DEADLINE: Duration = Duration::from_secs(8);
pub(crate) const USER_AGENT: &str = concat!("inference-controller/", env!("CARGO_PKG_VERSION"));

/// What a look has to read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ask {
    /// When the step began: counts of another step are forgotten.
    pub(crate) step_since: i64,
    /// Up to when requests are counted.
    pub(crate) counted_until: i64,
    #[serde(skip)]
    pub(crate) engine: Engine,
    pub(crate) port: u16,
    pub(crate) path: &'static str,
    /// Pods of both versions that are Ready, or have been in this step.
    pub(crate) pods: Vec<PodToRead>,
    pub(crate) metrics: Vec<AskedMetric>,
    /// For the metric custom.
    #[serde(skip)]
    pub(crate) queries: Option<Queries>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PodToRead {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) is_candidate: bool,
    pub(crate) is_ready: bool,
    /// When its engine started, in Unix seconds.
    pub(crate) started: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AskedMetric {
    pub(crate) name: MetricName,
    /// Of the spec.
    #[serde(skip)]
    pub(crate) given: Option<Bound>,
    /// With which the step has been counted so far.
    #[serde(skip)]
    pub(crate) known: Option<Bound>,
}

/// What a look has found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) step_since: i64,
    /// Up to when it has counted, in Unix seconds: later than the look before, whatever the clocks of the leaders say.
    pub(crate) at: i64,
    /// When it ended by the clock of this process, in Unix seconds.
    pub(crate) ended: i64,
    pub(crate) ready_pods: Tracks<u32>,
    /// Of the candidate's engines. `None`: one of its pods was not read, or it has none.
    pub(crate) requests: Option<Requests>,
    pub(crate) metrics: BTreeMap<MetricName, Found>,
    /// Of both versions since the last look that had them. `None`: a pod did not say, or its engine does not count them.
    pub(crate) tokens: Option<Tracks<u64>>,
    /// The first pod that said nothing, and why.
    pub(crate) fault: Option<String>,
    /// Of the queries that were asked.
    pub(crate) of_queries: Option<OfQueries>,
}

/// What a look says of the queries of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfQueries {
    pub(crate) hash: u64,
    /// Why they have no numbers, or why the numbers may not suffice.
    pub(crate) fault: Option<String>,
    /// All that was read of the candidate is counted, bad requests too, and old series are known from new ones.
    pub(crate) may_pass: bool,
}

/// What a look says is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults<'l> {
    pub(crate) of_engines: Option<&'l str>,
    pub(crate) of_queries: Option<&'l str>,
}

/// The requests of some pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Uids of the pods that were read.
    pub(crate) pods: BTreeSet<String>,
    /// They run or wait.
    pub(crate) running: u64,
    /// They have ended since the engines started.
    pub(crate) ended: u64,
}

/// What both versions have done since the look before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Found {
    Counted {
        flows: Tracks<Flow>,
        bound: Option<Bound>,
    },
    Incomplete,
    BucketMismatch,
    /// No request has ended yet by which a bound could be chosen.
    NoRequests,
    /// What was read is counted with one of the next looks.
    Pooled,
}

/// Of all objects.
#[derive(Debug)]
pub(crate) struct Looks {
    /// By uid.
    objects: Mutex<HashMap<String, Kept>>,
    bodies: Bodies,
    /// Of queries.
    turns: Bodies,
}

/// The last counters of a step.
#[derive(Debug, Default)]
struct Counting {
    of_metrics: BTreeMap<MetricName, Counters>,
    of_tokens: Counters,
    of_queries: custom::Counting,
}

/// What one look has read.
struct Read {
    pods: Vec<(usize, Result<Outcomes, String>)>,
    queries: Option<custom::Answered>,
}

#[derive(Debug, Default)]
struct Kept {
    asked: Option<Ask>,
    is_under_way: bool,
    step_since: i64,
    counters: Counting,
    looks: Vec<Look>,
    /// When the engines started that were Ready, by uid of the pod.
    pods: BTreeMap<String, i64>,
}

/// What is known of the looks of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Looking {
    /// One is asked for, and has not ended.
    pub(crate) is_asked: bool,
    /// In the order of their times.
    pub(crate) looks: Vec<Look>,
    /// When the engines started that have been Ready in the step of the looks, in Unix seconds by uid of the pod.
    pub(crate) pods: BTreeMap<String, i64>,
}

impl Looking {
    /// Whether the newest look has counted what queries have read.
    pub(crate) fn has_counted_queries(&self) -> bool {
        self.looks.last().and_then(|look| look.of_queries.as_ref()).is_some_and(|queries| queries.may_pass)
    }

    /// What the newest look says is wrong.
    pub(crate) fn faults(&self) -> Faults<'_> {
        self.looks.last().map_or(Faults::default(), |look| Faults {
            of_engines: look.fault.as_deref(),
            of_queries: look.of_queries.as_ref().and_then(|queries| queries.fault.as_deref()),
        })
    }
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            objects: Mutex::default(),
            bodies: Bodies::new(BODIES_AT_ONCE, BODIES_OF_ONE_NAMESPACE),
            turns: Bodies::new(ASKING_AT_ONCE, ASKING_OF_ONE_NAMESPACE),
        }
    }
}

impl Looks {
    /// Also forgets the looks that a status has: those up to `counted_until`, without the newest, whose fault is still true.
    pub(crate) fn of(&self, uid: &str, counted_until: Option<i64>) -> Looking {
        let mut objects = self.objects();
        let Some(kept) = objects.get_mut(uid) else { return Looking::default() };
        let newest = kept.looks.last().map_or(i64::MIN, |look| look.at);
        kept.looks.retain(|look| look.at == newest || counted_until.is_none_or(|until| look.at > until));
        Looking {
            is_asked: kept.asked.is_some() || kept.is_under_way,
            looks: kept.looks.clone(),
            pods: kept.pods.clone(),
        }
    }

    pub(crate) fn ask(&self, uid: &str, ask: &Ask) {
        self.objects().entry(uid.to_owned()).or_default().asked = Some(ask.clone());
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.objects().remove(uid);
    }

    /// What is asked, and up to when is counted if the counters of the queries are not known.
    fn begin(&self, uid: &str) -> Option<(Ask, Option<i64>)> {
        let mut objects = self.objects();
        let kept = objects.get_mut(uid)?;
        let ask = kept.asked.take()?;
        kept.is_under_way = true;
        let is_same = kept.step_since == ask.step_since;
        let newest = kept.looks.last().filter(|_| is_same).map_or(i64::MIN, |look| look.at);
        let begins = |queries| !is_same || kept.counters.of_queries.begins(queries);
        let since = ask.queries.as_ref().filter(|queries| begins(queries));
        let since = since.map(|_| ask.counted_until.max(newest));
        Some((ask, since))
    }

    fn note(&self, uid: &str, ask: &Ask, read: &Read, at: i64) {
        let mut objects = self.objects();
        let Some(kept) = objects.get_mut(uid) else { return };
        if kept.step_since != ask.step_since {
            let of_queries = std::mem::take(&mut kept.counters.of_queries).in_next_step();
            kept.counters = Counting { of_queries, ..Counting::default() };
            (kept.looks, kept.step_since) = (Vec::new(), ask.step_since);
            kept.pods.clear();
        }
        kept.pods
            .extend(ask.pods.iter().filter(|pod| pod.is_ready).map(|pod| (pod.uid.clone(), pod.started)));
        kept.pods.retain(|uid, _| ask.pods.iter().any(|pod| pod.uid == *uid));
        // Time goes on also where the clock of another leader was ahead.
        let ended = at;
        let at = at.max(ask.counted_until.saturating_add(1));
        // The status may have the looks of a minute at once.
        let newest = kept.looks.last().map_or(i64::MIN, |look| look.at);
        let ask = &Ask { counted_until: ask.counted_until.max(newest), ..ask.clone() };
        let mut look = counted(ask, &read.pods, &mut kept.counters, at);
        if let Some(answered) = &read.queries {
            let times = (ask.counted_until, at);
            let age = at.saturating_sub(ask.step_since);
            let counting = &mut kept.counters.of_queries;
            let (found, of_queries) = counting.look(answered, times, age);
            look.metrics.insert(MetricName::Custom, found);
            look.of_queries = Some(of_queries);
        } else {
            kept.counters.of_queries = custom::Counting::default();
        }
        kept.looks.push(Look { ended, ..look });
        if kept.looks.len() > MOST_KEPT {
            kept.looks.remove(0);
        }
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a look also when its time is over.
struct UnderWay<'a> {
    looks: &'a Looks,
    uid: &'a str,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(kept) = self.looks.objects().get_mut(self.uid) {
            kept.is_under_way = false;
        }
    }
}

/// Does what was asked for.
pub(crate) async fn look(ctx: &Context, inference: Arc<AIInference>) -> Polled {
    let uid = inference.metadata.uid.as_deref().unwrap_or_default();
    let Some((ask, since)) = ctx.looks.begin(uid) else { return Polled::Unchanged };
    let _under_way = UnderWay { looks: &ctx.looks, uid };
    let namespace = inference.metadata.namespace.as_deref().unwrap_or_default();
    let asking = (&ctx.prometheus, &ctx.looks.turns);
    let moment = Moment { now: ctx.clock.now(), wall: ctx.clock.wall() };
    let queries = ask.queries.as_ref();
    let queries = queries.map(|queries| custom::answered(asking, queries, namespace, since, moment));
    let (pods, queries) =
        join(read_pods(&ask, namespace, &ctx.looks.bodies), OptionFuture::from(queries)).await;
    ctx.looks.note(uid, &ask, &Read { pods, queries }, ctx.clock.now().as_second());
    Polled::Changed
}

async fn read_pods(ask: &Ask, namespace: &str, bodies: &Bodies) -> Vec<(usize, Result<Outcomes, String>)> {
    let reads: Vec<_> = (ask.pods.iter().enumerate())
        .map(|(index, pod)| async move { (index, read_pod(ask, pod, namespace, bodies).await) })
        .collect();
    let mut reads = stream::iter(reads).buffer_unordered(PODS_AT_ONCE);
    let mut done = Vec::new();
    let all = async {
        while let Some(read) = reads.next().await {
            done.push(read);
        }
    };
    // Those whose turn did not come have said nothing, and the others are not lost.
    let _is_late = timeout(PODS_DEADLINE, all).await.is_err();
    done
}

async fn read_pod(ask: &Ask, pod: &PodToRead, namespace: &str, bodies: &Bodies) -> Result<Outcomes, String> {
    let address = pod.ip.and_then(|ip| fetch::address(ip, ask.port));
    let address = address.ok_or_else(|| "its address is not that of a pod".to_owned())?;
    let limits = Limits::default();
    let reader = Reader { user_agent: USER_AGENT, namespace, bodies };
    let text = fetch(Page { address, path: ask.path }, limits, reader).await;
    // Without a wait from here on, so that no text is kept while others are read.
    let text = text.map_err(|failure| {
        let words = failure.words(limits);
        match failure {
            Failure::Connection(_) | Failure::Slow => format!(
                "{words}; check that no NetworkPolicy or mesh keeps the controller from the port of the metrics"
            ),
            Failure::Status(_) | Failure::HeadTooLarge | Failure::TooLarge => words,
        }
    })?;
    let page = parse(&text, |series| outcomes::needs(ask.engine, series));
    if page.is_cut {
        return Err("it serves too many series".to_owned());
    }
    outcomes::read(&page, ask.engine).map_err(|unread| unread.to_string())
}

/// Pure, but for the counters.
fn counted(ask: &Ask, read: &[(usize, Result<Outcomes, String>)], counters: &mut Counting, at: i64) -> Look {
    let found: BTreeMap<usize, &Result<Outcomes, String>> =
        read.iter().map(|(index, outcome)| (*index, outcome)).collect();
    let pods: Vec<(&PodToRead, Option<&Outcomes>)> = (ask.pods.iter().enumerate())
        .map(|(index, pod)| (pod, found.get(&index).and_then(|read| read.as_ref().ok())))
        .collect();
    let mut fault = ask.pods.iter().enumerate().filter(|(_, pod)| pod.is_ready).find_map(|(index, pod)| {
        let why = match found.get(&index) {
            Some(Ok(_)) => return None,
            Some(Err(why)) => why,
            None => "it was not read in time",
        };
        Some(format!("pod {}: {why}", pod.name))
    });
    let of_track = |is_candidate: bool| {
        let pods = ask.pods.iter().filter(|pod| pod.is_ready && pod.is_candidate == is_candidate).count();
        u32::try_from(pods).unwrap_or(u32::MAX)
    };
    counters.of_metrics.retain(|name, _| ask.metrics.iter().any(|metric| metric.name == *name));
    let of_engines = ask.metrics.iter().filter(|metric| metric.name != MetricName::Custom);
    let metrics = of_engines.map(|metric| {
        let found = match bound_of(metric, &pods) {
            Ok(bound) => {
                let scrapes: Vec<Scrape> =
                    pods.iter().map(|(pod, outcomes)| scrape(pod, *outcomes, metric.name, bound)).collect();
                let uncounted = scrapes.iter().zip(&pods).find(|(scrape, _)| scrape.numbers.is_none());
                if let Some((_, (pod, Some(_)))) = uncounted {
                    fault.get_or_insert_with(|| lacking(pod, metric.name));
                }
                let counters = counters.of_metrics.entry(metric.name).or_default();
                let advanced = counters.advance(&scrapes, ask.counted_until, bound);
                match advanced {
                    Ok(flows) => Found::Counted { flows, bound },
                    Err(gap) => {
                        fault.get_or_insert_with(|| gap.to_string());
                        Found::Incomplete
                    }
                }
            }
            Err(Mismatch::NoRequests) => {
                // One that is not Ready may have ended.
                let mut speaking = pods.iter().filter(|(pod, outcomes)| pod.is_ready || outcomes.is_some());
                match speaking.find(|(_, outcomes)| lacks(*outcomes, metric.name)) {
                    Some((pod, outcomes)) => {
                        if outcomes.is_some() {
                            fault.get_or_insert_with(|| lacking(pod, metric.name));
                        }
                        // After three of them, what is known is too old.
                        let missing = Scrape { may_be_silent: false, ..scrape(pod, None, metric.name, None) };
                        let counters = counters.of_metrics.entry(metric.name).or_default();
                        let _is_gap = counters.advance(&[missing], ask.counted_until, metric.known).is_err();
                        Found::Incomplete
                    }
                    None => Found::NoRequests,
                }
            }
            Err(mismatch @ (Mismatch::NotInStable | Mismatch::NotInCandidate | Mismatch::BeyondLast)) => {
                fault.get_or_insert_with(|| format!("{mismatch}{}", ends(metric.name, &pods)));
                Found::BucketMismatch
            }
        };
        (metric.name, found)
    });
    Look {
        step_since: ask.step_since,
        at,
        ended: at,
        ready_pods: Tracks { stable: of_track(false), candidate: of_track(true) },
        requests: requests(&pods),
        tokens: tokens(&pods, &mut counters.of_tokens, ask.counted_until),
        metrics: metrics.collect(),
        fault,
        of_queries: None,
    }
}

fn requests(pods: &[(&PodToRead, Option<&Outcomes>)]) -> Option<Requests> {
    let mut requests = Requests { pods: BTreeSet::new(), running: 0, ended: 0 };
    for (pod, outcomes) in pods.iter().filter(|(pod, _)| pod.is_candidate) {
        let Outcomes { in_flight, ended, .. } = (*outcomes)?;
        requests.pods.insert(pod.uid.clone());
        requests.running = requests.running.saturating_add(*in_flight);
        requests.ended = requests.ended.saturating_add(*ended);
    }
    (!requests.pods.is_empty()).then_some(requests)
}

/// Counted as ended requests are.
fn tokens(
    pods: &[(&PodToRead, Option<&Outcomes>)],
    counters: &mut Counters,
    since: i64,
) -> Option<Tracks<u64>> {
    let numbers = |outcomes: &Outcomes| {
        let ended = Counts::new(outcomes.tokens?.min(MOST_REQUESTS), 0).ok()?;
        Some(Numbers { ended, in_flight: 0 })
    };
    let scrapes: Vec<Scrape> =
        pods.iter().map(|(pod, outcomes)| scrape_of(pod, outcomes.and_then(numbers))).collect();
    let Tracks { stable, candidate } = counters.advance(&scrapes, since, None).ok()?;
    Some(Tracks { stable: stable.ended.requests(), candidate: candidate.ended.requests() })
}

/// Another version of the engine, or one with its counters off.
fn lacking(pod: &PodToRead, metric: MetricName) -> String {
    format!(
        "pod {}: its engine does not serve {}; use a version that does, or remove the metric from \
         spec.canary.analysis.metrics",
        pod.name,
        metric.as_str()
    )
}

/// Whether a pod says nothing of a latency although requests have ended.
fn lacks(outcomes: Option<&Outcomes>, metric: MetricName) -> bool {
    outcomes.is_none_or(|outcomes| outcomes.ended > 0 && buckets(outcomes, metric).is_none())
}

/// Where the buckets of the candidate end, for a message.
fn ends(metric: MetricName, pods: &[(&PodToRead, Option<&Outcomes>)]) -> String {
    const MOST: usize = 24;
    let mut of_candidate = pods.iter().filter(|(pod, _)| pod.is_candidate);
    let buckets = of_candidate.find_map(|(_, outcomes)| buckets(outcomes.as_ref()?, metric));
    let ends: Vec<String> = buckets
        .iter()
        .flat_map(|buckets| buckets.iter())
        .filter(|(le, _)| le.is_finite())
        .filter_map(|(le, _)| Bound::from_seconds(le).ok())
        .map(Bound::millis)
        .take(MOST)
        .collect();
    if ends.is_empty() {
        String::new()
    } else {
        format!("; those of the candidate end at {} ms", ends.join(", "))
    }
}

/// What makes a request slow; `None` for other metrics.
fn bound_of(
    metric: &AskedMetric,
    pods: &[(&PodToRead, Option<&Outcomes>)],
) -> Result<Option<Bound>, Mismatch> {
    if !is_latency(metric.name) || metric.known.is_some() && metric.given.is_none() {
        return Ok(metric.known);
    }
    let of = |is_candidate: bool| {
        let pods = pods.iter().filter(move |(pod, _)| pod.is_candidate == is_candidate);
        pods.filter_map(|(_, outcomes)| buckets(outcomes.as_ref()?, metric.name))
    };
    let sum =
        |known: Option<Buckets>, more: &Buckets| known.map_or(Some(more.clone()), |known| known.and(more));
    let mut stable = of(false);
    let stable = match stable.next() {
        // Versions of stable with other buckets have no sum.
        Some(first) => {
            stable.try_fold(first.clone(), |all, more| sum(Some(all), more)).ok_or(Mismatch::NotInStable)?
        }
        None => return Err(Mismatch::NoRequests),
    };
    let stable: Vec<Bucket> =
        stable.iter().map(|(le, count)| Bucket { le, count: whole_number(count) }).collect();
    let candidate = of(true).next().map(|buckets| bucket::bounds(buckets.iter().map(|(le, _)| le)));
    let candidate = candidate.ok_or(Mismatch::NoRequests)?;
    bucket::bound(metric.given, &stable, &candidate).map(Some)
}

fn scrape(pod: &PodToRead, outcomes: Option<&Outcomes>, metric: MetricName, bound: Option<Bound>) -> Scrape {
    scrape_of(pod, outcomes.and_then(|outcomes| numbers(outcomes, metric, bound)))
}

fn scrape_of(pod: &PodToRead, numbers: Option<Numbers>) -> Scrape {
    Scrape {
        pod: pod.uid.clone(),
        track: if pod.is_candidate { Track::Candidate } else { Track::Stable },
        started: pod.started,
        numbers,
        may_be_silent: !pod.is_ready,
    }
}

fn numbers(outcomes: &Outcomes, metric: MetricName, bound: Option<Bound>) -> Option<Numbers> {
    let (ended, bad) = match metric {
        MetricName::ErrorRate => (outcomes.ended, outcomes.errors?),
        MetricName::AbortRate => (outcomes.ended, outcomes.aborts?),
        MetricName::RepetitionRate => (outcomes.ended, outcomes.repetitions?),
        MetricName::Custom => return None,
        // An engine that has ended no request may not serve the histogram yet.
        MetricName::Ttft | MetricName::Tpot | MetricName::E2e if outcomes.ended == 0 => (0, 0),
        MetricName::Ttft | MetricName::Tpot | MetricName::E2e => {
            let buckets = buckets(outcomes, metric)?;
            let all = whole_number(buckets.total());
            let is_bound = |le: f64| Bound::from_seconds(le).is_ok_and(|le| Some(le) == bound);
            let (_, fast) = buckets.iter().find(|(le, _)| is_bound(*le))?;
            (all, all.saturating_sub(whole_number(fast)))
        }
    };
    let ended = Counts::new(ended.min(MOST_REQUESTS), bad.min(ended).min(MOST_REQUESTS)).ok()?;
    Some(Numbers { ended, in_flight: outcomes.in_flight })
}

fn buckets(outcomes: &Outcomes, metric: MetricName) -> Option<&Buckets> {
    match metric {
        MetricName::Ttft => outcomes.first_token.as_ref(),
        MetricName::Tpot => outcomes.per_token.as_ref(),
        MetricName::E2e => outcomes.whole_request.as_ref(),
        MetricName::ErrorRate | MetricName::AbortRate | MetricName::RepetitionRate | MetricName::Custom => {
            None
        }
    }
}

pub(crate) fn is_latency(metric: MetricName) -> bool {
    match metric {
        MetricName::Ttft | MetricName::Tpot | MetricName::E2e => true,
        MetricName::ErrorRate | MetricName::AbortRate | MetricName::RepetitionRate | MetricName::Custom => {
            false
        }
    }
}

#[cfg(test)]
mod tests;
