//! Copies the running program into a folder of its pod, from which another container runs it.

use std::{
    fmt,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Executable for all users, because the containers of a pod may run as different users.
const MODE: u32 = 0o555;

/// Why there is no copy.
#[derive(Debug)]
pub struct Failed {
    /// What has failed, such as `make executable`.
    pub step: &'static str,
    pub path: PathBuf,
    pub error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to {} {}: {}", self.step, self.path.display(), self.error)
    }
}

impl std::error::Error for Failed {}

/// Each run replaces the copy of the run before. A file with the name `program` is complete and executable. It must not
/// change other files of the folder.
pub fn install(folder: &Path, program: &str) -> Result<(), Failed> {
    let (place, new) = (folder.join(program), folder.join(format!(".{program}.new")));
    let failed = |step, path: &Path| {
        let path = path.to_owned();
        move |error| Failed { step, path, error }
    };
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &new)(error)),
        Ok(()) | Err(_) => {}
    }
    fs::copy("/proc/self/exe", &new).map_err(failed("copy this program to", &new))?;
    fs::set_permissions(&new, Permissions::from_mode(MODE)).map_err(failed("make executable", &new))?;
    fs::rename(&new, &place).map_err(failed("put in place", &place))?;
    // On a volume mounted with `noexec` the other container would fail without a reason.
    let ran = Command::new(&place).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = ran.map_err(failed("run", &place))?;
    if status.success() { Ok(()) } else { Err(failed("run", &place)(io::Error::other(status.to_string()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy is this test program, which knows no `--version`.
    #[test]
    fn a_copy_that_does_not_run_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let failed = install(folder.path(), "program").unwrap_err();
        assert_eq!((failed.step, failed.path), ("run", folder.path().join("program")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no incomplete copy is left");
    }
}
