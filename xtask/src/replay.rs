//! `cargo xtask replay`: builds the replay of past arrivals and runs it. What it models is in `tests/replay`.

use std::process::Command;

use crate::steps::{PassedOn, cargo, succeed, target_folder, without_cargos_variables};

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    succeed(&mut cargo(["build", "--locked", "--package", "replay"]))?;
    let mut replay = Command::new(target_folder()?.join("debug/replay"));
    without_cargos_variables(&mut replay);
    succeed(replay.args(&args.args))
}
