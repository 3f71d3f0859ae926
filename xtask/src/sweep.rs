//! `cargo xtask sweep`: builds what it needs and runs it. What is played, and how, is in `tests/src/sweep.rs`.

use crate::steps::{PassedOn, cargo, succeed};

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    local_cluster::tools::ensure()?;
    // Hundreds of lives on few cores: programs that are not optimized would take most of the time.
    let mut build = cargo(["build", "--release", "--locked", "--package", "local-cluster"]);
    for controller in api::controllers::CONTROLLERS {
        build.args(["--package", controller.name]);
    }
    succeed(&mut build)?;
    let mut sweep = cargo(["run", "--release", "--locked", "--package", "tests", "--example", "sweep", "--"]);
    succeed(sweep.args(&args.args))
}
