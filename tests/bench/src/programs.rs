//! The programs that are measured: built by the cargo that built this one, and found where it puts them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

/// `cargo build` with these arguments, in the workspace.
pub(crate) fn build(args: &[&str]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    succeed(Command::new(cargo).current_dir(workspace()).args(["build", "--locked"]).args(args))
}

/// Cargo's folder of builds: `debug` and `release` are in it, and in one of them is what runs now.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let target = own.ancestors().nth(2).context("this program is not in a folder of cargo's")?;
    Ok(target.to_owned())
}

pub(crate) fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// Fails unless the program exits with 0.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("failed to start {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}
