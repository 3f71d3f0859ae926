//! The one function that the bindings declare and do not wrap: the number of a MIG instance on its GPU.

use nvml_wrapper::Device as Handle;

/// `NVML_SUCCESS`
const SUCCESS: u32 = 0;

/// By it GPM samples an instance, and some device plugins name it. `None` where the library does not say.
#[expect(unsafe_code, reason = "nvmlDeviceGetGpuInstanceId is not wrapped")]
pub(super) fn gpu_instance(handle: &Handle<'_>) -> Option<u32> {
    let function = handle.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    let mut instance = 0;
    // SAFETY: the handle belongs to this library and is valid as long as it is loaded; the function writes one number.
    let code = unsafe { function(handle.handle(), &raw mut instance) };
    (code == SUCCESS).then_some(instance)
}
