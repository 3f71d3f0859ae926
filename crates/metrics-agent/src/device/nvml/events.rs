//! Events of NVIDIA's driver: XIDs and ECC errors.
//!
//! A device that refuses its registration is left out; the others are registered. The driver gives the last XID of a
//! device for each event, so of several at once only the last is known.

use std::time::Duration;

use nvml_wrapper::{
    Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError, event::EventSet,
};
use proto::metrics::v1::EventKind;

use super::errors::fault;
use crate::device::{EventQueue, Fault, Happening};

/// XIDs after which the GPU goes on: errors of the application (13, 31, 43, 68), work that was taken off the GPU (45,
/// 109), memory errors that were corrected or recorded (63, 92). NVIDIA's device plugin ignores the same but the last two.
const HARMLESS_XIDS: [u64; 8] = [13, 31, 43, 45, 63, 68, 92, 109];
/// The driver reports an XID that it cannot name.
const UNKNOWN_XID: u64 = 999;

const WANTED: EventTypes = EventTypes::CRITICAL_XID_ERROR
    .union(EventTypes::SINGLE_BIT_ECC_ERROR)
    .union(EventTypes::DOUBLE_BIT_ECC_ERROR);

pub(super) struct Events {
    nvml: &'static Nvml,
    count: u32,
    /// Nothing before the first wait, and after a failure.
    set: Option<EventSet<'static>>,
}

impl Events {
    pub(super) fn new(nvml: &'static Nvml, count: u32) -> Self {
        Self { nvml, count, set: None }
    }
}

impl EventQueue for Events {
    fn next(&mut self, at_most: Duration) -> Result<Option<Happening>, Fault> {
        let set = match self.set.take() {
            Some(set) => set,
            None => {
                registered(self.nvml, self.count).map_err(|error| fault("register for events", &error))?
            }
        };
        let timeout = u32::try_from(at_most.as_millis()).unwrap_or(u32::MAX);
        let happening = match set.wait(timeout) {
            Ok(event) => {
                let device =
                    event.device.uuid().map_err(|error| fault("name the device of an event", &error));
                let kind = kind(event.event_type);
                let code = event.event_data.map(|xid| match xid {
                    XidError::Value(xid) => xid,
                    XidError::Unknown => UNKNOWN_XID,
                });
                // A lost device may not know its own name any more; its event counts all the more.
                let device = device.unwrap_or_default();
                Some(Happening { device, kind, code, is_fatal: is_fatal(kind, code) })
            }
            Err(NvmlError::Timeout) => None,
            // One lost device fails the waits of all: the others are registered again.
            Err(error) => return Err(fault("wait for events", &error)),
        };
        self.set = Some(set);
        Ok(happening)
    }
}

/// A set with all devices that can be registered. A registration that fails destroys the set, so it is begun again
/// without that device.
fn registered(nvml: &'static Nvml, count: u32) -> Result<EventSet<'static>, NvmlError> {
    let mut refused = Vec::new();
    'again: loop {
        let mut set = nvml.create_event_set()?;
        for index in (0..count).filter(|index| !refused.contains(index)).collect::<Vec<_>>() {
            let registered = nvml.device_by_index(index).and_then(|device| {
                let types = device.supported_event_types()? & WANTED;
                Ok((device, types))
            });
            let Ok((device, types)) = registered else {
                refused.push(index);
                continue;
            };
            match device.register_events(types, set) {
                Ok(larger) => set = larger,
                Err(_) => {
                    refused.push(index);
                    continue 'again;
                }
            }
        }
        return Ok(set);
    }
}

fn kind(types: EventTypes) -> EventKind {
    if types.contains(EventTypes::CRITICAL_XID_ERROR) {
        EventKind::DeviceError
    } else if types.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) {
        EventKind::EccUncorrected
    } else if types.contains(EventTypes::SINGLE_BIT_ECC_ERROR) {
        EventKind::EccCorrected
    } else {
        EventKind::Unspecified
    }
}

fn is_fatal(kind: EventKind, code: Option<u64>) -> bool {
    match kind {
        EventKind::DeviceError => !code.is_some_and(|xid| HARMLESS_XIDS.contains(&xid)),
        EventKind::EccUncorrected | EventKind::DeviceLost => true,
        EventKind::EccCorrected | EventKind::DeviceBack | EventKind::Unspecified => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_application_is_not_fatal_and_a_gpu_off_the_bus_is() {
        let fatal = |xid| is_fatal(EventKind::DeviceError, Some(xid));
        assert!(fatal(79) && fatal(48) && fatal(94) && is_fatal(EventKind::DeviceError, None));
        assert!(!fatal(31) && !fatal(45));
        assert!(is_fatal(EventKind::EccUncorrected, None) && !is_fatal(EventKind::EccCorrected, None));
    }
}
