//! NVIDIA's library, NVML, as a source. It is loaded at run time and stays loaded until the process ends, because a call
//! that hangs may be inside of it.
//!
//! Every function may block as long as the driver likes. A function that the library or the device does not have is a
//! reading that is unsupported; an error of one function is a fault of that reading; only errors that concern the whole
//! device end its sample.

mod errors;
mod events;
mod gpm;
mod instance;

use std::{ffi::OsStr, path::PathBuf, sync::Arc};

use nvml_wrapper::{
    Device as Handle, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::device::{SampleValue, UsedGpuMemory},
    error::NvmlError,
    structs::device::FieldId,
    sys_exports::field_id::NVML_FI_DEV_MEMORY_TEMP,
};
use proto::metrics::v1::{FaultReason, Metric, Process, SubjectKind, ThrottleReason};

use self::{
    errors::{fault, is_of_the_device, outcome},
    events::Events,
    gpm::Gpm,
};
use super::{Device, Fault, Identity, Machine, Outcome, Sample, Source};

/// In ids of subjects, events and labels.
const VENDOR: &str = "nvidia";
/// The name of an instance is that of its GPU, this word, and its profile.
const BEFORE_PROFILE: &str = " MIG ";
/// A list of processes costs milliseconds, and no decision depends on its seconds.
const READS_PER_PROCESS_LIST: u32 = 10;
const HERTZ_PER_MEGAHERTZ: f64 = 1e6;

/// The library, not loaded yet.
#[derive(Clone, Debug)]
pub(crate) struct NvmlSource {
    /// A path, or a name that the dynamic loader finds.
    pub(crate) library: PathBuf,
    /// Whether processes are listed.
    pub(crate) processes: bool,
}

impl Source for NvmlSource {
    fn open(&mut self) -> Result<Machine, Fault> {
        let library = self.library.as_os_str();
        let nvml = load(library)?;
        let driver = nvml.sys_driver_version().map_err(|error| fault("read the driver's version", &error))?;
        let version = nvml.sys_nvml_version().unwrap_or_default();
        let count = nvml.device_count().map_err(|error| fault("count the devices", &error))?;
        if count == 0 {
            return Err(Fault::new(FaultReason::NoDevice, "the driver has no device"));
        }
        let devices = (0..count).map(|index| {
            let mut device = NvmlDevice::new(nvml, index, self.processes);
            // A lost device is found again by its reads.
            let _ = device.find();
            Box::new(device) as Box<dyn Device>
        });
        Ok(Machine {
            backend: format!("nvml {version} from {}, driver {driver}", library.display()),
            devices: devices.collect(),
            events: Some(Box::new(Events::new(nvml, count))),
        })
    }
}

/// Loads the library for the rest of the process. Only a library that was initialised is kept: `open` may be called
/// again and again on a node without a driver.
fn load(library: &OsStr) -> Result<&'static Nvml, Fault> {
    let nvml =
        Nvml::builder().lib_path(library).init().map_err(|error| fault("initialise the library", &error))?;
    Ok(Box::leak(Box::new(nvml)))
}

/// A GPU with its instances.
struct NvmlDevice {
    nvml: &'static Nvml,
    index: u32,
    lists_processes: bool,
    /// Nothing before the device has answered once.
    found: Option<Found>,
    reads: u32,
}

struct Found {
    handle: Handle<'static>,
    identity: Arc<Identity>,
    gpm: Gpm,
    processes: Vec<Process>,
    /// By their position; an instance that was replaced has another id.
    instances: Vec<Arc<Identity>>,
}

impl NvmlDevice {
    fn new(nvml: &'static Nvml, index: u32, lists_processes: bool) -> Self {
        Self { nvml, index, lists_processes, found: None, reads: 0 }
    }

    fn find(&mut self) -> Result<&mut Found, Fault> {
        if self.found.is_none() {
            self.found = Some(find(self.nvml, self.index).map_err(|error| fault("find the device", &error))?);
        }
        self.found.as_mut().ok_or_else(|| Fault::new(FaultReason::DriverError, "the device was not found"))
    }
}

fn find(nvml: &'static Nvml, index: u32) -> Result<Found, NvmlError> {
    let handle = nvml.device_by_index(index)?;
    let identity = Identity {
        id: handle.uuid()?,
        kind: SubjectKind::Device,
        parent_id: String::new(),
        vendor: VENDOR.to_owned(),
        model: handle.name()?,
        index,
        minor: handle.minor_number().ok(),
        instance: None,
        profile: String::new(),
    };
    let gpm = Gpm::of(nvml, &handle);
    Ok(Found { handle, identity: Arc::new(identity), gpm, processes: Vec::new(), instances: Vec::new() })
}

impl Device for NvmlDevice {
    fn identity(&self) -> Identity {
        if let Some(found) = &self.found {
            return Identity::clone(&found.identity);
        }
        let index = self.index;
        Identity {
            id: format!("{VENDOR}-{index}"),
            kind: SubjectKind::Device,
            parent_id: String::new(),
            vendor: VENDOR.to_owned(),
            model: String::new(),
            index,
            minor: None,
            instance: None,
            profile: String::new(),
        }
    }

    fn read(&mut self) -> Result<Vec<Sample>, Fault> {
        let lists_processes = self.lists_processes && self.reads.is_multiple_of(READS_PER_PROCESS_LIST);
        self.reads = self.reads.wrapping_add(1);
        let found = self.find()?;
        let mut samples = vec![read_device(found, lists_processes)?];
        read_instances(found, &mut samples)?;
        Ok(samples)
    }
}

fn read_device(found: &mut Found, lists_processes: bool) -> Result<Sample, Fault> {
    let Found { handle, identity, gpm, processes, .. } = found;
    let mut readings = Readings::default();
    let [active, memory] = [Metric::Utilization, Metric::MemoryBandwidthUtilization];
    match handle.utilization_rates() {
        Ok(rates) => {
            readings.value(active, f64::from(rates.gpu) / 100.0);
            readings.value(memory, f64::from(rates.memory) / 100.0);
        }
        Err(error) => readings.failed(&[active, memory], &error)?,
    }
    readings.memory(handle)?;
    readings.add(Metric::Power, handle.power_usage().map(from_thousandths))?;
    readings.add(Metric::PowerLimit, handle.enforced_power_limit().map(from_thousandths))?;
    readings
        .add(Metric::Energy, handle.total_energy_consumption().map(|millijoules| millijoules as f64 / 1e3))?;
    readings.add(Metric::Temperature, handle.temperature(TemperatureSensor::Gpu).map(f64::from))?;
    readings.add(Metric::MemoryTemperature, memory_temperature(handle))?;
    readings.add(Metric::CoreClock, handle.clock_info(Clock::SM).map(from_megahertz))?;
    readings.add(Metric::MemoryClock, handle.clock_info(Clock::Memory).map(from_megahertz))?;
    let throttled = handle.current_throttle_reasons().map(throttle_reasons);
    let throttle_reasons = throttled.as_ref().map(Clone::clone).unwrap_or_default();
    let is_throttled = throttled.map(|reasons| f64::from(u8::from(!reasons.is_empty())));
    readings.add(Metric::Throttled, is_throttled)?;
    for (metric, kind) in
        [(Metric::EccCorrected, MemoryError::Corrected), (Metric::EccUncorrected, MemoryError::Uncorrected)]
    {
        let errors = handle.total_ecc_errors(kind, EccCounter::Aggregate);
        readings.add(metric, errors.map(|errors| errors as f64))?;
    }
    readings.add(Metric::BusReplays, handle.pcie_replay_counter().map(f64::from))?;
    gpm.read_device(handle, &mut readings.0);
    if lists_processes && let Ok(listed) = handle.running_compute_processes() {
        let process = |listed: &nvml_wrapper::struct_wrappers::device::ProcessInfo| Process {
            pid: listed.pid,
            memory_bytes: match listed.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        };
        *processes = listed.iter().map(process).collect();
    }
    Ok(Sample {
        identity: Arc::clone(identity),
        readings: readings.0,
        throttle_reasons,
        processes: processes.clone(),
    })
}

/// The MIG instances. Their number is the most that there can be, and each place may be empty.
fn read_instances(found: &mut Found, samples: &mut Vec<Sample>) -> Result<(), Fault> {
    let is_on = found.handle.mig_mode().is_ok_and(|mode| mode.current != 0);
    let most = if is_on { found.handle.mig_device_count().unwrap_or(0) } else { 0 };
    let mut instances = Vec::new();
    for place in 0..most {
        let handle = match found.handle.mig_device_by_index(place) {
            Ok(handle) => handle,
            Err(error) if is_of_the_device(&error) => return Err(fault("find an instance", &error)),
            Err(_) => continue,
        };
        // Another instance in the same place has another id.
        let Ok(id) = handle.uuid() else { continue };
        let known = found.instances.iter().find(|known| known.id == id);
        let identity =
            known.cloned().unwrap_or_else(|| Arc::new(instance_identity(&found.identity, id, &handle)));
        let mut readings = Readings::default();
        readings.memory(&handle)?;
        if let Some(instance) = identity.instance {
            found.gpm.read_instance(&found.handle, instance, &mut readings.0);
        }
        instances.push(Arc::clone(&identity));
        samples.push(Sample {
            identity,
            readings: readings.0,
            throttle_reasons: Vec::new(),
            processes: Vec::new(),
        });
    }
    found.gpm.keep_instances(instances.iter().filter_map(|identity| identity.instance).collect());
    found.instances = instances;
    Ok(())
}

fn instance_identity(device: &Identity, id: String, handle: &Handle<'static>) -> Identity {
    let name = handle.name().unwrap_or_default();
    let (model, profile) = name.split_once(BEFORE_PROFILE).unwrap_or((&name, ""));
    Identity {
        id,
        kind: SubjectKind::Partition,
        parent_id: device.id.clone(),
        vendor: VENDOR.to_owned(),
        model: model.to_owned(),
        index: device.index,
        minor: device.minor,
        instance: instance::gpu_instance(handle),
        profile: profile.to_owned(),
    }
}

/// What was read so far of one subject.
#[derive(Default)]
struct Readings(Vec<(Metric, Outcome)>);

impl Readings {
    fn value(&mut self, metric: Metric, value: f64) {
        self.0.push((metric, Outcome::Value(value)));
    }

    /// An error of the whole device ends the sample.
    fn failed(&mut self, metrics: &[Metric], error: &NvmlError) -> Result<(), Fault> {
        if is_of_the_device(error) {
            return Err(fault("read the device", error));
        }
        self.0.extend(metrics.iter().map(|metric| (*metric, outcome(error))));
        Ok(())
    }

    fn add(&mut self, metric: Metric, read: Result<f64, NvmlError>) -> Result<(), Fault> {
        match read {
            Ok(value) => {
                self.value(metric, value);
                Ok(())
            }
            Err(error) => self.failed(&[metric], &error),
        }
    }

    fn memory(&mut self, handle: &Handle<'static>) -> Result<(), Fault> {
        use Metric::{MemoryFree, MemoryReserved, MemoryTotal, MemoryUsed};
        match handle.memory_info() {
            Ok(memory) => {
                self.value(MemoryUsed, memory.used as f64);
                self.value(MemoryFree, memory.free as f64);
                self.value(MemoryReserved, memory.reserved as f64);
                self.value(MemoryTotal, memory.total as f64);
                Ok(())
            }
            Err(error) => self.failed(&[MemoryUsed, MemoryFree, MemoryReserved, MemoryTotal], &error),
        }
    }
}

/// Watts from milliwatts.
fn from_thousandths(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

fn from_megahertz(megahertz: u32) -> f64 {
    f64::from(megahertz) * HERTZ_PER_MEGAHERTZ
}

fn memory_temperature(handle: &Handle<'static>) -> Result<f64, NvmlError> {
    let values = handle.field_values_for(&[FieldId(NVML_FI_DEV_MEMORY_TEMP)])?;
    let sample = values.into_iter().next().ok_or(NvmlError::NoData)??;
    Ok(match sample.value? {
        SampleValue::F64(value) => value,
        SampleValue::U32(value) => f64::from(value),
        SampleValue::U64(value) => value as f64,
        SampleValue::I64(value) => value as f64,
    })
}

/// Lower clocks of an idle device are no throttling.
fn throttle_reasons(bits: ThrottleReasons) -> Vec<ThrottleReason> {
    let of = |bit: ThrottleReasons, reason| bits.contains(bit).then_some(reason);
    [
        of(ThrottleReasons::SW_POWER_CAP, ThrottleReason::PowerCap),
        of(ThrottleReasons::SW_THERMAL_SLOWDOWN, ThrottleReason::Thermal),
        of(ThrottleReasons::HW_THERMAL_SLOWDOWN, ThrottleReason::Thermal),
        of(ThrottleReasons::HW_SLOWDOWN, ThrottleReason::Hardware),
        of(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, ThrottleReason::PowerBrake),
        of(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, ThrottleReason::ClockSetting),
        of(ThrottleReasons::DISPLAY_CLOCK_SETTING, ThrottleReason::ClockSetting),
        of(ThrottleReasons::SYNC_BOOST, ThrottleReason::Sync),
    ]
    .into_iter()
    .flatten()
    .fold(Vec::new(), |mut reasons, reason| {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
        reasons
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_clocks_of_an_idle_device_are_no_throttling() {
        assert_eq!(throttle_reasons(ThrottleReasons::GPU_IDLE), []);
        let hot = ThrottleReasons::GPU_IDLE
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(throttle_reasons(hot), [ThrottleReason::Thermal]);
    }
}
