//! The log of the worker comes out of the monitor with the names of the pool.

use std::fs;

use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};

use crate::checkpoints::{Pod, Storage, until};

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
