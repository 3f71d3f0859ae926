//! What the file holds: the machine that the fake pretends to be.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

/// A machine with NVIDIA's driver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    pub driver_version: String,
    pub gpus: Vec<Gpu>,
    /// Delivered once to each event set that is older than they are, in this order.
    pub events: Vec<Event>,
    /// Faults of functions that concern no device, by name without `nvml`: `Init_v2`, `DeviceGetCount_v2`.
    pub faults: BTreeMap<String, Fault>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    /// In percent.
    pub utilization: u32,
    /// In percent.
    pub memory_utilization: u32,
    pub memory_total: u64,
    pub memory_used: u64,
    pub memory_reserved: u64,
    pub power_milliwatts: u32,
    pub power_limit_milliwatts: u32,
    pub energy_millijoules: u64,
    /// In degrees Celsius.
    pub temperature: u32,
    /// In degrees Celsius.
    pub memory_temperature: u32,
    pub core_clock_mhz: u32,
    pub memory_clock_mhz: u32,
    /// Bits of `nvmlClocksEventReason…`.
    pub throttle_reasons: u64,
    pub ecc_corrected: u64,
    pub ecc_uncorrected: u64,
    pub pcie_replays: u32,
    pub processes: Vec<Process>,
    /// By index; a hole answers NOT_FOUND. Not empty: MIG is on.
    pub partitions: Vec<Option<Partition>>,
    /// Metrics of GPM; without them it is not supported.
    pub gpm: Option<Gpm>,
    /// By name of the function without `nvml`, or `*` for each function that names this GPU.
    pub faults: BTreeMap<String, Fault>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub memory_bytes: u64,
}

/// A MIG instance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Partition {
    pub uuid: String,
    /// Such as `1g.10gb`.
    pub profile: String,
    pub gpu_instance: u32,
    pub memory_total: u64,
    pub memory_used: u64,
    pub gpm: Option<Gpm>,
}

/// In percent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Gpm {
    pub graphics: f64,
    pub sm: f64,
    pub tensor: f64,
    pub dram: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Event {
    /// Index of the GPU.
    pub gpu: usize,
    /// `nvmlEventType…`: 8 for an XID, 2 for a double-bit ECC error.
    pub kind: u64,
    /// The XID.
    pub data: u64,
}

/// What a function does instead of its work.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    /// Sleeps first.
    pub sleep_ms: u64,
    /// Then returns this code; 0 answers.
    pub code: u32,
}

impl State {
    /// `count` busy GPUs of one kind.
    pub fn with_gpus(count: usize) -> Self {
        let gpus = (0..count).map(Gpu::numbered).collect();
        Self { driver_version: "580.95.05-fake".to_owned(), gpus, ..Self::default() }
    }

    /// Replaces the file at once, so that no call reads half of it.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(folder)?;
        fs::write(file.path(), serde_json::to_vec(self)?)?;
        file.persist(path)?;
        Ok(())
    }
}

impl Gpu {
    fn numbered(number: usize) -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            uuid: format!("GPU-00000000-0000-0000-0000-{number:012}"),
            name: "NVIDIA H100 80GB HBM3 (fake)".to_owned(),
            utilization: 40 + number as u32,
            memory_utilization: 20,
            memory_total: 81_559 * MIB,
            memory_used: 40_000 * MIB,
            memory_reserved: 551 * MIB,
            power_milliwatts: 350_000,
            power_limit_milliwatts: 700_000,
            energy_millijoules: 1_000_000,
            temperature: 55,
            memory_temperature: 60,
            core_clock_mhz: 1_980,
            memory_clock_mhz: 2_619,
            ..Self::default()
        }
    }
}
