//! `cargo xtask replay`: builds the replay of past arrivals and runs it. What it models is in `tests/replay`.

use std::{ffi::OsString, process::Command};

use crate::steps::{PassedOn, cargo, succeed, target_folder, without_cargos_variables};

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    replay(&args.args)
}

/// `files`: arrivals, as `FILE:TIMES`; without any, those of its own.
pub(crate) fn compare_with_goals(files: &[OsString]) -> anyhow::Result<()> {
    let quality = OsString::from("--quality");
    replay(&[std::slice::from_ref(&quality), files].concat())
}

fn replay(args: &[OsString]) -> anyhow::Result<()> {
    succeed(&mut cargo(["build", "--locked", "--package", "replay"]))?;
    let mut replay = Command::new(target_folder()?.join("debug/replay"));
    without_cargos_variables(&mut replay);
    succeed(replay.args(args))
}
