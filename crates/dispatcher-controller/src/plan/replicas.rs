//! How many workers there should be, and which go first when there are too many. Pure.
//!
//! Before the number falls, busy workers get a higher deletion cost than idle ones. The number follows once these costs were
//! seen for a moment, because the ReplicaSet controller must have them before it chooses pods. So idle workers go first.

use std::time::Duration;

use api::monitor;
use jiff::Timestamp;
use scaling::{
    decide::{Decision, Outcome, PERIOD, decide},
    history::History,
    policy::{Kind, Metric, Policy},
    reading::{Fault, Milli, PodSample, Reading},
    target::{self, PodState, Target, Work},
};
use workload::{
    faults::container::{keeps_ending, start_fault},
    time::{elapsed, remaining},
    views::pod::PodView,
};

use super::number;
use crate::{
    names::{LOADER, WORKER},
    observe::Observed,
    validate::{ValidDispatcher, Workers},
};
use marks::{FIRST, IDLE, LONGEST_TASK, Mark, Marking, UNKNOWN, cost, has_tasks_now, mark, marking};

pub(crate) mod marks;
pub(super) mod replacement;

/// The wanted number of workers, and the way to it.
#[derive(Debug)]
pub(super) struct Sizing {
    pub(super) desired: i32,
    /// What the Deployment gets now: more than desired until deletion costs are set.
    pub(super) replicas: i32,
    /// `None` without autoscaling, and while the first loads are awaited.
    pub(super) decision: Option<Box<Decision>>,
    /// The process has just started and loads are still missing: nothing is decided, and the reported condition is kept.
    pub(super) is_awaiting: bool,
    pub(super) marks: Vec<Mark>,
    /// A pod that is not ready and may be busy: while the number stays for it.
    pub(super) unready: Option<Unready>,
    /// The idle worker without state that ends for one with a state: while the Deployment has another number for that.
    pub(super) gives_way: Option<GivesWay>,
    /// No worker has restored a saved state lately although one was started for it: none is started again for a while.
    pub(super) backs_off: bool,
    /// A kind whose watch fails: no worker is removed.
    pub(super) unwatched: Option<&'static str>,
    pub(super) facts: Vec<String>,
    /// Facts that are true while the Deployment is as planned.
    pub(super) facts_if_settled: Vec<String>,
    pub(super) requeue_after: Option<Duration>,
}

/// A pod that is not ready, would be deleted before idle ones, and is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unready {
    /// For as long as it has tasks.
    Busy(String),
    /// For `UNREADY_HELD_FOR`.
    Unknown(String),
}

/// The worker, by its uid, that ends for one with a state. The Deployment's annotation `gives-way` says the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GivesWay {
    /// The Deployment has one worker more; this one ends once all are ready.
    AfterSuccessor(String),
    /// The Deployment has one worker less until this one ends, because no other one can mount its claim meanwhile.
    First(String),
}

/// In the annotation, before the uid of `GivesWay::First`.
const ENDS_FIRST: &str = "first ";

impl GivesWay {
    pub(super) fn uid(&self) -> &str {
        match self {
            Self::AfterSuccessor(uid) | Self::First(uid) => uid,
        }
    }

    /// As the annotation has it.
    pub(super) fn text(&self) -> String {
        match self {
            Self::AfterSuccessor(uid) => uid.clone(),
            Self::First(uid) => format!("{ENDS_FIRST}{uid}"),
        }
    }
}

/// From the last write of a cost until the number falls, because the ReplicaSet controller chooses by what its own watch has
/// delivered. It is a usual delay of a watch and no proof: after a longer one, a busy worker can be deleted first.
const COSTS_SEEN_FOR: Duration = Duration::from_millis(250);
/// Workers whose load changes all the time do not hold a smaller number back for longer. It counts while costs can be written
/// and the Deployment accepts a number.
const HELD_FOR: Duration = Duration::from_secs(5);
/// Pods that are not ready are deleted before all others, whatever their cost. A node whose kubelet does not report either
/// recovers within this time, or Kubernetes has deleted its pods by then.
pub(super) const UNREADY_HELD_FOR: Duration = Duration::from_secs(120);
/// Of nodes that flap, each of which starts its time anew: a smaller number is not held back for longer.
const UNREADY_HELD_AT_MOST: Duration = Duration::from_secs(360);
/// The monitor of a ready worker has reported by then.
pub(super) const LOAD_EXPECTED_AFTER: Duration = Duration::from_secs(15);
/// The fact that all costs are as wanted.
const COSTS_ARE_SET: &str = "deletion costs are set";
/// The fact that there are more workers than wanted.
const TOO_MANY: &str = "too many workers";
/// The fact that a smaller number is wanted and not set, for whatever reason.
const HELD_BACK: &str = "a smaller number is held back";

pub(super) fn sizing(valid: &ValidDispatcher, observed: &Observed, now: Timestamp) -> Sizing {
    let deployed = present(valid, observed);
    // The rules of scaling count neither the worker that starts before another one ends, nor the gap that it leaves.
    let present = match known_gives_way(observed) {
        Some(GivesWay::AfterSuccessor(_)) => deployed - 1,
        Some(GivesWay::First(_)) => observed.deployed_replicas().saturating_add(1),
        None => deployed,
    };
    if let Some(kind) = observed.unwatched {
        return held(valid, observed, (deployed, present), kind);
    }
    let awaited = awaited(valid, observed, now);
    let (desired, decision) = match &valid.workers {
        Workers::Fixed(replicas) => (*replicas, None),
        Workers::Scaled(_) if awaited.is_some() => (present, None),
        Workers::Scaled(policy) => {
            let decision = decision(policy, observed, present, now);
            (decision.record.to, Some(Box::new(decision)))
        }
    };
    let period = awaited.or(decision.is_some().then_some(PERIOD));
    let sized = Sizing {
        decision,
        is_awaiting: awaited.is_some(),
        requeue_after: period,
        ..Sizing::new(desired, desired)
    };
    if observed.deployment.is_none() || desired >= present {
        return sized;
    }
    held_back(sized, deployed, None, observed, now)
}

/// While a watch fails, workers that are not known may be busy, or be those that scaling asks for again. Only a number that a
/// user has raised is written.
fn held(
    valid: &ValidDispatcher,
    observed: &Observed,
    (deployed, present): (i32, i32),
    kind: &'static str,
) -> Sizing {
    let desired = match &valid.workers {
        Workers::Fixed(replicas) => *replicas,
        Workers::Scaled(_) => present,
    };
    let replicas = desired.max(deployed);
    Sizing {
        gives_way: known_gives_way(observed).filter(|_| replicas == deployed),
        unwatched: Some(kind),
        requeue_after: Some(PERIOD),
        ..Sizing::new(desired, replicas)
    }
}

/// Adds the marks that follow the load, unless marks are written for a smaller number anyway.
pub(super) fn marked(sizing: Sizing, observed: &Observed, now: Timestamp) -> Sizing {
    if !sizing.marks.is_empty() {
        return sizing;
    }
    let has_first = sizing.gives_way.is_some() || sizing.replicas < observed.deployed_replicas();
    let Marking { marks, facts, requeue_after } = marking(has_first, observed, now);
    let facts = sizing.facts.into_iter().chain(facts).collect();
    let requeue_after = sizing.requeue_after.into_iter().chain(requeue_after).min();
    Sizing { marks, facts, requeue_after, ..sizing }
}

/// The marks that follow the load, for a pool whose number stays as it is.
pub(super) fn marks_of_present(observed: &Observed, now: Timestamp) -> Marking {
    marking(known_gives_way(observed).is_some(), observed, now)
}

/// The worker for which the Deployment has another number than wanted.
pub(super) fn known_gives_way(observed: &Observed) -> Option<GivesWay> {
    let deployment = observed.deployment.as_ref()?;
    let text = deployment.gives_way.as_deref()?;
    match text.strip_prefix(ENDS_FIRST) {
        Some(uid) => Some(GivesWay::First(uid.to_owned())),
        // A user has set another number.
        None if deployment.replicas <= 1 => None,
        None => Some(GivesWay::AfterSuccessor(text.to_owned())),
    }
}

/// The number that is below that of the Deployment, once the costs are set: the idle worker `first` ends before all others.
pub(super) fn without_additional(
    sized: Sizing,
    first: Option<&str>,
    observed: &Observed,
    now: Timestamp,
) -> Sizing {
    held_back(sized, observed.deployed_replicas(), first, observed, now)
}

/// Idle workers first: until busy ones have their cost, the number stays. `first`: uid of the worker before all others.
fn held_back(
    sized: Sizing,
    present: i32,
    first: Option<&str>,
    observed: &Observed,
    now: Timestamp,
) -> Sizing {
    let sized = Sizing { gives_way: None, ..sized };
    let held = |sized: Sizing| Sizing { replicas: present, gives_way: known_gives_way(observed), ..sized };
    let wanted = |pod: &PodView| match cost(pod, observed) {
        IDLE if first == Some(pod.uid()) => FIRST,
        other => other,
    };
    let written = |pod: &PodView| pod.deletion_cost.unwrap_or(IDLE);
    let with = |known: &[String], facts: &[&str]| {
        known.iter().cloned().chain(facts.iter().map(|&fact| fact.to_owned())).collect::<Vec<_>>()
    };
    if let Some(wait) = first_loads(observed, now) {
        // This process does not know yet which workers are busy, and another one may have marked them.
        let requeue_after = sized.requeue_after.into_iter().chain([wait]).min();
        let facts = with(&sized.facts, &[HELD_BACK]);
        return held(Sizing { requeue_after, facts, ..sized });
    }
    // With equal costs the order of deletion does not matter.
    if !differ(observed, &wanted) && !differ(observed, &written) {
        return sized;
    }
    let held_since = observed.facts.get(HELD_BACK).copied();
    let is_held_long = held_since.is_some_and(|since| remaining(UNREADY_HELD_AT_MOST, since, now).is_none());
    if let Some((unready, wait)) = busy_before_idle(sized.replicas, is_held_long, observed, now) {
        let requeue_after = sized.requeue_after.into_iter().chain(wait).min();
        let facts = match unready {
            // The limit counts from when its tasks are not known.
            Unready::Busy(_) => sized.facts,
            Unready::Unknown(_) => with(&sized.facts, &[HELD_BACK]),
        };
        return held(Sizing { unready: Some(unready), requeue_after, facts, ..sized });
    }
    let marks: Vec<Mark> = observed
        .pods()
        .filter(|pod| written(pod) != wanted(pod))
        .map(|pod| mark(pod, wanted(pod), observed, now))
        .collect();
    let mut facts = with(&sized.facts, &[HELD_BACK]);
    let facts_if_settled = vec![TOO_MANY.to_owned()];
    let since = |fact: &str| observed.facts.get(fact).copied();
    let is_overdue = since(TOO_MANY).is_some_and(|since| remaining(HELD_FOR, since, now).is_none());
    let wait = if marks.is_empty() {
        facts.push(COSTS_ARE_SET.to_owned());
        remaining(COSTS_SEEN_FOR, since(COSTS_ARE_SET).unwrap_or(now), now)
    } else {
        Some(COSTS_SEEN_FOR)
    };
    match wait.filter(|_| !is_overdue) {
        Some(wait) => {
            let requeue_after = sized.requeue_after.into_iter().chain([wait]).min();
            held(Sizing { marks, facts, facts_if_settled, requeue_after, ..sized })
        }
        // The ReplicaSet controller chooses by the costs that it has; if this number is overdue, the newest of them are
        // written a moment before it.
        None => Sizing { marks, facts, facts_if_settled, ..sized },
    }
}

/// A worker that may be busy and would be deleted before idle ones, because its pod is not ready at present. With it, how
/// long it is still waited for at most. `is_held_long`: only those that have tasks are waited for.
fn busy_before_idle(
    desired: i32,
    is_held_long: bool,
    observed: &Observed,
    now: Timestamp,
) -> Option<(Unready, Option<Duration>)> {
    let wanted = |pod: &PodView| cost(pod, observed);
    let removed = number(observed.pods().count()).saturating_sub(desired);
    let unready = number(observed.pods().filter(|pod| !pod.is_ready).count());
    observed.pods().find_map(|pod| {
        if pod.is_ready || wanted(pod) < UNKNOWN || !was_ready(pod, observed) {
            return None;
        }
        let cheaper = || observed.pods().filter(|other| wanted(other) < wanted(pod));
        // Of pods that are not ready, the one that costs less is deleted first.
        let goes_before = number(cheaper().filter(|other| !other.is_ready).count());
        let idle = number(cheaper().filter(|other| other.is_ready).count());
        let is_deleted_first = goes_before < removed && idle > removed.saturating_sub(unready);
        let since = pod.ready_changed.filter(|_| is_deleted_first)?;
        // A worker whose `readinessPath` does not answer while it works is not ready for as long as its tasks last.
        if has_tasks_now(pod, observed, now) {
            let wait = remaining(LONGEST_TASK, since, now);
            return Some((Unready::Busy(pod.name().to_owned()), wait));
        }
        let wait = remaining(UNREADY_HELD_FOR, since, now).filter(|_| !is_held_long)?;
        Some((Unready::Unknown(pod.name().to_owned()), Some(wait)))
    })
}

/// Whether the worker runs, and its pod was ready since it began. So nothing waits for a pod that cannot start.
pub(super) fn was_ready(pod: &PodView, observed: &Observed) -> bool {
    let running = pod.container(WORKER).and_then(|worker| worker.state.running.as_ref());
    let Some((running, changed)) = running.zip(pod.ready_changed) else { return false };
    let is_healthy = matches!(for_scaling(pod, observed).state, PodState::NotReady { .. });
    is_healthy && running.started_at.or(pod.placed()).is_some_and(|started| changed > started)
}

fn differ(observed: &Observed, cost: &impl Fn(&PodView) -> i32) -> bool {
    let mut costs = observed.pods().map(|pod| cost(pod));
    let first = costs.next();
    costs.any(|cost| Some(cost) != first)
}

/// How long the first loads are still awaited. Without a status of this spec there is nothing to keep.
fn awaited(valid: &ValidDispatcher, observed: &Observed, now: Timestamp) -> Option<Duration> {
    if matches!(valid.workers, Workers::Fixed(_)) || valid.pods.paused {
        return None;
    }
    let status = observed.dispatcher.status.as_ref()?;
    let is_reported = status.observed_generation == valid.generation
        && observed.condition(api::conditions::SCALING_ACTIVE).is_some();
    first_loads(observed, now).filter(|_| is_reported)
}

/// How long this process still expects the first load of a worker.
fn first_loads(observed: &Observed, now: Timestamp) -> Option<Duration> {
    let unknown = |pod: &PodView| observed.load_of(pod).is_none_or(|load| load.queued.is_none());
    let is_unknown = observed.pods().any(|pod| pod.is_ready && unknown(pod));
    remaining(LOAD_EXPECTED_AFTER, observed.first_observed, now).filter(|_| is_unknown)
}

/// The number of the Deployment or, before it exists, that of the status, within the bounds. The rules of AIScaler
/// treat zero replicas as a target that a user has scaled to zero; a pool has no such state.
fn present(valid: &ValidDispatcher, observed: &Observed) -> i32 {
    if let Some(deployment) = &observed.deployment {
        return match &valid.workers {
            Workers::Scaled(policy) if deployment.replicas <= 0 => policy.bounds.min(),
            Workers::Scaled(_) | Workers::Fixed(_) => deployment.replicas,
        };
    }
    match &valid.workers {
        Workers::Fixed(replicas) => *replicas,
        Workers::Scaled(policy) => {
            let before = observed.dispatcher.status.as_ref().map_or(0, |status| status.desired_replicas);
            before.clamp(policy.bounds.min(), policy.bounds.max())
        }
    }
}

fn decision(policy: &Policy, observed: &Observed, replicas: i32, now: Timestamp) -> Decision {
    let pods: Vec<target::Pod> = observed.pods().map(|pod| for_scaling(pod, observed)).collect();
    let status_replicas = number(pods.len());
    let window = policy.behavior.down.window;
    let flow = observed.meter.as_ref().and_then(|meter| meter.flow(window));
    // Each metric takes it or leaves it.
    let flows = vec![flow; policy.metrics.len()];
    let target = Target { replicas, status_replicas, pods, cold_start: None, flows };
    let readings: Vec<Reading> = policy.metrics.iter().map(|metric| reading(metric, observed, now)).collect();
    decide(policy, &target, &readings, &observed.history, now)
}

fn reading(metric: &Metric, observed: &Observed, now: Timestamp) -> Reading {
    if metric.kind == Kind::TokensPerMinute {
        return match observed.token_rate.per_minute {
            Some(tokens) => Reading::Total { value: Milli::units(tokens), at: now },
            None => Reading::Missing(Fault::Empty),
        };
    }
    let samples = observed.pods().filter_map(|pod| {
        let (queued, at) = observed.load_of(pod)?.queued?;
        let value = Milli::units(i64::try_from(queued).unwrap_or(i64::MAX));
        Some(PodSample { uid: pod.uid().to_owned(), value, at })
    });
    let mut samples: Vec<PodSample> = samples.collect();
    if observed.has_shared_queue() {
        count_once(&mut samples, metric.max_age, now);
    }
    if samples.is_empty() {
        let is_unreachable = observed.loads.values().any(|load| load.fault.is_some());
        return Reading::Missing(if is_unreachable { Fault::Unreachable } else { Fault::Empty });
    }
    Reading::Pods(samples)
}

/// Of a queue that all workers report: the largest depth that is not too old stays, as that of one worker.
fn count_once(samples: &mut [PodSample], max_age: Duration, now: Timestamp) {
    let is_fresh = |sample: &PodSample| elapsed(sample.at, now) <= max_age;
    let fresh = samples.iter().enumerate().filter(|(_, sample)| is_fresh(sample));
    let Some((largest, _)) = fresh.max_by_key(|(_, sample)| sample.value) else { return };
    for (index, sample) in samples.iter_mut().enumerate() {
        if index != largest {
            sample.value = Milli::ZERO;
        }
    }
}

fn for_scaling(pod: &PodView, observed: &Observed) -> target::Pod {
    let created = pod.created().unwrap_or_default();
    let placed = pod.placed().unwrap_or(created);
    let mut containers = pod.init_containers.iter().chain(&pod.containers);
    let has_ended = containers.clone().any(|container| container.restart_count > 0);
    let phase = if pod.phase == "Running" { target::Phase::Running } else { target::Phase::Pending };
    let state = if pod.is_ready {
        PodState::Ready { since: pod.ready_changed.unwrap_or(placed) }
    } else if containers.clone().any(|container| start_fault(pod, container).is_some()) || loader_refuses(pod)
    {
        PodState::CannotStart { phase }
    } else if containers.any(|container| keeps_ending(container).is_some()) {
        PodState::CrashLooping { phase }
    } else if pod.node.is_none() {
        PodState::Unscheduled
    } else if pod.phase == "Running" {
        PodState::NotReady { since: pod.ready_changed.unwrap_or(placed) }
    } else {
        PodState::Starting { since: placed }
    };
    let work = match observed.load_of(pod).and_then(|load| load.in_flight) {
        None => Work::Unknown,
        Some(0) => Work::Idle,
        Some(_) => Work::Busy,
    };
    let began = (pod.node.is_some() && !has_ended).then_some(placed);
    target::Pod { uid: pod.uid().to_owned(), created, began, ordinal: None, state, work }
}

/// A failed load concerns every worker, so more workers would not help.
fn loader_refuses(pod: &PodView) -> bool {
    let loader = pod.init_container(LOADER);
    let ended = loader.and_then(workload::faults::container::last_end);
    ended.is_some_and(|ended| monitor::ExitCode::from_code(ended.exit_code).is_some())
}

impl Sizing {
    /// Nothing stands in the way of these numbers.
    fn new(desired: i32, replicas: i32) -> Self {
        Self {
            desired,
            replicas,
            decision: None,
            is_awaiting: false,
            marks: Vec::new(),
            unready: None,
            gives_way: None,
            backs_off: false,
            unwatched: None,
            facts: Vec::new(),
            facts_if_settled: Vec::new(),
            requeue_after: None,
        }
    }

    /// What is to be remembered once this plan was carried out; `None` without autoscaling.
    pub(super) fn past(&self, valid: &ValidDispatcher) -> Option<History> {
        let Workers::Scaled(policy) = &valid.workers else { return None };
        let decision = self.decision.as_deref()?.clone();
        Some(if self.scales(valid).is_some() { decision.written(policy) } else { decision.history })
    }

    /// Whether the Deployment gets another number because of the load.
    pub(super) fn scales(&self, valid: &ValidDispatcher) -> Option<(i32, i32)> {
        let decision = self.decision.as_deref().filter(|_| !valid.pods.paused)?;
        match decision.outcome {
            Outcome::Scale { from, to } if self.replicas == to => Some((from, to)),
            Outcome::Scale { .. } | Outcome::Keep | Outcome::Hold(_) => None,
        }
    }
}

#[cfg(test)]
#[path = "../../../scaling/tests/rules/trace.rs"]
mod trace;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scaling::flow::{PodCounts, PodMeter};

    use crate::{
        load::WorkerLoad,
        tests::{Scene, at, defaults},
        validate::validate,
    };

    use super::{
        trace::{Run, Step},
        *,
    };

    const COLD_START: i64 = 30;

    /// The scripted 40 minutes, decided by a pool with this `autoscaling`.
    fn run(autoscaling: &str) -> Run {
        run_with(autoscaling, false)
    }

    /// `counts`: the workers count the tasks that have ended. The oldest one does it for all: it is never removed.
    fn run_with(autoscaling: &str, counts: bool) -> Run {
        let mut meter = PodMeter::default();
        let mut scene = Scene::new(&format!("{{role: coder, autoscaling: {autoscaling}}}"));
        let valid = validate(&scene.observed().dispatcher, &defaults(&[])).unwrap();
        let Workers::Scaled(policy) = valid.workers else { panic!("it is scaled") };
        trace::run(COLD_START, |Step { now, workers, busy, waiting, finished }| {
            let pods = workers.iter().map(|worker| {
                let (created, ready) = (at(worker.created), at(worker.created + COLD_START));
                let (phase, status) =
                    if ready <= at(*now) { ("Running", "True") } else { ("Pending", "False") };
                format!(
                    "{{name: coder-{}, node: a, created: '{created}', phase: {phase}, conditions: [{{type: Ready, \
                     status: '{status}', lastTransitionTime: '{ready}'}}]}}",
                    worker.uid
                )
            });
            let pods: Vec<String> = pods.collect();
            scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
            let is_ready = |created: i64| created + COLD_START <= *now;
            let loads = workers.iter().enumerate().map(|(index, worker)| {
                let queued = if index == 0 { *waiting } else { 0 };
                let known = WorkerLoad {
                    queued: Some((u64::try_from(queued).unwrap(), at(*now))),
                    in_flight: Some(u64::from(index < *busy)),
                    ..WorkerLoad::default()
                };
                if is_ready(worker.created) { known } else { WorkerLoad::default() }
            });
            let loads: Vec<WorkerLoad> = loads.collect();
            if counts {
                let known = workers.iter().zip(&loads).enumerate();
                let counts = known.filter(|(_, (worker, _))| is_ready(worker.created));
                let counts = counts.map(|(index, (worker, load))| PodCounts {
                    uid: worker.uid.to_string(),
                    finished: if index == 0 { *finished as f64 } else { 0.0 },
                    waiting: load.queued.unwrap().0 as f64,
                    running: load.in_flight.unwrap() as f64,
                    tokens: 0.0,
                });
                let counts: Vec<PodCounts> = counts.collect();
                let ready = counts.iter().map(|pod| pod.uid.as_str()).collect();
                meter.observe(&counts, &ready, at(*now));
                scene.observe(|observed| observed.meter = Some(Arc::new(meter.clone())));
            }
            scene.loads(loads);
            let from = i32::try_from(workers.len()).unwrap();
            let decision = decision(&policy, scene.observed(), from, at(*now));
            let to = decision.record.to;
            scene.observe(|observed| observed.history = decision.written(&policy));
            to
        })
    }

    #[test]
    fn queues_and_busy_workers_change_the_direction_at_most_twice_in_40_minutes() {
        let run = run("{rule: QueueAndBusyWorkers}");
        assert!(run.turns <= 2, "{run:?}");
        // Its loads are of now, so nothing waits until the new workers have taken tasks: each cold start doubles them.
        assert!(run.peak >= 12 && run.peak <= 64 && run.waiting < 5, "{run:?}");
        assert!(run.replica_minutes < 40 * 20, "{run:?}");
    }

    #[test]
    fn tasks_wait_less_where_workers_count_those_that_have_ended() {
        let (by_queue, by_arrivals) = (run("{}"), run_with("{}", true));
        assert!(by_arrivals.turns <= 2, "{by_arrivals:?}");
        assert!(by_arrivals.waited < by_queue.waited, "{by_arrivals:?} {by_queue:?}");
        assert!(by_arrivals.replica_minutes <= by_queue.replica_minutes, "{by_arrivals:?} {by_queue:?}");
    }

    #[test]
    fn queues_alone_change_the_direction_at_least_twenty_times() {
        let run = run("{rule: QueueOnly}");
        assert!(run.turns >= 20, "{run:?}");
    }
}
