//! The first process of a node: it makes the node's own view of the machine, starts what a node runs, starts it again
//! when it ends, and reaps what loses its parent. When it ends, however that happens, the system ends the whole node.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    Error, Folder, Result,
    machine::{namespaces, network::node_name},
};

use super::settings::{self, Program, Settings};

/// containerd needs a tenth of a second; a loaded machine is no reason to fail.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Before something that ended is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Where the node's own folder is, in its own view: a path that leaves room for the names of sockets.
pub(super) const PLACE: &str = "/run/node";

/// Runs the node until it is killed.
pub fn run(root: &Path, index: u32) -> Result<std::convert::Infallible> {
    let folder = Folder::at(root.to_owned());
    let name = node_name(index);
    own_view(&folder, &name).map_err(Error::io("make the mounts of", &name))?;
    let settings = Settings::new(&folder, index, Path::new(PLACE))?;
    settings.write()?;
    let mut node = Node { folder, name, running: BTreeMap::new() };
    node.start(settings.containerd())?;
    let socket = settings.containerd_socket();
    until_it_serves(&socket).map_err(Error::io("reach containerd at", socket))?;
    node.start(settings.kubelet())?;
    node.start(settings.kube_proxy())?;
    node.keep()
}

/// Mounts that end with this process: memory at `/run`, empty at each start, and in it the folder of the cluster.
fn own_view(folder: &Folder, name: &str) -> io::Result<()> {
    let own = folder.node(name);
    fs::create_dir_all(&own)?;
    namespaces::set_host_name(name)?;
    namespaces::share_mounts()?;
    // Held open, for the next mount may hide it.
    let held = File::open(&own)?;
    namespaces::mount_memory(Path::new("/run"))?;
    fs::create_dir_all(PLACE)?;
    namespaces::bind(Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd())), Path::new(PLACE))
}

fn until_it_serves(socket: &Path) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() > SERVES_WITHIN => return Err(error),
            Err(_) => sleep(POLL),
        }
    }
}

struct Node {
    folder: Folder,
    name: String,
    /// By pid.
    running: BTreeMap<u32, (Program, Child)>,
}

impl Node {
    fn start(&mut self, program: Program) -> Result<()> {
        let log = self.log(program.name);
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let start = || {
            Command::new(&program.path)
                .args(&program.args)
                .env("PATH", &program.search)
                .stdin(Stdio::null())
                .stdout(open()?)
                .stderr(open()?)
                .spawn()
        };
        let child = start().map_err(Error::io("start", &program.path))?;
        self.running.insert(child.id(), (program, child));
        Ok(())
    }

    /// A process that this one did not start has lost its parent, and is reaped here alone.
    fn keep(mut self) -> Result<std::convert::Infallible> {
        loop {
            let ended = namespaces::wait_for_any_child()
                .map_err(Error::io("wait for the programs of", &self.name))?;
            if let Some((program, _)) = ended.and_then(|pid| self.running.remove(&pid)) {
                sleep(RESTART_AFTER);
                let down = settings::kept_down(Path::new(PLACE), program.name);
                while down.exists() {
                    sleep(POLL);
                }
                self.start(program)?;
            }
        }
    }

    fn log(&self, program: &str) -> PathBuf {
        self.folder.log(&format!("{}-{program}", self.name))
    }
}
