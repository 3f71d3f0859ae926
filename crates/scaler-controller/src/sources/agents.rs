//! GPU metrics of pods, by the metrics agents of their nodes. Pure.
//!
//! The utilization of a pod is the mean over its GPUs of their means over the last 10 s. One reading is of the last
//! fraction of a second. In it a GPU that serves requests is either busy or idle, so one reading says nothing of the load.
//! The next longer window has 60 s. It would still show the load of before a step when the replicas for it are there.
//! A pod that spreads one model over several GPUs is as busy as they are on average, not in sum. Of a GPU that several
//! pods share, each of them has the value of the whole GPU: nothing says whose work it was.
//!
//! A pod of which any GPU has no fresh value has none: the mean of the others would be that of another machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    mem::{Discriminant, discriminant},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use metrics_client::{
    snapshot::{FaultReason, Metric, Subject},
    view::{Attribution, Health, Value, View},
};
use scaling::reading::{Fault as Cause, Milli, PodSample, Reading};

use super::answer::Answer;
use crate::target::pod::PodView;

/// What agents report of each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuReading {
    Utilization,
    Memory,
}

/// Readings that are needed.
pub(crate) const METRICS: &[Metric] =
    &[Metric::Utilization, Metric::EngineActive, Metric::MemoryUsed, Metric::MemoryTotal];
/// See the module.
const WINDOW: Duration = Duration::from_secs(10);
/// The agent itself drops holders that are older. Containers rarely change the GPUs that they hold.
const OLDEST_ATTRIBUTION: Duration = Duration::from_secs(60);
const MOST_NAMES: usize = 3;
const MOST_REASONS: usize = 2;
/// Smaller differences wait for the next look at the object.
const SMALLEST_NEWS: Milli = Milli::units(1);

/// Whether there are agents at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Installation<'a> {
    /// The controller has no option by which it could connect to any.
    Off,
    /// None behind this Service, `namespace/name`.
    NotFound {
        service: &'a str,
    },
    Found,
}

/// Why a pod has no value. The order is that of messages: what concerns most pods comes first in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    // Of a node.
    NoAgent,
    NotReachedYet,
    Silent { lasting: Duration },
    Unreachable { lasting: Duration, why: Arc<str> },
    NotAdmitted,
    NotAsked,
    NoKubelet,
    OldKubelet { age: Duration },
    NothingMeasured { why: Box<str> },
    // Of one pod.
    HoldsNone,
    Unsupported { gpu: Box<str>, metric: &'static str },
    Stale { gpu: Box<str>, age: Option<Duration>, reason: FaultReason },
    TooFew { gpu: Box<str>, samples: u32 },
    OutOfRange { gpu: Box<str> },
}

/// A pod without a value.
struct Missing<'a> {
    pod: &'a PodView,
    node: &'a str,
    why: Why,
}

/// The answer for the Ready pods of a target. `views`: of their nodes, by name.
pub(crate) fn answer(
    wanted: GpuReading,
    pods: &[Arc<PodView>],
    views: &BTreeMap<&str, View>,
    installation: Installation<'_>,
    now: Timestamp,
) -> Answer {
    let missing = |cause, message: &str| Answer::new(Reading::Missing(cause), message.to_owned());
    match installation {
        Installation::Off => {
            return missing(
                Cause::Empty,
                "the controller reads no metrics agents: start it with --metrics-agents-ca, --metrics-agents-cert and \
                 --metrics-agents-key, or name a source",
            );
        }
        Installation::NotFound { service } => {
            let message = format!(
                "no metrics agent was found behind Service {service}: install deploy/metrics-agent, let this controller list \
                 EndpointSlices of that namespace, or name a source"
            );
            return missing(Cause::Empty, &message);
        }
        Installation::Found => {}
    }
    if pods.is_empty() {
        return Answer::without_ready_pods();
    }
    let mut samples = Vec::new();
    let mut without = Vec::new();
    for pod in pods {
        let node = pod.node.as_deref().unwrap_or_default();
        match sample(wanted, pod, views.get(node), now) {
            Ok(sample) => samples.push(sample),
            Err(why) => without.push(Missing { pod, node, why }),
        }
    }
    if without.len() == pods.len() && without.iter().all(|missing| missing.why == Why::NotReachedYet) {
        return Answer::pending();
    }
    let message = message(&without);
    match without.first() {
        Some(Missing { why, .. }) if samples.is_empty() => {
            Answer::new(Reading::Missing(why.cause()), message)
        }
        Some(_) | None => Answer::new(Reading::Pods(samples), message),
    }
}

/// Whether an answer differs from the one before by more than the time, so that the object has to be looked at now.
pub(crate) fn is_news(before: &Answer, after: &Answer) -> bool {
    let words = |answer: &Answer| -> String {
        // Times that pass are no news.
        answer.message.chars().filter(|letter| !letter.is_ascii_digit()).collect()
    };
    if words(before) != words(after) {
        return true;
    }
    match (&before.reading, &after.reading) {
        (Reading::Pods(before), Reading::Pods(after)) => {
            let is_as_before = |sample: &PodSample| {
                before.iter().any(|known| known.uid == sample.uid && is_close(known.value, sample.value))
            };
            before.len() != after.len() || !after.iter().all(is_as_before)
        }
        (before, after) => before != after,
    }
}

fn is_close(one: Milli, other: Milli) -> bool {
    one.count().abs_diff(other.count()) < SMALLEST_NEWS.count().unsigned_abs()
}

fn sample(wanted: GpuReading, pod: &PodView, view: Option<&View>, now: Timestamp) -> Result<PodSample, Why> {
    let view = view.ok_or(Why::NoAgent)?;
    let attribution = trusted(view)?;
    let metadata = &pod.metadata;
    let of = |name: &Option<String>| name.clone().unwrap_or_default();
    let held: Vec<&Subject> = view.held_by(&of(&metadata.namespace), &of(&metadata.name)).collect();
    if held.is_empty() {
        return Err(match (attribution, nothing_measured(view)) {
            (Attributed::Old { age }, _) => Why::OldKubelet { age },
            (Attributed::Now, Some(why)) => why,
            (Attributed::Now, None) => Why::HoldsNone,
        });
    }
    let (percent, age) = match wanted {
        GpuReading::Utilization => utilization(view, &held)?,
        GpuReading::Memory => memory(view, &held)?,
    };
    let out_of_range = || Why::OutOfRange { gpu: held.first().map(|gpu| gpu.id.clone()).unwrap_or_default() };
    let value = Milli::parse(percent).map_err(|_| out_of_range())?;
    if value > Milli::units(100) {
        return Err(out_of_range());
    }
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    let at = now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
    Ok(PodSample { uid: pod.uid().to_owned(), value, at })
}

/// Of when it is known which pods hold what.
enum Attributed {
    Now,
    Old { age: Duration },
}

fn trusted(view: &View) -> Result<Attributed, Why> {
    match &view.health {
        Health::Live => {}
        Health::Pending { .. } => return Err(Why::NotReachedYet),
        Health::Silent { lasting } => return Err(Why::Silent { lasting: *lasting }),
        Health::Unreachable { lasting, why } => {
            return Err(Why::Unreachable { lasting: *lasting, why: Arc::clone(why) });
        }
    }
    match view.attribution() {
        Attribution::Fresh => Ok(Attributed::Now),
        Attribution::Stale { age } if age <= OLDEST_ATTRIBUTION => Ok(Attributed::Old { age }),
        Attribution::Stale { age } => Err(Why::OldKubelet { age }),
        Attribution::Missing => Err(Why::NoKubelet),
        Attribution::Unsupported => Err(Why::NotAsked),
        Attribution::NotAdmitted => Err(Why::NotAdmitted),
    }
}

/// Why the node has no GPU that is measured.
fn nothing_measured(view: &View) -> Option<Why> {
    let snapshot = &view.latest.as_ref()?.snapshot;
    let fault = snapshot.faults.first().filter(|_| snapshot.subjects.is_empty())?;
    Some(Why::NothingMeasured { why: fault.message.clone() })
}

/// Percent, and the age of the oldest reading.
fn utilization(view: &View, held: &[&Subject]) -> Result<(f64, Duration), Why> {
    let mut sum = 0.0;
    let mut oldest = Duration::ZERO;
    for gpu in held {
        let (mean, age) = utilization_of(view, gpu)?;
        sum += mean;
        oldest = oldest.max(age);
    }
    Ok((100.0 * sum / held.len() as f64, oldest))
}

/// Partitions have no utilization, and on newer GPUs the share of cycles in which their engine was active instead.
fn utilization_of(view: &View, gpu: &Subject) -> Result<(f64, Duration), Why> {
    for metric in [Metric::Utilization, Metric::EngineActive] {
        let Some(reading) = gpu.reading(metric) else { continue };
        match view.value(reading) {
            Value::Fresh { age, .. } => {
                let window = reading.window(WINDOW).copied();
                let samples = window.map_or(0, |window| window.samples);
                return match window {
                    Some(window) if samples >= fewest_samples(view) => Ok((window.mean, age)),
                    Some(_) | None => Err(Why::TooFew { gpu: gpu.id.clone(), samples }),
                };
            }
            Value::Unsupported => {}
            value @ (Value::Stale { .. } | Value::Missing { .. }) => return Err(old(gpu, value)),
        }
    }
    Err(Why::Unsupported { gpu: gpu.id.clone(), metric: "utilization" })
}

/// Half of what the window holds if every measurement succeeds.
fn fewest_samples(view: &View) -> u32 {
    let interval = view.latest.as_ref().map_or(WINDOW, |latest| latest.snapshot.interval);
    let all = (WINDOW.as_secs_f64() / interval.as_secs_f64()).floor();
    ((all / 2.0).ceil() as u32).max(1)
}

/// Percent of all memory of all GPUs, and the age of the oldest reading.
fn memory(view: &View, held: &[&Subject]) -> Result<(f64, Duration), Why> {
    let (mut used, mut total) = (0.0, 0.0);
    let mut oldest = Duration::ZERO;
    for gpu in held {
        let mut read = |metric| {
            let unsupported = || Why::Unsupported { gpu: gpu.id.clone(), metric: "memory" };
            let reading = gpu.reading(metric).ok_or_else(unsupported)?;
            match view.value(reading) {
                Value::Fresh { value, age } => {
                    oldest = oldest.max(age);
                    Ok(value)
                }
                Value::Unsupported => Err(unsupported()),
                value @ (Value::Stale { .. } | Value::Missing { .. }) => Err(old(gpu, value)),
            }
        };
        used += read(Metric::MemoryUsed)?;
        total += read(Metric::MemoryTotal)?;
    }
    // Without memory the quotient is no number, which no sample takes.
    Ok((100.0 * used / total, oldest))
}

fn old(gpu: &Subject, value: Value) -> Why {
    let (age, reason) = match value {
        Value::Stale { age, reason, .. } => (Some(age), reason),
        Value::Missing { reason } => (None, reason),
        Value::Fresh { .. } | Value::Unsupported => (None, FaultReason::Unspecified),
    };
    let reason = gpu.fault.as_ref().map_or(reason, |fault| fault.reason);
    Why::Stale { gpu: gpu.id.clone(), age, reason }
}

impl Why {
    fn is_of_node(&self) -> bool {
        match self {
            Self::NoAgent
            | Self::NotReachedYet
            | Self::Silent { .. }
            | Self::Unreachable { .. }
            | Self::NotAdmitted
            | Self::NotAsked
            | Self::NoKubelet
            | Self::OldKubelet { .. }
            | Self::NothingMeasured { .. } => true,
            Self::HoldsNone
            | Self::Unsupported { .. }
            | Self::Stale { .. }
            | Self::TooFew { .. }
            | Self::OutOfRange { .. } => false,
        }
    }

    fn cause(&self) -> Cause {
        match self {
            Self::NoAgent
            | Self::NotReachedYet
            | Self::NoKubelet
            | Self::NothingMeasured { .. }
            | Self::HoldsNone
            | Self::TooFew { .. } => Cause::Empty,
            Self::Silent { .. } | Self::OldKubelet { .. } | Self::Stale { .. } => Cause::Stale,
            Self::Unreachable { .. } => Cause::Unreachable,
            Self::NotAdmitted | Self::NotAsked | Self::Unsupported { .. } => Cause::Refused,
            Self::OutOfRange { .. } => Cause::Malformed,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent => f.write_str("no metrics agent runs there"),
            Self::NotReachedYet => f.write_str("its agent has not been reached yet"),
            Self::Silent { lasting } => write!(f, "its agent has been silent for {} s", lasting.as_secs()),
            Self::Unreachable { lasting, why } => {
                write!(f, "its agent has not been reached for {} s: {why}", lasting.as_secs())
            }
            Self::NotAdmitted => f.write_str("its agent claims to be that of another node"),
            Self::NotAsked => f.write_str("its agent has no --pod-resources, so it names no pods"),
            Self::NoKubelet => f.write_str("its kubelet does not say which pods hold which GPUs"),
            Self::OldKubelet { age } => {
                write!(f, "its kubelet has not said for {} s which pods hold which GPUs", age.as_secs())
            }
            Self::NothingMeasured { why } => write!(f, "its agent measures nothing: {why}"),
            Self::HoldsNone => f.write_str("it holds no GPU"),
            Self::Unsupported { gpu, metric } => write!(f, "{gpu} has no {metric}; name a source"),
            Self::Stale { gpu, age: Some(age), reason } => {
                write!(f, "{gpu} was last read {} s ago{}", age.as_secs(), because(*reason))
            }
            Self::Stale { gpu, age: None, reason } => {
                write!(f, "{gpu} has never been read{}", because(*reason))
            }
            Self::TooFew { gpu, samples } => {
                write!(f, "{gpu} was read {samples} times in the last {} s", WINDOW.as_secs())
            }
            Self::OutOfRange { gpu } => write!(f, "{gpu} has a value that is no share"),
        }
    }
}

fn because(reason: FaultReason) -> String {
    match reason {
        FaultReason::Unspecified => String::new(),
        reason => format!(" ({})", reason.name()),
    }
}

/// The reasons of most pods, with the names of nodes or pods.
fn message(without: &[Missing<'_>]) -> String {
    let mut groups: Vec<(Discriminant<Why>, Vec<&Missing<'_>>)> = Vec::new();
    for missing in without {
        let kind = discriminant(&missing.why);
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, group)) => group.push(missing),
            None => groups.push((kind, vec![missing])),
        }
    }
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.len()));
    let shown = groups.iter().take(MOST_REASONS).map(|(_, group)| of_group(group));
    let shown: Vec<String> = shown.collect();
    let others: usize = groups.iter().skip(MOST_REASONS).map(|(_, group)| group.len()).sum();
    match others {
        0 => shown.join("; "),
        _ => format!("{}; {others} more pods for other reasons", shown.join("; ")),
    }
}

fn of_group(group: &[&Missing<'_>]) -> String {
    let Some(Missing { pod, node, why }) = group.first() else { return String::new() };
    if why.is_of_node() {
        let nodes: BTreeSet<&str> = group.iter().map(|missing| missing.node).collect();
        let word = if nodes.len() == 1 { "node" } else { "nodes" };
        return format!("no readings of pods on {word} {}: {why}", names(nodes.into_iter().collect()));
    }
    match group.len() {
        1 => format!("no reading of pod {} on node {node}: {why}", pod.full_name()),
        count => format!("no readings of {count} pods, such as {} on node {node}: {why}", pod.full_name()),
    }
}

fn names(names: Vec<&str>) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let shown = names.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

#[cfg(test)]
mod tests;
