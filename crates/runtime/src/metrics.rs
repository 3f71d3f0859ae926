//! What a controller process counts, under the names that controller-runtime's dashboards know.
//!
//! Labels come from closed sets (controller, kind, step, verb, code): never an object's name, never an error's text.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use http::{Method, StatusCode};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::queue::Queue;

/// All metrics of the process; controllers add their own to the registry before it starts.
pub struct Metrics {
    registry: Mutex<Registry>,
    controller: &'static str,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_errors: Family<StepLabels, Counter>,
    reconcile_seconds: Family<ControllerLabels, Histogram>,
    active_workers: Family<ControllerLabels, Gauge<i64, AtomicI64>>,
    requests: Family<RequestLabels, Counter>,
    leading: Family<NameLabels, Gauge<i64, AtomicI64>>,
    lists: Family<KindLabels, Counter>,
    watch_failures: Family<KindLabels, Counter>,
    undecodable: Family<KindLabels, Counter>,
    event_failures: Counter<u64, AtomicU64>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("controller", &self.controller).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabels {
    controller: &'static str,
    step: Cow<'static, str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NameLabels {
    name: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    code: u16,
}

impl Metrics {
    pub fn new(controller: &'static str) -> Self {
        // 0.25 ms to 8 s: a reconcile without a write takes well below a millisecond.
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 2.0, 16));
        let metrics = Self {
            registry: Mutex::new(Registry::default()),
            controller,
            reconciles: Family::default(),
            reconcile_errors: Family::default(),
            reconcile_seconds: Family::new_with_constructor(seconds),
            active_workers: Family::default(),
            requests: Family::default(),
            leading: Family::default(),
            lists: Family::default(),
            watch_failures: Family::default(),
            undecodable: Family::default(),
            event_failures: Counter::default(),
        };
        metrics.with_registry(|registry| {
            registry.register(
                "controller_runtime_reconcile",
                "Reconciles by result",
                metrics.reconciles.clone(),
            );
            registry.register(
                "controller_runtime_reconcile_errors",
                "Failed reconciles by step",
                metrics.reconcile_errors.clone(),
            );
            registry.register_with_unit(
                "controller_runtime_reconcile_time",
                "Length of a reconcile",
                Unit::Seconds,
                metrics.reconcile_seconds.clone(),
            );
            registry.register(
                "controller_runtime_active_workers",
                "Reconciles that run now",
                metrics.active_workers.clone(),
            );
            registry.register(
                "rest_client_requests",
                "Calls to the API server by method and code; code 0: no answer",
                metrics.requests.clone(),
            );
            registry.register(
                "leader_election_master_status",
                "1 while this replica leads",
                metrics.leading.clone(),
            );
            registry.register("watch_lists", "Complete lists", metrics.lists.clone());
            registry.register(
                "watch_failures",
                "Watch connections that failed",
                metrics.watch_failures.clone(),
            );
            registry.register(
                "watch_undecodable_objects",
                "Versions of objects that did not fit their type and were skipped",
                metrics.undecodable.clone(),
            );
            registry.register(
                "event_write_failures",
                "Kubernetes events that could not be written",
                metrics.event_failures.clone(),
            );
            registry.register_collector(Box::new(ProcessCollector));
        });
        metrics
    }

    /// For a controller's own metrics.
    pub fn with_registry<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The page that Prometheus scrapes, in the OpenMetrics text format.
    pub fn page(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(page)
    }

    pub(crate) fn observe_queue(&self, queue: Arc<Queue>) {
        let controller = self.controller;
        self.with_registry(|registry| {
            registry.register_collector(Box::new(QueueCollector { controller, queue }));
        });
    }

    pub(crate) fn observe_cache(&self, kind: &'static str, len: impl Fn() -> usize + Send + Sync + 'static) {
        self.with_registry(|registry| {
            registry.register_collector(Box::new(CacheCollector { kind, len: Box::new(len) }));
        });
    }

    pub(crate) fn worker_started(&self) {
        self.active_workers.get_or_create(&self.labels()).inc();
    }

    pub(crate) fn worker_ended(&self, result: &'static str, took: Duration) {
        let labels = self.labels();
        self.active_workers.get_or_create(&labels).dec();
        self.reconcile_seconds.get_or_create(&labels).observe(took.as_secs_f64());
        self.reconciles.get_or_create(&ReconcileLabels { controller: self.controller, result }).inc();
    }

    pub(crate) fn step_failed(&self, step: Cow<'static, str>) {
        self.reconcile_errors.get_or_create(&StepLabels { controller: self.controller, step }).inc();
    }

    pub(crate) fn request_ended(&self, method: &Method, status: Option<StatusCode>) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let code = status.map_or(0, |status| status.as_u16());
        self.requests.get_or_create(&RequestLabels { method, code }).inc();
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leading.get_or_create(&NameLabels { name: self.controller }).set(i64::from(leads));
    }

    pub(crate) fn listed(&self, kind: &'static str) {
        self.lists.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn watch_failed(&self, kind: &'static str) {
        self.watch_failures.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn undecodable(&self, kind: &'static str) {
        self.undecodable.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn event_failed(&self) {
        self.event_failures.inc();
    }

    fn labels(&self) -> ControllerLabels {
        ControllerLabels { controller: self.controller }
    }
}

#[derive(Debug)]
struct QueueCollector {
    controller: &'static str,
    queue: Arc<Queue>,
}

impl Collector for QueueCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let depth = self.queue.depth();
        let figures = [
            ("workqueue_depth", "Objects that wait for a worker", depth.waiting),
            ("workqueue_failing", "Objects in back-off after a failure", depth.failing),
        ];
        for (name, help, value) in figures {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let mut encoder = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(encoder.encode_family(&NameLabels { name: self.controller })?)?;
        }
        Ok(())
    }
}

struct CacheCollector {
    kind: &'static str,
    len: Box<dyn Fn() -> usize + Send + Sync>,
}

impl fmt::Debug for CacheCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheCollector").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(i64::try_from((self.len)()).unwrap_or(i64::MAX));
        let name = format!("cache_objects_{}", self.kind.to_lowercase());
        let encoder = encoder.encode_descriptor(&name, "Objects in the cache", None, gauge.metric_type())?;
        gauge.encode(encoder)
    }
}

/// Memory and CPU of this process from /proc; elsewhere than on Linux they are absent.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(bytes) = resident_bytes() {
            let gauge = ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX));
            let name = "process_resident_memory_bytes";
            let encoder = encoder.encode_descriptor(name, "Resident memory", None, gauge.metric_type())?;
            gauge.encode(encoder)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let name = "process_cpu_seconds";
            let encoder =
                encoder.encode_descriptor(name, "User and system CPU time", None, counter.metric_type())?;
            counter.encode(encoder)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The kernel counts in ticks of 1/100 s on every platform that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The command may hold spaces: fields are counted after its closing parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some((f64::from(user) + f64::from(system)) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_names_that_stock_dashboards_ask_for() {
        let metrics = Metrics::new("demo");
        metrics.observe_queue(Arc::new(Queue::new(Default::default(), Default::default())));
        metrics.observe_cache("Deployment", || 7);
        metrics.worker_started();
        metrics.worker_ended("success", Duration::from_millis(1));
        metrics.step_failed("apply".into());
        metrics.request_ended(&Method::PATCH, Some(StatusCode::CONFLICT));
        metrics.leads(true);
        let page = metrics.page().unwrap();
        for wanted in [
            "controller_runtime_reconcile_total{controller=\"demo\",result=\"success\"} 1",
            "controller_runtime_reconcile_errors_total{controller=\"demo\",step=\"apply\"} 1",
            "controller_runtime_reconcile_time_seconds_count{controller=\"demo\"} 1",
            "controller_runtime_active_workers{controller=\"demo\"} 0",
            "workqueue_depth{name=\"demo\"} 0",
            "leader_election_master_status{name=\"demo\"} 1",
            "rest_client_requests_total{method=\"PATCH\",code=\"409\"} 1",
            "cache_objects_deployment 7",
        ] {
            assert!(page.contains(wanted), "{wanted} is not in\n{page}");
        }
        #[cfg(target_os = "linux")]
        assert!(page.contains("process_resident_memory_bytes"), "{page}");
    }
}
