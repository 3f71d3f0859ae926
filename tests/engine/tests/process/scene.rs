//! An engine of a test's own, with a model, a port that the system chose, and the lines that it has written.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Far more than anything here takes; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

pub(crate) const VLLM: &str = "/models --served-model-name=llama --port=0 --shutdown-timeout=20";
pub(crate) const TRITON: &str = "tritonserver --model-repository=/models --http-port=0 --metrics-port=0";
pub(crate) const TGI: &str = "--model-id=/models --port=0 --graceful-termination-timeout=20";

pub(crate) struct Engine {
    child: Child,
    lines: Receiver<String>,
    _model: TempDir,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Engine {
    /// Called as the line says, with a model in the place of `/models`.
    pub(crate) fn start(line: &str, environment: &[(&str, &str)]) -> Self {
        let model = tempfile::tempdir().unwrap();
        std::fs::create_dir(model.path().join("llama")).unwrap();
        std::fs::write(model.path().join("llama/weights"), "abc").unwrap();
        let path = model.path().to_str().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_test-engine"))
            .args(line.split(' ').map(|argument| argument.replace("/models", path)))
            .env("HOSTNAME", "llama-0")
            .env("ENGINE_REVISION", "1")
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in stderr.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        Self { child, lines, _model: model }
    }

    /// The next line, and what is behind these words in it.
    pub(crate) fn says(&self, words: &str) -> String {
        let line = self.lines.recv_timeout(PATIENCE).unwrap();
        let rest = line.strip_prefix(words);
        rest.unwrap_or_else(|| panic!("expected {words:?}..., got {line:?}")).to_owned()
    }

    pub(crate) fn opens_port(&self) -> u16 {
        self.says("open: port ").parse().unwrap()
    }

    /// Of an engine that opens its port when it has read its model.
    pub(crate) fn ready(&self) -> u16 {
        self.says("read ");
        let port = self.opens_port();
        self.says("ready");
        port
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    pub(crate) fn resident_mebibytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        until(|| self.child.try_wait().unwrap())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On a connection of its own.
pub(crate) fn ask(port: u16, request: &str, body: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: engine\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parts = answer
        .split_once("\r\n\r\n")
        .and_then(|(head, body)| Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned())));
    let (status, body) = parts.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok(Answer { status, body })
}

pub(crate) fn status(port: u16, request: &str) -> u16 {
    ask(port, request, "{}").unwrap().status
}

/// For what cannot be watched: the process answers when it is asked, and tells of nothing by itself.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        thread::sleep(POLL);
    }
}
