//! Why a run has failed: an exit code, and one line that names the object and the fix.

use std::{fmt::Display, io, path::Path};

use api::launcher::evaluator::{ExitCode, Message};
use directory::install::Failed;

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) code: ExitCode,
    pub(crate) message: String,
    /// End of the log of the harness.
    tail: Option<String>,
}

impl Fault {
    pub(crate) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), tail: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    #[must_use]
    pub(crate) fn with_tail(self, tail: Option<String>) -> Self {
        Self { tail, ..self }
    }

    /// A step that failed on this machine, and not on the volume.
    pub(crate) fn local(step: &str, object: impl Display, error: &io::Error) -> Self {
        Self::usage(format!("failed to {step} {object}: {error}"))
    }

    /// The program was not copied to where the container of the harness runs it.
    pub(crate) fn of_copy(failed: &Failed) -> Self {
        match failed.error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::new(ExitCode::OutOfSpace, failed.to_string())
            }
            _ => Self::usage(failed.to_string()),
        }
    }

    /// A step that failed on the volume.
    pub(crate) fn volume(step: &str, path: &Path, error: &io::Error) -> Self {
        let failed = format!("cannot {step} {}: {error}", path.display());
        let (code, fix) = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (ExitCode::OutOfSpace, "the claim of the evaluation is full: enlarge it".to_owned())
            }
            io::ErrorKind::PermissionDenied => {
                let user = rustix::process::geteuid().as_raw();
                (
                    ExitCode::VolumeUnusable,
                    format!("the claim must be writable for uid {user} (securityContext.fsGroup)"),
                )
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                (ExitCode::VolumeUnusable, "the claim must not be mounted readOnly".to_owned())
            }
            _ => (ExitCode::VolumeUnusable, "check the claim of the evaluation and its storage".to_owned()),
        };
        Self::new(code, format!("{failed}; {fix}"))
    }

    pub(crate) fn into_message(self) -> Message {
        let Self { code, message, tail } = self;
        Message {
            reason: Some(code.as_reason().to_owned()),
            error: Some(message),
            tail,
            ..Message::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_volume_names_the_object_and_the_fix() {
        let of = |kind| Fault::volume("write", Path::new("/evaluation/x"), &io::Error::from(kind));
        let full = of(io::ErrorKind::StorageFull);
        assert_eq!(full.code, ExitCode::OutOfSpace);
        assert!(
            full.message.contains("/evaluation/x") && full.message.contains("enlarge"),
            "{}",
            full.message
        );
        assert_eq!(of(io::ErrorKind::QuotaExceeded).code, ExitCode::OutOfSpace);
        assert!(of(io::ErrorKind::PermissionDenied).message.contains("fsGroup"));
        assert_eq!(of(io::ErrorKind::Other).code, ExitCode::VolumeUnusable);
        assert_eq!(full.into_message().reason.as_deref(), Some("OutOfSpace"));
    }
}
