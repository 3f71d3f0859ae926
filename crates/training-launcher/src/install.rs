//! Copies this program into a folder of the pod, from which the trainer's container runs it.
//!
//! A file with the program's name is complete and executable. It must not change other files of the folder.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use api::launcher::{ExitCode, PROGRAM};

use crate::fault::Fault;

/// The name of an incomplete copy.
const UNFINISHED: &str = ".training-launcher.new";
/// Executable for all users, because the trainer may run as another user than the init container.
const MODE: u32 = 0o555;

/// Each run of the init container replaces the copy of the run before.
pub(crate) fn install(folder: &Path) -> Result<(), Fault> {
    let (place, new) = (folder.join(PROGRAM), folder.join(UNFINISHED));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &new, &error)),
        Ok(()) | Err(_) => {}
    }
    fs::copy("/proc/self/exe", &new).map_err(|error| failed("copy this program to", &new, &error))?;
    fs::set_permissions(&new, Permissions::from_mode(MODE))
        .map_err(|error| failed("make executable", &new, &error))?;
    fs::rename(&new, &place).map_err(|error| failed("put in place", &place, &error))?;
    // On a volume mounted with `noexec` the trainer's container would fail without a reason.
    let ran = Command::new(&place).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = ran.map_err(|error| failed("run", &place, &error))?;
    if status.success() { Ok(()) } else { Err(failed("run", &place, &io::Error::other(status.to_string()))) }
}

fn failed(step: &str, path: &Path, error: &io::Error) -> Fault {
    let message = format!("failed to {step} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Fault::new(ExitCode::OutOfSpace, message)
        }
        _ => Fault::usage(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy is this test program, which knows no `--version`.
    #[test]
    fn a_copy_that_does_not_run_is_an_error_before_a_trainer_starts() {
        let folder = tempfile::tempdir().unwrap();
        let error = install(folder.path()).unwrap_err();
        assert!(error.message.contains("failed to run"), "{}", error.message);
    }
}
