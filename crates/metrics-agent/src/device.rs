//! What an accelerator of any vendor can be asked, and what it answers: the seam between the agent and a driver.
//!
//! Two sources are behind it: NVIDIA's library (`nvml`) and a file that replays a machine (`recorded`). No type here
//! names a vendor, and nothing here blocks, logs or reads a clock; implementations may block, and the sampler expects it.

pub(crate) mod nvml;
pub(crate) mod recorded;

use std::{sync::Arc, time::Duration};

use proto::metrics::v1::{EventKind, FaultReason, Metric, Process, SubjectKind, ThrottleReason};

/// Where accelerators come from.
pub(crate) trait Source: Send {
    /// Loads what is needed and finds the devices. Called again after a failure.
    fn open(&mut self) -> Result<Machine, Fault>;
}

/// An open source.
pub(crate) struct Machine {
    /// Library and driver, for people.
    pub(crate) backend: String,
    pub(crate) devices: Vec<Box<dyn Device>>,
    /// Events of all devices, where the source has events.
    pub(crate) events: Option<Box<dyn EventQueue>>,
}

/// One device, used by one thread.
pub(crate) trait Device: Send {
    /// What is known of it before it was read: a lost device has at least a position.
    fn identity(&self) -> Identity;

    /// Reads the device and its partitions. A fault means that nothing of it can be read.
    fn read(&mut self) -> Result<Vec<Sample>, Fault>;
}

/// Waits for events, on a thread of its own.
pub(crate) trait EventQueue: Send {
    /// The next event, if there is one within this time.
    fn next(&mut self, at_most: Duration) -> Result<Option<Happening>, Fault>;
}

/// What stays the same between two readings of a device or partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Unique on the node, and the same after a restart.
    pub(crate) id: String,
    pub(crate) kind: SubjectKind,
    /// Of a partition: the id of its device.
    pub(crate) parent_id: String,
    /// In lower case.
    pub(crate) vendor: String,
    pub(crate) model: String,
    /// Position among the devices of the node; of a partition, that of its device.
    pub(crate) index: u32,
    /// Number of the device file, by which some device plugins name the device.
    pub(crate) minor: Option<u32>,
    /// Of a partition: its number on the device, by which some device plugins name it.
    pub(crate) instance: Option<u32>,
    /// Of a partition: its size as the vendor writes it.
    pub(crate) profile: String,
}

/// What one subject answered at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) identity: Arc<Identity>,
    pub(crate) readings: Vec<(Metric, Outcome)>,
    pub(crate) throttle_reasons: Vec<ThrottleReason>,
    pub(crate) processes: Vec<Process>,
}

/// The answer to the question for one metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// In the unit of the metric.
    Value(f64),
    /// The subject does not have it.
    Unsupported,
    /// Not this time.
    Failed(FaultReason),
}

/// Why nothing can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Fault {
    pub(crate) reason: FaultReason,
    /// For people.
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(reason: FaultReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Something that a driver reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Happening {
    /// The id of the device.
    pub(crate) device: String,
    pub(crate) kind: EventKind,
    /// The vendor's code.
    pub(crate) code: Option<u64>,
    /// Whether work on the device can be assumed to be lost.
    pub(crate) is_fatal: bool,
}
