/* Prints what tests/layout.rs holds. Not compiled by cargo: nvml.h is not in this repository.
 *
 * From NVIDIA's archive cuda_nvml_dev-linux-x86_64-13.4.92 (also pkg/nvml/nvml.h of github.com/NVIDIA/go-nvml
 * v0.13.4-1):  cc -I FOLDER_OF_NVML_H layout.c -o layout && ./layout */
#include <stddef.h>
#include <stdio.h>
#include "nvml.h"

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type));
#define AT(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(type, field));

int main(void) {
    SIZE(nvmlUtilization_t)
    AT(nvmlUtilization_t, gpu) AT(nvmlUtilization_t, memory)
    SIZE(nvmlMemory_v2_t)
    AT(nvmlMemory_v2_t, version) AT(nvmlMemory_v2_t, total) AT(nvmlMemory_v2_t, reserved)
    AT(nvmlMemory_v2_t, free) AT(nvmlMemory_v2_t, used)
    SIZE(nvmlEventData_t)
    AT(nvmlEventData_t, device) AT(nvmlEventData_t, eventType) AT(nvmlEventData_t, eventData)
    AT(nvmlEventData_t, gpuInstanceId) AT(nvmlEventData_t, computeInstanceId)
    SIZE(nvmlProcessInfo_t)
    AT(nvmlProcessInfo_t, pid) AT(nvmlProcessInfo_t, usedGpuMemory) AT(nvmlProcessInfo_t, gpuInstanceId)
    AT(nvmlProcessInfo_t, computeInstanceId)
    SIZE(nvmlFieldValue_t)
    AT(nvmlFieldValue_t, fieldId) AT(nvmlFieldValue_t, scopeId) AT(nvmlFieldValue_t, timestamp)
    AT(nvmlFieldValue_t, latencyUsec) AT(nvmlFieldValue_t, valueType) AT(nvmlFieldValue_t, nvmlReturn)
    AT(nvmlFieldValue_t, value)
    SIZE(nvmlGpmSupport_t)
    AT(nvmlGpmSupport_t, version) AT(nvmlGpmSupport_t, isSupportedDevice)
    SIZE(nvmlGpmMetric_t)
    AT(nvmlGpmMetric_t, metricId) AT(nvmlGpmMetric_t, nvmlReturn) AT(nvmlGpmMetric_t, value)
    AT(nvmlGpmMetric_t, metricInfo)
    AT(nvmlGpmMetricsGet_t, version) AT(nvmlGpmMetricsGet_t, numMetrics) AT(nvmlGpmMetricsGet_t, sample1)
    AT(nvmlGpmMetricsGet_t, sample2) AT(nvmlGpmMetricsGet_t, metrics)
    printf("nvmlMemory_v2 %u\n", nvmlMemory_v2);
    return 0;
}
