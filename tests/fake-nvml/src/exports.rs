//! The exported functions. Each finds its device, fails if the file says so, and writes its answer where the caller wants it.
#![expect(unsafe_code, reason = "functions of a C library get pointers")]

use std::{
    ffi::{c_char, c_void},
    ptr, thread,
    time::{Duration, Instant},
};

use crate::{
    abi::{
        EventData, FIELD_MEMORY_TEMPERATURE, FieldValue, GpmMetricsGet, GpmSupport, INSUFFICIENT_SIZE,
        INVALID_ARGUMENT, MEMORY_V2, Memory, ProcessInfo, Return, SUCCESS, TIMEOUT, Utilization,
        VALUE_TYPE_U32, gpm,
    },
    code::{NOT_FOUND, NOT_SUPPORTED},
    faults::{Device, device, handle, machine, note_waiting},
    state::{Gpm, Gpu},
};

/// How often a wait for events looks at the file.
const POLL: Duration = Duration::from_millis(50);
/// `NVML_VALUE_NOT_AVAILABLE` for instances outside of MIG.
const NO_INSTANCE: u32 = u32::MAX;
/// ECC errors and XIDs.
const EVENT_TYPES: u64 = 1 | 2 | 8;

fn code(result: Result<(), Return>) -> Return {
    result.err().unwrap_or(SUCCESS)
}

/// Writes what the device answers.
fn answer<T>(
    function: &str,
    handle: *mut c_void,
    out: *mut T,
    value: impl FnOnce(&Device) -> Result<T, Return>,
) -> Return {
    code(device(function, handle as usize).and_then(|device| {
        let value = value(&device)?;
        // SAFETY: by the contract of NVML the caller passes room for one T.
        unsafe { out.write(value) };
        Ok(())
    }))
}

/// The same of functions that only whole GPUs have.
fn of_gpu<T>(
    function: &str,
    handle: *mut c_void,
    out: *mut T,
    value: impl FnOnce(&Gpu) -> Result<T, Return>,
) -> Return {
    answer(function, handle, out, |device| match device.partition {
        None => value(device.gpu()),
        Some(_) => Err(NOT_SUPPORTED),
    })
}

fn write_text(text: &str, out: *mut c_char, length: u32) -> Result<(), Return> {
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: by the contract of NVML the caller passes room for `length` bytes, and the text and its zero are fewer.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> Return {
    code(machine("Init_v2").map(drop))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> Return {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: u32) -> Return {
    code(machine("SystemGetDriverVersion").and_then(|state| write_text(&state.driver_version, out, length)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: u32) -> Return {
    code(machine("SystemGetNVMLVersion").and_then(|_| write_text("13.580.95.05-fake", out, length)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetCount_v2(out: *mut u32) -> Return {
    code(machine("DeviceGetCount_v2").map(|state| {
        // SAFETY: the caller passes room for one number.
        unsafe { out.write(state.gpus.len() as u32) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: *mut *mut c_void) -> Return {
    let handle = handle(index as usize, None) as *mut c_void;
    answer("DeviceGetHandleByIndex_v2", handle, out, |_| Ok(handle))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetUUID(handle: *mut c_void, out: *mut c_char, length: u32) -> Return {
    code(device("DeviceGetUUID", handle as usize).and_then(|device| {
        let partition = device.partition().map(|partition| partition.uuid.as_str());
        write_text(partition.unwrap_or(&device.gpu().uuid), out, length)
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetName(handle: *mut c_void, out: *mut c_char, length: u32) -> Return {
    code(device("DeviceGetName", handle as usize).and_then(|device| {
        let gpu = &device.gpu().name;
        let name = match device.partition() {
            Some(partition) => format!("{gpu} MIG {}", partition.profile),
            None => gpu.clone(),
        };
        write_text(&name, out, length)
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMinorNumber(handle: *mut c_void, out: *mut u32) -> Return {
    answer("DeviceGetMinorNumber", handle, out, |device| Ok(device.gpu as u32))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetUtilizationRates(handle: *mut c_void, out: *mut Utilization) -> Return {
    of_gpu("DeviceGetUtilizationRates", handle, out, |gpu| {
        Ok(Utilization { gpu: gpu.utilization, memory: gpu.memory_utilization })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: *mut c_void, out: *mut Memory) -> Return {
    // SAFETY: the caller passes the struct with its version filled in.
    if unsafe { (*out).version } != MEMORY_V2 {
        return INVALID_ARGUMENT;
    }
    answer("DeviceGetMemoryInfo_v2", handle, out, |device| {
        let gpu = device.gpu();
        let (total, used, reserved) = match device.partition() {
            Some(partition) => (partition.memory_total, partition.memory_used, 0),
            None => (gpu.memory_total, gpu.memory_used, gpu.memory_reserved),
        };
        let free = total.saturating_sub(used + reserved);
        Ok(Memory { version: MEMORY_V2, total, reserved, free, used })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetPowerUsage(handle: *mut c_void, out: *mut u32) -> Return {
    of_gpu("DeviceGetPowerUsage", handle, out, |gpu| Ok(gpu.power_milliwatts))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetEnforcedPowerLimit(handle: *mut c_void, out: *mut u32) -> Return {
    of_gpu("DeviceGetEnforcedPowerLimit", handle, out, |gpu| Ok(gpu.power_limit_milliwatts))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetTotalEnergyConsumption(handle: *mut c_void, out: *mut u64) -> Return {
    of_gpu("DeviceGetTotalEnergyConsumption", handle, out, |gpu| Ok(gpu.energy_millijoules))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetTemperature(handle: *mut c_void, sensor: u32, out: *mut u32) -> Return {
    of_gpu("DeviceGetTemperature", handle, out, |gpu| {
        if sensor == 0 { Ok(gpu.temperature) } else { Err(INVALID_ARGUMENT) }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetClockInfo(handle: *mut c_void, clock: u32, out: *mut u32) -> Return {
    of_gpu("DeviceGetClockInfo", handle, out, |gpu| match clock {
        1 => Ok(gpu.core_clock_mhz),
        2 => Ok(gpu.memory_clock_mhz),
        _ => Err(INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    handle: *mut c_void,
    out: *mut u64,
) -> Return {
    of_gpu("DeviceGetCurrentClocksThrottleReasons", handle, out, |gpu| Ok(gpu.throttle_reasons))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: *mut c_void,
    kind: u32,
    _counter: u32,
    out: *mut u64,
) -> Return {
    of_gpu("DeviceGetTotalEccErrors", handle, out, |gpu| match kind {
        0 => Ok(gpu.ecc_corrected),
        _ => Ok(gpu.ecc_uncorrected),
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetPcieReplayCounter(handle: *mut c_void, out: *mut u32) -> Return {
    of_gpu("DeviceGetPcieReplayCounter", handle, out, |gpu| Ok(gpu.pcie_replays))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetFieldValues(
    handle: *mut c_void,
    count: i32,
    fields: *mut FieldValue,
) -> Return {
    code(device("DeviceGetFieldValues", handle as usize).map(|device| {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller passes an array of `count` structs.
        for field in unsafe { std::slice::from_raw_parts_mut(fields, count) } {
            if field.field == FIELD_MEMORY_TEMPERATURE && device.partition.is_none() {
                let value = u64::from(device.gpu().memory_temperature);
                (field.value_type, field.code, field.value) = (VALUE_TYPE_U32, SUCCESS, value);
            } else {
                field.code = NOT_SUPPORTED;
            }
        }
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut u32,
    infos: *mut ProcessInfo,
) -> Return {
    code(device("DeviceGetComputeRunningProcesses_v3", handle as usize).and_then(|device| {
        let processes = if device.partition.is_none() { device.gpu().processes.as_slice() } else { &[] };
        // SAFETY: the caller passes the number of elements that it has room for.
        let room = unsafe { count.replace(processes.len() as u32) };
        if (room as usize) < processes.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (at, process) in processes.iter().enumerate() {
            let info = ProcessInfo {
                pid: process.pid,
                used_memory: process.memory_bytes,
                gpu_instance: NO_INSTANCE,
                compute_instance: NO_INSTANCE,
            };
            // SAFETY: `at` is below the room that the caller has.
            unsafe { infos.add(at).write(info) };
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMigMode(
    handle: *mut c_void,
    current: *mut u32,
    pending: *mut u32,
) -> Return {
    code(device("DeviceGetMigMode", handle as usize).map(|device| {
        let is_on = u32::from(!device.gpu().partitions.is_empty());
        // SAFETY: the caller passes room for two numbers.
        unsafe {
            current.write(is_on);
            pending.write(is_on);
        }
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMaxMigDeviceCount(handle: *mut c_void, out: *mut u32) -> Return {
    of_gpu("DeviceGetMaxMigDeviceCount", handle, out, |gpu| {
        Ok(if gpu.partitions.is_empty() { 0 } else { gpu.partitions.len().max(7) as u32 })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    parent: *mut c_void,
    index: u32,
    out: *mut *mut c_void,
) -> Return {
    answer("DeviceGetMigDeviceHandleByIndex", parent, out, |device| {
        let partition = device.gpu().partitions.get(index as usize).and_then(Option::as_ref);
        partition.map(|_| handle(device.gpu, Some(index as usize)) as *mut c_void).ok_or(NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetGpuInstanceId(handle: *mut c_void, out: *mut u32) -> Return {
    answer("DeviceGetGpuInstanceId", handle, out, |device| {
        device.partition().map(|partition| partition.gpu_instance).ok_or(NOT_SUPPORTED)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmQueryDeviceSupport(handle: *mut c_void, out: *mut GpmSupport) -> Return {
    answer("GpmQueryDeviceSupport", handle, out, |device| {
        let is_supported =
            device.gpu().gpm.is_some() || device.gpu().partitions.iter().flatten().any(|it| it.gpm.is_some());
        Ok(GpmSupport { version: 1, is_supported: u32::from(is_supported) })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleAlloc(out: *mut *mut c_void) -> Return {
    let sample = Box::into_raw(Box::new(Gpm::default()));
    // SAFETY: the caller passes room for one pointer.
    unsafe { out.write(sample.cast()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleFree(sample: *mut c_void) -> Return {
    // SAFETY: it is from nvmlGpmSampleAlloc, and freed once.
    drop(unsafe { Box::from_raw(sample.cast::<Gpm>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleGet(handle: *mut c_void, sample: *mut c_void) -> Return {
    of_gpu("GpmSampleGet", handle, sample.cast::<Gpm>(), |gpu| gpu.gpm.ok_or(NOT_SUPPORTED))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmMigSampleGet(
    handle: *mut c_void,
    instance: u32,
    sample: *mut c_void,
) -> Return {
    of_gpu("GpmMigSampleGet", handle, sample.cast::<Gpm>(), |gpu| {
        let mut partitions = gpu.partitions.iter().flatten();
        partitions
            .find(|partition| partition.gpu_instance == instance)
            .and_then(|it| it.gpm)
            .ok_or(NOT_SUPPORTED)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmMetricsGet(request: *mut c_void) -> Return {
    if let Err(code) = machine("GpmMetricsGet") {
        return code;
    }
    let request: *mut GpmMetricsGet = request.cast();
    // SAFETY: the caller passes the struct with `count` metrics after its head, and two samples that were filled. The
    // array is reached from the pointer of the struct, because a reference to the head would not cover it.
    unsafe {
        let sample = *(*request).samples[1].cast::<Gpm>();
        let metrics = (&raw mut (*request).metrics).cast::<crate::GpmMetric>();
        for at in 0..(*request).count as usize {
            let metric = metrics.add(at);
            let value = match (*metric).metric {
                gpm::GRAPHICS_UTIL => Ok(sample.graphics),
                gpm::SM_UTIL => Ok(sample.sm),
                gpm::ANY_TENSOR_UTIL => Ok(sample.tensor),
                gpm::DRAM_BW_UTIL => Ok(sample.dram),
                _ => Err(NOT_SUPPORTED),
            };
            (*metric).code = value.err().unwrap_or(SUCCESS);
            (*metric).value = value.unwrap_or(0.0);
        }
    }
    SUCCESS
}

/// An event set: the GPUs that were registered, and how many events of the file it has seen.
struct EventSet {
    gpus: Vec<usize>,
    seen: usize,
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetCreate(out: *mut *mut c_void) -> Return {
    code(machine("EventSetCreate").map(|state| {
        let set = Box::new(EventSet { gpus: Vec::new(), seen: state.events.len() });
        // SAFETY: the caller passes room for one pointer.
        unsafe { out.write(Box::into_raw(set).cast()) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetFree(set: *mut c_void) -> Return {
    // SAFETY: it is from nvmlEventSetCreate, and freed once.
    drop(unsafe { Box::from_raw(set.cast::<EventSet>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetSupportedEventTypes(handle: *mut c_void, out: *mut u64) -> Return {
    of_gpu("DeviceGetSupportedEventTypes", handle, out, |_| Ok(EVENT_TYPES))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceRegisterEvents(
    handle: *mut c_void,
    _types: u64,
    set: *mut c_void,
) -> Return {
    code(device("DeviceRegisterEvents", handle as usize).map(|device| {
        // SAFETY: it is from nvmlEventSetCreate, and used by one thread.
        unsafe { &mut *set.cast::<EventSet>() }.gpus.push(device.gpu);
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait_v2(
    set: *mut c_void,
    out: *mut EventData,
    timeout_ms: u32,
) -> Return {
    // SAFETY: it is from nvmlEventSetCreate, and used by one thread.
    let set = unsafe { &mut *set.cast::<EventSet>() };
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    if !set.gpus.is_empty() {
        note_waiting();
    }
    loop {
        let state = match machine("EventSetWait_v2") {
            Ok(state) => state,
            Err(code) => return code,
        };
        while let Some(event) = state.events.get(set.seen) {
            set.seen += 1;
            if set.gpus.contains(&event.gpu) {
                let device = handle(event.gpu, None) as *mut c_void;
                let data = EventData {
                    device,
                    event_type: event.kind,
                    event_data: event.data,
                    gpu_instance: NO_INSTANCE,
                    compute_instance: NO_INSTANCE,
                };
                // SAFETY: the caller passes room for one struct.
                unsafe { out.write(data) };
                return SUCCESS;
            }
        }
        if Instant::now() >= until {
            return TIMEOUT;
        }
        thread::sleep(POLL);
    }
}
