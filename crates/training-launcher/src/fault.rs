//! An error of the launcher itself: its exit code and one line that names the object and the fix.

use std::{fmt::Display, io, path::Path};

use api::launcher::ExitCode;
use directory::install::Failed;

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) code: ExitCode,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// A step that failed on this machine, and not in the output folder.
    pub(crate) fn local(step: &str, object: impl Display, error: &io::Error) -> Self {
        Self::usage(format!("failed to {step} {object}: {error}"))
    }

    /// The program was not copied to where the trainer's container runs it.
    pub(crate) fn of_copy(failed: &Failed) -> Self {
        match failed.error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::new(ExitCode::OutOfSpace, failed.to_string())
            }
            _ => Self::usage(failed.to_string()),
        }
    }

    /// A step that failed in the output folder.
    pub(crate) fn output(step: &str, path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        let failed = format!("cannot {step} {path}: {error}");
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::new(
                ExitCode::OutOfSpace,
                format!("{failed}; the claim of the output is full: enlarge it"),
            ),
            io::ErrorKind::PermissionDenied => {
                let user = rustix::process::geteuid().as_raw();
                let fix = format!("the claim must be writable for uid {user} (securityContext.fsGroup)");
                Self::new(ExitCode::OutputUnusable, format!("{failed}; {fix}"))
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::new(
                ExitCode::OutputUnusable,
                format!("{failed}; the claim must not be mounted readOnly"),
            ),
            _ => {
                let fix = "check the claim of the output and its storage";
                Self::new(ExitCode::OutputUnusable, format!("{failed}; {fix}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_object_and_the_fix() {
        let of = |kind| Fault::output("write", Path::new("/output/m.json"), &io::Error::from(kind));
        let full = of(io::ErrorKind::StorageFull);
        assert_eq!(full.code, ExitCode::OutOfSpace);
        assert!(
            full.message.contains("/output/m.json") && full.message.contains("enlarge"),
            "{}",
            full.message
        );
        assert_eq!(of(io::ErrorKind::QuotaExceeded).code, ExitCode::OutOfSpace);
        let denied = of(io::ErrorKind::PermissionDenied);
        assert_eq!(denied.code, ExitCode::OutputUnusable);
        assert!(denied.message.contains("securityContext.fsGroup"), "{}", denied.message);
        assert!(of(io::ErrorKind::ReadOnlyFilesystem).message.contains("readOnly"));
    }
}
