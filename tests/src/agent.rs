//! A real metrics-agent of one node, as a process on loopback, and a kubelet that the test plays.
//!
//! What tests show with a [`Machine`] rests on an ABI fake of NVIDIA's library.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

use fake_kubelet::Kubelet;
use local_cluster::{explained, sibling_binary};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub use fake_kubelet::{
    GPU,
    gpus::{Gpus, machine_of},
    holding,
};
pub use fake_nvml::{Event, State as Machine};

use crate::{ask_until, within};

/// An agent that ends with this value.
pub struct Agent {
    process: Child,
    /// Of its gRPC server, without TLS.
    pub grpc: String,
    /// Of its admin server.
    pub admin: String,
    /// The kubelet of its node.
    pub kubelet: Kubelet,
    folder: TempDir,
}

impl Agent {
    /// On the ABI fake. Its devices are read five times a second, and the kubelet is asked each second.
    pub fn on(node: &str, machine: &Machine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        machine.write(&state_in(&folder)).unwrap();
        let library = format!("--nvml-library={}", fake_nvml::library().display());
        Self::start(folder, node, library)
    }

    /// One that replays a recording, see the documentation of the metrics-agent.
    pub fn replaying(node: &str, recording: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording.json");
        fs::write(&path, recording.to_string()).unwrap();
        Self::start(folder, node, format!("--recorded={}", path.display()))
    }

    fn start(folder: TempDir, node: &str, source: String) -> Self {
        let kubelet = Kubelet::start(folder.path(), Vec::new()).unwrap();
        let program = sibling_binary("metrics-agent").unwrap_or_else(|error| panic!("{}", explained(&error)));
        let mut process = Command::new(program)
            .args(["--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0"])
            // Each with time enough for a busy machine.
            .args(["--interval=0.2", "--read-within=0.15", "--pod-resources-interval=1"])
            .arg(format!("--node-name={node}"))
            .arg(format!("--pod-resources={}", kubelet.socket().display()))
            .arg(source)
            .env(fake_nvml::STATE_VARIABLE, state_in(&folder))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let listening = lines.find(|line| line.contains("\"message\":\"listening\"")).expect("it listens");
        // A pipe that is full would stop the agent.
        thread::spawn(move || lines.for_each(drop));
        let listening: Value = serde_json::from_str(&listening).unwrap();
        let address = |server: &str| listening[server].as_str().unwrap().to_owned();
        let (grpc, admin) = (address("grpc"), address("admin"));
        Self { process, grpc, admin, kubelet, folder }
    }

    /// Changes the machine under the running agent.
    pub fn machine_becomes(&self, machine: &Machine) {
        machine.write(&state_in(&self.folder)).unwrap();
    }

    /// Its metrics.
    pub async fn page(&self) -> String {
        let mut stream = TcpStream::connect(&self.admin).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    }

    /// Waits until the agent waits for events: those that the machine has from then on are delivered.
    pub async fn awaits_events(&self) {
        let marker = fake_nvml::waiting(&state_in(&self.folder));
        ask_until("that the agent waits for events", within(), async || {
            if marker.exists() { Ok(()) } else { Err("it does not yet".to_owned()) }
        })
        .await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn state_in(folder: &TempDir) -> PathBuf {
    folder.path().join("machine.json")
}
