//! What only this controller can count: how many models are in which phase, and how long engines take to warm up.
//!
//! Read from the caches, so that it costs nothing while nobody scrapes, and exported by the leader alone, so that two
//! replicas do not count the same twice.

use std::{fmt, sync::Arc};

use api::aiinference::{AIInference, Phase};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Unit,
};
use runtime::{cache::Cache, process::Process};
use workload::pod::PodView;

use crate::plan::ENGINE;

/// The phases and how they are written in a label.
const PHASES: [(Phase, &str); 4] = [
    (Phase::Pending, "pending"),
    (Phase::Loading, "loading"),
    (Phase::Ready, "ready"),
    (Phase::Failed, "failed"),
];

pub(crate) fn export(process: &Process, models: &Cache<AIInference>, pods: &Cache<PodView>) {
    // One second to nine hours; spec.warmupTimeoutSeconds ends at a day.
    let warmups = Histogram::new(exponential_buckets(1.0, 2.0, 16));
    process.metrics().with_registry(|registry| {
        registry.register_with_unit(
            "aiinference_warmup",
            "From the start of an engine to its first ready probe",
            Unit::Seconds,
            warmups.clone(),
        );
        let leads = Box::new(process.leadership());
        registry.register_collector(Box::new(PhaseCollector { models: models.clone(), leads }));
    });
    let leads = process.leadership();
    pods.subscribe(move |change| {
        let seconds = change.old.zip(change.new).and_then(|(before, after)| warmed_up(before, after));
        if let Some(seconds) = seconds.filter(|_| leads()) {
            warmups.observe(seconds);
        }
    });
}

/// Seconds that the engine took, if the pod has just become ready for the first time.
fn warmed_up(before: &Arc<PodView>, after: &Arc<PodView>) -> Option<f64> {
    if before.is_ready || !after.is_ready {
        return None;
    }
    let engine = after.containers.iter().find(|container| container.name == ENGINE)?;
    let began = engine.state.running.as_ref()?.started_at?;
    // A pod that was ready before and ceased to be did so after its engine began; that is no warm-up.
    let is_first = engine.restart_count == 0 && before.ready_turned.is_none_or(|turned| turned <= began);
    let seconds = after.ready_turned?.duration_since(began).as_secs_f64();
    is_first.then_some(seconds.max(0.0))
}

struct PhaseCollector {
    models: Cache<AIInference>,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

impl fmt::Debug for PhaseCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhaseCollector").finish_non_exhaustive()
    }
}

impl Collector for PhaseCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !(self.leads)() {
            return Ok(());
        }
        let models = self.models.all();
        let gauges = PHASES.map(|(phase, label)| {
            let count = models.iter().filter(|model| phase_of(model) == phase).count();
            (PhaseLabels { phase: label }, ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX)))
        });
        let [(_, first), ..] = &gauges;
        let mut encoder = encoder.encode_descriptor(
            "aiinference_phase",
            "AIInferences by phase",
            None,
            first.metric_type(),
        )?;
        for (labels, gauge) in &gauges {
            gauge.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }
}

/// An object that nobody has looked at yet is pending.
fn phase_of(model: &AIInference) -> Phase {
    model.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use crate::tests::{at, model, pod};

    use super::*;

    fn page(leads: bool) -> String {
        let models = Cache::default();
        models.upsert(model("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}"));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(PhaseCollector { models, leads: Box::new(move || leads) }));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn the_leader_counts_every_phase_and_the_others_count_none() {
        let leaders = page(true);
        for line in ["aiinference_phase{phase=\"pending\"} 1\n", "aiinference_phase{phase=\"failed\"} 0\n"] {
            assert!(leaders.contains(line), "{leaders}");
        }
        assert!(!page(false).contains("aiinference_phase"));
    }

    /// A pod whose Ready condition turned at this time, with an engine that began at 10 s.
    fn at_work(ready: &str, turned: i64, restarts: i32) -> Arc<PodView> {
        let parts = format!(
            "{{conditions: [{{type: Ready, status: '{ready}', lastTransitionTime: '{}'}}], containers: \
             [{{name: engine, restartCount: {restarts}, state: {{running: {{startedAt: '{}'}}}}}}]}}",
            at(turned),
            at(10)
        );
        Arc::new(pod(&parts))
    }

    #[test]
    fn a_warm_up_is_counted_once() {
        let warming = at_work("False", 3, 0);
        assert_eq!(warmed_up(&warming, &at_work("True", 70, 0)), Some(60.0));
        assert_eq!(warmed_up(&warming, &warming), None);
        assert_eq!(warmed_up(&at_work("True", 70, 0), &at_work("True", 70, 0)), None);
        assert_eq!(warmed_up(&at_work("False", 80, 0), &at_work("True", 90, 0)), None, "it was ready before");
        assert_eq!(warmed_up(&warming, &at_work("True", 70, 1)), None, "a crash is no warm-up");
    }
}
