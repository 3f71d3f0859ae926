//! Runs other programs as named steps and reports how long each took.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

/// The steps of one command, with their times.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(String, Duration)>,
    /// With the reasons.
    left_out: Vec<(String, String)>,
}

impl Steps {
    /// Runs a step and fails with its name.
    pub(crate) fn run(
        &mut self,
        name: &str,
        step: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let before: Duration = self.done.iter().map(|(_, took)| *took).sum();
        eprintln!("\n=== {name} (after {} s)", before.as_secs());
        let started = Instant::now();
        let ended = step().with_context(|| format!("step {name:?} failed"));
        self.done.push((name.to_owned(), started.elapsed()));
        if ended.is_err() {
            self.summary();
        }
        ended
    }

    /// A step that cannot be taken here; the summary lists it as not run.
    pub(crate) fn leave_out(&mut self, name: &str, reason: impl std::fmt::Display) {
        self.left_out.push((name.to_owned(), reason.to_string()));
    }

    pub(crate) fn summary(&self) {
        eprintln!("\nseconds  step");
        for (name, took) in &self.done {
            eprintln!("{:7.1}  {name}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        eprintln!("{:7.1}  in all", total.as_secs_f64());
        for (name, reason) in &self.left_out {
            eprintln!("NOT RUN  {name}: {reason}");
        }
    }
}

/// Arguments that a command passes to the program that it builds and runs, `--help` included.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct PassedOn {
    /// Arguments of the program; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<OsString>,
}

/// The cargo that runs this command, in the workspace.
pub(crate) fn cargo<const N: usize>(args: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_cargos_variables(&mut command);
    command.current_dir(workspace()).args(args);
    command
}

/// `cargo run` describes xtask in the environment, and build scripts that look there would run again each time.
pub(crate) fn without_cargos_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let set_by_run = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if set_by_run.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
}

/// Builds the programs that run beside this one: the supervisor of a cluster, and every controller.
pub(crate) fn build_programs() -> anyhow::Result<()> {
    succeed(cargo(["build", "--locked"]).args(programs()))
}

/// Of the cargo command that builds them. With this program among them their dependencies have the features that its own
/// have, and are not built again.
fn programs() -> Vec<&'static str> {
    let mut build = vec!["--package", "xtask", "--package", "local-cluster"];
    for fake in ["fake-kubelet", "fake-monitors", "fake-nvml", "fake-prometheus", "hub-server"] {
        build.extend(["--package", fake]);
    }
    for controller in api::controllers::CONTROLLERS {
        build.extend(["--package", controller.name]);
    }
    for program in api::controllers::NODE_PROGRAMS {
        build.extend(["--package", program.name]);
    }
    build
}

pub(crate) fn workspace() -> &'static Path {
    static WORKSPACE: OnceLock<PathBuf> = OnceLock::new();
    WORKSPACE.get_or_init(|| {
        // Checkouts that share a folder of builds can share this program: what cargo says when it starts it, and not what
        // it said when it built it.
        let xtask =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let xtask = PathBuf::from(xtask);
        xtask.parent().map_or_else(|| xtask.clone(), Path::to_owned)
    })
}

/// Cargo's folder of builds: `debug` and `release` are in it, and in one of them is what runs now.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find the running program")?;
    let target = own.ancestors().nth(2).context("the running program is not in a folder of cargo's")?;
    Ok(target.to_owned())
}

/// Fails unless the program exits with 0.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("failed to start {program}"))?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}

/// What a command prints on standard output.
pub(crate) fn printed(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("failed to start {program}"))?;
    ensure!(output.status.success(), "{program} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn sysroot() -> anyhow::Result<PathBuf> {
    Ok(printed(Command::new("rustc").current_dir(workspace()).args(["--print", "sysroot"]))?.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each package that a selection builds, with its features.
    fn built(selection: &[&str], edges: &str) -> BTreeSet<String> {
        let mut tree =
            cargo(["tree", "--locked", "--prefix", "none", "--format", "{p} {f}", "--edges", edges]);
        let printed = printed(tree.args(selection)).unwrap();
        printed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    }

    /// Otherwise cargo builds hundreds of packages up to four times.
    #[test]
    fn every_selection_has_the_features_of_the_whole_workspace() {
        let all = built(&["--workspace"], "normal,build,dev");
        assert!(all.len() > 300, "{all:?}");
        let selections = [
            ("cargo xtask", built(&["--package", "xtask"], "normal,build")),
            ("programs", built(&programs(), "normal,build")),
            ("cargo test -p tests", built(&["--package", "tests"], "normal,build,dev")),
            ("cargo doc", built(&["--workspace"], "normal,build")),
        ];
        for (selection, built) in selections {
            let other: Vec<&String> = built.difference(&all).collect();
            assert_eq!(other, [""; 0], "{selection}: add their features to tests/features/Cargo.toml");
        }
    }
}
