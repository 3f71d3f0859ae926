//! `cargo xtask demo`: builds the demos and runs one. What is shown, and how, is in `tests/demo`.

use std::process::Command;

use crate::steps::{
    PassedOn, build_programs, cargo, succeed, target_folder, without_cargos_variables, workspace,
};

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    build_programs()?;
    succeed(&mut cargo(["build", "--locked", "--package", "demo"]))?;
    let mut demo = Command::new(target_folder()?.join("debug/demo"));
    without_cargos_variables(&mut demo);
    succeed(demo.current_dir(workspace()).args(&args.args))
}
