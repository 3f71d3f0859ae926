//! The log of the worker comes out of the monitor with the names of the pool.

use std::fs;

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
    let line: serde_json::Value = serde_json::from_str(fs::read_to_string(&out).unwrap().trim()).unwrap();
    assert_eq!(line["service.name"], "coder");
    assert_eq!(line["k8s.pod.uid"], "first");
    assert_eq!(line["severityText"], "INFO");
    monitor.stop();
}
