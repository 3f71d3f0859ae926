//! GPU performance monitoring, which Hopper and newer GPUs have: the share of cycles in which parts of a GPU, or of an
//! instance of it, were active. Each value needs two samples; the first read of anything has none.

use std::collections::BTreeMap;

use nvml_wrapper::{
    Device as Handle, Nvml,
    enums::gpm::GpmMetricId,
    error::NvmlError,
    gpm::{GpmSample, gpm_metrics_get},
};
use proto::metrics::v1::Metric;

use super::errors::outcome;
use crate::device::Outcome;

/// In percent, on any device that has them.
const WANTED: [(Metric, GpmMetricId); 4] = [
    (Metric::EngineActive, GpmMetricId::GraphicsUtil),
    (Metric::CoresActive, GpmMetricId::SmUtil),
    (Metric::TensorActive, GpmMetricId::AnyTensorUtil),
    (Metric::MemoryActive, GpmMetricId::DramBwUtil),
];

/// The last samples of a device and its instances.
pub(super) struct Gpm {
    nvml: &'static Nvml,
    is_supported: bool,
    device: Option<GpmSample<'static>>,
    instances: BTreeMap<u32, GpmSample<'static>>,
}

impl Gpm {
    pub(super) fn of(nvml: &'static Nvml, handle: &Handle<'static>) -> Self {
        let is_supported = handle.gpm_support().unwrap_or(false);
        Self { nvml, is_supported, device: None, instances: BTreeMap::new() }
    }

    pub(super) fn read_device(&mut self, handle: &Handle<'static>, readings: &mut Vec<(Metric, Outcome)>) {
        if self.is_supported {
            let sample = handle.gpm_sample();
            let before = self.device.take();
            self.device = self.since(before, sample, readings);
        }
    }

    pub(super) fn read_instance(
        &mut self,
        handle: &Handle<'static>,
        instance: u32,
        readings: &mut Vec<(Metric, Outcome)>,
    ) {
        if self.is_supported {
            let sample = handle.gpm_mig_sample(instance);
            let before = self.instances.remove(&instance);
            if let Some(sample) = self.since(before, sample, readings) {
                self.instances.insert(instance, sample);
            }
        }
    }

    /// Forgets the samples of instances that are gone.
    pub(super) fn keep_instances(&mut self, there: Vec<u32>) {
        self.instances.retain(|instance, _| there.contains(instance));
    }

    /// Adds what happened between two samples, and returns the newer.
    fn since(
        &self,
        before: Option<GpmSample<'static>>,
        sample: Result<GpmSample<'static>, NvmlError>,
        readings: &mut Vec<(Metric, Outcome)>,
    ) -> Option<GpmSample<'static>> {
        let failed = |error: &NvmlError| WANTED.map(|(metric, _)| (metric, outcome(error)));
        let sample = match sample {
            Ok(sample) => sample,
            Err(error) => {
                readings.extend(failed(&error));
                return None;
            }
        };
        if let Some(before) = before {
            let ids = WANTED.map(|(_, id)| id);
            match gpm_metrics_get(self.nvml, &before, &sample, &ids) {
                Ok(values) => readings.extend(WANTED.iter().zip(values).map(|((metric, _), value)| {
                    let outcome = match value {
                        Ok(result) if result.value.is_finite() => Outcome::Value(result.value / 100.0),
                        Ok(_) => outcome(&NvmlError::NoData),
                        Err(error) => outcome(&error),
                    };
                    (*metric, outcome)
                })),
                Err(error) => readings.extend(failed(&error)),
            }
        }
        Some(sample)
    }
}
