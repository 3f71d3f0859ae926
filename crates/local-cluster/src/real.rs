//! Real nodes: kubelets that run containers, each on a machine of namespaces, in a network that only the cluster sees.
//!
//! ```text
//!  machine               hub: a network              real-0: network, processes, mounts, names
//!  127.0.0.1:P ── relay ──▶ kube-apiserver :P          init ─┬─ containerd ─ runc ─ pods 10.78.0.0/24
//!                        │  coredns, registry   eth0         ├─ kubelet
//!                        ╰─ bridge 10.77.0.1 ─── 10.77.0.10 ─╯  kube-proxy
//! ```
//!
//! Nothing of this has a name on the machine: no namespace is mounted, no link, address or route is in its own network.
//! The hub's network lives as long as the hub's process. A node lives as long as its init: with it end all processes,
//! mounts and links of the node. So a SIGKILL of any part leaves files and empty control groups. The next command removes
//! them, or the end of the cluster. Clusters do not see each other and all use the same addresses.

pub(crate) mod control_groups;
pub(crate) mod gpus;
pub(crate) mod hub;
pub(crate) mod images;
mod init;
mod node;
mod relay;
pub(crate) mod settings;

pub use self::{
    hub::run as hold_network, init::run as run_node, node::run as become_node, relay::run as relay,
    settings::REAL_LABEL,
};

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// What is called on the machine, and the Debian package that brings it.
const PROGRAMS: [(&str, &str); 3] = [("ip", "iproute2"), ("nft", "nftables"), ("unshare", "util-linux")];

/// The folder of a node's kubelet as the node sees it; on other machines it is /var/lib/kubelet.
pub fn kubelet_folder() -> PathBuf {
    Path::new(init::PLACE).join(settings::KUBELET_FOLDER)
}

/// Whether this machine and this user may have real nodes at all.
pub fn allowed() -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    refused(cfg!(target_os = "linux"), is_root, has_capabilities()).map_or(Ok(()), no_nodes)
}

/// Whether real nodes can be started now; the error names what is missing.
pub fn check() -> Result<()> {
    allowed()?;
    missing(is_installed).map_or(Ok(()), no_nodes)
}

fn no_nodes(reason: String) -> Result<()> {
    Err(Error::NoRealNodes { reason })
}

fn refused(is_linux: bool, is_root: bool, has_capabilities: bool) -> Option<String> {
    let reason = match (is_linux, is_root, has_capabilities) {
        (true, true, true) => return None,
        (false, _, _) => "they need Linux; leave --real-nodes out, and nodes are simulated",
        (true, false, _) => "they need root, because each is made of namespaces: run the command as root",
        (true, true, false) => {
            "they need the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN, which this root does not have: run the command \
             outside of a container, or in a privileged one"
        }
    };
    Some(reason.to_owned())
}

/// Namespaces, mounts and links need them; root in a container often has neither.
#[cfg(target_os = "linux")]
fn has_capabilities() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};

    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

#[cfg(not(target_os = "linux"))]
fn has_capabilities() -> bool {
    false
}

fn missing(is_installed: impl Fn(&str) -> bool) -> Option<String> {
    let packages: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !is_installed(program)).map(|(_, package)| *package).collect();
    let names = packages.join(" ");
    (!packages.is_empty()).then(|| format!("install {names}, for example with: apt-get install {names}"))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| Path::new(&folder).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_fix() {
        assert_eq!((refused(true, true, true), missing(|_| true)), (None, None));
        let reasons = [
            (refused(false, true, true), "leave --real-nodes out"),
            (refused(true, false, false), "run the command as root"),
            (refused(true, true, false), "CAP_SYS_ADMIN"),
            (missing(|program| program == "unshare"), "apt-get install iproute2 nftables"),
        ];
        for (reason, fix) in reasons {
            assert!(reason.as_ref().is_some_and(|reason| reason.contains(fix)), "{reason:?}");
        }
    }
}
