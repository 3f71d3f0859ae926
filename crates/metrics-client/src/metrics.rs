//! Metrics of the client itself: how many sources deliver, and what was lost on the way.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::sources::{Counts, Sources};

/// Of one set of sources. `leads`: only a process that reads them exports them.
pub fn collector(sources: &Sources, leads: impl Fn() -> bool + Send + Sync + 'static) -> Box<dyn Collector> {
    Box::new(SourcesCollector { sources: sources.clone(), leads: Box::new(leads) })
}

struct SourcesCollector {
    sources: Sources,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HealthLabels {
    health: &'static str,
}

impl fmt::Debug for SourcesCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcesCollector").finish_non_exhaustive()
    }
}

impl Collector for SourcesCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !(self.leads)() {
            return Ok(());
        }
        let counts = self.sources.counts_by_health();
        let help = "Sources of load by whether they deliver";
        let mut family = encoder.encode_descriptor("metrics_sources", help, None, MetricType::Gauge)?;
        for (health, count) in counts {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&HealthLabels { health })?)?;
        }
        let Counts { snapshots, lost, duplicates, restarts, failures } = self.sources.counts();
        for (name, help, count) in [
            ("metrics_source_snapshots", "Snapshots that arrived", snapshots),
            ("metrics_source_lost_snapshots", "Snapshots that did not arrive, by their numbers", lost),
            ("metrics_source_duplicates", "Snapshots that arrived again", duplicates),
            ("metrics_source_restarts", "Sources that started anew", restarts),
            ("metrics_source_failures", "Streams that ended or could not be opened", failures),
        ] {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(count).encode(encoder)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;
    use crate::{
        args::Security,
        endpoint::{Endpoint, Origin},
        limits::Limits,
        sources::{Settings, Timings},
    };

    #[test]
    fn every_health_is_counted_by_the_process_that_reads() {
        let sources = Sources::new(Settings {
            subscriber: "test",
            min_interval: Duration::ZERO,
            metrics: &[],
            security: Security::Plain,
            timings: Timings::default(),
            limits: Limits::default(),
        });
        sources.set([Endpoint { origin: Origin::Stated, address: "127.0.0.1:1".into() }]);
        let page = |leads: bool| {
            let mut registry = Registry::default();
            registry.register_collector(collector(&sources, move || leads));
            let mut page = String::new();
            text::encode(&mut page, &registry).unwrap();
            page
        };
        for line in [
            "metrics_sources{health=\"live\"} 0\n",
            "metrics_sources{health=\"pending\"} 1\n",
            "metrics_sources{health=\"silent\"} 0\n",
            "metrics_sources{health=\"unreachable\"} 0\n",
            "metrics_source_snapshots_total 0\n",
        ] {
            assert!(page(true).contains(line), "{line} is not in\n{}", page(true));
        }
        assert!(!page(false).contains("metrics_source"));
    }
}
