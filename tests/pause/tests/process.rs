//! The real program: it waits, and ends when it is told to.

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
    until(|| catches_sigterm(pause.0.id()));
    assert_eq!(pause.0.try_wait().unwrap(), None);
    kill_process(Pid::from_child(&pause.0), Signal::TERM).unwrap();
    until(|| pause.0.try_wait().unwrap().is_some());
    assert!(pause.0.wait().unwrap().success());
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
fn catches_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (15 - 1)) != 0
}

fn until(mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        sleep(POLL);
    }
}
