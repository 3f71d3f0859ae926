//! Files as every part of a cluster writes and reads them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// A folder of the XDG base directory specification.
pub(crate) fn home_folder(variable: &'static str, below_home: &str) -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(variable).or_else(|| set("HOME").map(|home| home.join(below_home))).ok_or(Error::NoHome { variable })
}

/// The last lines of a log, for an error message.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Replaces a file in one step, so that a reader sees the old or the new content and never half of one.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, content).map_err(Error::io("write", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&path, 2), "two\nthree");
    }
}
