//! The file as the functions see it: read again when it has changed, and asked first whether a function fails.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    STATE_VARIABLE,
    abi::{Return, SUCCESS},
    code,
    state::{Fault, Gpu, Partition, State},
    waiting,
};

/// Inode and time of change: a file that was replaced has another inode.
type Version = (u64, i64, i64);

static LAST: Mutex<Option<(Version, Arc<State>)>> = Mutex::new(None);

/// Shows a test that events are waited for.
pub(crate) fn note_waiting() {
    if let Some(machine) = std::env::var_os(STATE_VARIABLE) {
        // A test that needs the file fails without it.
        let _ = fs::write(waiting(machine.as_ref()), "");
    }
}

/// The machine now. A file that cannot be read is one without a driver.
pub(crate) fn state() -> Option<Arc<State>> {
    let path = std::env::var_os(STATE_VARIABLE)?;
    let metadata = fs::metadata(&path).ok()?;
    let version = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, state)) = last.as_ref()
        && *known == version
    {
        return Some(Arc::clone(state));
    }
    let state: Arc<State> = Arc::new(serde_json::from_slice(&fs::read(&path).ok()?).ok()?);
    *last = Some((version, Arc::clone(&state)));
    Some(state)
}

/// The machine, unless the function fails. No lock is held while it sleeps.
pub(crate) fn machine(function: &str) -> Result<Arc<State>, Return> {
    let state = state().ok_or(code::DRIVER_NOT_LOADED)?;
    fail_if_set(&state.faults, function)?;
    Ok(state)
}

/// What a handle stands for. Handles are numbers: the GPU from 1, and above 16 bits the partition from 1.
pub(crate) struct Device {
    pub(crate) state: Arc<State>,
    pub(crate) gpu: usize,
    pub(crate) partition: Option<usize>,
}

impl Device {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.state.gpus[self.gpu]
    }

    pub(crate) fn partition(&self) -> Option<&Partition> {
        self.gpu().partitions.get(self.partition?)?.as_ref()
    }
}

pub(crate) fn handle(gpu: usize, partition: Option<usize>) -> usize {
    (gpu + 1) | partition.map_or(0, |partition| (partition + 1) << 16)
}

/// The device of a handle, unless the function fails for it.
pub(crate) fn device(function: &str, handle: usize) -> Result<Device, Return> {
    let state = machine(function)?;
    let gpu = (handle & 0xffff).wrapping_sub(1);
    let partition = (handle >> 16).checked_sub(1);
    let faults = &state.gpus.get(gpu).ok_or(code::NOT_FOUND)?.faults;
    fail_if_set(faults, "*")?;
    fail_if_set(faults, function)?;
    let device = Device { gpu, partition, state };
    if partition.is_some() && device.partition().is_none() {
        return Err(code::NOT_FOUND);
    }
    Ok(device)
}

fn fail_if_set(faults: &BTreeMap<String, Fault>, function: &str) -> Result<(), Return> {
    let Some(Fault { sleep_ms, code }) = faults.get(function) else { return Ok(()) };
    thread::sleep(Duration::from_millis(*sleep_ms));
    if *code == SUCCESS { Ok(()) } else { Err(*code) }
}
