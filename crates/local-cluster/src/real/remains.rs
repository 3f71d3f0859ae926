//! What is left of nodes when their supervisor is gone: first processes on their way out, with everything in them.

use std::{fs, time::Duration};

use rustix::process::Signal;

use crate::{Error, Folder, Result, process::Identity};

/// The first processes of the cluster's nodes, or of one of them. They are known by their arguments, since who started
/// them may be gone.
pub(crate) fn inits(folder: &Folder, node: Option<u32>) -> Vec<Identity> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let root = folder.root().as_os_str().as_encoded_bytes();
    let index = node.map(|index| index.to_string());
    let is_init = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
            let args: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let is_wanted = index.as_ref().is_none_or(|index| args.contains(&index.as_bytes()));
            args.get(1) == Some(&b"node-init".as_slice()) && args.contains(&root) && is_wanted
        })
    };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(is_init).filter_map(Identity::of).collect()
}

/// Kills the nodes that still run, and waits until everything in them is gone: their first process goes last.
pub(crate) fn end(inits: &[Identity], within: Duration) -> Result<()> {
    for init in inits {
        init.signal(Signal::KILL);
    }
    match inits.iter().find(|init| !init.wait_until_gone(within)) {
        Some(init) => Err(Error::invalid(
            "end",
            format!("the node of process {}", init.pid),
            "it did not go after SIGKILL",
        )),
        None => Ok(()),
    }
}
