//! `cargo xtask demo`: builds the demos and runs one. What is shown, and how, is in `tests/demo`.

use std::{ffi::OsString, process::Command};

use crate::steps::{build_programs, cargo, succeed, target_folder, without_cargos_variables, workspace};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Which demo, and its options; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    build_programs()?;
    succeed(&mut cargo(["build", "--locked", "--package", "demo"]))?;
    let mut demo = Command::new(target_folder()?.join("debug/demo"));
    without_cargos_variables(&mut demo);
    succeed(demo.current_dir(workspace()).args(&args.args))
}
