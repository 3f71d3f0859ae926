//! `/metrics` of the monitor: the worker's load, the tokens of the pod, and whether saving the state fails, with the
//! names of the pool as labels.
//!
//! Only fresh values are exported. Prometheus marks a missing series as stale, but would take a repeated old value for
//! a current one.

use std::fmt;

use api::monitor::metrics::{QUEUE_DEPTH, TASKS, TASKS_IN_FLIGHT, TOKENS};
use metrics_source::stream::Hub;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use proto::metrics::v1::{Metric, Snapshot, State};

use crate::{cli::Pool, snapshots::DAMAGE};

/// 1 or 0; absent until the state was saved or failed to be saved.
const CHECKPOINT_FAILING: &str = "agent_checkpoint_failing";

pub(crate) fn registry(hub: Hub, pool: &Pool, role: &str, worker: &str) -> Registry {
    let labels = [("namespace", &*pool.namespace), ("pool", &*pool.name), ("role", role), ("worker", worker)];
    let labels = labels.map(|(name, value)| (name, value.to_owned()));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { hub, labels }));
    registry
}

struct Page {
    hub: Hub,
    labels: Labels,
}

type Labels = [(&'static str, String); 4];

impl fmt::Debug for Page {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Page")
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(latest) = self.hub.latest() else { return Ok(()) };
        let gauges = [
            (QUEUE_DEPTH, "Tasks that wait for the worker", Metric::QueueWaiting),
            (TASKS_IN_FLIGHT, "Tasks that the worker works on", Metric::QueueRunning),
        ];
        for (name, help, metric) in gauges {
            if let Some(value) = fresh(&latest, metric) {
                let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(family.encode_family(&self.labels)?)?;
            }
        }
        let saved = fresh(&latest, Metric::CheckpointTime);
        let is_failing = latest.faults.iter().any(|fault| fault.reason() != DAMAGE);
        if saved.is_some() || is_failing {
            let help = "Whether the last attempt to save the state of the worker failed";
            let mut family = encoder.encode_descriptor(CHECKPOINT_FAILING, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::from(is_failing)).encode(family.encode_family(&self.labels)?)?;
        }
        let counters = [
            (TOKENS, "Tokens that all runs of the worker in the pod have used", Metric::Tokens),
            (TASKS, "Tasks that have ended since the worker started", Metric::TasksFinished),
        ];
        for (name, help, metric) in counters {
            if let Some(value) = fresh(&latest, metric) {
                // The encoder adds the suffix again.
                let name = name.trim_end_matches("_total");
                let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                ConstCounter::new(value).encode(family.encode_family(&self.labels)?)?;
            }
        }
        Ok(())
    }
}

/// The value of a metric of the worker, if it is fresh.
fn fresh(snapshot: &Snapshot, metric: Metric) -> Option<f64> {
    let readings = &snapshot.subjects.first()?.readings;
    let reading = readings.iter().find(|reading| reading.metric() == metric)?;
    reading.value.filter(|_| reading.state() == State::Fresh)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use proto::metrics::v1::{Fault, Reading, Subject};

    use super::*;

    fn page(readings: Vec<Reading>) -> String {
        page_with(readings, Vec::new())
    }

    fn page_with(readings: Vec<Reading>, faults: Vec<Fault>) -> String {
        let hub = Hub::default();
        let subject = Subject { readings, ..Subject::default() };
        hub.publish(Snapshot { subjects: vec![subject], faults, ..Snapshot::default() });
        let pool = Pool { namespace: "demo".into(), name: "coder".into() };
        let mut page = String::new();
        encode(&mut page, &registry(hub, &pool, "coder", "coder-1")).unwrap();
        page
    }

    fn reading(metric: Metric, state: State) -> Reading {
        Reading { metric: metric.into(), state: state.into(), value: Some(3.0), ..Reading::default() }
    }

    #[test]
    fn the_names_are_those_of_the_contract_with_the_names_of_the_pool() {
        let metrics = [Metric::QueueWaiting, Metric::QueueRunning, Metric::Tokens, Metric::TasksFinished];
        let page = page(metrics.map(|metric| reading(metric, State::Fresh)).into());
        let labels = r#"{namespace="demo",pool="coder",role="coder",worker="coder-1"}"#;
        for name in [QUEUE_DEPTH, TASKS_IN_FLIGHT, TOKENS, TASKS] {
            assert!(page.contains(&format!("\n{name}{labels} 3.0\n")), "{name}: {page}");
        }
    }

    #[test]
    fn a_state_that_is_not_saved_is_a_gauge() {
        let saved = || vec![reading(Metric::CheckpointTime, State::Fresh)];
        let line = |value| format!("worker=\"coder-1\"}} {value}\n");
        let fault = Fault { message: "s3://states does not answer".to_owned(), ..Fault::default() };
        assert!(page_with(saved(), Vec::new()).contains(&line(0)));
        assert!(page_with(saved(), vec![fault.clone()]).contains(&line(1)));
        assert!(page_with(Vec::new(), vec![fault]).contains("agent_checkpoint_failing{"));
        let damage = || vec![Fault { reason: DAMAGE.into(), ..Fault::default() }];
        assert!(page_with(saved(), damage()).contains(&line(0)));
        assert_eq!(page_with(Vec::new(), damage()), "# EOF\n");
    }

    #[test]
    fn an_old_value_is_not_exported() {
        let page = page(vec![reading(Metric::QueueWaiting, State::Stale)]);
        assert_eq!(page, "# EOF\n");
    }
}
