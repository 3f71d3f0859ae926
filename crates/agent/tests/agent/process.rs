//! The worker as a process, and a client.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fake_model::FakeModel;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Agent {
    child: Child,
    pub(crate) tasks: SocketAddr,
    pub(crate) metrics: SocketAddr,
    log: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The output of a task that is done.
    pub(crate) fn output(&self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["output"].as_str().unwrap().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Agent {
    /// With this model and its state in this folder.
    pub(crate) fn start(folder: &Path, model: &FakeModel) -> Self {
        Self::start_with(folder, &[("MODEL_ENDPOINT", &model.url)])
    }

    /// With these variables, which replace the usual ones.
    pub(crate) fn start_with(folder: &Path, variables: &[(&str, &str)]) -> Self {
        let log = folder.join("agent.jsonl");
        let mut child = Command::new(env!("CARGO_BIN_EXE_agent"))
            .env_clear()
            .env("AGENT_ADDRESS", "127.0.0.1")
            .env("AGENT_PORT", "0")
            .env("AGENT_METRICS_PORT", "0")
            .env("AGENT_ROLE", "coder")
            .env("MODEL_REF", "m")
            .env("STATE_DIR", state(folder))
            .env("AGENT_LOG_FILE", &log)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = lines.by_ref().map_while(Result::ok).find(|line| line.contains("listening"));
        let listening: Value = serde_json::from_str(&listening.expect("it listens")).unwrap();
        let address = |name: &str| listening["attributes"][name].as_str().unwrap().parse().unwrap();
        let (tasks, metrics) = (address("tasks"), address("metrics"));
        // Read to the end, so that it never waits for a reader.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Self { child, tasks, metrics, log }
    }

    /// Gives a task, and waits for its end.
    pub(crate) fn ask(&self, session: &str, input: &str) -> Answer {
        self.post(&json!({"session": session, "input": input}))
    }

    pub(crate) fn post(&self, task: &Value) -> Answer {
        request(self.tasks, "POST", "/v1/tasks", &[], &task.to_string())
    }

    pub(crate) fn chat(&self, session: &str, chat: &Value) -> Answer {
        request(self.tasks, "POST", "/v1/chat/completions", &[("x-session", session)], &chat.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        request(self.tasks, "GET", path, &[], "")
    }

    pub(crate) fn metrics(&self) -> String {
        request(self.metrics, "GET", "/metrics", &[], "").body
    }

    /// Waits until the page of metrics has this line.
    pub(crate) fn until(&self, line: &str) {
        until(line, || self.metrics().lines().any(|known| known == line));
    }

    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn ended(&mut self) {
        let mut status = None;
        until("the end of the process", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }

    pub(crate) fn stop(mut self) {
        self.terminate();
        self.ended();
    }

    /// As a kernel ends it that has no memory left.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// STATE_DIR of a worker.
pub(crate) fn state(folder: &Path) -> PathBuf {
    folder.join("state")
}

pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// With HTTP/1.0 the connection ends with the answer.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nhost: test\r\ncontent-length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A server that refuses a body may close before it was sent.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}
