//! The reason of a failed transfer: a cause for the controller and one line for users.
//!
//! It must not contain texts of the store other than error codes, names of objects and values of a fixed format, because
//! they may contain parts of credentials.

use std::{fmt, fs, io, path::Path};

use api::loader::ExitCode;

pub(crate) mod visitor;

/// The cause, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Usage,
    Unauthorized,
    NotFound,
    Unreachable,
    Checksum,
    /// The objects were changed while they were read.
    Changed,
    OutOfSpace,
    /// The model is not the one that the other pods of the revision have loaded.
    OtherModel,
    /// A fault of this machine: permissions, a broken disk.
    Local,
    /// Ended by a signal.
    Stopped,
}

/// The code of faults that are not in the table of [`ExitCode`].
const LOCAL_CODE: u8 = 1;
/// The code by which shells report a process ended by SIGTERM.
const STOPPED_CODE: u8 = 143;

impl Cause {
    fn known(self) -> Option<ExitCode> {
        match self {
            Cause::Usage => Some(ExitCode::Usage),
            Cause::Unauthorized => Some(ExitCode::SourceUnauthorized),
            Cause::NotFound => Some(ExitCode::SourceNotFound),
            Cause::Unreachable => Some(ExitCode::SourceUnreachable),
            Cause::Checksum | Cause::Changed => Some(ExitCode::ChecksumMismatch),
            Cause::OutOfSpace => Some(ExitCode::OutOfSpace),
            Cause::OtherModel => Some(ExitCode::ModelChanged),
            Cause::Local | Cause::Stopped => None,
        }
    }

    pub(crate) fn exit_code(self) -> u8 {
        let otherwise = if self == Cause::Stopped { STOPPED_CODE } else { LOCAL_CODE };
        self.known().map_or(otherwise, |code| code as u8)
    }

    fn name(self) -> &'static str {
        match self {
            Cause::Usage => "Usage",
            Cause::Local => "LocalFault",
            Cause::Stopped => "Stopped",
            Cause::Unauthorized
            | Cause::NotFound
            | Cause::Unreachable
            | Cause::Checksum
            | Cause::Changed
            | Cause::OutOfSpace
            | Cause::OtherModel => self.known().map_or("", ExitCode::reason),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) cause: Cause,
    message: String,
}

impl Fault {
    pub(crate) fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }

    /// Without its cause.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// A failed step on this machine: `failed to {step} {object}: {error}`.
    pub(crate) fn io(step: &'static str, object: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            let object = object.as_ref().display();
            Self::new(local_cause(&error), format!("failed to {step} {object}: {error}"))
        }
    }
}

/// A full disk and a full quota have the same cause.
fn local_cause(error: &io::Error) -> Cause {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Cause::OutOfSpace,
        _ => Cause::Local,
    }
}

/// Writes for the kubelet. Outside a pod the file does not exist, which is not an error.
pub(crate) fn write_termination_log(termination_log: &Path, text: &str) {
    let log = fs::File::options().write(true).truncate(true).open(termination_log);
    let written = log.and_then(|mut log| io::Write::write_all(&mut log, text.as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "failed to write {}", termination_log.display());
    }
}

/// A single line, so that a name chosen by a user cannot imitate another log line, and of bounded length, because the store
/// chooses the names of objects.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The kubelet keeps 4096 bytes of a termination message.
        const LONGEST: usize = 4000;
        let kept = &self.message[..self.message.floor_char_boundary(LONGEST)];
        write!(f, "{}: {}", self.cause.name(), kept.replace(char::is_control, " "))
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn causes_end_with_the_codes_that_the_controller_knows() {
        let codes = [
            (Cause::Usage, 2),
            (Cause::Unauthorized, 10),
            (Cause::NotFound, 11),
            (Cause::Unreachable, 12),
            (Cause::Checksum, 13),
            (Cause::Changed, 13),
            (Cause::OutOfSpace, 14),
            (Cause::OtherModel, 15),
            (Cause::Local, 1),
            (Cause::Stopped, 143),
        ];
        assert_eq!(codes.map(|(cause, _)| cause.exit_code()), codes.map(|(_, code)| code));
    }

    #[test]
    fn a_full_disk_is_out_of_space_and_a_broken_one_is_not() {
        for (errno, cause) in [
            (Errno::NOSPC, Cause::OutOfSpace),
            (Errno::DQUOT, Cause::OutOfSpace),
            (Errno::IO, Cause::Local),
            (Errno::ACCESS, Cause::Local),
        ] {
            assert_eq!(Fault::io("write", "model.bin")(errno.into()).cause, cause, "{errno}");
        }
    }

    #[test]
    fn a_fault_is_cut() {
        let fault = Fault::new(Cause::Checksum, format!("SHA256SUMS lists {:?}", "\u{7f}".repeat(1 << 20)));
        assert!(fault.to_string().len() <= 4096, "what the kubelet keeps of it");
    }

    #[test]
    fn a_fault_is_one_line() {
        let fault = Fault::new(Cause::NotFound, "key \"a\nSourceUnauthorized: b\"");
        assert_eq!(fault.to_string(), "SourceNotFound: key \"a SourceUnauthorized: b\"");
    }
}
