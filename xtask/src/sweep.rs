//! `cargo xtask sweep`: builds what it needs and runs it. What is played, and how, is in `tests/src/sweep.rs`.

use anyhow::bail;
use api::controllers::CONTROLLERS;

use crate::steps::{PassedOn, cargo, succeed};

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    // Before minutes are spent on builds.
    if let Some(name) = args.args.first().filter(|arg| !arg.to_string_lossy().starts_with('-'))
        && !CONTROLLERS.iter().any(|controller| name == controller.name)
    {
        let known: Vec<&str> = CONTROLLERS.iter().map(|controller| controller.name).collect();
        bail!("there is no controller {}; there are: {}", name.to_string_lossy(), known.join(", "));
    }
    local_cluster::tools::ensure()?;
    // Hundreds of lives on few cores: programs that are not optimized would take most of the time.
    let mut build = cargo(["build", "--release", "--locked", "--package", "local-cluster"]);
    for controller in CONTROLLERS {
        build.args(["--package", controller.name]);
    }
    succeed(&mut build)?;
    let mut sweep = cargo(["run", "--release", "--locked", "--package", "tests", "--example", "sweep", "--"]);
    succeed(sweep.args(&args.args))
}
