//! `cargo xtask test`: installs what is missing, builds the tools and the programs, then runs every test.

mod beside;

use anyhow::{Context as _, ensure};

use crate::{
    images, setup,
    steps::{Steps, build_programs, cargo, succeed, target_folder},
};

/// Many of them wait for a process or for a deadline. Cargo's default is the number of cores.
const THREADS: usize = 4;
/// With more, two cores are so busy with API servers that monitors and controllers stand still for seconds.
const CLUSTER_TEST_THREADS: usize = 6;
/// Each runs all controllers beside each other.
const EVERY_CONTROLLER_THREADS: usize = 3;
/// On real nodes they run programs, and some of them load those.
const NODE_TEST_THREADS: usize = 4;
/// Test binaries that need no root.
const ANYWHERE: [&str; 4] = ["admit", "e2e", "chaos", "monitoring"];
/// Its tests start a cluster for each controller.
const OF_EVERY_CONTROLLER: &str = "every_controller";
/// The one that does.
const ON_REAL_NODES: &str = "node";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the tests whose names contain one of these
    filters: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::default();
    steps.run("setup", || {
        setup::prepare()?;
        if local_cluster::real::allowed().is_ok() { check_disk() } else { Ok(()) }
    })?;
    steps.run("cluster tools", || Ok(local_cluster::tools::ensure().map(drop)?))?;
    steps.run("services", || Ok(local_cluster::tools::ensure_services().map(drop)?))?;
    steps.run("monitoring tools", || Ok(local_cluster::tools::ensure_monitoring().map(drop)?))?;
    steps.run("programs", build_programs)?;
    steps.run("tests without a cluster", || {
        beside::run(THREADS, &args.filters)?;
        succeed(cargo(["test", "--locked", "--doc", "--"]).args(&args.filters))
    })?;
    steps.run("tests on a cluster", || {
        let binaries = ANYWHERE.iter().flat_map(|name| ["--test", name]);
        let all: Vec<&str> = ["--lib"].into_iter().chain(binaries).collect();
        run_tests(&all, CLUSTER_TEST_THREADS, args)
    })?;
    steps.run("tests of every controller", || {
        run_tests(&["--test", OF_EVERY_CONTROLLER], EVERY_CONTROLLER_THREADS, args)
    })?;
    match local_cluster::real::allowed() {
        Ok(()) => {
            // Setup has installed it, or failed.
            local_cluster::real::check()?;
            steps.run("tools of real nodes", || {
                local_cluster::tools::ensure_chroma()?;
                local_cluster::tools::ensure_gateway()?;
                Ok(local_cluster::tools::ensure_nodes().map(drop)?)
            })?;
            steps.run("images", || images::build_dev().map(drop))?;
            steps.run("tests on real nodes", || {
                run_tests(&["--test", ON_REAL_NODES], NODE_TEST_THREADS, args)
            })?;
        }
        Err(reason) => steps.leave_out("tests on real nodes", reason),
    }
    steps.summary();
    Ok(())
}

/// Real pods share the disk of this machine, and some of their tests fail without room, half an hour later.
fn check_disk() -> anyhow::Result<()> {
    let disk = rustix::fs::statvfs(&target_folder()?).context("failed to ask how full the disk is")?;
    let [free, size] = [disk.f_bavail, disk.f_blocks].map(|blocks| blocks.saturating_mul(disk.f_frsize));
    ensure!(has_room(free, size), "{}", no_room(free, size));
    Ok(())
}

/// Copies of models and states keep 11 % of a disk free that pods share. Programs and images of the tests need some, too.
fn has_room(free: u64, size: u64) -> bool {
    free / 12 >= size / 100
}

fn no_room(free: u64, size: u64) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    let [free, size] = [free, size].map(|bytes| bytes as f64 / GIB);
    let needed = size * 0.12;
    format!(
        "the disk has {free:.1} of {size:.1} GiB free, and tests on real nodes need 12 % of it ({needed:.1} GiB): free some, \
         for example with `cargo clean`"
    )
}

fn run_tests(binaries: &[&str], threads: usize, args: &Args) -> anyhow::Result<()> {
    let mut test = cargo(["test", "--locked", "-p", "tests", "--no-fail-fast"]);
    // The frames of the test harness would bury what a failed test says of the cluster.
    test.env("RUST_BACKTRACE", "0");
    succeed(test.args(binaries).args(["--", "--test-threads", &threads.to_string()]).args(&args.filters))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;
    use crate::steps::workspace;

    #[test]
    fn a_disk_without_room_for_real_pods_is_named_before_the_tests() {
        const GIB: u64 = 1 << 30;
        assert!(has_room(30 * GIB + GIB / 4, 252 * GIB) && !has_room(30 * GIB, 252 * GIB));
        assert!(!has_room(0, 10 * GIB));
        let words = no_room(27 * GIB, 252 * GIB);
        assert!(words.starts_with("the disk has 27.0 of 252.0 GiB free, and "), "{words}");
        assert!(words.contains("12 % of it (30.2 GiB): free some"), "{words}");
    }

    #[test]
    fn every_test_binary_is_run() {
        let manifest = fs::read_to_string(workspace().join("tests/Cargo.toml")).unwrap();
        let (_, targets) = manifest.split_once("[[test]]").unwrap();
        let names = targets.lines().filter_map(|line| line.strip_prefix("name = "));
        let declared: BTreeSet<&str> = names.map(|name| name.trim_matches('"')).collect();
        let run: BTreeSet<&str> = ANYWHERE.into_iter().chain([OF_EVERY_CONTROLLER, ON_REAL_NODES]).collect();
        assert_eq!(declared, run);
    }
}
