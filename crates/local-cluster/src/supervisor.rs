//! The process that holds all processes of one cluster.
//!
//! It starts them in order, starts again what ends by itself, answers on the control socket, and stops everything
//! on request or when its owner is gone. It installs nothing into the cluster but what makes nodes appear.
//!
//! It runs on one thread: the system ends child processes when the *thread* that started them ends.

mod component;
pub(crate) mod protocol;
mod start;
mod tokens;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::SocketAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream, unix::pipe},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tracing::{info, warn};

use crate::{
    ClusterSpec, ComponentState, ComponentStatus, Error, Folder, Phase, Result, Status,
    control_plane::{
        command_lines::{self, API_SERVER, CONTROLLER_MANAGER, CommandLine, KWOK, POD_LOGS, SCHEDULER},
        credentials,
    },
    explained,
    machine::{
        namespaces,
        network::{self, node_name},
        ports::{ReservedPort, free_port},
        process::{self, Families, Identity, Ledger, SUPERVISOR},
    },
    real::{
        control_groups, hub,
        settings::{self, CONTAINERD},
    },
};
use component::Component;
use protocol::{ControllerProcess, Order, Renewal, Reply, Request, Service};

/// Becomes the program, as a child that the system ends with its parent; returns only if that fails.
///
/// A program that is started directly could outlive a supervisor that is killed.
pub fn launch(parent: i32, network: Option<&Path>, program: &Path, args: &[String]) -> Error {
    Error::io("start", program)(process::become_child_of(parent, network, program, args))
}

/// Makes this process independent of the terminal: Ctrl-C there and its end reach only the process that
/// started the cluster.
pub fn leave_terminal() {
    // It fails only for a process that leads a group, which has left already.
    let _ = rustix::process::setsid();
}

/// Those that read certificates when they start; etcd is behind a socket, and has none.
const USERS_OF_CERTIFICATES: [&str; 5] = [API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK, POD_LOGS];

/// How long the lock may be held by those who only ask whether the cluster runs.
const LOCKED_WITHIN: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// Runs the cluster whose `spec.json` is in the folder until a request to stop comes or its owner is gone.
pub async fn supervise(root: PathBuf, launcher: PathBuf, owned: bool) -> Result<()> {
    let folder = Folder::at(root);
    let lock = take_lock(&folder, LOCKED_WITHIN).await?;
    let listener = UnixListener::bind(folder.control()).map_err(Error::io("listen on", folder.control()))?;

    let (stop, mut stopped) = mpsc::channel(1);
    let supervisor = Arc::new(Supervisor::new(folder, launcher, stop)?);
    let mut tasks = JoinSet::new();
    tasks.spawn(answer(supervisor.clone(), listener));
    if owned {
        tasks.spawn(watch_owner(supervisor.clone()));
    }
    tasks.spawn(bring_up(supervisor.clone()));

    tokio::select! {
        _ = stopped.recv() => {}
        () = terminated() => {}
        Some(Err(error)) = tasks.join_next() => {
            return Err(Error::invalid("go on with", supervisor.folder.name(), error));
        }
    }
    supervisor.phase.send_replace(Phase::Stopping);
    info!("stopping");
    tasks.shutdown().await;
    supervisor.stop_components().await;
    if supervisor.spec.real.is_some() {
        control_groups::clear_cluster(&supervisor.folder, NODES_END_WITHIN)?;
    }
    remove(&supervisor.folder)?;
    drop(lock);
    Ok(())
}

/// The lock marks the cluster as running; the system releases it when this process ends, however it ends.
///
/// Who asks whether the cluster runs holds the lock for a moment, so one refusal does not mean another supervisor.
async fn take_lock(folder: &Folder, within: Duration) -> Result<File> {
    let lock = File::create(folder.lock()).map_err(Error::io("create", folder.lock()))?;
    let began = Instant::now();
    while let Err(refused) = lock.try_lock() {
        match refused {
            fs::TryLockError::Error(error) => return Err(Error::io("lock", folder.lock())(error)),
            fs::TryLockError::WouldBlock if began.elapsed() > within => {
                return Err(Error::AlreadyRunning { name: folder.name() });
            }
            fs::TryLockError::WouldBlock => tokio::time::sleep(LOCK_POLL).await,
        }
    }
    Ok(lock)
}

/// Gives the name free in one step: from then on another cluster may make a folder there.
fn remove(folder: &Folder) -> Result<()> {
    let ending = folder.root().with_file_name(format!(".{}-{}", folder.name(), std::process::id()));
    fs::rename(folder.root(), &ending).map_err(Error::io("rename", folder.root()))?;
    fs::remove_dir_all(&ending).map_err(Error::io("remove", &ending))
}

/// What the tasks of a supervisor share.
struct Supervisor {
    folder: Folder,
    spec: ClusterSpec,
    /// The program that starts another one as a child that cannot outlive this process: its own binary.
    launcher: PathBuf,
    port: ReservedPort,
    /// That of the kubelet in the status of each simulated node.
    node_port: ReservedPort,
    phase: watch::Sender<Phase>,
    detached: watch::Sender<bool>,
    components: Mutex<BTreeMap<String, Component>>,
    ledger: Arc<Mutex<Ledger>>,
    stop: mpsc::Sender<()>,
}

impl Supervisor {
    fn new(folder: Folder, launcher: PathBuf, stop: mpsc::Sender<()>) -> Result<Self> {
        let spec = ClusterSpec::read(&folder)?;
        let mut ledger = Ledger::new(folder.processes());
        ledger.record(SUPERVISOR, std::process::id())?;
        Ok(Self {
            port: ReservedPort::new()?,
            node_port: ReservedPort::new()?,
            phase: watch::Sender::new(Phase::Starting),
            detached: watch::Sender::new(false),
            components: Mutex::default(),
            ledger: Arc::new(Mutex::new(ledger)),
            folder,
            spec,
            launcher,
            stop,
        })
    }

    /// Starts a process and keeps it running. The command line is made anew for every start.
    fn start(&self, name: &str, command: impl Fn() -> Result<CommandLine> + Send + Sync + 'static) {
        self.start_with_grace(name, TERMINATION_GRACE, command);
    }

    /// As [`Self::start`], in the network that real nodes see, if there are any.
    fn start_in_hub(&self, name: &str, command: impl Fn() -> Result<CommandLine> + Send + Sync + 'static) {
        let folder = self.spec.real.is_some().then(|| self.folder.clone());
        self.start(name, move || {
            let network = folder.as_ref().map(hub::network).transpose()?;
            Ok(CommandLine { network, ..command()? })
        });
    }

    fn start_with_grace(
        &self,
        name: &str,
        grace: Duration,
        command: impl Fn() -> Result<CommandLine> + Send + Sync + 'static,
    ) {
        let component = Component::start(component::Setting {
            name: name.to_owned(),
            command: Box::new(command),
            launcher: self.launcher.clone(),
            log: self.folder.log(name),
            ledger: self.ledger.clone(),
            grace,
        });
        self.components().insert(name.to_owned(), component);
    }

    fn refuse_known(&self, name: &str) -> Result<()> {
        if self.components().contains_key(name) {
            return Err(Error::invalid("start", name, "a component of this name is already there"));
        }
        Ok(())
    }

    fn components(&self) -> MutexGuard<'_, BTreeMap<String, Component>> {
        self.components.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> Status {
        let components = self.components();
        let families = Families::now();
        let own = ComponentStatus {
            name: SUPERVISOR.to_owned(),
            state: ComponentState::Running,
            restarts: 0,
            last_exit: None,
            pid: Some(std::process::id()),
            resident_bytes: std::process::id().try_into().ok().and_then(process::resident_bytes),
            admin_address: None,
        };
        let components = std::iter::once(own)
            .chain(components.values().map(|component| component.status(&families)))
            .collect();
        Status { phase: self.phase.borrow().clone(), components }
    }

    /// Controllers end first and have time to finish; the other components hold nothing that must be kept.
    async fn stop_components(&self) {
        let components = std::mem::take(&mut *self.components());
        let (controllers, rest): (Vec<_>, Vec<_>) =
            components.into_values().partition(Component::is_controller);
        futures::future::join_all(controllers.into_iter().map(Component::end_gently)).await;
        futures::future::join_all(rest.into_iter().map(Component::end_now)).await;
    }
}

async fn bring_up(supervisor: Arc<Supervisor>) {
    let started = tokio::time::Instant::now();
    let phase = match start::cluster(&supervisor).await {
        Ok(()) => Phase::Ready { after: started.elapsed() },
        Err(error) => Phase::Failed { reason: explained(&error) },
    };
    info!(?phase, "started");
    supervisor.phase.send_replace(phase);
}

async fn answer(supervisor: Arc<Supervisor>, listener: UnixListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(supervisor.clone(), stream));
                }
                Err(error) => warn!(%error, "failed to accept a control connection"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(supervisor: Arc<Supervisor>, mut stream: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).await?;
    let reply = match serde_json::from_str::<Request>(&line) {
        Ok(request) => carry_out(&supervisor, request).await,
        Err(error) => Reply::Failed(format!("cannot read the request: {error}")),
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    writer.write_all(&text).await
}

async fn carry_out(supervisor: &Arc<Supervisor>, request: Request) -> Reply {
    let done = match request {
        Request::Status => return Reply::Status(supervisor.status()),
        Request::AddController(controller) => add_controller(supervisor, controller).await,
        Request::AddService(service) => add_service(supervisor, service),
        Request::AddRelay { name, listen, to } => add_relay(supervisor, &name, listen, to),
        Request::Link { node, up } => set_link(supervisor, &node, up),
        Request::Containerd { node, runs } => set_containerd(supervisor, &node, runs),
        Request::Component { name, order } => order_component(supervisor, &name, order).await,
        Request::Renew(renewal) => renew(supervisor, renewal).await,
        Request::Detach => {
            supervisor.detached.send_replace(true);
            Ok(())
        }
        Request::ShutDown => {
            // A full channel means that a stop is under way.
            let _ = supervisor.stop.try_send(());
            Ok(())
        }
    };
    match done {
        Ok(()) => Reply::Done,
        Err(error) => Reply::Failed(explained(&error)),
    }
}

fn add_service(supervisor: &Supervisor, service: Service) -> Result<()> {
    let Service { name, program, args, env } = service;
    supervisor.refuse_known(&name)?;
    let working_dir = supervisor.folder.root().to_owned();
    let command = CommandLine { program, args, env, working_dir, network: None };
    supervisor.start_in_hub(&name, move || Ok(command.clone()));
    Ok(())
}

fn add_relay(supervisor: &Supervisor, name: &str, listen: SocketAddr, to: SocketAddr) -> Result<()> {
    supervisor.refuse_known(name)?;
    let network = hub::network(&supervisor.folder)?;
    let relay = command_lines::relay(&supervisor.folder, &supervisor.launcher, listen, to, &network);
    supervisor.start(name, move || Ok(relay.clone()));
    Ok(())
}

fn set_link(supervisor: &Supervisor, node: &str, up: bool) -> Result<()> {
    let hub = hub::network(&supervisor.folder)?;
    let set = namespaces::within(&hub, || network::ip(&network::set_link(node, up)));
    set.map_err(Error::io("change the link of node", node))
}

fn set_containerd(supervisor: &Supervisor, node: &str, runs: bool) -> Result<()> {
    let families = Families::now();
    let is_node =
        (0..supervisor.spec.real.as_ref().map_or(0, |real| real.count)).any(|index| node_name(index) == node);
    let status = supervisor.components().get(node).filter(|_| is_node).map(|node| node.status(&families));
    let Some(pid) = status.and_then(|status| i32::try_from(status.pid?).ok()) else {
        return Err(Error::invalid("reach containerd of", node, "it is no real node that runs"));
    };
    let down = settings::kept_down(&supervisor.folder.node(node), CONTAINERD);
    if runs {
        return match fs::remove_file(&down) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", down)(error)),
            Ok(()) | Err(_) => Ok(()),
        };
    }
    File::create(&down).map_err(Error::io("create", down))?;
    if let Some(containerd) = families.descendant(pid, CONTAINERD).and_then(Identity::of) {
        containerd.signal(Signal::KILL);
    }
    Ok(())
}

async fn add_controller(supervisor: &Arc<Supervisor>, controller: ControllerProcess) -> Result<()> {
    let name = controller.name.clone();
    supervisor.refuse_known(&name)?;
    let folder = supervisor.folder.clone();
    let server = match &supervisor.spec.existing {
        Some(_) => credentials::adopted_server(&folder)?,
        None => credentials::own_server(&folder, supervisor.port.number()),
    };
    let kubeconfig = credentials::write_token_kubeconfig(&folder, &name, &server)?;
    let renewal = tokens::start(&folder, &controller, supervisor.spec.renew_tokens_after).await?;
    let working_dir = folder.root().to_owned();
    let starts = AtomicU32::new(0);
    // Controllers of other machines can serve a cluster that exists; the Lease names the machine and the process.
    let place = match &supervisor.spec.existing {
        Some(_) => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{host}-{}-", std::process::id())
        }
        None => String::new(),
    };
    supervisor.start(&name, move || {
        let address = format!("127.0.0.1:{}", free_port()?);
        let ControllerProcess { name, program, args, env, namespace, service_account: _ } = &controller;
        // A process that was killed must not be taken for the one that follows it.
        let identity = format!("{name}_{place}{}", starts.fetch_add(1, Ordering::Relaxed));
        let mut env = env.clone();
        env.insert("KUBECONFIG".to_owned(), kubeconfig.display().to_string());
        let own = [
            ["--admin-address", &address],
            ["--log-format", "json"],
            ["--identity", &identity],
            ["--lease-namespace", namespace],
        ];
        Ok(CommandLine {
            program: program.clone(),
            args: own.into_iter().flatten().map(str::to_owned).chain(args.iter().cloned()).collect(),
            env,
            working_dir: working_dir.clone(),
            network: None,
        })
    });
    if let Some(component) = supervisor.components().get_mut(&name) {
        component.attach(renewal);
    }
    Ok(())
}

async fn renew(supervisor: &Supervisor, renewal: Renewal) -> Result<()> {
    let folder = &supervisor.folder;
    if supervisor.spec.existing.is_some() {
        return Err(Error::invalid("renew", "credentials", "they are not those of a cluster started here"));
    }
    match renewal {
        Renewal::ServerCertificate => credentials::renew_server_certificate(folder),
        Renewal::Authority if supervisor.spec.real.is_some() => {
            Err(Error::invalid("replace", "the authority", "real nodes would have to start anew with it"))
        }
        Renewal::Authority => {
            credentials::replace_authority(folder, supervisor.port.number())?;
            let restarted = {
                let components = supervisor.components();
                let kubernetes = USERS_OF_CERTIFICATES.iter().filter_map(|name| components.get(*name));
                kubernetes.map(|component| component.order(Order::Restart)).collect::<Vec<_>>()
            };
            futures::future::try_join_all(restarted).await.map(drop)
        }
    }
}

async fn order_component(supervisor: &Supervisor, name: &str, order: Order) -> Result<()> {
    let nodes = supervisor.spec.real.as_ref().map_or(0, |real| real.count);
    let is_node = (0..nodes).any(|index| node_name(index) == name);
    if is_node && matches!(order, Order::Pause | Order::Continue) {
        // Only the process that holds it would stand still.
        return Err(Error::invalid(order.verb(), name, "a node can be stopped, killed or cut off"));
    }
    let sent = {
        let components = supervisor.components();
        match components.get(name) {
            Some(component) => component.order(order),
            None => {
                let known: Vec<&str> = components.keys().map(String::as_str).collect();
                let reason = format!("there is no such component; there are {}", known.join(", "));
                return Err(Error::invalid(order.verb(), name, reason));
            }
        }
    };
    sent.await
}

/// Returns when the pipe to the owner closes, unless the cluster was detached from it.
async fn watch_owner(supervisor: Arc<Supervisor>) {
    let pipe = io::stdin().as_fd().try_clone_to_owned().and_then(pipe::Receiver::from_owned_fd);
    let mut pipe = match pipe {
        Ok(pipe) => pipe,
        Err(error) => return warn!(%error, "standard input is no pipe, so this cluster has no owner"),
    };
    // Nothing is written into the pipe; only its end is read.
    let mut nothing = [0; 16];
    while matches!(pipe.read(&mut nothing).await, Ok(read) if read > 0) {}
    if *supervisor.detached.borrow() {
        return;
    }
    info!("the owner is gone");
    let _ = supervisor.stop.try_send(());
}

async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Until everything that ran on real nodes is gone after it was killed.
const NODES_END_WITHIN: Duration = Duration::from_secs(20);

/// How long a process may take to go after SIGTERM before it is killed.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().to_owned());
        (root, folder)
    }

    #[tokio::test]
    async fn a_lock_that_is_held_for_a_moment_is_waited_for() {
        let (_root, folder) = folder();
        let asks = File::create(folder.lock()).unwrap();
        asks.try_lock().unwrap();
        let (taken, ()) = tokio::join!(take_lock(&folder, LOCKED_WITHIN), async move {
            tokio::task::yield_now().await;
            drop(asks);
        });
        assert!(File::open(folder.lock()).unwrap().try_lock().is_err(), "it is locked by {taken:?}");
    }

    #[tokio::test]
    async fn a_second_supervisor_is_refused() {
        let (_root, folder) = folder();
        let _first = take_lock(&folder, LOCKED_WITHIN).await.unwrap();
        let refused = take_lock(&folder, LOCK_POLL).await.unwrap_err();
        assert!(matches!(refused, Error::AlreadyRunning { .. }), "{refused}");
    }
}
