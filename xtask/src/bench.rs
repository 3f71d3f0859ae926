//! `cargo xtask bench`: builds the benches and what they measure, and runs one. What is measured, and how, is in
//! `tests/bench`.

use std::{ffi::OsString, path::Path, process::Command};

use crate::{
    images, replay,
    steps::{PassedOn, cargo, succeed, target_folder, without_cargos_variables},
};

/// etcd and the audit log write there, so that no disk is measured.
const MEMORY: &str = "/dev/shm";

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    if let Some((bench, files)) = args.args.split_first()
        && bench == "scaling-quality"
    {
        return replay::compare_with_goals(files);
    }
    if answers_for_engines(&args.args) {
        local_cluster::own_network::check()?;
    }
    // The meter shares the machine with what it measures, so it is optimized itself.
    succeed(&mut cargo(["build", "--profile", "meter", "--locked", "--package", "bench"]))?;
    let program = target_folder()?.join("meter/bench");
    let mut bench = if answers_for_engines(&args.args) {
        // Nothing can be fetched from there.
        local_cluster::tools::ensure()?;
        local_cluster::own_network::command(&program)
    } else {
        Command::new(program)
    };
    without_cargos_variables(&mut bench);
    if let Some(program) = measured_program(&args.args) {
        bench.env("BENCH_PROGRAM", images::build_released(program)?);
    }
    if Path::new(MEMORY).is_dir() {
        bench.env("XDG_STATE_HOME", MEMORY);
    }
    succeed(bench.args(&args.args))
}

/// Engines of simulated pods are read.
fn answers_for_engines(args: &[OsString]) -> bool {
    let has = |option: &str| args.iter().any(|arg| arg.to_string_lossy().starts_with(option));
    args.first().is_some_and(|arg| arg == "inference") && has("--canaries") && !has("--help")
}

/// Neither a question for help nor a program that is there already needs a build of several minutes.
fn measured_program(args: &[OsString]) -> Option<&'static str> {
    let has = |option: &str| args.iter().any(|arg| arg.to_string_lossy().starts_with(option));
    let programs = [
        ("dispatcher", "dispatcher-controller"),
        ("inference", "inference-controller"),
        ("monitor", "monitor"),
        ("scaler", "scaler-controller"),
        ("training", "training-controller"),
    ];
    let (_, program) =
        programs.into_iter().find(|(bench, _)| args.first().is_some_and(|arg| arg == bench))?;
    (!has("--help") && !has("-h") && !has("--controller") && !has("--program")).then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bench_that_answers_for_engines_has_a_network_apart() {
        let answers =
            |args: &[&str]| answers_for_engines(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(answers(&["inference", "--canaries", "100"]) && answers(&["inference", "--canaries=5"]));
        assert!(
            !answers(&["inference", "--count", "100"]) && !answers(&["inference", "--canaries=5", "--help"])
        );
        assert!(!answers(&["scaler"]) && !answers(&[]));
    }

    #[test]
    fn a_released_program_is_built_only_where_it_is_measured() {
        let measured = |args: &[&str]| measured_program(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(measured(&["inference", "--count", "300"]), Some("inference-controller"));
        assert_eq!(measured(&["scaler"]), Some("scaler-controller"));
        assert_eq!(measured(&["training", "--count=100"]), Some("training-controller"));
        assert_eq!(measured(&["monitor", "--runs=3"]), Some("monitor"));
        for args in [
            &["inference", "--controller=old"][..],
            &["monitor", "--program", "old"],
            &["training", "--help"],
            &["runtime"],
            &[],
        ] {
            assert_eq!(measured(args), None, "{args:?}");
        }
    }
}
