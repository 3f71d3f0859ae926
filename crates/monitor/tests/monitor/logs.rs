//! The log of the worker comes out of the monitor with the names of the pool.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::PathBuf,
    sync::mpsc,
    thread,
};

use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};

use crate::{
    checkpoints::{Pod, QUICK, Storage, until},
    process::{Monitor, PATIENCE},
};

/// Both ends of the pipe, so that the monitor can open it.
fn pipe_as_stdout(pod: &Pod<'_>) -> File {
    let stdout = pod.own.path().join("stdout");
    mkfifoat(CWD, &stdout, Mode::RUSR | Mode::WUSR).unwrap();
    File::options().read(true).write(true).open(&stdout).unwrap()
}

/// The file of the worker's log, and a monitor that reads it.
fn run_with_log(pod: &Pod<'_>) -> (PathBuf, Monitor) {
    let log = pod.own.path().join("agent.jsonl");
    let monitor = pod.run(&[QUICK[0], QUICK[1], &format!("--log-file={}", log.display())]);
    (log, monitor)
}

#[test]
fn the_log_of_the_worker_comes_out_of_the_monitor() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    let log = pod.own.path().join("agent.jsonl");
    let monitor = pod.run(&[&format!("--log-file={}", log.display())]);
    fs::write(&log, "{\"body\": \"hello\", \"severityText\": \"INFO\"}\n").unwrap();
    let out = pod.own.path().join("stdout");
    until("the line", || fs::read_to_string(&out).unwrap().contains("hello"));
    let line: Value = serde_json::from_str(fs::read_to_string(&out).unwrap().trim()).unwrap();
    let expected = json!({
        "body": "hello",
        "severityText": "INFO",
        "service.name": "coder",
        "service.namespace": "demo",
        "service.instance.id": "first",
        "k8s.namespace.name": "demo",
        "k8s.pod.name": "coder-1",
        "k8s.pod.uid": "first",
        "agent.pool": "coder",
        "agent.role": "coder",
        "agent.worker": "coder-1",
    });
    assert_eq!(line, expected);
    monitor.stop();
}

/// As while a container runtime is restarted.
#[test]
fn a_log_that_nobody_reads_delays_neither_heartbeats_nor_the_last_checkpoint() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    // Never read.
    let pipe = pipe_as_stdout(&pod);
    let (log, monitor) = run_with_log(&pod);
    fs::write(&log, "much more than a pipe can take\n".repeat(20_000)).unwrap();
    let heartbeat = storage.pool().join("workers/first/heartbeat");
    let written = || fs::metadata(&heartbeat).unwrap().modified().unwrap();
    for _ in 0..4 {
        let before = written();
        until("the next heartbeat", || written() > before);
    }
    assert_eq!(monitor.page("/livez"), "ok\n");
    pod.write("state", "one");
    pod.end_worker();
    let left = monitor.stop();
    assert!(left.error.is_none() && left.checkpoint.is_some(), "{left:?}");
    drop(pipe);
}

/// More than is passed on at once.
#[test]
fn the_log_is_passed_on_to_its_last_line_after_the_end_of_the_worker() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    let pipe = pipe_as_stdout(&pod);
    let (log, monitor) = run_with_log(&pod);
    let line = format!("{}\n", "x".repeat(1_023));
    fs::write(&log, format!("{}the last line\n", line.repeat(9 << 10))).unwrap();
    pod.end_worker();
    monitor.terminate();
    let (found, is_found) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        if lines.any(|line| line.contains("the last line")) {
            // Fails only if the test has failed.
            let _ = found.send(());
        }
    });
    assert!(monitor.ended().error.is_none());
    is_found.recv_timeout(PATIENCE).expect("the last line");
}

#[test]
fn a_pipe_as_log_or_in_the_state_holds_nothing_up() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    let log = pod.own.path().join("agent.jsonl");
    for pipe in [&log, &pod.state.path().join("pipe")] {
        mkfifoat(CWD, pipe, Mode::RUSR | Mode::WUSR).unwrap();
    }
    let monitor = pod.run(&[&format!("--log-file={}", log.display())]);
    assert_eq!(monitor.page("/livez"), "ok\n");
    assert!(monitor.stop().error.is_none());
}
