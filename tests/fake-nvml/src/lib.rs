//! An ABI fake of NVIDIA's library `libnvidia-ml.so.1`: the functions that the metrics-agent calls, with the structs of
//! `nvml.h`, and answers from a file that a test edits while the agent runs.
//!
//! ```text
//! test ── writes State ──▶ file ($FAKE_NVML_STATE) ◀── stat and read at each call ── libfake_nvml.so ◀── dlopen ── agent
//! ```
//!
//! Results of tests that use it rest on an ABI fake, not on a GPU. It shows how the agent uses the interface and what it
//! does with each answer, and nothing about what a driver answers, when, and at what cost. It is in no image. Its structs
//! are its own: `tests/layout.rs` compares them, and those of the bindings, with what a C compiler says of NVIDIA's header.

mod abi;
mod exports;
mod faults;
mod state;

use std::path::{Path, PathBuf};

pub use abi::{
    EventData, FieldValue, GPM_REQUEST_OFFSETS, GpmMetric, GpmSupport, Memory, ProcessInfo, Utilization,
};
pub use state::{Event, Fault, Gpm, Gpu, Partition, Process, State};

/// Environment variable with the path of the file.
pub const STATE_VARIABLE: &str = "FAKE_NVML_STATE";

/// The file that the fake makes when a thread first waits for events of registered GPUs, beside the file of the machine:
/// events that are added after that are delivered.
pub fn waiting(machine: &Path) -> PathBuf {
    machine.with_extension("waiting")
}

/// Codes of `nvmlReturn_t` that tests use.
pub mod code {
    /// `NVML_ERROR_UNINITIALIZED`
    pub const UNINITIALIZED: u32 = 1;
    /// `NVML_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: u32 = 3;
    /// `NVML_ERROR_NO_PERMISSION`
    pub const NO_PERMISSION: u32 = 4;
    /// `NVML_ERROR_NOT_FOUND`
    pub const NOT_FOUND: u32 = 6;
    /// `NVML_ERROR_DRIVER_NOT_LOADED`
    pub const DRIVER_NOT_LOADED: u32 = 9;
    /// `NVML_ERROR_GPU_IS_LOST`
    pub const GPU_IS_LOST: u32 = 15;
    /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    /// `NVML_ERROR_UNKNOWN`
    pub const UNKNOWN: u32 = 999;
}

/// The library, which cargo builds beside the tests of a crate that has this one as a dev-dependency.
pub fn library() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this test");
    let deps = own.ancestors().find(|folder| folder.join("libfake_nvml.so").is_file());
    deps.expect("libfake_nvml.so beside the tests").join("libfake_nvml.so")
}
