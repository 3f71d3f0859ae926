//! Defaults for new Jobs, from the release and from the command line. Pure.

use std::time::Duration;

use api::trainingjob::Device;

use workload::products::Products;

use crate::{TrainingArgs, validate::ValidJob};

/// Defaults for new Jobs, and options of the process.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(super) launcher_image: String,
    pub(super) transfer_image: String,
    trainer_image: String,
    ascend_image: String,
    /// Whether this controller watches nodes and ends attempts on lost ones.
    pub(super) watches_nodes: bool,
    /// When to retry after a refusal. The deletion of a foreign object or a change of a quota or policy causes no watched event.
    pub(crate) refusal_retry: Duration,
    pub(super) timings: Timings,
    products: Products,
}

/// How long the controller waits for conditions that usually pass without a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timings {
    /// The first pause between two attempts; each further one is twice as long.
    pub(super) first_pause: Duration,
    /// How long pods may hold GPUs while others of their gang cannot start.
    pub(super) placement: Duration,
    /// How long a kubelet may report that a container cannot start before its attempt ends.
    pub(super) start_fault: Duration,
}

impl Defaults {
    pub(crate) fn new(args: TrainingArgs, watches_nodes: bool, refusal_retry: Duration) -> Self {
        let TrainingArgs {
            launcher_image,
            transfer_image,
            trainer_image,
            ascend_image,
            first_pause_seconds,
            placement_seconds,
            start_fault_seconds,
            gpu_products,
            own_service_account: _,
            own_namespace: _,
        } = args;
        Self {
            launcher_image,
            transfer_image,
            trainer_image,
            ascend_image,
            watches_nodes,
            refusal_retry,
            timings: Timings {
                first_pause: Duration::from_secs(first_pause_seconds),
                placement: Duration::from_secs(placement_seconds),
                start_fault: Duration::from_secs(start_fault_seconds),
            },
            products: gpu_products.unwrap_or_default(),
        }
    }

    /// With the labels of its GPU product.
    pub(super) fn resolved(&self, valid: ValidJob) -> ValidJob {
        let accelerators = valid.accelerators.map(|gpus| gpus.resolved(&self.products));
        ValidJob { accelerators, ..valid }
    }

    pub(super) fn trainer_image(&self, device: Device) -> &str {
        match device {
            Device::Nvidia | Device::Mps | Device::Cpu => &self.trainer_image,
            Device::Ascend => &self.ascend_image,
        }
    }
}
