//! `cargo xtask ci`: everything that must hold before a change lands, in the order in which it fails fastest.

use crate::{
    setup,
    steps::{Steps, cargo, succeed, workspace},
};

pub(crate) fn run() -> anyhow::Result<()> {
    let mut steps = Steps::default();
    steps.run("setup", setup::run)?;
    steps.run("format", || succeed(&mut cargo(["fmt", "--all", "--check"])))?;
    steps.run("bans, licences, sources", || {
        let mut deny = std::process::Command::new(setup::cargo_deny()?);
        succeed(deny.current_dir(workspace()).args(["--locked", "check", "bans", "licenses", "sources"]))
    })?;
    steps.run("lints", || {
        succeed(&mut cargo(["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    })?;
    steps.run("cargo xtask test", || succeed(&mut cargo(["xtask", "test"])))?;
    steps.run("docs", || {
        let mut doc = cargo(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
        succeed(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    steps.summary();
    Ok(())
}
