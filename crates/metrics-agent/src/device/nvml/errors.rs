//! What an error of NVML means: for one reading, for the device, for the whole library. Pure.

use nvml_wrapper::error::NvmlError;
use proto::metrics::v1::FaultReason;

use crate::device::{Fault, Outcome};

/// The fault of a step that failed.
pub(super) fn fault(step: &str, error: &NvmlError) -> Fault {
    Fault::new(reason(error), format!("failed to {step}: {error}"))
}

/// Whether no other function of this device can work either.
pub(super) fn is_of_the_device(error: &NvmlError) -> bool {
    matches!(
        reason(error),
        FaultReason::DeviceLost | FaultReason::DriverChanged | FaultReason::NoDriver | FaultReason::NoLibrary
    )
}

/// What an error makes of one reading.
pub(super) fn outcome(error: &NvmlError) -> Outcome {
    match reason(error) {
        FaultReason::Unsupported => Outcome::Unsupported,
        reason => Outcome::Failed(reason),
    }
}

#[expect(deprecated, reason = "every variant is decided on, those of old drivers too")]
fn reason(error: &NvmlError) -> FaultReason {
    match error {
        NvmlError::NotSupported
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::FunctionNotFound
        | NvmlError::VgpuEccNotSupported => FaultReason::Unsupported,
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => FaultReason::NoLibrary,
        NvmlError::DriverNotLoaded => FaultReason::NoDriver,
        // A library that was initialised, and is not any more: the driver was unloaded under it.
        NvmlError::LibRmVersionMismatch | NvmlError::Uninitialized => FaultReason::DriverChanged,
        NvmlError::NoPermission | NvmlError::OperatingSystem => FaultReason::NoPermission,
        NvmlError::GpuLost | NvmlError::ResetRequired => FaultReason::DeviceLost,
        NvmlError::Timeout => FaultReason::Timeout,
        NvmlError::Utf8Error(_)
        | NvmlError::NulError(_)
        | NvmlError::StringTooLong { .. }
        | NvmlError::IncorrectBits(_)
        | NvmlError::UnexpectedVariant(_)
        | NvmlError::SetReleaseFailed
        | NvmlError::GetPciInfoFailed
        | NvmlError::PciInfoToCFailed
        | NvmlError::InvalidArg
        | NvmlError::AlreadyInitialized
        | NvmlError::NotFound
        | NvmlError::InsufficientSize(_)
        | NvmlError::InsufficientPower
        | NvmlError::IrqIssue
        | NvmlError::CorruptedInfoROM
        | NvmlError::InUse
        | NvmlError::InsufficientMemory
        | NvmlError::NoData
        | NvmlError::Unknown => FaultReason::DriverError,
    }
}
