//! Metrics that count the objects of a kind by a value of theirs, such as the phase.
//!
//! They are read from the cache when the page is asked for, and exported by the leader alone, so that two replicas do not
//! count the same twice.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::watch::cache::Cache;

/// What is counted, and how it is called.
#[derive(Clone, Copy, Debug)]
pub struct ObjectCounts<K, V: 'static> {
    /// Of the metric.
    pub name: &'static str,
    pub help: &'static str,
    /// Name of the label.
    pub label: &'static str,
    /// The values that are counted, each as the label has it. Objects with another value are not counted.
    pub values: &'static [(V, &'static str)],
    pub value_of: fn(&K) -> V,
}

impl<K, V> ObjectCounts<K, V>
where
    K: Send + Sync + 'static,
    V: PartialEq + fmt::Debug + Send + Sync,
{
    pub(crate) fn collector(
        self,
        objects: &Cache<K>,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Box<dyn Collector> {
        Box::new(CountCollector { counts: self, objects: objects.clone(), leads: Box::new(leads) })
    }
}

struct CountCollector<K, V: 'static> {
    counts: ObjectCounts<K, V>,
    objects: Cache<K>,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
}

impl<K, V> fmt::Debug for CountCollector<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountCollector").field("name", &self.counts.name).finish_non_exhaustive()
    }
}

impl<K, V> Collector for CountCollector<K, V>
where
    K: Send + Sync + 'static,
    V: PartialEq + fmt::Debug + Send + Sync,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !(self.leads)() {
            return Ok(());
        }
        let ObjectCounts { name, help, label, values, value_of } = &self.counts;
        let objects = self.objects.all();
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (value, text) in *values {
            let count = objects.iter().filter(|object| value_of(object) == *value).count();
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_family(&[(*label, *text)])?)?;
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
        let counts = ObjectCounts {
            name: "config_map_phase",
            help: "ConfigMaps by phase",
            label: "phase",
            values: &[(Some(true), "fixed"), (Some(false), "open"), (None, "unknown")],
            value_of: |object: &ConfigMap| object.immutable,
        };
        let mut registry = Registry::default();
        registry.register_collector(counts.collector(&objects, move || leads));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn the_leader_counts_every_value_and_the_others_count_none() {
        let leaders = page(true);
        for (phase, count) in [("fixed", 2), ("open", 1), ("unknown", 0)] {
            let line = format!("config_map_phase{{phase=\"{phase}\"}} {count}\n");
            assert!(leaders.contains(&line), "{line} is not in\n{leaders}");
        }
        assert!(leaders.contains("# TYPE config_map_phase gauge\n"), "{leaders}");
        assert!(!page(false).contains("config_map_phase"));
    }
}
