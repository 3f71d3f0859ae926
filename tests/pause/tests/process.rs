//! The real program: it waits, waits for processes that it did not start, and ends with a signal.

#![cfg(test)]

use std::{
    fs,
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

#[test]
fn it_waits_until_sigterm_and_ends_well() {
    let mut pause = Pause(Command::new(env!("CARGO_BIN_EXE_pause")).spawn().unwrap());
    until(|| catches(pause.0.id(), Signal::TERM));
    assert_eq!(pause.0.try_wait().unwrap(), None);
    kill_process(Pid::from_child(&pause.0), Signal::TERM).unwrap();
    until(|| pause.0.try_wait().unwrap().is_some());
    assert!(pause.0.wait().unwrap().success());
}

/// As the first process of a pod it gets every process whose parent has ended; one that is not waited for stays as a zombie.
#[test]
fn it_waits_for_processes_that_it_did_not_start() {
    // The shell becomes pause, and what the shell has started its child.
    let script = format!("sleep 600 & sleep 600 & exec {}", env!("CARGO_BIN_EXE_pause"));
    let pause = Pause(Command::new("sh").args(["-c", &script]).spawn().unwrap());
    // A shell may catch the signal, too.
    until(|| program(pause.0.id()) == "pause" && catches(pause.0.id(), Signal::CHILD));
    let children = children(pause.0.id());
    assert_eq!(children.len(), 2);
    for child in children {
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    }
    until(|| self::children(pause.0.id()).is_empty());
}

fn program(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

/// With zombies.
fn children(pid: u32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// Does not outlive a test that fails.
struct Pause(Child);

impl Drop for Pause {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Before that it has not begun to wait.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

fn until(mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        sleep(POLL);
    }
}
