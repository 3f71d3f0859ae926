//! `cargo xtask demo`: builds the demos and runs one. What is shown, and how, is in `tests/demo`.

use std::{ffi::OsStr, process::Command};

use crate::{
    images,
    steps::{PassedOn, build_programs, cargo, succeed, target_folder, without_cargos_variables, workspace},
};

/// The one that runs containers.
const ON_REAL_NODES: &str = "canary";
/// The one that answers for the engines of simulated pods.
const IN_OWN_NETWORK: &str = "scaling";
/// What needs no cluster.
const WITHOUT_A_CLUSTER: [&str; 2] = ["--draw", "--help"];

pub(crate) fn run(args: &PassedOn) -> anyhow::Result<()> {
    let needs_images = has_cluster(ON_REAL_NODES, &args.args);
    if needs_images {
        // Before minutes are spent on builds.
        local_cluster::real::check()?;
    }
    let is_apart = has_cluster(IN_OWN_NETWORK, &args.args);
    if is_apart {
        local_cluster::own_network::check()?;
    }
    build_programs()?;
    succeed(&mut cargo(["build", "--locked", "--package", "demo"]))?;
    let program = target_folder()?.join("debug/demo");
    let mut demo = if is_apart {
        // Nothing can be fetched from there.
        local_cluster::tools::ensure()?;
        local_cluster::own_network::command(&program)
    } else {
        Command::new(program)
    };
    without_cargos_variables(&mut demo);
    demo.current_dir(workspace()).args(&args.args);
    if needs_images {
        demo.arg("--images").arg(images::build_dev()?.path);
    }
    succeed(&mut demo)
}

/// Whether this demo is played, and not only drawn.
fn has_cluster<Arg: AsRef<OsStr>>(demo: &str, args: &[Arg]) -> bool {
    let Some((first, others)) = args.split_first() else { return false };
    let is_quick = |arg: &Arg| WITHOUT_A_CLUSTER.iter().any(|known| arg.as_ref() == *known);
    first.as_ref() == demo && !others.iter().any(is_quick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_demo_on_real_nodes_builds_images_and_not_to_draw() {
        let needs_images = |args: &[&str]| has_cluster(ON_REAL_NODES, args);
        assert!(needs_images(&["canary"]) && needs_images(&["canary", "--out", "docs"]));
        for args in
            [&["node-death"][..], &["canary", "--draw", "docs/canary.json"], &["canary", "--help"], &[]]
        {
            assert!(!needs_images(args), "{args:?}");
        }
    }
}
