//! What controllers and the model loader agree on: its options, how long it waits, and its exit codes.
//!
//! A controller gives the options to a pod's init container. The loader exits with a code, which the controller reads from
//! the container's state: it says why a model is not there. The termination message says the rest.

use std::time::Duration;

use crate::reasons;

/// Names of the options that controllers give, without their dashes.
pub mod options {
    pub const ADDRESSING: &str = "addressing";
    pub const CA_FILE: &str = "ca-file";
    pub const ENGINE: &str = "engine";
    pub const INSTALL: &str = "install";
    pub const MANIFEST_DIGEST: &str = "manifest-digest";
    pub const NO_SYNC: &str = "no-sync";
    pub const ROOT: &str = "root";
    pub const SIZE_LIMIT: &str = "size-limit";
}

/// Seconds until a transfer is given up.
pub const TIMEOUT: Setting = Setting { variable: "TRANSFER_TIMEOUT_SECONDS", default: 3_600 };
/// Seconds to wait, without any progress, for a store that does not answer or for a fault to be mended.
pub const PATIENCE: Setting = Setting { variable: "TRANSFER_PATIENCE_SECONDS", default: 180 };
/// Seconds without a byte after which a request is sent anew.
pub const STALL: Setting = Setting { variable: "TRANSFER_STALL_SECONDS", default: 30 };
/// The loader waits no longer at a time before it looks again.
pub const LONGEST_STEP: Duration = Duration::from_secs(30);

/// A number of seconds, and the environment variable that sets it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub variable: &'static str,
    pub default: u64,
}

/// What the last request and the end of the process may take in addition.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Whatever is set: a controller waits for this time.
const LONGEST: Duration = Duration::from_secs(86_400);

/// How long the loader waits with this `PATIENCE` and this `TIMEOUT`. Shorter than the whole time: a time-out that came
/// first would not say what was waited for.
pub fn patience(patience: Duration, timeout: Duration) -> Duration {
    patience.min(timeout / 4 * 3)
}

/// After how long a run of the loader that still meets the fault of the run before has ended. `value`: seconds that a
/// variable is set to, if it is set.
pub fn stall_timeout(value: impl Fn(&str) -> Option<u64>) -> Duration {
    let [timeout, waits, stall] = [TIMEOUT, PATIENCE, STALL]
        .map(|setting| Duration::from_secs(value(setting.variable).unwrap_or(setting.default)));
    // The patience may end within a wait, after which there is one more request.
    let last = LONGEST_STEP.saturating_add(stall);
    patience(waits, timeout).saturating_add(last).min(timeout).saturating_add(ENDS_WITHIN).min(LONGEST)
}

/// Why the loader gave up. The numbers are contract between images of different releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The command line or the environment of the loader is wrong: a fault of the controller, not of the user.
    Usage = 2,
    SourceUnauthorized = 10,
    SourceNotFound = 11,
    SourceUnreachable = 12,
    ChecksumMismatch = 13,
    OutOfSpace = 14,
}

impl ExitCode {
    pub const ALL: [ExitCode; 6] = [
        ExitCode::Usage,
        ExitCode::SourceUnauthorized,
        ExitCode::SourceNotFound,
        ExitCode::SourceUnreachable,
        ExitCode::ChecksumMismatch,
        ExitCode::OutOfSpace,
    ];

    /// The exit code of a terminated container, if it is one of the loader's own.
    pub fn from_code(code: i32) -> Option<ExitCode> {
        ExitCode::ALL.into_iter().find(|known| known.code() == code)
    }

    /// As a container state shows it.
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    /// Reason of `ModelLoaded=False`. A usage error has none of its own: the container just crashes.
    pub fn reason(self) -> &'static str {
        match self {
            ExitCode::Usage => reasons::CRASH_LOOP,
            ExitCode::SourceUnauthorized => reasons::SOURCE_UNAUTHORIZED,
            ExitCode::SourceNotFound => reasons::SOURCE_NOT_FOUND,
            ExitCode::SourceUnreachable => reasons::SOURCE_UNREACHABLE,
            ExitCode::ChecksumMismatch => reasons::CHECKSUM_MISMATCH,
            ExitCode::OutOfSpace => reasons::OUT_OF_SPACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_gives_up_after_its_patience_one_more_wait_and_one_more_request() {
        let within = |set: &[(&str, u64)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            stall_timeout(value).as_secs()
        };
        assert_eq!(within(&[]), 180 + 30 + 30 + 10);
        assert_eq!(within(&[("TRANSFER_PATIENCE_SECONDS", 600)]), 600 + 30 + 30 + 10);
        assert_eq!(within(&[("TRANSFER_STALL_SECONDS", 60)]), 180 + 30 + 60 + 10);
        assert_eq!(within(&[("TRANSFER_TIMEOUT_SECONDS", 60)]), 60 + 10, "the time-out comes first");
        let endless = [("TRANSFER_PATIENCE_SECONDS", u64::MAX), ("TRANSFER_TIMEOUT_SECONDS", u64::MAX)];
        assert_eq!(within(&endless), 86_400);
    }

    #[test]
    fn patience_ends_before_the_time_does() {
        let of = |timeout| patience(Duration::from_secs(180), Duration::from_secs(timeout)).as_secs();
        assert_eq!([of(3_600), of(240), of(60)], [180, 180, 45]);
    }

    #[test]
    fn every_exit_code_is_read_back_and_others_are_not_ours() {
        for known in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(known.code()), Some(known));
        }
        for foreign in [0, 1, 9, 15, 137, 143, -1] {
            assert_eq!(ExitCode::from_code(foreign), None);
        }
    }
}
