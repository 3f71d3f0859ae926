//! A real S3 server (versitygw) over a folder, on a free port of this machine. It ends with its value.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

/// Ports that are tried: another program may take one between the choice and the start of the server, which ends then.
const TRIES: usize = 5;
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// What a client signs with.
#[derive(Clone, Debug)]
pub struct Keys {
    pub access: String,
    pub secret: String,
}

impl Keys {
    pub fn new(access: &str, secret: &str) -> Self {
        Self { access: access.to_owned(), secret: secret.to_owned() }
    }
}

/// The server. Each folder in its folder is a bucket.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    folder: PathBuf,
    keys: Keys,
    options: Vec<String>,
    process: Option<Child>,
}

impl Server {
    /// `options`: of versitygw, beyond the address.
    pub fn start(folder: &Path, keys: Keys, options: Vec<String>) -> anyhow::Result<Self> {
        let folder = folder.to_owned();
        let mut server = Self { address: free_address()?, folder, keys, options, process: None };
        for _ in 0..TRIES {
            if server.listens()? {
                return Ok(server);
            }
            server.address = free_address()?;
        }
        bail!("versitygw ends on each of {TRIES} ports")
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts it again, on the same address.
    pub fn run(&mut self) -> anyhow::Result<()> {
        ensure!(self.listens()?, "versitygw ends on {}", self.address);
        Ok(())
    }

    /// Returns whether it listens; it has ended if not.
    fn listens(&mut self) -> anyhow::Result<bool> {
        self.stop();
        let process = Command::new(local_cluster::tools::ensure_services()?.join("versitygw"))
            .args(["--port", &self.address.to_string()])
            .args(&self.options)
            .arg("posix")
            .arg(&self.folder)
            .env("ROOT_ACCESS_KEY", &self.keys.access)
            .env("ROOT_SECRET_KEY", &self.keys.secret)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("failed to start versitygw")?;
        let process = self.process.insert(process);
        let began = Instant::now();
        while !has_listener(process.id(), self.address.port()) {
            if process.try_wait().context("failed to ask for the end of versitygw")?.is_some() {
                self.process = None;
                return Ok(false);
            }
            ensure!(began.elapsed() < LISTENS_WITHIN, "versitygw does not listen on {}", self.address);
            thread::sleep(POLL);
        }
        Ok(true)
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether this process listens on the port. A connection would not show it: the server of another test may have the port.
fn has_listener(pid: u32, port: u16) -> bool {
    /// In the column of states.
    const LISTENS: &str = "0A";
    let port = format!(":{port:04X}");
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let listeners: Vec<String> = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter_map(|columns| match *columns {
            [_, local, _, state, _, _, _, _, _, inode, ..] if local.ends_with(&port) && state == LISTENS => {
                Some(format!("socket:[{inode}]"))
            }
            _ => None,
        })
        .collect();
    // The process may have ended meanwhile.
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut opened = files.filter_map(|file| fs::read_link(file.path()).ok());
    opened.any(|file| listeners.iter().any(|listener| file.as_os_str() == listener.as_str()))
}

fn free_address() -> anyhow::Result<SocketAddr> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    free.context("failed to find a free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_comes_back_on_its_port_and_fails_while_another_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::start(folder.path(), Keys::new("access", "secret"), Vec::new()).unwrap();
        let address = server.address();
        server.stop();
        let other = TcpListener::bind(address).unwrap();
        assert!(server.run().unwrap_err().to_string().contains("ends on"));
        drop(other);
        server.run().unwrap();
        assert_eq!(server.address(), address);
    }
}
