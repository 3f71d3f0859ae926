//! The addresses of a cluster with real nodes, and the commands of `ip` that make its network. Pure but for [`ip`].
//!
//! Every cluster has networks of its own, so all use the same addresses, and none of them is the machine's.

use std::{
    fs,
    io::{self, Write as _},
    net::Ipv4Addr,
    process::{Command, Stdio},
};

/// Where nodes and pods find the API server, names and images.
pub const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const REGISTRY_PORT: u16 = 5000;
/// Every pod of every real node.
pub(crate) const PODS: &str = "10.78.0.0/16";
/// Every simulated pod.
pub(crate) const SIMULATED_PODS: &str = "10.100.0.0/16";
/// More than a machine has memory for, and fewer than there are addresses.
pub(crate) const MOST_NODES: u32 = 50;

const BRIDGE: &str = "bridge";

pub(crate) fn node_address(index: u32) -> Ipv4Addr {
    // Not more than `MOST_NODES` are accepted.
    Ipv4Addr::new(10, 77, 0, u8::try_from(10 + index).unwrap_or(u8::MAX))
}

/// The addresses of the pods of one node.
pub(crate) fn pods_of(index: u32) -> String {
    format!("10.78.{index}.0/24")
}

/// In the hub: the bridge that the nodes are plugged into.
pub(crate) fn make_hub() -> String {
    format!(
        "link set lo up\n\
         link add {BRIDGE} type bridge\n\
         address add {HUB}/24 dev {BRIDGE}\n\
         link set {BRIDGE} up\n"
    )
}

/// In a node: a cable whose other end, named after the node, is in the hub's network; and the way to all others.
pub(crate) fn plug_in(name: &str, index: u32, nodes: u32, hub: i32) -> String {
    let address = node_address(index);
    let mut script = format!(
        "link set lo up\n\
         link add eth0 type veth peer name {name} netns {hub}\n\
         address add {address}/24 dev eth0\n\
         link set eth0 up\n\
         route add default via {HUB}\n"
    );
    for other in (0..nodes).filter(|other| *other != index) {
        script.push_str(&format!("route add {} via {}\n", pods_of(other), node_address(other)));
    }
    script
}

/// In the hub: its end of the cable, and the way to the node's pods.
pub(crate) fn connect(name: &str, index: u32) -> String {
    format!(
        "link set {name} master {BRIDGE}\n\
         link set {name} up\n\
         route replace {} via {}\n",
        pods_of(index),
        node_address(index)
    )
}

/// In the hub: pulls the plug, or puts it in again.
pub(crate) fn set_link(name: &str, up: bool) -> String {
    format!("link set {name} {}\n", if up { "up" } else { "down" })
}

/// In the hub: removes the cable of a node that is gone, whose own end the system may not have removed yet.
pub(crate) fn unplug(name: &str) -> String {
    format!("link delete {name}\n")
}

/// Lets the calling thread's network pass on what is not for itself, as pods behind a node need it.
pub(crate) fn allow_forwarding() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")
}

/// Runs commands of `ip` in the calling thread's network; what it complains about is the error.
pub(crate) fn ip(script: &str) -> io::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// The name of a node: also its host name, and that of its link in the hub.
pub(crate) fn node_name(index: u32) -> String {
    format!("real-{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_reaches_the_pods_of_every_other_one_and_not_its_own_by_a_detour() {
        let script = plug_in("real-1", 1, 3, 42);
        assert!(script.contains("route add 10.78.0.0/24 via 10.77.0.10\n"), "{script}");
        assert!(script.contains("route add 10.78.2.0/24 via 10.77.0.12\n"), "{script}");
        assert!(!script.contains("10.78.1.0/24"), "{script}");
    }

    #[test]
    fn the_last_node_has_an_address_of_its_own() {
        assert_eq!(node_address(MOST_NODES - 1), Ipv4Addr::new(10, 77, 0, 59));
    }
}
