//! The monitor as a process.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use api::monitor::Message;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Monitor {
    child: Child,
    pub(crate) grpc: SocketAddr,
    admin: SocketAddr,
    message: std::path::PathBuf,
}

impl Monitor {
    /// `folder`: the volume of the pod.
    pub(crate) fn start(folder: &Path, worker_port: u16) -> Self {
        Self::start_with(folder, worker_port, "u", &[], &[])
    }

    /// With this uid of the pod, and further options and variables.
    pub(crate) fn start_with(
        folder: &Path,
        worker_port: u16,
        uid: &str,
        args: &[String],
        env: &[(&str, String)],
    ) -> Self {
        let message = folder.join("termination-log");
        fs::write(&message, "").expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_monitor"))
            .args(["run", "--pool=demo/coder", "--role=coder", "--pod-name=coder-1"])
            .arg(format!("--pod-uid={uid}"))
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .args(["--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0"])
            .arg(format!("--worker-port={worker_port}"))
            .arg(format!("--folder={}", folder.display()))
            .arg(format!("--termination-log={}", message.display()))
            .stdout(Stdio::from(File::create(folder.join("stdout")).expect("a file")))
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let listening = lines.by_ref().map_while(Result::ok).find(|line| line.contains("listening"));
        let listening: serde_json::Value =
            serde_json::from_str(&listening.expect("it listens")).expect("JSON");
        let address = |name: &str| listening[name].as_str().and_then(|text| text.parse().ok()).expect(name);
        let (grpc, admin) = (address("grpc"), address("admin"));
        // Read to the end, so that it never waits for a reader.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Self { child, grpc, admin, message }
    }

    /// The body of a page.
    pub(crate) fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).expect("it answers");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    /// Waits until the page of metrics has this line.
    pub(crate) fn until(&self, line: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let page = self.page("/metrics");
            if page.lines().any(|known| known == line) {
                return;
            }
            assert!(Instant::now() < until, "waited in vain for {line}; last seen:\n{page}");
            // It publishes once a second.
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// As a kubelet ends it.
    pub(crate) fn stop(self) -> Message {
        self.terminate();
        self.ended()
    }

    /// As the hook of the sidecar does it.
    pub(crate) fn announce_end(&self) {
        let folder = self.message.parent().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_monitor"));
        let announced = command.arg("announce-end").arg(format!("--folder={}", folder.display())).status();
        assert!(announced.expect("it starts").success());
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// What it leaves.
    pub(crate) fn ended(mut self) -> Message {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("a state") {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "it does not end"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}");
        let text = fs::read_to_string(&self.message).expect("a message");
        serde_json::from_str(&text).expect("JSON")
    }

    /// As a kernel ends it that has no memory left.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("an end");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
    }
}

/// The largest memory that a running process has had; 0 once it has ended. The pages of its file do not count. A program
/// that is built for tests is many times as large as a released one.
pub(crate) fn peak_kibibytes(pid: u32) -> u64 {
    let known = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kibibytes = |name: &str| -> u64 {
        let line = known.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
    };
    kibibytes("VmHWM:").saturating_sub(kibibytes("RssFile:"))
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
