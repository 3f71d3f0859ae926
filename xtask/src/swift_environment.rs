//! ms-swift with all its packages in a virtual environment, and a model and a dataset for it, in the folder `inputs`:
//! 2.4 GB, in about two minutes. `python.rs` keeps it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::{
    python::{self, Environment, Recipe, Venv, write},
    steps::succeed,
};

/// With their versions.
const REQUIREMENTS: &str = include_str!("swift_environment/requirements.txt");
const MAKE_STUBS: &str = include_str!("swift_environment/make_stubs.py");
const MAKE_INPUTS: &str = include_str!("swift_environment/make_inputs.py");
/// Its dependencies are 3 GB for GPUs.
const TORCH: &str = "torch==2.11.0";

/// Of ms-swift.
pub(crate) fn release() -> &'static str {
    python::version(REQUIREMENTS, "ms_swift")
}

/// Makes what is missing.
pub(crate) fn ensure() -> anyhow::Result<Environment> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the pinned packages are for x86-64, and this is another processor"
    );
    let recipe = Recipe {
        name: "train-demo",
        content: "ms-swift",
        cost: "2.4 GB, about two minutes",
        parts: &[TORCH, REQUIREMENTS, MAKE_STUBS, MAKE_INPUTS],
    };
    python::ensure(&recipe, make)
}

fn make(folder: &Path) -> anyhow::Result<()> {
    let make_stubs = write(folder, "make_stubs.py", MAKE_STUBS)?;
    let make_inputs = write(folder, "make_inputs.py", MAKE_INPUTS)?;
    let venv = Venv::make(folder)?;
    venv.install(&["--no-deps", TORCH])?;
    venv.install_listed(REQUIREMENTS)?;
    succeed(Command::new(venv.python()).arg(make_stubs).arg(packages_of(venv.folder())?))
        .context("failed to make stand-ins for CUDA libraries: are gcc and readelf (binutils) installed?")?;
    succeed(Command::new(venv.python()).arg(make_inputs).arg(folder.join("inputs")))
        .context("failed to make the model and the dataset")
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
    fn every_package_has_one_exact_version() {
        let packages = python::packages(REQUIREMENTS);
        assert!(packages.contains(&"ms_swift"), "{packages:?}");
    }
}
