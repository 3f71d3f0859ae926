//! A node seen from outside: it is plugged into the hub, then becomes the process that holds its namespaces.

use std::{os::unix::process::CommandExt as _, path::Path, process::Command, time::Duration};

use crate::{
    ClusterSpec, Error, Folder, Result,
    machine::{
        namespaces,
        network::{self, node_name},
    },
};

use super::{control_groups, hub};

/// A node with many containers takes a moment to die.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Runs in the node's network, which is new and empty; returns only if something fails.
///
/// The process stays the same through every step, so what the supervisor watches and kills is the node: `unshare` sees
/// to it that init ends with it, and with init ends everything in the node.
pub fn run(root: &Path, index: u32) -> Error {
    let name = node_name(index);
    match make_place(&Folder::at(root.to_owned()), index, &name) {
        Ok(()) => {}
        Err(error) => return error,
    }
    let own_program = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => return Error::io("find", "the running program")(error),
    };
    let failed = Command::new("unshare")
        .args(["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=SIGKILL", "--mount-proc"])
        .arg(own_program)
        .args(["node-init", "--index", &index.to_string(), "--dir"])
        .arg(root)
        .exec();
    Error::io("start", "unshare")(failed)
}

fn make_place(folder: &Folder, index: u32, name: &str) -> Result<()> {
    // The node as it was before may be on its way out, and hold what it kept on disk.
    control_groups::clear_node(folder, name, ENDS_WITHIN)?;
    let nodes = ClusterSpec::read(folder)?.real.map_or(0, |real| real.count);
    let hub_pid = hub::pid(folder)?;
    let hub_network = namespaces::network_of(hub_pid);
    // The predecessor's cable; that there is none is the usual case.
    let _ = namespaces::within(&hub_network, || network::ip(&network::unplug(name)));
    let plugged = network::ip(&network::plug_in(name, index, nodes, hub_pid))
        .and_then(|()| network::allow_forwarding())
        .and_then(|()| namespaces::within(&hub_network, || network::ip(&network::connect(name, index))));
    plugged.map_err(Error::io("plug in", name))?;
    control_groups::enter(folder, name)
}
