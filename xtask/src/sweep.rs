//! `cargo xtask sweep`: builds what it needs and runs it. What is played, and how, is in `tests/src/sweep.rs`.

use std::ffi::OsString;

use crate::steps::{build_programs, cargo, succeed};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Which controller, `--mode` and `--write`; `--help` explains them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    local_cluster::tools::ensure()?;
    build_programs()?;
    let mut sweep = cargo(["run", "--locked", "--package", "tests", "--example", "sweep", "--"]);
    succeed(sweep.args(&args.args))
}
