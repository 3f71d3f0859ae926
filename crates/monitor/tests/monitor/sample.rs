//! The sample agent in Python (`deploy/samples/agent`) beside the monitor: it follows the whole contract.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    checkpoints::{Pod, QUICK, Storage, until},
    process::PATIENCE,
};

/// As a pod runs it.
struct Agent {
    process: Child,
    port: u16,
    metrics_port: u16,
}

impl Agent {
    fn start(pod: &Pod<'_>, memory: &Path) -> Self {
        let [port, metrics_port] = ports();
        // No environment, no `site`: the standard library alone.
        let process = Command::new("python3")
            .args(["-I", "-S"])
            .arg(sample())
            .env("STATE_DIR", pod.state.path())
            .env("MEMORY_DIR", memory)
            .env("AGENT_PORT", port.to_string())
            .env("AGENT_METRICS_PORT", metrics_port.to_string())
            .env("AGENT_LOG_FILE", log(pod))
            .spawn()
            .expect("python3 is installed");
        let agent = Self { process, port, metrics_port };
        until("the agent listens", || {
            [port, metrics_port].iter().all(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok())
        });
        agent
    }

    fn give(&self, session: &str, text: &str, seconds: f64) {
        let task = json!({"session": session, "text": text, "seconds": seconds}).to_string();
        let request = format!("POST /tasks HTTP/1.0\r\nContent-Length: {}\r\n\r\n{task}", task.len());
        assert!(self.ask(&request).starts_with("HTTP/1.0 202"));
    }

    /// What it holds.
    fn held(&self) -> Value {
        let answer = self.ask("GET / HTTP/1.0\r\n\r\n");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// As a kubelet ends it.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two that are free.
fn ports() -> [u16; 2] {
    let listeners = [(), ()].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn sample() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/samples/agent/agent.py")
}

fn log(pod: &Pod<'_>) -> PathBuf {
    pod.own.path().join("agent.jsonl")
}

#[test]
fn the_sample_in_python_keeps_its_sessions_counts_its_tokens_and_logs_with_the_names_of_the_pool() {
    let storage = Storage::folder();
    let memory = tempfile::tempdir().unwrap();
    fs::write(memory.path().join("memory.jsonl"), "{\"id\": \"a\"}\n{\"id\": \"b\"}\n").unwrap();
    let pod = Pod::new(&storage, "first");
    assert!(pod.load().status.success());
    let agent = Agent::start(&pod, memory.path());
    let log_arg = format!("--log-file={}", log(&pod).display());
    let monitor = pod.run_beside(agent.metrics_port, &[QUICK[0], QUICK[1], &log_arg]);
    agent.give("a", "one two", 0.0);
    agent.give("b", "three", 0.0);
    agent.give("a", "is in hand", 600.0);
    agent.give("a", "waits", 0.0);
    let labels = "{namespace=\"demo\",pool=\"coder\",role=\"coder\",worker=\"coder-1\"}";
    monitor.until(&format!("agent_tokens_total{labels} 3.0"));
    monitor.until(&format!("agent_tasks_in_flight{labels} 1.0"));
    monitor.until(&format!("agent_queue_depth{labels} 1.0"));
    let held = agent.held();
    assert_eq!(held["sessions"], json!({"a": ["one two"], "b": ["three"]}));
    assert_eq!(held["memories"], 2);
    agent.stop();
    let message = monitor.stop();
    assert_eq!((message.tokens, message.error), (3, None));
    let out = fs::read_to_string(pod.own.path().join("stdout")).unwrap();
    let lines: Vec<Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let done = lines.iter().filter(|line| line["body"] == "done" && line["service.name"] == "coder");
    assert_eq!(done.count(), 2, "{out}");

    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    let agent = Agent::start(&next, memory.path());
    let held = agent.held();
    assert_eq!(held["sessions"], json!({"a": ["one two"], "b": ["three"]}));
    let waiting: Vec<&Value> = held["waiting"].as_array().unwrap().iter().map(|task| &task["text"]).collect();
    assert_eq!(waiting, ["is in hand", "waits"]);
}

#[test]
fn the_sample_in_python_is_short() {
    assert!(fs::read_to_string(sample()).unwrap().lines().count() <= 60);
}
