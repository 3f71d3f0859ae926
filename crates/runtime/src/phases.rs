//! A metric for each kind with phases: how many of its objects are in which.
//!
//! It is read from the cache when the page is asked for, and exported by the leader alone, so that two replicas do not
//! count the same twice.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::cache::Cache;

/// What is counted, and how it is called.
#[derive(Clone, Copy, Debug)]
pub struct Phases<K, P: 'static> {
    /// Of the metric.
    pub name: &'static str,
    pub help: &'static str,
    /// All phases, each with its label.
    pub labels: &'static [(P, &'static str)],
    pub phase_of: fn(&K) -> P,
}

impl<K, P> Phases<K, P>
where
    K: Send + Sync + 'static,
    P: PartialEq + fmt::Debug + Send + Sync,
{
    pub(crate) fn collector(
        self,
        objects: &Cache<K>,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Box<dyn Collector> {
        Box::new(PhaseCollector { phases: self, objects: objects.clone(), leads: Box::new(leads) })
    }
}

struct PhaseCollector<K, P: 'static> {
    phases: Phases<K, P>,
    objects: Cache<K>,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

impl<K, P> fmt::Debug for PhaseCollector<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhaseCollector").field("name", &self.phases.name).finish_non_exhaustive()
    }
}

impl<K, P> Collector for PhaseCollector<K, P>
where
    K: Send + Sync + 'static,
    P: PartialEq + fmt::Debug + Send + Sync,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !(self.leads)() {
            return Ok(());
        }
        let Phases { name, help, labels, phase_of } = &self.phases;
        let objects = self.objects.all();
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (phase, label) in *labels {
            let count = objects.iter().filter(|object| phase_of(object) == *phase).count();
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_family(&PhaseLabels { phase: label })?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use prometheus_client::{encoding::text, registry::Registry};
    use serde_json::{from_value, json};

    use super::*;

    fn page(leads: bool) -> String {
        let objects: Cache<ConfigMap> = Cache::default();
        for (name, immutable) in [("a", true), ("b", true), ("c", false)] {
            let metadata = json!({"name": name, "resourceVersion": "1"});
            objects.upsert(from_value(json!({"metadata": metadata, "immutable": immutable})).unwrap());
        }
        let phases = Phases {
            name: "config_map_phase",
            help: "ConfigMaps by phase",
            labels: &[(Some(true), "fixed"), (Some(false), "open"), (None, "unknown")],
            phase_of: |object: &ConfigMap| object.immutable,
        };
        let mut registry = Registry::default();
        registry.register_collector(phases.collector(&objects, move || leads));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn the_leader_counts_every_phase_and_the_others_count_none() {
        let leaders = page(true);
        for (phase, count) in [("fixed", 2), ("open", 1), ("unknown", 0)] {
            let line = format!("config_map_phase{{phase=\"{phase}\"}} {count}\n");
            assert!(leaders.contains(&line), "{line} is not in\n{leaders}");
        }
        assert!(leaders.contains("# TYPE config_map_phase gauge\n"), "{leaders}");
        assert!(!page(false).contains("config_map_phase"));
    }
}
