//! ms-swift with all its packages in a virtual environment, and a model and a dataset for it. Made once for each list of
//! packages and each Python, in the user's cache folder: 2.4 GB, in about two minutes.
#![expect(clippy::print_stdout, reason = "the user of the command waits for minutes, and sees what for")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::steps::succeed;

/// With their versions; `pip` finds them where it is configured to look.
const REQUIREMENTS: &str = include_str!("swift_environment/requirements.txt");
const MAKE_STUBS: &str = include_str!("swift_environment/make_stubs.py");
const MAKE_INPUTS: &str = include_str!("swift_environment/make_inputs.py");
/// Packages of `REQUIREMENTS` are built with them.
const BUILD_TOOLS: [&str; 2] = ["setuptools==81.0.0", "wheel==0.48.0"];
/// Its dependencies are 3 GB for GPUs.
const TORCH: &str = "torch==2.11.0";
/// The pinned packages need it.
const OLDEST_PYTHON: (u32, u32) = (3, 11);
/// Written last, so that a folder with it is whole.
const COMPLETE: &str = "complete";

/// What a trainer needs, as folders of this machine that everyone may read.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Where Python is installed. Its libraries are there or below `/usr`.
    pub(crate) python: PathBuf,
    /// Has the folders `venv` and `inputs`.
    pub(crate) folder: PathBuf,
}

impl Environment {
    /// A program of the virtual environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("venv/bin").join(name)
    }
}

/// Of ms-swift.
pub(crate) fn release() -> &'static str {
    REQUIREMENTS.lines().find_map(|line| line.strip_prefix("ms_swift==")).unwrap_or("of unknown version")
}

/// Makes what is missing.
pub(crate) fn ensure() -> anyhow::Result<Environment> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the pinned packages are for x86-64, and this is another processor"
    );
    let python = Python::find()?;
    let folder =
        local_cluster::tools::ensure()?.with_file_name(format!("train-demo-{}", fingerprint(&python)));
    let environment = Environment { python: python.prefix, folder };
    if environment.folder.join(COMPLETE).is_file() {
        println!("ms-swift and its packages are in {}", environment.folder.display());
        return Ok(environment);
    }
    let began = Instant::now();
    eprintln!(
        "installs ms-swift and its packages into {} (2.4 GB, about two minutes)",
        environment.folder.display()
    );
    make(&environment.folder)?;
    println!("installed ms-swift and its packages in {:.0} s", began.elapsed().as_secs_f64());
    Ok(environment)
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
fn fingerprint(python: &Python) -> String {
    let mut hash = Sha256::new();
    let prefix = python.prefix.to_string_lossy();
    let [setuptools, wheel] = BUILD_TOOLS;
    for part in [&python.version, &*prefix, setuptools, wheel, TORCH, REQUIREMENTS, MAKE_STUBS, MAKE_INPUTS] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Scripts in an environment name its folder, so it is made in its place.
fn make(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display())).map(|()| path)
    };
    let requirements = write("requirements.txt", REQUIREMENTS)?;
    let (make_stubs, make_inputs) =
        (write("make_stubs.py", MAKE_STUBS)?, write("make_inputs.py", MAKE_INPUTS)?);

    let venv = folder.join("venv");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        .context("failed to make a virtual environment: does python3 have the module venv (python3-venv)?")?;
    let python = venv.join("bin/python");
    let install = |more: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(more);
        succeed(&mut pip).with_context(|| format!("pip failed to install {}", more.join(" ")))
    };
    install(&BUILD_TOOLS)?;
    install(&["--no-deps", TORCH])?;
    install(&["--no-deps", "--no-build-isolation", "--requirement", &requirements.to_string_lossy()])?;
    succeed(Command::new(&python).arg(make_stubs).arg(packages_of(&venv)?))
        .context("failed to make stand-ins for CUDA libraries: are gcc and readelf (binutils) installed?")?;
    succeed(Command::new(&python).arg(make_inputs).arg(folder.join("inputs")))
        .context("failed to make the model and the dataset")?;
    write(COMPLETE, "").map(drop)
}

/// `lib/python3.X/site-packages`.
fn packages_of(venv: &Path) -> anyhow::Result<PathBuf> {
    let lib = venv.join("lib");
    let entries = fs::read_dir(&lib).with_context(|| format!("failed to read {}", lib.display()))?;
    let mut packages = entries.flatten().map(|entry| entry.path().join("site-packages"));
    packages.find(|packages| packages.is_dir()).with_context(|| format!("no packages in {}", lib.display()))
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
    fn every_package_has_one_exact_version() {
        let lines = REQUIREMENTS.lines().filter(|line| !line.starts_with('#'));
        let packages: Vec<&str> = lines.map(|line| line.split_once("==").unwrap().0).collect();
        assert!(packages.contains(&"ms_swift"), "{packages:?}");
        let mut distinct = packages.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), packages.len());
    }
}
