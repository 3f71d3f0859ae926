//! The contracts of sources of load: `metrics/v1/metrics.proto`, which this project defines, and the kubelet's
//! pod-resources API, which it reads.
//!
//! The Rust code and the descriptors in `src/generated` are written by `cargo xtask codegen` and committed. This crate
//! decides nothing: it has no types of its own, and adds units and names to those of the contract.

#![forbid(unsafe_code)]

/// Snapshots of load, pushed to subscribers.
pub mod metrics {
    /// The only version.
    pub mod v1 {
        #![allow(clippy::all, unreachable_pub, clippy::allow_attributes_without_reason, reason = "generated")]
        include!("generated/metrics.v1.rs");

        /// The compiled .proto file with what it imports, for the reflection service.
        pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/metrics.v1.binpb");
    }
}

/// What the kubelet says of devices and the pods that hold them.
pub mod podresources {
    /// The only version.
    pub mod v1 {
        #![allow(clippy::all, unreachable_pub, clippy::allow_attributes_without_reason, reason = "generated")]
        include!("generated/podresources.v1.rs");
    }
}

use metrics::v1::{EventKind, FaultReason, Metric, Unit};

impl Metric {
    /// The unit of each value of this metric.
    pub fn unit(self) -> Unit {
        match self {
            Self::Unspecified => Unit::Unspecified,
            Self::Utilization
            | Self::MemoryBandwidthUtilization
            | Self::Throttled
            | Self::EngineActive
            | Self::TensorActive
            | Self::MemoryActive
            | Self::CoresActive
            | Self::Busy => Unit::Ratio,
            Self::MemoryUsed | Self::MemoryFree | Self::MemoryReserved | Self::MemoryTotal => Unit::Bytes,
            Self::Power | Self::PowerLimit => Unit::Watts,
            Self::Energy => Unit::Joules,
            Self::Temperature | Self::MemoryTemperature => Unit::Celsius,
            Self::CoreClock | Self::MemoryClock => Unit::Hertz,
            Self::EccCorrected
            | Self::EccUncorrected
            | Self::BusReplays
            | Self::LastErrorCode
            | Self::QueueWaiting
            | Self::QueueRunning
            | Self::TokensIn
            | Self::TokensOut
            | Self::Tokens
            | Self::TasksFinished
            | Self::UnclaimedStates => Unit::Count,
            Self::Latency | Self::CheckpointTime => Unit::Seconds,
        }
    }

    /// Whether it rises and falls, so that windows of it say something. Counters and limits do not.
    pub fn has_windows(self) -> bool {
        match self {
            Self::Utilization
            | Self::MemoryBandwidthUtilization
            | Self::MemoryUsed
            | Self::Power
            | Self::Temperature
            | Self::CoreClock
            | Self::Throttled
            | Self::EngineActive
            | Self::TensorActive
            | Self::MemoryActive
            | Self::CoresActive
            | Self::QueueWaiting
            | Self::QueueRunning
            | Self::Busy
            | Self::Latency => true,
            Self::Unspecified
            | Self::MemoryFree
            | Self::MemoryReserved
            | Self::MemoryTotal
            | Self::PowerLimit
            | Self::Energy
            | Self::MemoryTemperature
            | Self::MemoryClock
            | Self::EccCorrected
            | Self::EccUncorrected
            | Self::BusReplays
            | Self::LastErrorCode
            | Self::TokensIn
            | Self::TokensOut
            | Self::Tokens
            | Self::CheckpointTime
            | Self::TasksFinished
            | Self::UnclaimedStates => false,
        }
    }

    /// The name in files and labels: that of the contract in lower case, without its prefix.
    pub fn name(self) -> String {
        self.as_str_name().trim_start_matches("METRIC_").to_ascii_lowercase()
    }

    /// The metric of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::from_str_name(&format!("METRIC_{}", name.to_ascii_uppercase()))
    }
}

impl FaultReason {
    /// The name in labels, messages and logs: that of the contract in lower case, without its prefix.
    pub fn name(self) -> String {
        self.as_str_name().trim_start_matches("FAULT_REASON_").to_ascii_lowercase()
    }
}

impl EventKind {
    /// The name in logs: that of the contract in lower case, without its prefix.
    pub fn name(self) -> String {
        self.as_str_name().trim_start_matches("EVENT_KIND_").to_ascii_lowercase()
    }
}
