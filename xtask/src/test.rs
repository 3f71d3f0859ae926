//! `cargo xtask test`: builds the tools and the binaries, then runs every test with cargo's own runner.

use crate::steps::{Steps, build_programs, cargo, succeed};

/// Tests on the real API server wait most of the time: many fit on few cores.
const CLUSTER_TEST_THREADS: &str = "8";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the tests whose names contain one of these
    filters: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::default();
    steps.run("cluster tools", || Ok(local_cluster::tools::ensure().map(drop)?))?;
    steps.run("services", || Ok(local_cluster::tools::ensure_services().map(drop)?))?;
    steps.run("programs", build_programs)?;
    steps
        .run("tests without a cluster", || succeed(cargo(["test", "--locked", "--"]).args(&args.filters)))?;
    steps.run("tests on a cluster", || {
        let mut test = cargo(["test", "--locked", "-p", "tests", "--no-fail-fast", "--"]);
        succeed(test.args(["--test-threads", CLUSTER_TEST_THREADS]).args(&args.filters))
    })?;
    steps.summary();
    Ok(())
}
