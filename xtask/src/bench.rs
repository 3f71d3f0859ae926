//! `cargo xtask bench`: builds the benches and what they measure, and runs one. What is measured, and how, is in
//! `tests/bench`.

use std::{ffi::OsString, path::Path, process::Command};

use crate::{
    images,
    steps::{PassedOn, cargo, succeed, target_folder, without_cargos_variables},
};

/// etcd and the audit log write there, so that no disk is measured.
const MEMORY: &str = "/dev/shm";

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    // The meter shares the machine with what it measures, so it is a release build itself.
    succeed(&mut cargo(["build", "--release", "--locked", "--package", "bench"]))?;
    let mut bench = Command::new(target_folder()?.join("release/bench"));
    without_cargos_variables(&mut bench);
    if let Some(controller) = measured_controller(&args.args) {
        bench.env("BENCH_CONTROLLER", images::build_released(controller)?);
    }
    if Path::new(MEMORY).is_dir() {
        bench.env("XDG_STATE_HOME", MEMORY);
    }
    succeed(bench.args(&args.args))
}

/// Neither a question for help nor a program that is there already needs a build of several minutes.
fn measured_controller(args: &[OsString]) -> Option<&'static str> {
    let has = |option: &str| args.iter().any(|arg| arg.to_string_lossy().starts_with(option));
    let controllers = [
        ("dispatcher", "dispatcher-controller"),
        ("inference", "inference-controller"),
        ("scaler", "scaler-controller"),
        ("training", "training-controller"),
    ];
    let (_, controller) =
        controllers.into_iter().find(|(bench, _)| args.first().is_some_and(|arg| arg == bench))?;
    (!has("--help") && !has("-h") && !has("--controller")).then_some(controller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_built_only_where_it_is_measured() {
        let measured =
            |args: &[&str]| measured_controller(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(measured(&["inference", "--count", "300"]), Some("inference-controller"));
        assert_eq!(measured(&["scaler"]), Some("scaler-controller"));
        assert_eq!(measured(&["training", "--count=100"]), Some("training-controller"));
        for args in [&["inference", "--controller=old"][..], &["training", "--help"], &["runtime"], &[]] {
            assert_eq!(measured(args), None, "{args:?}");
        }
    }
}
