//! `cargo xtask setup`: installs what the project needs beside Rust, or names what is missing.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};

use crate::{
    images,
    steps::{cargo, succeed},
};

const CARGO_DENY: &str = "0.20.2";

/// A file or a program on PATH, and the Debian packages that bring it.
type Needed = (&'static str, &'static [&'static str]);

const PROGRAMS: &[Needed] = &[("cc", &["gcc", "libc6-dev"]), ("git", &["git"]), ("python3", &["python3"])];

/// For real nodes.
const FOR_NODES: &[Needed] = &[
    ("ip", &["iproute2"]),
    // For images.
    ("musl-gcc", &["musl-tools"]),
    ("nft", &["nftables"]),
    // For the vector store of a test.
    ("pip3", &["python3-pip"]),
    ("pkg-config", &["pkg-config"]),
    ("unshare", &["util-linux"]),
    ("/usr/include/seccomp.h", &["libseccomp-dev"]),
];

pub(crate) fn run() -> anyhow::Result<()> {
    prepare()?;
    // An error names the Go that is needed if there is none; builds Kubernetes where that has not been done.
    local_cluster::tools::ensure()?;
    local_cluster::tools::ensure_services()?;
    local_cluster::tools::ensure_monitoring()?;
    if local_cluster::real::allowed().is_ok() {
        local_cluster::tools::ensure_nodes()?;
        local_cluster::tools::ensure_chroma()?;
        local_cluster::tools::ensure_gateway()?;
    }
    install_cargo_deny()
}

/// What builds and tests need beside Rust and Go: Debian packages, and Rust's library for static programs.
pub(crate) fn prepare() -> anyhow::Result<()> {
    let has_nodes = local_cluster::real::allowed().is_ok();
    let missing = missing(has_nodes, is_installed);
    if !missing.is_empty() {
        install(&missing, is_root() && is_installed("apt-get"))?;
    }
    if has_nodes {
        images::ensure_target()?;
    }
    Ok(())
}

/// Where `run` has installed it.
pub(crate) fn cargo_deny() -> anyhow::Result<PathBuf> {
    Ok(cargo_deny_root()?.join("bin/cargo-deny"))
}

/// The Debian packages of everything that is not there; those of real nodes only where there can be any.
fn missing(has_nodes: bool, is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let for_nodes: &[Needed] = if has_nodes { FOR_NODES } else { &[] };
    PROGRAMS
        .iter()
        .chain(for_nodes)
        .filter(|(program, _)| !is_installed(program))
        .flat_map(|(_, packages)| *packages)
        .copied()
        .collect()
}

fn install(packages: &[&str], may_install: bool) -> anyhow::Result<()> {
    if !may_install {
        let names = packages.join(" ");
        bail!(
            "missing Debian packages: {names}; install them, for example with: sudo apt-get install {names}"
        );
    }
    succeed(Command::new("apt-get").arg("update"))?;
    succeed(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

fn install_cargo_deny() -> anyhow::Result<()> {
    if cargo_deny()?.exists() {
        return Ok(());
    }
    let root = cargo_deny_root()?;
    eprintln!("installing cargo-deny {CARGO_DENY} (about three minutes)");
    let package = format!("cargo-deny@{CARGO_DENY}");
    let mut install = cargo(["install", "--locked", &package, "--root"]);
    install.arg(&root);
    // A quick build is worth more here than a quick program; and a target folder of its own.
    install.env("CARGO_PROFILE_RELEASE_LTO", "off").env_remove("CARGO_TARGET_DIR");
    succeed(&mut install).context("failed to install cargo-deny")
}

/// Beside the programs of the cluster, in the user's cache folder.
fn cargo_deny_root() -> anyhow::Result<PathBuf> {
    Ok(local_cluster::tools::ensure()?.with_file_name(format!("cargo-deny-{CARGO_DENY}")))
}

/// An absolute path stands for itself.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_machine_with_real_nodes_lacks_everything_and_one_without_only_what_compiles() {
        let nothing = |_: &str| false;
        assert_eq!(missing(false, nothing), ["gcc", "libc6-dev", "git", "python3"]);
        let all = missing(true, nothing);
        for package in ["gcc", "nftables", "iproute2", "musl-tools", "libseccomp-dev"] {
            assert!(all.contains(&package), "{all:?}");
        }
        assert_eq!(missing(true, |_| true), [""; 0]);
    }

    #[test]
    fn one_missing_program_asks_for_its_package_alone() {
        assert_eq!(missing(true, |program| program != "nft"), ["nftables"]);
        assert_eq!(missing(false, |program| program != "nft"), [""; 0]);
    }

    #[test]
    fn who_may_not_install_gets_the_command() {
        let refused = install(&["gcc", "git"], false).unwrap_err().to_string();
        assert!(refused.contains("sudo apt-get install gcc git"), "{refused}");
    }
}
