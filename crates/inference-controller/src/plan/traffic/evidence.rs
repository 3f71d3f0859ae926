//! What speaks for and against the candidate, and which engines are read next to know more. Pure.

use std::{collections::BTreeMap, fmt, time::Duration};

use api::{
    aiinference::{
        analysis::{Analysis, AnalysisMode},
        traffic::{Canary, CanaryPhase, CanaryStatus},
    },
    reasons,
};
use engine_metrics::engine::Engine;
use jiff::Timestamp;
use verdict::interval::Tracks;
use workload::{
    time::remaining,
    views::pod::{PodView, Terminated},
};

use super::{
    analysis::{self, Analysed},
    state::Finding,
};
use crate::{
    engine::Profile,
    looks::{Ask, AskedMetric, PodToRead, Queries},
    names::{self, Track},
    observe::Observed,
};

/// Where there are agents: they report a fault of a GPU later than the kubelet reports the end of its engine.
const FAULT_REPORTED_WITHIN: Duration = Duration::from_secs(15);
/// A node that was lost, and a GPU whose fault the controller has forgotten, excuse nothing any more once they are back. So an
/// end counts at once, or not at all.
const CRASH_COUNTS_FOR: Duration = Duration::from_secs(180);
/// Intervals after the last look in which a pass moves the canary on.
const PASS_LASTS: i64 = 3;

/// What speaks against the candidate: a crash, or its requests; and when that may change by itself.
pub(super) fn finding(
    observed: &Observed,
    before: Option<&CanaryStatus>,
    canary: Option<&Canary>,
    analysed: Option<&Analysed>,
    now: Timestamp,
) -> (Finding, Option<Duration>) {
    let enforced = |analysis: &&Analysis| analysis.mode == AnalysisMode::Enforce;
    let Some(analysis) = canary.and_then(|canary| canary.analysis.as_ref()).filter(enforced) else {
        return (Finding::NotAsked, None);
    };
    let known = &observed.looking.pods;
    let since = before.and_then(shared_since);
    let crash = since
        .zip(observed.candidate.as_deref())
        .and_then(|(since, version)| crash(version, known, (since, now)));
    if let Some(Crash { at, message }) = crash {
        let reports = observed.candidate.as_ref().is_some_and(|version| version.gpu_faults.is_reported);
        let Some(wait) = remaining(FAULT_REPORTED_WITHIN, at, now).filter(|_| reports) else {
            return (Finding::Fails { reason: reasons::CANDIDATE_CRASHED, message }, None);
        };
        return (Finding::Suspected, Some(wait));
    }
    let timeout = Duration::from_secs(u64::from(analysis.timeout_seconds.unsigned_abs()));
    let faults = observed.looking.faults();
    let message = analysed.map(|analysed| analysed.message(faults)).unwrap_or_default();
    // What passed before a pause or a restart may not pass now.
    let interval = i64::from(analysis.interval_seconds);
    let longest = interval.saturating_mul(PASS_LASTS).saturating_add(10);
    // The clock of the leader before may have been ahead.
    let is_old = |analysed: &Analysed| now.as_second().abs_diff(analysed.until()) > longest.unsigned_abs();
    // Bad requests may have been read that are not counted yet. The wait takes minutes at most.
    let is_counted = analysis.prometheus.is_none() || observed.looking.has_counted_queries();
    let finding = match analysed.map(|analysed| analysed.judgement.verdict) {
        Some(verdict::judge::Verdict::Pass) if !analysed.is_some_and(is_old) => match is_counted {
            true => Finding::Passes,
            false => Finding::PassesSoon,
        },
        Some(verdict::judge::Verdict::Pass) => {
            Finding::Open { is_over: false, timeout, then: analysis.on_inconclusive, message }
        }
        Some(verdict::judge::Verdict::Fail) => Finding::Fails { reason: reasons::ANALYSIS_FAILED, message },
        Some(verdict::judge::Verdict::Inconclusive) | None => Finding::Open {
            is_over: analysed.is_some_and(|analysed| analysed.waited() >= timeout),
            timeout,
            then: analysis.on_inconclusive,
            message,
        },
    };
    (finding, None)
}

struct Crash {
    at: Timestamp,
    message: String,
}

/// Since when an engine of the candidate must not fail: since the share rose from 0.
fn shared_since(before: &CanaryStatus) -> Option<Timestamp> {
    let began = before.step_started_at.as_ref().map(|since| since.0);
    // A step may begin again before its crash counts.
    analysis::shared_since(before).filter(|_| before.step > 0).into_iter().chain(began).min()
}

/// An engine of the candidate that has failed since then, after its pod was Ready. `known`: when the engines started that were
/// seen Ready, in Unix seconds by uid.
fn crash(
    version: &Observed,
    known: &BTreeMap<String, i64>,
    (since, now): (Timestamp, Timestamp),
) -> Option<Crash> {
    let counts_yet = |at: Timestamp| remaining(CRASH_COUNTS_FOR, at, now).is_some();
    let mut ends = failures(version).filter(|failure| {
        let Failure { pod, engine: end } = failure;
        let was_ready = |started: Timestamp| {
            started <= since && failure.has_been_ready()
                || known.get(pod.uid()).is_some_and(|known| *known == started.as_second())
        };
        end.finished_at.is_some_and(|at| at >= since && counts_yet(at))
            && end.started_at.is_some_and(was_ready)
    });
    let failure = ends.next()?;
    let message = format!("{failure} while it had a share");
    Some(Crash { at: failure.engine.finished_at?, message })
}

/// The latest engine of the candidate that has failed after its pod was Ready. Its share may not have been known yet: requests
/// come as soon as a gateway has the rules. The controller reads that later.
pub(super) fn latest_failure(version: &Observed, now: Timestamp) -> Option<String> {
    let reports = version.gpu_faults.is_reported;
    let counts = |at: &Timestamp| {
        let may_be_a_gpu = reports && remaining(FAULT_REPORTED_WITHIN, *at, now).is_some();
        !may_be_a_gpu && remaining(CRASH_COUNTS_FOR, *at, now).is_some()
    };
    let ended = |failure: &Failure<'_>| failure.engine.finished_at.filter(counts);
    let stays = |failure: &Failure<'_>| failure.pod.metadata.deletion_timestamp.is_none();
    let failed = failures(version).filter(|failure| stays(failure) && failure.has_been_ready());
    Some(failed.filter(|failure| ended(failure).is_some()).max_by_key(ended)?.to_string())
}

struct Failure<'a> {
    pod: &'a PodView,
    engine: &'a Terminated,
}

impl Failure<'_> {
    /// The condition of a pod that was never Ready is older than its engine.
    fn has_been_ready(&self) -> bool {
        let is_later = |started| self.pod.ready_changed.is_some_and(|at| at > started);
        self.pod.is_ready || self.engine.started_at.is_some_and(is_later)
    }
}

impl fmt::Display for Failure<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terminated { exit_code, reason, .. } = self.engine;
        write!(out, "the engine of pod {} ended with exit code {exit_code}", self.pod.name())?;
        if reason.is_empty() { Ok(()) } else { write!(out, " ({reason})") }
    }
}

/// The ends of engines with an error. What a node or a GPU does to an engine is not its own fault.
fn failures(version: &Observed) -> impl Iterator<Item = Failure<'_>> {
    /// Why a container ended that a kubelet has lost sight of.
    const LOST: [&str; 2] = ["Unknown", "ContainerStatusUnknown"];
    let is_known = !version.gpu_faults.is_doubtful && !version.gpu_faults.is_stale;
    let is_on_sound_node = |pod: &&PodView| {
        let node = pod.node.as_deref().unwrap_or_default();
        pod.disrupted.is_none()
            && !version.nodes.lost.contains_key(node)
            && !version.leaving_nodes.contains(node)
            && !version.gpu_faults.faults.contains_key(pod.uid())
    };
    let pods = version.pods().filter(move |_| is_known).filter(is_on_sound_node);
    pods.flat_map(|pod| {
        let states =
            pod.container(names::ENGINE).into_iter().flat_map(|engine| [&engine.state, &engine.last]);
        let ends = states.filter_map(|state| state.terminated.as_ref());
        ends.filter(|end| end.exit_code != 0 && !LOST.contains(&&*end.reason))
            .map(move |engine| Failure { pod, engine })
    })
}

/// The next look if it is due, or when it will be.
pub(super) fn look(
    observed: &Observed,
    canary: Option<&CanaryStatus>,
    analysed: Option<&Analysed>,
    now: Timestamp,
) -> (Option<Ask>, Option<Duration>) {
    let nothing = (None, None);
    let Some(analysis) = observed.inference.spec.canary.as_ref().and_then(|spec| spec.analysis.as_ref())
    else {
        return nothing;
    };
    let is_judged = |phase| match phase {
        CanaryPhase::Analysing
        | CanaryPhase::AwaitingApproval
        | CanaryPhase::AwaitingEvaluation
        | CanaryPhase::Held => true,
        CanaryPhase::Starting
        | CanaryPhase::Dark
        | CanaryPhase::Promoting
        | CanaryPhase::Promoted
        | CanaryPhase::RollingBack
        | CanaryPhase::RolledBack
        | CanaryPhase::Aborted => false,
    };
    let canary = canary.filter(|canary| canary.phase.is_some_and(is_judged));
    let since = canary.and_then(|canary| canary.step_started_at.as_ref()).map(|since| since.0.as_second());
    let (Some(version), Some(since), false) =
        (observed.candidate.as_deref(), since, observed.looking.is_asked)
    else {
        return nothing;
    };
    // The first plan of a step writes that it began. The next one knows with which bounds it is counted.
    let Some(analysed) = analysed.filter(|analysed| analysed.since() == since) else { return nothing };
    let last = observed.looking.looks.iter().rfind(|look| look.step_since == since).map(|look| look.ended);
    let last = last.and_then(|last| Timestamp::from_second(last).ok());
    let interval = Duration::from_secs(u64::from(analysis.interval_seconds.unsigned_abs()));
    if let Some(wait) = last.and_then(|last| remaining(interval, last, now)) {
        return (None, Some(wait));
    }
    let engine = observed.inference.spec.engine;
    let metrics = &Profile::newest(engine).metrics;
    let Some((engine, port)) = Engine::named(engine.as_str()).zip(u16::try_from(metrics.port).ok()) else {
        return nothing;
    };
    let pods = |version: &Observed, is_candidate| -> Vec<PodToRead> {
        let was_ready = |pod: &&PodView| pod.is_ready || observed.looking.pods.contains_key(pod.uid());
        let pods = version.pods().filter(was_ready).take(verdict::counters::MOST_PODS / 2);
        pods.map(|pod| pod_to_read(pod, is_candidate)).collect()
    };
    let name = observed.inference.metadata.name.as_deref().unwrap_or_default();
    let services = Tracks {
        stable: names::service(name, Track::Stable),
        candidate: names::service(name, Track::Canary),
    };
    let ask = Ask {
        step_since: since,
        counted_until: analysed.until(),
        engine,
        port,
        path: metrics.path,
        pods: [pods(observed, false), pods(version, true)].concat(),
        metrics: analysis
            .metrics
            .iter()
            .map(|metric| AskedMetric {
                name: metric.name,
                given: analysis::given(metric),
                known: analysed.bound(metric.name),
            })
            .collect(),
        queries: analysis.prometheus.clone().map(|prometheus| Queries {
            prometheus,
            services,
            stable_may_be_silent: canary.is_some_and(|canary| canary.weight_percent == 100),
        }),
    };
    (Some(ask), None)
}

pub(super) fn pod_to_read(pod: &PodView, is_candidate: bool) -> PodToRead {
    let running = pod.container(names::ENGINE).and_then(|engine| engine.state.running.as_ref());
    let started = running.and_then(|running| running.started_at).or(pod.created());
    PodToRead {
        uid: pod.uid().to_owned(),
        name: pod.name().to_owned(),
        ip: pod.ip,
        is_candidate,
        is_ready: pod.is_ready,
        started: started.map_or(0, |started| started.as_second()),
    }
}
