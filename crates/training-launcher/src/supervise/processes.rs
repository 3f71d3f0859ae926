//! The trainer's processes: all descendants of the launcher, in whichever group or session they are. torchrun starts
//! each rank in a session of its own.
//!
//! It must not signal a process that is not a descendant: a pod may share its process namespace with other containers.

use std::{
    collections::BTreeMap,
    fs, io,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};
use tokio::time::sleep;

/// How long to wait between two looks at processes that end.
const LOOK: Duration = Duration::from_millis(10);
/// A process that starts others may do so between two looks.
const LOOKS: usize = 20;

/// How the trainer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// Orphans become children of the launcher, even if it is not the first process of its namespace.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Waits for all processes that have ended, and returns how the trainer ended, if it has.
pub(crate) fn reap(trainer: Pid) -> Option<Exit> {
    let mut exit = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == trainer {
            exit = exit_of(status);
        }
    }
    exit
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    status.exit_status().map(Exit::Code).or(status.terminating_signal().map(Exit::Signal))
}

/// Sends a signal to each descendant, and to those that start meanwhile.
pub(crate) fn signal_all(signal: Signal) {
    let mut signalled = Vec::new();
    for _ in 0..LOOKS {
        let new: Vec<Pid> = descendants().into_iter().filter(|pid| !signalled.contains(pid)).collect();
        if new.is_empty() {
            return;
        }
        for pid in new {
            // It may have ended by now.
            let _ = kill_process(pid, signal);
            signalled.push(pid);
        }
    }
}

/// Kills all descendants, and waits until none is left. One that hangs in the kernel may outlast the deadline; it ends
/// with the container.
pub(crate) async fn kill_all(trainer: Pid, within: Duration) -> Option<Exit> {
    let deadline = Instant::now() + within;
    let mut exit = None;
    loop {
        exit = exit.or(reap(trainer));
        let left = descendants();
        if left.is_empty() || Instant::now() >= deadline {
            return exit.or(reap(trainer));
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(LOOK).await;
    }
}

/// Without processes that have ended and wait for their parent.
fn descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<(i32, bool)>> = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read(process.path().join("stat")).unwrap_or_default();
        if let Some((parent, has_ended)) = parent(&stat) {
            children.entry(parent).or_default().push((pid, has_ended));
        }
    }
    let mut found = Vec::new();
    let mut next = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = next.pop() {
        for (pid, has_ended) in children.remove(&parent).unwrap_or_default() {
            next.push(pid);
            if !has_ended {
                found.extend(Pid::from_raw(pid));
            }
        }
    }
    found
}

/// The parent of a process, and whether it has ended, by its `stat`: `pid (name) state parent …`. A name may have any
/// bytes.
fn parent(stat: &[u8]) -> Option<(i32, bool)> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    Some((fields.next()?.parse().ok()?, has_ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent(b"12 (swift) S 7 12 12"), Some((7, false)));
        assert_eq!(parent(b"12 (a) Z 1 \xff)) Z 8 12 12"), Some((8, true)));
        assert_eq!(parent(b""), None);
    }
}
