//! Exit codes of the model loader: how a pod's init container tells the controller why a model is not there.
//!
//! The loader exits with one, the controller reads it from the container's state. The code says which reason; the
//! termination message says the rest.

use crate::reasons;

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
    use super::ExitCode;

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
