//! `cargo xtask sweep`: builds what it needs and runs it. What is played, and how, is in `tests/src/sweep.rs`.

use std::ffi::OsString;

use crate::steps::{cargo, succeed};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Which controller, `--mode` and `--write`; `--help` explains them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
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
