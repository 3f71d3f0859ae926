//! The agent as a process of a test, the file of its machine, and a subscriber.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use fake_nvml::State as Machine;
use proto::metrics::v1::{
    Metric, Reading, Snapshot, State, Subject, SubscribeRequest, metrics_client::MetricsClient,
};
use tonic::{Streaming, transport::Channel};

/// Far longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Between looks at a file that another process makes.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// An agent that ends with this value.
pub(crate) struct Agent {
    process: Child,
    log: Arc<Log>,
    pub(crate) grpc: SocketAddr,
    admin: SocketAddr,
    folder: tempfile::TempDir,
}

/// What the agent has written.
#[derive(Default)]
struct Log {
    written: Mutex<Written>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Written {
    lines: Vec<String>,
    /// The process has ended.
    is_closed: bool,
}

impl Log {
    fn change(&self, change: impl FnOnce(&mut Written)) {
        change(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn until<T>(&self, what: &str, mut look: impl FnMut(&Written) -> Option<T>) -> T {
        let mut found = None;
        let written = self.written.lock().unwrap();
        let (written, _) = self
            .changed
            .wait_timeout_while(written, PATIENCE, |written| {
                found = look(written);
                found.is_none()
            })
            .unwrap();
        found.unwrap_or_else(|| panic!("{what}: {written:#?}"))
    }
}

/// What a test gives to an agent.
pub(crate) struct Start {
    machine: Option<Machine>,
    args: Vec<String>,
    library: PathBuf,
}

impl Start {
    /// On the ABI fake, five readings a second, each with time enough for a busy machine.
    pub(crate) fn on(machine: Machine) -> Self {
        Self {
            machine: Some(machine),
            args: ["--interval=0.2", "--read-within=0.15", "--listen=127.0.0.1:0"]
                .map(str::to_owned)
                .to_vec(),
            library: fake_nvml::library(),
        }
    }

    /// One reading a second with 0.9 s for it, so that a stall of the machine does not make a reading late.
    pub(crate) fn with_slow_ticks(self) -> Self {
        self.with("--interval=1").with("--read-within=0.9")
    }

    /// Without a library.
    pub(crate) fn without_library() -> Self {
        Self {
            library: "/nonexistent/libnvidia-ml.so.1".into(),
            machine: None,
            ..Self::on(Machine::default())
        }
    }

    pub(crate) fn library(mut self, library: &str) -> Self {
        self.library = library.into();
        self
    }

    /// Replaces an argument of the same name.
    pub(crate) fn with(mut self, arg: impl Into<String>) -> Self {
        let arg = arg.into();
        let name = arg.split('=').next().unwrap_or_default().to_owned();
        self.args.retain(|given| given.split('=').next() != Some(&name));
        self.args.push(arg);
        self
    }

    pub(crate) fn start(self) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        if let Some(machine) = &self.machine {
            machine.write(&folder.path().join("machine.json")).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_metrics-agent"));
        command
            .args(["--admin-address=127.0.0.1:0", "--node-name=node-1"])
            .arg(format!("--nvml-library={}", self.library.display()))
            .args(&self.args)
            .env(fake_nvml::STATE_VARIABLE, folder.path().join("machine.json"))
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let log = Arc::<Log>::default();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let lines = Arc::clone(&log);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.change(|written| written.lines.push(line));
            }
            lines.change(|written| written.is_closed = true);
        });
        let mut agent = Agent {
            process,
            log,
            grpc: ([127, 0, 0, 1], 0).into(),
            admin: ([127, 0, 0, 1], 0).into(),
            folder,
        };
        let line = agent.says("\"message\":\"listening\"");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| line[name].as_str().unwrap().parse().unwrap();
        (agent.grpc, agent.admin) = (address("grpc"), address("admin"));
        agent
    }
}

impl Agent {
    /// Changes the machine under the running agent.
    pub(crate) fn machine_becomes(&self, machine: &Machine) {
        machine.write(&self.folder.path().join("machine.json")).unwrap();
    }

    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        let written = self.log.written.lock().unwrap();
        written.lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// The first line of the log with this text.
    pub(crate) fn says(&self, text: &str) -> String {
        self.log.until(&format!("no line with {text:?}"), |written| {
            written.lines.iter().find(|line| line.contains(text)).cloned()
        })
    }

    /// Waits until the agent waits for events: those that the machine has from then on are delivered.
    pub(crate) fn awaits_events(&self) {
        let (marker, until) =
            (fake_nvml::waiting(&self.folder.path().join("machine.json")), Instant::now() + PATIENCE);
        while !marker.exists() {
            assert!(Instant::now() < until, "it waits for no events");
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    pub(crate) async fn subscribe(&self) -> Subscriber {
        let channel = Channel::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap();
        Subscriber::of(channel).await.unwrap()
    }

    /// The body of a page of the admin server, and whether its status is 200.
    pub(crate) fn page(&self, path: &str) -> (bool, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.starts_with("HTTP/1.1 200"), body.to_owned())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    pub(crate) fn ends(&mut self) -> ExitStatus {
        self.log.until("it does not end", |written| written.is_closed.then_some(()));
        self.process.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("{:#?}", self.log.written.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// A stream of snapshots.
pub(crate) struct Subscriber(Streaming<Snapshot>);

impl Subscriber {
    pub(crate) async fn of(channel: Channel) -> Result<Self, tonic::Status> {
        let request = SubscribeRequest { subscriber: "test".to_owned(), min_interval: None };
        Ok(Self(MetricsClient::new(channel).subscribe(request).await?.into_inner()))
    }

    pub(crate) async fn next(&mut self) -> Snapshot {
        let next = tokio::time::timeout(PATIENCE, self.0.message()).await.expect("a snapshot in time");
        next.expect("a stream").expect("a snapshot")
    }

    /// How the stream ends.
    pub(crate) async fn end(&mut self) -> tonic::Status {
        loop {
            match tokio::time::timeout(PATIENCE, self.0.message()).await.expect("an end in time") {
                Ok(Some(_)) => {}
                Ok(None) => return tonic::Status::ok(""),
                Err(status) => return status,
            }
        }
    }

    /// The first snapshot of which this is true.
    pub(crate) async fn until(&mut self, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let until = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.next().await;
            if is_so(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < until, "the last snapshot: {snapshot:#?}");
        }
    }
}

pub(crate) fn subject<'a>(snapshot: &'a Snapshot, id: &str) -> &'a Subject {
    let found = snapshot.subjects.iter().find(|subject| subject.id == id);
    found.unwrap_or_else(|| panic!("no subject {id} in {snapshot:#?}"))
}

pub(crate) fn reading(subject: &Subject, metric: Metric) -> &Reading {
    let found = subject.readings.iter().find(|reading| reading.metric() == metric);
    found.unwrap_or_else(|| panic!("no {metric:?} in {subject:#?}"))
}

/// Whether the utilisation of the n-th device is in this state.
pub(crate) fn is(snapshot: &Snapshot, device: usize, state: State) -> bool {
    snapshot.subjects.get(device).is_some_and(|subject| {
        let mut readings = subject.readings.iter();
        readings.any(|reading| reading.metric() == Metric::Utilization && reading.state() == state)
    })
}
