//! A cluster from outside: starting its supervisor, asking it, ending it, and clearing away what a dead one left.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use kube::Client;
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    time::timeout,
};

use crate::{
    ClusterSpec, Error, Folder, Phase, Result, Status,
    api_server::{admin_client::admin_client, audit},
    machine::{
        files::tail,
        network::node_name,
        ports::free_port,
        process::{Identity, Ledger, SUPERVISOR},
    },
    real,
    supervisor::protocol::{ControllerProcess, Order, Renewal, Reply, Request, Service},
};

/// How often start, readiness and end of another process are polled; they cannot be watched.
const POLL: Duration = Duration::from_millis(50);
/// Until the supervisor answers on its socket; it does nothing before that.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Longer than any one thing that the supervisor can be asked for.
const REPLIES_WITHIN: Duration = Duration::from_secs(30);
/// Controllers get 10 s to finish, everything else is killed, and real nodes get 20 s to be gone.
const STOPS_WITHIN: Duration = Duration::from_secs(40);
const KILLED_WITHIN: Duration = Duration::from_secs(5);
const LINES_SHOWN: usize = 15;

/// A running cluster.
///
/// The process that started it owns it. The cluster ends when the value is dropped, and when this process ends in whatever
/// way. [`Cluster::detach`] gives it a life of its own.
#[derive(Debug)]
pub struct Cluster {
    folder: Folder,
    spec: ClusterSpec,
    owned: Option<Owned>,
}

#[derive(Debug)]
struct Owned {
    /// `None` once it has been let go.
    supervisor: Option<Child>,
    /// Its end is what the supervisor waits for.
    pipe: Option<ChildStdin>,
}

impl Cluster {
    /// Starts a cluster and returns when every component answers. `supervisor` is the `local-cluster` program.
    pub async fn start(spec: ClusterSpec, supervisor: &Path) -> Result<Self> {
        let cluster = Self::begin(spec, supervisor).await?;
        cluster.or_stop(Self::ready).await
    }

    /// Starts a cluster and returns as soon as its API server answers; the rest may still be on its way.
    ///
    /// What a dead supervisor left under this name is cleared away first.
    pub async fn begin(spec: ClusterSpec, supervisor: &Path) -> Result<Self> {
        if spec.real.is_some() {
            real::check()?;
        }
        spec.validate()?;
        let folder = Folder::of(&spec.name)?;
        let owned = {
            let _turn = take_turn()?;
            if is_running(&folder)? {
                return Err(Error::AlreadyRunning { name: spec.name });
            }
            clear(&folder)?;
            clear(&Folder::at(folder.failed_logs()))?;
            folder.create()?;
            spec.write(&folder)?;
            spawn_supervisor(&folder, supervisor)?
        };
        let cluster = Self { folder, spec, owned: Some(owned) };
        cluster.or_stop(Self::serving).await
    }

    /// Returns when every component has answered.
    pub async fn ready(&self) -> Result<()> {
        let ready = self.until(|phase| matches!(phase, Phase::Ready { .. })).await;
        ready.map_err(|error| self.keep_logs(error))
    }

    /// Why a start failed is not always on the last lines, and everything else of the cluster goes.
    fn keep_logs(&self, error: Error) -> Error {
        let logs = self.folder.failed_logs();
        match error {
            Error::StartFailed { .. } => error,
            _ if fs::rename(self.folder.logs(), &logs).is_ok() => {
                Error::StartFailed { name: self.spec.name.clone(), logs, source: Box::new(error) }
            }
            _ => error,
        }
    }

    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// A client with all rights. It belongs to the tokio runtime that calls this.
    pub async fn client(&self) -> Result<Client> {
        admin_client(&self.folder).await
    }

    /// The `kubectl` of the cluster's own version.
    pub fn kubectl(&self) -> PathBuf {
        self.spec.tools.join("kubectl")
    }

    pub async fn status(&self) -> Result<Status> {
        match self.ask(&Request::Status).await? {
            Reply::Status(status) => Ok(status),
            Reply::Done => Err(self.refused("report its status", "the reply is of another kind")),
            Reply::Failed(reason) => Err(self.refused("report its status", reason)),
        }
    }

    /// Every request of the controllers, and the writes of others.
    pub fn audit_events(&self) -> Result<Vec<audit::Event>> {
        audit::read(&self.folder.audit_log())
    }

    /// SIGTERM, and SIGKILL if it does not go; the component stays down.
    pub async fn stop_component(&self, name: &str) -> Result<()> {
        self.order(name, Order::Stop).await
    }

    /// Starts a component that was stopped.
    pub async fn start_component(&self, name: &str) -> Result<()> {
        self.order(name, Order::Start).await
    }

    /// SIGKILL; the supervisor starts the component again.
    pub async fn kill_component(&self, name: &str) -> Result<()> {
        self.order(name, Order::Kill).await
    }

    /// SIGSTOP.
    pub async fn pause_component(&self, name: &str) -> Result<()> {
        self.order(name, Order::Pause).await
    }

    /// SIGCONT.
    pub async fn continue_component(&self, name: &str) -> Result<()> {
        self.order(name, Order::Continue).await
    }

    pub async fn restart_component(&self, name: &str) -> Result<()> {
        self.order(name, Order::Restart).await
    }

    /// Another serving certificate by the same authority; the API server reads it anew by itself, a moment later.
    pub async fn renew_server_certificate(&self) -> Result<()> {
        self.expect_done("renew the server certificate", &Request::Renew(Renewal::ServerCertificate)).await
    }

    /// A new certificate authority. Kubernetes restarts with it, and clients that were made before are rejected.
    pub async fn replace_authority(&self) -> Result<()> {
        self.expect_done("replace the authority", &Request::Renew(Renewal::Authority)).await
    }

    /// From now on the cluster runs until [`Cluster::stop`] is called on it, by any process.
    pub async fn detach(&mut self) -> Result<()> {
        self.expect_done("detach", &Request::Detach).await?;
        if let Some(mut owned) = self.owned.take() {
            owned.supervisor = None;
        }
        Ok(())
    }

    /// Stops everything and removes the state folder.
    pub async fn stop(self) -> Result<()> {
        let folder = self.folder.clone();
        stop_running(&folder).await
    }

    /// Names of the real nodes.
    pub fn real_nodes(&self) -> Vec<String> {
        (0..self.spec.real.as_ref().map_or(0, |real| real.count)).map(node_name).collect()
    }

    /// Takes the network link of a real node down: its processes run on without a connection.
    pub async fn cut_off(&self, node: &str) -> Result<()> {
        self.expect_done("cut a node off", &Request::Link { node: node.to_owned(), up: false }).await
    }

    /// Takes the link up again.
    pub async fn reconnect(&self, node: &str) -> Result<()> {
        self.expect_done("reconnect a node", &Request::Link { node: node.to_owned(), up: true }).await
    }

    /// Kills containerd of a real node and keeps it down: its kubelet reports NotReady half a minute later, and its
    /// pods run on.
    pub async fn stop_containerd(&self, node: &str) -> Result<()> {
        self.expect_done("stop containerd", &Request::Containerd { node: node.to_owned(), runs: false }).await
    }

    /// Lets it start again.
    pub async fn start_containerd(&self, node: &str) -> Result<()> {
        self.expect_done("start containerd", &Request::Containerd { node: node.to_owned(), runs: true }).await
    }

    /// Starts a program as a component: on this machine, or in the network of real nodes, whose pods reach it at
    /// [`crate::HUB_ADDRESS`].
    pub async fn start_service(&self, service: Service) -> Result<()> {
        self.expect_done("start a service", &Request::AddService(service)).await
    }

    /// Lets programs of this machine reach an address in the network of real nodes, and returns where.
    pub async fn start_relay(&self, name: &str, to: SocketAddr) -> Result<SocketAddr> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let request = Request::AddRelay { name: name.to_owned(), listen, to };
        self.expect_done("start a relay", &request).await?;
        Ok(listen)
    }

    /// Makes an image, given as a folder in OCI image layout, known to the real nodes under this name.
    pub fn load_image(&self, layout: &Path, reference: &str) -> Result<()> {
        let Some(real) = &self.spec.real else {
            return Err(Error::invalid("load image", reference, "the cluster has no real nodes"));
        };
        real::images::push(&self.folder, &real.tools, layout, reference)
    }

    pub(crate) async fn add_controller(&self, controller: ControllerProcess) -> Result<()> {
        self.expect_done("start a controller", &Request::AddController(controller)).await
    }

    async fn order(&self, name: &str, order: Order) -> Result<()> {
        let request = Request::Component { name: name.to_owned(), order };
        self.expect_done(order.verb(), &request).await
    }

    async fn serving(&self) -> Result<()> {
        self.until(|phase| matches!(phase, Phase::Serving | Phase::Ready { .. })).await
    }

    /// A cluster that does not come up is stopped and removed.
    async fn or_stop(self, step: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<Self> {
        match step(&self).await {
            Ok(()) => Ok(self),
            Err(error) => {
                let error = self.keep_logs(error);
                self.stop().await?;
                Err(error)
            }
        }
    }

    async fn until(&self, reached: impl Fn(&Phase) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.status().await.map(|status| status.phase) {
                Ok(phase) if reached(&phase) => return Ok(()),
                Ok(Phase::Failed { reason }) => {
                    return Err(Error::invalid("start", &self.spec.name, reason));
                }
                // The supervisor has its own deadline for the start.
                Ok(Phase::Starting | Phase::Serving | Phase::Ready { .. } | Phase::Stopping) => {}
                Err(_) if !is_running(&self.folder)? => {
                    let log = self.folder.log(SUPERVISOR);
                    return Err(Error::ComponentExited {
                        component: "the supervisor".to_owned(),
                        exit: "by itself".to_owned(),
                        tail: tail(&log, LINES_SHOWN),
                        log,
                    });
                }
                Err(error) if began.elapsed() > ANSWERS_WITHIN => return Err(error),
                Err(_) => {}
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn expect_done(&self, what: &'static str, request: &Request) -> Result<()> {
        match self.ask(request).await? {
            Reply::Done => Ok(()),
            Reply::Failed(reason) => Err(self.refused(what, reason)),
            Reply::Status(_) => Err(self.refused(what, "the reply is of another kind")),
        }
    }

    async fn ask(&self, request: &Request) -> Result<Reply> {
        ask(&self.folder, request).await
    }

    fn refused(&self, request: &'static str, reason: impl Into<String>) -> Error {
        Error::Refused { name: self.spec.name.clone(), request, reason: reason.into() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Closing the pipe ends the supervisor; without the wait it would stay a zombie of this process.
        drop(self.pipe.take());
        if let Some(mut supervisor) = self.supervisor.take() {
            let _ = supervisor.wait();
        }
    }
}

/// The running cluster of this name, if there is one.
pub fn running(name: &str) -> Result<Option<Cluster>> {
    let folder = Folder::of(name)?;
    if !is_running(&folder)? {
        return Ok(None);
    }
    let spec = ClusterSpec::read(&folder)?;
    Ok(Some(Cluster { folder, spec, owned: None }))
}

/// Stops the cluster of this name if it runs, and clears away what it or a dead supervisor left; true if there
/// was anything.
pub async fn remove(name: &str) -> Result<bool> {
    let folder = Folder::of(name)?;
    let there = folder.root().exists();
    if is_running(&folder)? {
        stop_running(&folder).await?;
    }
    let _turn = take_turn()?;
    clear(&folder)?;
    clear(&Folder::at(folder.failed_logs()))?;
    Ok(there)
}

/// Clears away what dead supervisors left, under any name.
pub fn sweep() -> Result<()> {
    let _turn = take_turn()?;
    let all = Folder::all()?;
    for entry in fs::read_dir(&all).map_err(Error::io("read", &all))? {
        let path = entry.map_err(Error::io("read", &all))?.path();
        let folder = Folder::at(path);
        if folder.root().is_dir() && !is_running(&folder)? {
            clear(&folder)?;
        }
    }
    Ok(())
}

/// A program of this workspace, which cargo puts beside the running one; `package` is what builds it.
pub fn sibling_binary(package: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("find", "the running program"))?;
    let mut folder = own.parent().unwrap_or(Path::new("/")).to_owned();
    // Test binaries and examples are one folder further down.
    if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.pop();
    }
    let path = folder.join(package);
    if path.is_file() { Ok(path) } else { Err(Error::BinaryMissing { path, package: package.to_owned() }) }
}

/// Asks the supervisor of a folder one thing.
async fn ask(folder: &Folder, request: &Request) -> Result<Reply> {
    let socket = folder.control();
    let exchange = async {
        let mut stream = UnixStream::connect(&socket).await?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).await?;
        Ok(serde_json::from_str(&reply)?)
    };
    let replied = timeout(REPLIES_WITHIN, exchange).await.unwrap_or_else(|late| Err(late.into()));
    replied.map_err(Error::io("talk to the supervisor at", &socket))
}

async fn stop_running(folder: &Folder) -> Result<()> {
    let began = Instant::now();
    let supervisor = Ledger::read(&folder.processes()).remove(SUPERVISOR);
    // No answer is no reason to give up: it may end by itself at this moment, and what counts is that it ends.
    let _ = timeout(STOPS_WITHIN, ask(folder, &Request::ShutDown)).await;
    while is_running(folder)? && began.elapsed() < STOPS_WITHIN {
        tokio::time::sleep(POLL).await;
    }
    if let Some(supervisor) = supervisor
        && !supervisor.wait_until_gone(KILLED_WITHIN)
    {
        supervisor.signal(Signal::KILL);
        supervisor.wait_until_gone(KILLED_WITHIN);
    }
    let _turn = take_turn()?;
    clear(folder)
}

fn spawn_supervisor(folder: &Folder, program: &Path) -> Result<Owned> {
    let log = folder.log(SUPERVISOR);
    let log_file = File::create(&log).map_err(Error::io("create", &log))?;
    let also = log_file.try_clone().map_err(Error::io("open", &log))?;
    let mut supervisor = Command::new(program)
        .args(["supervise", "--owner-pipe", "--dir"])
        .arg(folder.root())
        .stdin(Stdio::piped())
        .stdout(log_file)
        .stderr(also)
        // A working directory would keep the disk that it is on from being unmounted.
        .current_dir("/")
        .spawn()
        .map_err(Error::io("start", program))?;
    let pipe = supervisor.stdin.take();
    // Until it holds its lock it could be taken for dead.
    let began = Instant::now();
    while !is_running(folder)? && began.elapsed() < ANSWERS_WITHIN {
        if matches!(supervisor.try_wait(), Ok(Some(_))) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Owned { supervisor: Some(supervisor), pipe })
}

/// A supervisor holds the lock of its folder for as long as it lives.
fn is_running(folder: &Folder) -> Result<bool> {
    let path = folder.lock();
    let Ok(lock) = File::open(&path) else { return Ok(false) };
    match lock.try_lock() {
        Ok(()) => Ok(false),
        Err(fs::TryLockError::WouldBlock) => Ok(true),
        Err(fs::TryLockError::Error(error)) => Err(Error::io("look at", path)(error)),
    }
}

/// Ends what a dead supervisor left running, then removes its folder.
fn clear(folder: &Folder) -> Result<()> {
    let left: Vec<Identity> = Ledger::read(&folder.processes()).into_values().collect();
    for process in &left {
        process.signal(Signal::KILL);
    }
    for process in &left {
        process.wait_until_gone(KILLED_WITHIN);
    }
    // Also when it is unknown whether it had real nodes: a start that was killed may have written little.
    real::control_groups::clear_cluster(folder, STOPS_WITHIN)?;
    match fs::remove_dir_all(folder.root()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::StaleFolder { path: folder.root().to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// One at a time decides which clusters live: between making a folder and its supervisor's lock, it looks dead.
fn take_turn() -> Result<File> {
    let all = Folder::all()?;
    fs::create_dir_all(&all).map_err(Error::io("create", &all))?;
    let path = all.join(".lock");
    let file = File::options().create(true).append(true).open(&path).map_err(Error::io("open", &path))?;
    file.lock().map_err(Error::io("lock", &path))?;
    Ok(file)
}
