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
pub(crate) const TRITON: &str =
    "tritonserver --model-repository=/models --http-port=0 --grpc-port=0 --metrics-port=0";
pub(crate) const TGI: &str = "--model-id=/models --port=0 --graceful-termination-timeout=20";

/// For vLLM and TGI a model; for Triton one with the name `llama`. A path that ends with a slash is a folder.
pub(crate) const MODEL: &[(&str, &str)] = &[("config.json", "{}"), ("llama/1/weights", "abc")];

pub(crate) struct Engine {
    child: Child,
    /// The engine itself, where the child is its parent.
    pid: Pid,
    lines: Receiver<String>,
    model: TempDir,
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
    /// Called with this command line, with a model in the place of `/models`.
    pub(crate) fn start(line: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_with(MODEL, line, environment)
    }

    /// With these files in the place of `/models`.
    pub(crate) fn start_with(files: &[(&str, &str)], line: &str, environment: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(PROGRAM), files, line, environment)
    }

    /// As the first process of a container. Needs `unshare`, and root or user namespaces.
    pub(crate) fn start_as_first_process(line: &str, environment: &[(&str, &str)]) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child"]);
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.arg(PROGRAM);
        let mut engine = Self::spawn(unshare, MODEL, line, environment);
        let parent = engine.child.id();
        engine.pid = until(|| {
            let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
            Pid::from_raw(children.split_whitespace().next()?.parse().unwrap())
        });
        engine
    }

    fn spawn(mut command: Command, files: &[(&str, &str)], line: &str, environment: &[(&str, &str)]) -> Self {
        let model = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let place = model.path().join(path);
            let folder = if path.ends_with('/') { &place } else { place.parent().unwrap() };
            std::fs::create_dir_all(folder).unwrap();
            if !path.ends_with('/') {
                std::fs::write(place, content).unwrap();
            }
        }
        let path = model.path().to_str().unwrap();
        let mut child = command
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
        Self { pid: Pid::from_child(&child), child, lines, model }
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

    /// Triton's, when it has loaded everything: for requests, and for metrics.
    pub(crate) fn ready_triton(&self) -> (u16, u16) {
        self.says("read ");
        let ports = (self.opens_port(), self.opens_port());
        // Of gRPC.
        self.opens_port();
        self.says("ready");
        ports
    }

    /// The folder in the place of `/models`.
    pub(crate) fn folder(&self) -> String {
        self.model.path().to_str().unwrap().to_owned()
    }

    pub(crate) fn terminate(&self) {
        kill_process(self.pid, Signal::TERM).unwrap();
    }

    /// How it ended, and the lines that were not asked for before.
    pub(crate) fn last_words(&mut self) -> (ExitStatus, Vec<String>) {
        let ended = self.ended();
        (ended, self.lines.iter().collect())
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

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-engine");

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On a connection of its own.
pub(crate) fn ask(port: u16, request: &str, body: &str) -> std::io::Result<Answer> {
    ask_with(port, request, "x-test: 1", body)
}

/// With one more header.
pub(crate) fn ask_with(port: u16, request: &str, header: &str, body: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: engine\r\n{header}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
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

/// A connection that is kept.
pub(crate) struct Kept(TcpStream);

impl Kept {
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// The status of a request without a body, whose answer has none.
    pub(crate) fn status(&mut self, request: &str) -> String {
        write!(self.0, "{request} HTTP/1.1\r\nhost: engine\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    /// Returns when the engine has closed it.
    pub(crate) fn closed(mut self) {
        self.0.read_to_end(&mut Vec::new()).unwrap();
    }
}

/// For what cannot be watched: the process answers requests and sends nothing by itself.
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
