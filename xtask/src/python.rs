//! Virtual environments of Python, each made once for its list of packages and its Python, in the user's cache folder.
#![expect(clippy::print_stdout, reason = "the user of the command waits for minutes, and sees what for")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::steps::succeed;

/// Some of the pinned packages are built with them.
const BUILD_TOOLS: [&str; 2] = ["setuptools==81.0.0", "wheel==0.48.0"];
/// The pinned packages need it.
const OLDEST_PYTHON: (u32, u32) = (3, 11);
/// Written last, so that a folder with it is whole.
const COMPLETE: &str = "complete";

/// What programs of Python need, as folders of this machine that everyone may read.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Where Python is installed. Its libraries are there or below `/usr`.
    pub(crate) python: PathBuf,
    /// Has the folder `venv`.
    pub(crate) folder: PathBuf,
}

impl Environment {
    /// A program of the virtual environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("venv/bin").join(name)
    }
}

/// What an environment is made from.
pub(crate) struct Recipe<'a> {
    /// Begin of the name of its folder.
    pub(crate) name: &'a str,
    /// What it has, for messages.
    pub(crate) content: &'a str,
    /// Space and time, for messages.
    pub(crate) cost: &'a str,
    /// Everything that decides on its content, beside Python.
    pub(crate) parts: &'a [&'a str],
}

/// Makes the environment, unless it is there.
pub(crate) fn ensure(
    recipe: &Recipe<'_>,
    make: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Environment> {
    let Recipe { name, content, cost, parts } = recipe;
    let python = Python::find()?;
    let folder = local_cluster::tools::cache()?.join(format!("{name}-{}", fingerprint(&python, parts)));
    let environment = Environment { python: python.prefix, folder };
    let folder = &environment.folder;
    if folder.join(COMPLETE).is_file() {
        println!("{content} and its packages are in {}", folder.display());
        return Ok(environment);
    }
    let began = Instant::now();
    eprintln!("installs {content} and its packages into {} ({cost})", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    make(folder)?;
    write(folder, COMPLETE, "")?;
    println!("installed {content} and its packages in {:.0} s", began.elapsed().as_secs_f64());
    Ok(environment)
}

/// The virtual environment of a folder.
pub(crate) struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// Has the tools that build packages. Scripts in it name its folder, so it is made in its place.
    pub(crate) fn make(folder: &Path) -> anyhow::Result<Self> {
        let venv = Self { folder: folder.join("venv") };
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv.folder)).context(
            "failed to make a virtual environment: does python3 have the module venv (python3-venv)?",
        )?;
        venv.install(&BUILD_TOOLS)?;
        Ok(venv)
    }

    pub(crate) fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// `pip` finds the packages where it is configured to look.
    pub(crate) fn install(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(arguments);
        succeed(&mut pip).with_context(|| format!("pip failed to install {}", arguments.join(" ")))
    }

    /// Packages that are listed with all that they need.
    pub(crate) fn install_listed(&self, requirements: &str) -> anyhow::Result<()> {
        let file = write(&self.folder, "requirements.txt", requirements)?;
        self.install(&["--no-deps", "--no-build-isolation", "--requirement", &file.to_string_lossy()])
    }
}

pub(crate) fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

/// Of a package in a list of exact versions.
pub(crate) fn version<'t>(requirements: &'t str, package: &str) -> &'t str {
    let mut lines = requirements.lines().filter_map(|line| line.split_once("=="));
    lines.find(|(name, _)| *name == package).map_or("of unknown version", |(_, version)| version)
}

/// The interpreter on PATH.
#[derive(Debug)]
struct Python {
    version: String,
    prefix: PathBuf,
}

impl Python {
    fn find() -> anyhow::Result<Self> {
        let program = "import sys; print(sys.version.split()[0], sys.base_prefix)";
        let output = Command::new("python3").args(["-c", program]).output();
        let output =
            output.context("failed to start python3: install it, for example the package python3-venv")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (version, prefix) = text.trim().split_once(' ').context("python3 does not say what it is")?;
        if numbers(version) < Some(OLDEST_PYTHON) {
            let (major, minor) = OLDEST_PYTHON;
            bail!("python3 on PATH is {version}, and the packages need {major}.{minor} or newer");
        }
        Ok(Self { version: version.to_owned(), prefix: prefix.into() })
    }
}

/// Major and minor version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Changes with everything that the folder is made from.
fn fingerprint(python: &Python, parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    let prefix = python.prefix.to_string_lossy();
    for part in [&python.version, &*prefix].iter().chain(&BUILD_TOOLS).chain(parts) {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The packages of a list, each of which must have one exact version.
#[cfg(test)]
pub(crate) fn packages(requirements: &str) -> Vec<&str> {
    let lines = requirements.lines().filter(|line| !line.starts_with('#'));
    let packages: Vec<&str> = lines.map(|line| line.split_once("==").unwrap().0).collect();
    let mut distinct = packages.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), packages.len());
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("3.9.18") < Some(OLDEST_PYTHON) && numbers("2.7") < Some(OLDEST_PYTHON));
        assert!(numbers("3.11.7") >= Some(OLDEST_PYTHON) && numbers("3.13.0rc1") >= Some(OLDEST_PYTHON));
        assert_eq!(numbers("unknown"), None);
    }

    #[test]
    fn the_version_of_a_package_is_that_of_its_own_line() {
        let requirements = "# a\nevalscope-more==2\nevalscope==1.10.0\n";
        assert_eq!(version(requirements, "evalscope"), "1.10.0");
        assert_eq!(version(requirements, "scope"), "of unknown version");
    }
}
