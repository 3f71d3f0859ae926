//! The structs of the fake, and those of the bindings that the agent uses, are laid out as a C compiler lays out NVIDIA's
//! own header: fake and bindings cannot agree by mistake.
//!
//! The numbers are the output of `layout.c` with gcc on x86_64; the header is named there and is not in this repository.
//! Every number is compared twice, with the fake and with the bindings. Of `nvmlGpmMetricsGet_t` only the offsets count:
//! its array grows with each header (98 metrics, 210 in the bindings, 477 in 13.4), and the library uses as many elements
//! as the caller says.

use std::mem::{offset_of, size_of};

use fake_nvml::{EventData, FieldValue, GpmMetric, GpmSupport, Memory, ProcessInfo, Utilization};
use nvml_wrapper_sys::bindings as bound;

/// A name of the header, its number there, in the fake, and in the bindings.
type Row = (&'static str, usize, usize, usize);

/// A struct and its fields.
macro_rules! rows {
    ($(($theirs:ident $size:literal, $fake:ident { $($field:ident $offset:literal = $own:ident),* }))*) => {
        vec![$(
            (stringify!($theirs), $size, size_of::<$fake>(), size_of::<bound::$theirs>()),
            $((
                concat!(stringify!($theirs), ".", stringify!($field)),
                $offset,
                offset_of!($fake, $own),
                offset_of!(bound::$theirs, $field),
            ),)*
        )*]
    };
}

#[test]
fn the_fake_and_the_bindings_are_laid_out_as_in_nvidias_header() {
    let rows: Vec<Row> = rows! {
        (nvmlUtilization_t 8, Utilization { gpu 0 = gpu, memory 4 = memory })
        (nvmlMemory_v2_t 40, Memory {
            version 0 = version, total 8 = total, reserved 16 = reserved, free 24 = free, used 32 = used
        })
        (nvmlEventData_t 32, EventData {
            device 0 = device, eventType 8 = event_type, eventData 16 = event_data,
            gpuInstanceId 24 = gpu_instance, computeInstanceId 28 = compute_instance
        })
        (nvmlProcessInfo_t 24, ProcessInfo {
            pid 0 = pid, usedGpuMemory 8 = used_memory, gpuInstanceId 16 = gpu_instance,
            computeInstanceId 20 = compute_instance
        })
        (nvmlFieldValue_t 40, FieldValue {
            fieldId 0 = field, scopeId 4 = scope, timestamp 8 = timestamp, latencyUsec 16 = latency,
            valueType 24 = value_type, nvmlReturn 28 = code, value 32 = value
        })
        (nvmlGpmSupport_t 8, GpmSupport { version 0 = version, isSupportedDevice 4 = is_supported })
        (nvmlGpmMetric_t 40, GpmMetric { metricId 0 = metric, nvmlReturn 4 = code, value 8 = value, metricInfo 16 = info })
    };
    assert!(rows.len() >= 30, "{}", rows.len());
    let wrong: Vec<&Row> =
        rows.iter().filter(|(_, wanted, fake, bound)| fake != wanted || bound != wanted).collect();
    assert!(wrong.is_empty(), "name, header, fake, bindings: {wrong:#?}");
}

#[test]
fn the_head_of_a_gpm_request_is_that_of_nvidias_header() {
    use bound::nvmlGpmMetricsGet_t as Request;
    let offsets = [
        offset_of!(Request, version),
        offset_of!(Request, numMetrics),
        offset_of!(Request, sample1),
        offset_of!(Request, sample2),
        offset_of!(Request, metrics),
    ];
    assert_eq!(offsets, [0, 4, 8, 16, 24]);
    assert_eq!(fake_nvml::GPM_REQUEST_OFFSETS, offsets);
}

#[test]
fn codes_and_versions_are_those_of_nvidias_header() {
    use fake_nvml::code;
    for (own, theirs, number) in [
        (code::UNINITIALIZED, bound::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED, 1),
        (code::NOT_SUPPORTED, bound::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, 3),
        (code::NO_PERMISSION, bound::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION, 4),
        (code::NOT_FOUND, bound::nvmlReturn_enum_NVML_ERROR_NOT_FOUND, 6),
        (code::DRIVER_NOT_LOADED, bound::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED, 9),
        (code::GPU_IS_LOST, bound::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST, 15),
        (code::LIB_RM_VERSION_MISMATCH, bound::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18),
        (code::UNKNOWN, bound::nvmlReturn_enum_NVML_ERROR_UNKNOWN, 999),
    ] {
        assert_eq!((own, theirs), (number, number));
    }
    // NVML_STRUCT_VERSION(Memory, 2): the size and the version, in one number that the library checks.
    assert_eq!(size_of::<Memory>() | (2 << 24), 33_554_472);
}
