//! The control groups of a cluster's nodes: everything that runs in a node is in one of them, so they show what is left
//! of a node whose supervisor is gone.
//!
//! The machine's groups are others' too, and are in one hierarchy (version 2) or in one for each controller (version
//! 1): in each, all groups of this crate are below one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

use crate::{Error, Folder, Result};

const MACHINE: &str = "/sys/fs/cgroup";
/// Of all clusters.
const ROOT_GROUP: &str = "local-cluster";
/// What is in a node and in no pod. In version 2, a group with groups below it has no processes of its own.
const NODE_ITSELF: &str = "node";
const PROCESSES: &str = "cgroup.procs";
/// A group of version 1 takes no process before it has its share of these.
const PROCESSORS: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];
/// Only groups of version 2 have it: what those below may use.
const CONTROLLERS_BELOW: &str = "cgroup.subtree_control";
/// Those that a kubelet asks for.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

const POLL: Duration = Duration::from_millis(20);
/// How often a path is begun anew when another cluster, which ends, removes a part of it.
const ATTEMPTS: u32 = 20;

/// The group of a node, in the form of the kubelet's setting.
pub(crate) fn name(folder: &Folder, node: &str) -> String {
    format!("/{ROOT_GROUP}/{}/{node}", of_cluster(folder))
}

/// Clusters of one name differ by their folders.
fn of_cluster(folder: &Folder) -> String {
    let digest = Sha256::digest(folder.root().as_os_str().as_encoded_bytes());
    let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digest}", folder.name())
}

/// Makes the groups of a node, and moves this process into them; what it starts will be there too.
pub(crate) fn enter(folder: &Folder, node: &str) -> Result<()> {
    let cluster = of_cluster(folder);
    for hierarchy in hierarchies() {
        let node = make(&hierarchy, &[ROOT_GROUP, &cluster, node])?;
        let itself = make(&node, &[NODE_ITSELF])?;
        let processes = itself.join(PROCESSES);
        let pid = std::process::id().to_string();
        fs::write(&processes, pid).map_err(Error::io("move the node to", processes))?;
    }
    Ok(())
}

/// Makes a group and those above it, each with what it may pass on.
fn make(above: &Path, path: &[&str]) -> Result<PathBuf> {
    let mut attempts = 0;
    loop {
        let mut group = above.to_owned();
        let made = path.iter().try_for_each(|below| {
            pass_on_controllers(&group)?;
            let parent = group.clone();
            group.push(below);
            match fs::create_dir(&group) {
                // Nodes are made side by side.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            PROCESSORS.iter().try_for_each(|file| pass_on_processors(&parent.join(file), &group.join(file)))
        });
        attempts += 1;
        match made {
            Ok(()) => return Ok(group),
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS => sleep(POLL),
            Err(error) => return Err(Error::io("make the control group", group)(error)),
        }
    }
}

fn pass_on_controllers(group: &Path) -> io::Result<()> {
    let below = group.join(CONTROLLERS_BELOW);
    if !below.exists() {
        return Ok(());
    }
    let there = fs::read_to_string(group.join("cgroup.controllers"))?;
    for controller in there.split_whitespace().filter(|controller| CONTROLLERS.contains(controller)) {
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

/// Kills what is in a node, waits until it is gone, and removes the groups.
pub(crate) fn clear_node(folder: &Folder, node: &str, within: Duration) -> Result<()> {
    clear(Path::new(&of_cluster(folder)).join(node), within)
}

/// Kills what is in the cluster's nodes, waits until it is gone, and removes the groups.
pub(crate) fn clear_cluster(folder: &Folder, within: Duration) -> Result<()> {
    clear(of_cluster(folder).into(), within)
}

fn clear(groups: PathBuf, within: Duration) -> Result<()> {
    let began = Instant::now();
    for hierarchy in hierarchies() {
        let root = hierarchy.join(ROOT_GROUP);
        let group = root.join(&groups);
        loop {
            kill_all(&group);
            remove_tree(&group);
            if !group.exists() {
                break;
            }
            if began.elapsed() > within {
                return Err(Error::invalid("end", group.display().to_string(), "its processes do not go"));
            }
            sleep(POLL);
        }
        // The last cluster takes it along.
        let _ = fs::remove_dir(root);
    }
    Ok(())
}

/// Those that are on their way out are hit once more, which does not matter.
fn kill_all(group: &Path) {
    for below in folders(group) {
        kill_all(&below);
    }
    let processes = fs::read_to_string(group.join(PROCESSES)).unwrap_or_default();
    for pid in processes.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        // It can only fail because the process has ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The files of a group cannot be removed, only its folder can. A group that is in use stays.
fn remove_tree(group: &Path) {
    for below in folders(group) {
        remove_tree(&below);
    }
    let _ = fs::remove_dir(group);
}

/// Where the machine has its groups: a file shows which version a folder is.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_one_name_in_two_folders_have_groups_of_their_own() {
        let name = |root: &str| name(&Folder::at(root.into()), "real-0");
        assert!(name("/a/dev").starts_with("/local-cluster/dev-"), "{}", name("/a/dev"));
        assert!(name("/a/dev").ends_with("/real-0"));
        assert_ne!(name("/a/dev"), name("/b/dev"));
    }
}
