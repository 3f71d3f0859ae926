//! `cargo xtask bench`: builds the benches and runs one. What is measured, and how, is in `tests/bench`.

use std::{ffi::OsString, process::Command};

use crate::steps::{cargo, succeed, target_folder, without_cargos_variables};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Which bench, and its options; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

#[cfg(test)]
impl Args {
    pub(crate) fn args(&self) -> &[OsString] {
        &self.args
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // The meter shares the machine with what it measures, so it is a release build itself.
    succeed(&mut cargo(["build", "--release", "--locked", "--package", "bench"]))?;
    let mut bench = Command::new(target_folder()?.join("release/bench"));
    without_cargos_variables(&mut bench);
    succeed(bench.args(&args.args))
}
