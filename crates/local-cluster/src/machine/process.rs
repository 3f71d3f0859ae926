//! Processes that outlive the one that started them: who they are, and how they are ended without hitting another.
//!
//! A pid alone is not an identity, because pids are reused; a pid with its start time is.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::{files::write_atomically, namespaces};
use crate::{Error, Result};

/// How often a process that is no child of this one is polled; there is nothing to wait on.
const POLL: Duration = Duration::from_millis(20);

/// One process of this machine, now or earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    started: String,
}

impl Identity {
    /// The process that has this pid now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: start_time(pid)? })
    }

    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid).as_deref() == Some(&self.started)
    }

    /// Sends the signal, unless the process is gone and its pid possibly reused.
    pub(crate) fn signal(&self, signal: Signal) {
        if let (true, Some(pid)) = (self.is_alive(), Pid::from_raw(self.pid)) {
            // It can only fail because the process has ended meanwhile, which is no failure.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Blocks until the process is gone; false if it is still there at the deadline.
    pub(crate) fn wait_until_gone(&self, deadline: Duration) -> bool {
        let started = Instant::now();
        while self.is_alive() {
            if started.elapsed() > deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

/// The output of a program that ends soon and prints little; it is killed at the deadline.
pub(crate) fn output_within(command: &mut Command, within: Duration) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        if began.elapsed() > within {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL);
    }
    child.wait_with_output()
}

/// Name under which the supervisor itself stands in the ledger.
pub(crate) const SUPERVISOR: &str = "supervisor";

/// The processes of one cluster, kept in a file so that they can be ended when their supervisor is gone.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    processes: BTreeMap<String, Identity>,
}

impl Ledger {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, processes: BTreeMap::new() }
    }

    /// What a supervisor wrote; nothing if it did not get so far.
    pub(crate) fn read(path: &Path) -> BTreeMap<String, Identity> {
        fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    pub(crate) fn record(&mut self, name: &str, pid: u32) -> Result<()> {
        let identity = i32::try_from(pid).ok().and_then(Identity::of);
        match identity {
            Some(identity) => self.processes.insert(name.to_owned(), identity),
            None => self.processes.remove(name),
        };
        self.write()
    }

    pub(crate) fn forget(&mut self, name: &str) -> Result<()> {
        self.processes.remove(name);
        self.write()
    }

    fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.processes)
            .map_err(|error| Error::invalid("write", self.path.display().to_string(), error))?;
        write_atomically(&self.path, text.as_bytes())
    }
}

/// Which process started which, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Families {
    children: BTreeMap<i32, Vec<i32>>,
}

impl Families {
    /// Where there is no `/proc`, every process seems to be alone.
    pub(crate) fn now() -> Self {
        let mut families = Self::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let parent = pid.and_then(|pid| stat(pid)?.get(1)?.parse().ok());
            if let (Some(pid), Some(parent)) = (pid, parent) {
                families.children.entry(parent).or_default().push(pid);
            }
        }
        families
    }

    /// The process of this name that another one started, or one of those that it started.
    #[cfg(target_os = "linux")]
    pub(crate) fn descendant(&self, pid: i32, name: &str) -> Option<i32> {
        let is_called = |pid: i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let children = self.children.get(&pid)?;
        let child = children.iter().copied().find(|child| is_called(*child));
        child.or_else(|| children.iter().find_map(|child| self.descendant(*child, name)))
    }

    /// Real nodes need Linux.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn descendant(&self, _pid: i32, _name: &str) -> Option<i32> {
        None
    }

    /// Memory of a process and of all that it started, in bytes; what they share is counted for each.
    pub(crate) fn resident_bytes(&self, pid: i32) -> Option<u64> {
        let own = resident_bytes(pid)?;
        let children = self.children.get(&pid).into_iter().flatten();
        Some(own + children.filter_map(|child| self.resident_bytes(*child)).sum::<u64>())
    }
}

/// Resident memory of one process in bytes.
#[cfg(target_os = "linux")]
pub(crate) fn resident_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Resident memory of one process in bytes.
#[cfg(not(target_os = "linux"))]
pub(crate) fn resident_bytes(pid: i32) -> Option<u64> {
    let kibibytes: u64 = ps(pid, "rss=")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// When the process started, in the system's own terms. A zombie counts as gone: it may never be reaped.
#[cfg(target_os = "linux")]
fn start_time(pid: i32) -> Option<String> {
    let fields = stat(pid)?;
    let state = fields.first()?;
    if matches!(state.as_str(), "Z" | "X") {
        return None;
    }
    fields.get(19).cloned()
}

/// The fields of `/proc/PID/stat`, from the state on: parent, group, and so on.
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything, parentheses too.
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// When the process started, in the system's own terms.
#[cfg(not(target_os = "linux"))]
fn start_time(pid: i32) -> Option<String> {
    ps(pid, "lstart=")
}

#[cfg(not(target_os = "linux"))]
fn ps(pid: i32, column: &str) -> Option<String> {
    let output =
        std::process::Command::new("ps").args(["-o", column, "-p", &pid.to_string()]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Makes the system end this process when its parent ends, however that happens, then becomes the program.
///
/// The setting survives `exec`, and between two lines of this function the parent may already be gone, so it is
/// looked at again. Where the system has no such setting, the ledger is what cleans up.
pub(crate) fn become_child_of(
    parent: i32,
    network: Option<&Path>,
    program: &Path,
    args: &[String],
) -> io::Error {
    use std::os::unix::process::CommandExt as _;

    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return io::Error::other("the supervisor is gone");
    }
    if let Some(Err(error)) = network.map(namespaces::enter) {
        return error;
    }
    Command::new(program).args(args).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_pid_and_start_time() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let identity = Identity::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(identity.is_alive());
        let impostor = Identity { started: "0".to_owned(), ..identity.clone() };
        impostor.signal(Signal::KILL);
        assert!(child.try_wait().unwrap().is_none(), "a process with another start time was hit");
        identity.signal(Signal::KILL);
        child.wait().unwrap();
        assert!(!identity.is_alive());
    }

    #[test]
    fn a_dead_child_that_nobody_reaped_is_gone() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let identity = Identity::of(i32::try_from(child.id()).unwrap()).unwrap();
        identity.signal(Signal::KILL);
        assert!(identity.wait_until_gone(Duration::from_secs(5)));
        child.wait().unwrap();
    }

    #[test]
    fn the_ledger_is_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("processes.json");
        let mut ledger = Ledger::new(path.clone());
        ledger.record("self", std::process::id()).unwrap();
        assert!(Ledger::read(&path)["self"].is_alive());
        ledger.forget("self").unwrap();
        assert!(Ledger::read(&path).is_empty());
    }
}
