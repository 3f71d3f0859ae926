//! Copies this program into a folder of the pod, from which the container of the engine runs it: see `pre_stop`.
//!
//! A file with the program's name is complete and executable. It must not change other files of the folder.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use crate::fault::Fault;

const PROGRAM: &str = "model-transfer";
/// The name of an incomplete copy.
const UNFINISHED: &str = ".model-transfer.new";
/// Executable for all users, because the engine may run as another user than the loader.
const MODE: u32 = 0o555;

/// Each run of the loader replaces the copy of the run before.
pub(crate) fn install(folder: &Path) -> Result<(), Fault> {
    let (place, new) = (folder.join(PROGRAM), folder.join(UNFINISHED));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Fault::io("remove", &new)(error));
        }
        Ok(()) | Err(_) => {}
    }
    fs::copy("/proc/self/exe", &new).map_err(Fault::io("copy this program to", &new))?;
    fs::set_permissions(&new, Permissions::from_mode(MODE)).map_err(Fault::io("make executable", &new))?;
    fs::rename(&new, &place).map_err(Fault::io("put in place", &place))?;
    // On a volume mounted with `noexec` the hook would fail, and an engine that serves would be ended at once.
    let ran = Command::new(&place).arg("--version").stdout(Stdio::null()).status();
    let status = ran.map_err(Fault::io("run", &place))?;
    if status.success() {
        Ok(())
    } else {
        Err(Fault::io("run", &place)(io::Error::other(status.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy is this test program, which knows no `--version`.
    #[test]
    fn a_copy_that_does_not_run_is_an_error_before_an_engine_starts() {
        let folder = tempfile::tempdir().unwrap();
        let error = install(folder.path()).unwrap_err();
        assert!(error.to_string().contains("failed to run"), "{error}");
    }
}
