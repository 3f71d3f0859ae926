//! The control group of a node: made before its kubelet asks for it, removed when the node is gone.
//!
//! The machine's groups are others' too, and are in one hierarchy (version 2) or in one for each controller (version 1):
//! in each, everything of ours is below one group.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const MACHINE: &str = "/sys/fs/cgroup";
/// Of all clusters.
const OURS: &str = "local-cluster";
/// A group of version 1 takes no process before it has its share of these.
const PROCESSORS: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];
/// Only groups of version 2 have it: what those below may use.
const CONTROLLERS_BELOW: &str = "cgroup.subtree_control";

/// As the kubelet wants it told.
pub(crate) fn name(cluster: &str, node: &str) -> String {
    format!("/{OURS}/{cluster}/{node}")
}

/// Makes the group of a node in every hierarchy.
pub(crate) fn make(cluster: &str, node: &str) -> io::Result<()> {
    for hierarchy in hierarchies() {
        let mut group = hierarchy;
        for below in [OURS, cluster, node] {
            pass_on_controllers(&group)?;
            let parent = group.clone();
            group.push(below);
            if !group.exists() {
                fs::create_dir(&group)?;
            }
            for file in PROCESSORS.map(|file| (parent.join(file), group.join(file))) {
                pass_on_processors(&file.0, &file.1)?;
            }
        }
        pass_on_controllers(&group)?;
    }
    Ok(())
}

fn pass_on_controllers(group: &Path) -> io::Result<()> {
    let below = group.join(CONTROLLERS_BELOW);
    if !below.exists() {
        return Ok(());
    }
    for controller in fs::read_to_string(group.join("cgroup.controllers"))?.split_whitespace() {
        fs::write(&below, format!("+{controller}"))?;
    }
    Ok(())
}

fn pass_on_processors(from: &Path, to: &Path) -> io::Result<()> {
    // In version 2 an empty share means the parent's.
    let is_first_version = from.exists() && !from.with_file_name(CONTROLLERS_BELOW).exists();
    if is_first_version && fs::read_to_string(to)?.trim().is_empty() {
        fs::write(to, fs::read(from)?)?;
    }
    Ok(())
}

/// Removes the groups of a cluster's nodes, whose processes must be gone. What cannot be removed is in use, and so not
/// ours.
pub(crate) fn remove(cluster: &str) {
    for hierarchy in hierarchies() {
        let ours = hierarchy.join(OURS);
        remove_tree(&ours.join(cluster));
        // The last cluster takes it along.
        let _ = fs::remove_dir(ours);
    }
}

/// A group is a folder of files that nobody can remove, and need not.
fn remove_tree(group: &Path) {
    for below in folders(group) {
        remove_tree(&below);
    }
    let _ = fs::remove_dir(group);
}

/// Where the machine has its groups: a file says which version a folder is.
fn hierarchies() -> Vec<PathBuf> {
    let machine = PathBuf::from(MACHINE);
    if machine.join("cgroup.controllers").exists() {
        return vec![machine];
    }
    folders(&machine)
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    // Not the links: `cpu` may be another name of `cpu,cpuacct`.
    let folder =
        |entry: fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path());
    entries.filter_map(|entry| entry.ok().and_then(folder)).collect()
}
