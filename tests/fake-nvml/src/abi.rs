//! The structs and numbers of `nvml.h` that the exported functions use. Written after NVIDIA's header (13.4), not after the
//! bindings of the code under test; `tests/layout.rs` compares the three.

use std::{ffi::c_void, mem::offset_of};

/// `nvmlReturn_t`
pub(crate) type Return = u32;
pub(crate) const SUCCESS: Return = 0;
pub(crate) const INVALID_ARGUMENT: Return = 2;
pub(crate) const INSUFFICIENT_SIZE: Return = 7;
pub(crate) const TIMEOUT: Return = 10;

/// `nvmlMemory_v2`: the version of the struct and its size.
pub(crate) const MEMORY_V2: u32 = 33_554_472;

/// `NVML_FI_DEV_MEMORY_TEMP`
pub(crate) const FIELD_MEMORY_TEMPERATURE: u32 = 82;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`
pub(crate) const VALUE_TYPE_U32: u32 = 1;

/// `nvmlUtilization_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memory {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlEventData_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventData {
    pub device: *mut c_void,
    pub event_type: u64,
    pub event_data: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `nvmlProcessInfo_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ProcessInfo {
    pub pid: u32,
    pub used_memory: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `nvmlFieldValue_t`, whose value is a union of eight bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct FieldValue {
    pub field: u32,
    pub scope: u32,
    pub timestamp: i64,
    pub latency: i64,
    pub value_type: u32,
    pub code: u32,
    pub value: u64,
}

/// `nvmlGpmSupport_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GpmSupport {
    pub version: u32,
    pub is_supported: u32,
}

/// `nvmlGpmMetric_t`, with the three pointers of its `metricInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GpmMetric {
    pub metric: u32,
    pub code: u32,
    pub value: f64,
    pub info: [*const c_void; 3],
}

/// The start of `nvmlGpmMetricsGet_t`: the array after it is as long as the header of the caller says, and only
/// `count` elements of it are used.
#[repr(C)]
pub(crate) struct GpmMetricsGet {
    pub(crate) version: u32,
    pub(crate) count: u32,
    pub(crate) samples: [*mut c_void; 2],
    pub(crate) metrics: [GpmMetric; 0],
}

/// Of version, count, both samples and the metrics.
pub const GPM_REQUEST_OFFSETS: [usize; 5] = [
    offset_of!(GpmMetricsGet, version),
    offset_of!(GpmMetricsGet, count),
    offset_of!(GpmMetricsGet, samples),
    offset_of!(GpmMetricsGet, samples) + size_of::<*mut c_void>(),
    offset_of!(GpmMetricsGet, metrics),
];

/// `NVML_GPM_METRIC_…`
pub(crate) mod gpm {
    pub(crate) const GRAPHICS_UTIL: u32 = 1;
    pub(crate) const SM_UTIL: u32 = 2;
    pub(crate) const ANY_TENSOR_UTIL: u32 = 5;
    pub(crate) const DRAM_BW_UTIL: u32 = 10;
}
