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

const PROGRAMS: &[Needed] = &[("cc", &["gcc", "libc6-dev"]), ("git", &["git"])];

/// For real nodes, which only root can have.
const FOR_NODES: &[Needed] = &[
    ("ip", &["iproute2"]),
    // For images.
    ("musl-gcc", &["musl-tools"]),
    ("nft", &["nftables"]),
    ("pkg-config", &["pkg-config"]),
    ("unshare", &["util-linux"]),
    ("/usr/include/seccomp.h", &["libseccomp-dev"]),
];

pub(crate) fn run() -> anyhow::Result<()> {
    debian_packages()?;
    // Says which Go is needed if there is none, and builds Kubernetes where that has not been done.
    local_cluster::tools::ensure()?;
    local_cluster::tools::ensure_services()?;
    if has_nodes() {
        images::ensure_target()?;
        local_cluster::tools::ensure_nodes()?;
    }
    install_cargo_deny()
}

/// Where `run` has installed it.
pub(crate) fn cargo_deny() -> anyhow::Result<PathBuf> {
    Ok(cargo_deny_root()?.join("bin/cargo-deny"))
}

fn debian_packages() -> anyhow::Result<()> {
    let for_nodes: &[Needed] = if has_nodes() { FOR_NODES } else { &[] };
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .chain(for_nodes)
        .filter(|(program, _)| !is_installed(program))
        .flat_map(|(_, packages)| *packages)
        .copied()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !is_root() || !is_installed("apt-get") {
        bail!(
            "missing Debian packages: {names}; install them, for example with: sudo apt-get install {names}"
        );
    }
    succeed(Command::new("apt-get").arg("update"))?;
    succeed(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends"]).args(missing))
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

fn has_nodes() -> bool {
    cfg!(target_os = "linux") && is_root()
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
