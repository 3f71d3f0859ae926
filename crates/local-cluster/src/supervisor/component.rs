//! One process that is kept running, and the task that keeps it. It is independent of what the process does.

use std::{
    ffi::OsStr,
    fs::OpenOptions,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    ComponentState, ComponentStatus, Error, Result,
    control_plane::command_lines::CommandLine,
    explained,
    machine::process::{Families, Ledger},
    supervisor::protocol::Order,
};

/// First wait before something that ended by itself is started again; it doubles with each end in a row.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// What ran for so long was healthy, and its next end begins a new row.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// How much memory the servers of Kubernetes, which are written in Go, let grow before they collect garbage. Clusters of tests are
/// small, and two cores are busy with them.
const GARBAGE_PERCENT: (&str, &str) = ("GOGC", "400");

/// What every program may expect to be set.
const INHERITED: [&str; 3] = ["HOME", "PATH", "TMPDIR"];

/// The flag of the controllers for the address of health and metrics.
const ADMIN_ADDRESS: &str = "--admin-address";

pub(super) struct Setting {
    pub(super) name: String,
    pub(super) command: Box<dyn Fn() -> Result<CommandLine> + Send + Sync>,
    pub(super) launcher: PathBuf,
    pub(super) log: PathBuf,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    /// How long it may take to end after SIGTERM before it is killed.
    pub(super) grace: Duration,
}

/// A process that is kept running by a task.
pub(super) struct Component {
    name: String,
    log: PathBuf,
    orders: mpsc::Sender<(Instruction, oneshot::Sender<Result<()>>)>,
    observed: watch::Receiver<Observed>,
    keeper: JoinHandle<()>,
    /// Does what else this component needs, such as new credentials, for as long as it is wanted.
    attached: Option<JoinHandle<()>>,
}

/// What the keeper does next: an order from outside, or the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    Order(Order),
    EndGently,
    EndNow,
}

/// What the keeper has seen of its process.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) state: ComponentState,
    pub(super) pid: Option<u32>,
    pub(super) restarts: u32,
    /// How it ended last, by itself or on request.
    pub(super) last_exit: Option<String>,
    admin_address: Option<String>,
}

impl Component {
    pub(super) fn start(setting: Setting) -> Self {
        let (orders, received) = mpsc::channel(8);
        let (seen, observed) = watch::channel(Observed {
            state: ComponentState::Running,
            pid: None,
            restarts: 0,
            last_exit: None,
            admin_address: None,
        });
        Self {
            name: setting.name.clone(),
            log: setting.log.clone(),
            orders,
            observed,
            keeper: tokio::spawn(keep(setting, received, seen)),
            attached: None,
        }
    }

    pub(super) fn status(&self, families: &Families) -> ComponentStatus {
        let Observed { state, pid, restarts, last_exit, admin_address } = self.observed.borrow().clone();
        let resident_bytes =
            pid.and_then(|pid| i32::try_from(pid).ok()).and_then(|pid| families.resident_bytes(pid));
        ComponentStatus {
            name: self.name.clone(),
            state,
            restarts,
            last_exit,
            pid,
            resident_bytes,
            admin_address,
        }
    }

    /// Whether it is a controller, which needs time to finish its work.
    pub(super) fn is_controller(&self) -> bool {
        self.observed.borrow().admin_address.is_some()
    }

    pub(super) fn log(&self) -> PathBuf {
        self.log.clone()
    }

    pub(super) fn observed(&self) -> watch::Receiver<Observed> {
        self.observed.clone()
    }

    pub(super) fn attach(&mut self, task: JoinHandle<()>) {
        self.attached = Some(task);
    }

    /// Hands the order over; the future ends when it has been carried out.
    pub(super) fn order(&self, order: Order) -> impl Future<Output = Result<()>> + Send + use<> {
        self.send(Instruction::Order(order))
    }

    pub(super) async fn end_gently(self) {
        self.end(Instruction::EndGently).await;
    }

    pub(super) async fn end_now(self) {
        self.end(Instruction::EndNow).await;
    }

    async fn end(self, command: Instruction) {
        if let Some(task) = &self.attached {
            task.abort();
        }
        if let Err(error) = self.send(command).await {
            warn!(component = self.name, error = explained(&error), "failed to stop");
        }
        if self.keeper.await.is_err() {
            warn!(component = self.name, "its keeper panicked");
        }
    }

    fn send(&self, command: Instruction) -> impl Future<Output = Result<()>> + Send + use<> {
        let orders = self.orders.clone();
        let name = self.name.clone();
        async move {
            let (done, result) = oneshot::channel();
            let gone = || Error::invalid("reach", name, "its keeper is gone");
            if orders.send((command, done)).await.is_err() {
                return Err(gone());
            }
            result.await.unwrap_or_else(|_| Err(gone()))
        }
    }
}

type Orders = mpsc::Receiver<(Instruction, oneshot::Sender<Result<()>>)>;

/// Whether the process is to run, and if not yet, from when.
enum Wanted {
    Now,
    After(Duration),
    No,
}

async fn keep(setting: Setting, mut orders: Orders, seen: watch::Sender<Observed>) {
    let mut keeper = Keeper { setting, seen };
    let mut wanted = Wanted::Now;
    let mut backoff = FIRST_BACKOFF;
    loop {
        match wanted {
            Wanted::Now => {}
            Wanted::After(wait) => tokio::select! {
                () = sleep(wait) => {
                    keeper.seen.send_modify(|observed| observed.restarts += 1);
                }
                order = orders.recv() => match keeper.carry_out_without_process(order) {
                    Next::Run => {}
                    Next::Rest => { wanted = Wanted::No; continue; }
                    Next::Wait => continue,
                    Next::End => return,
                },
            },
            Wanted::No => match keeper.carry_out_without_process(orders.recv().await) {
                Next::Run => {}
                Next::Rest | Next::Wait => continue,
                Next::End => return,
            },
        }
        let started = Instant::now();
        let end = match keeper.spawn() {
            Ok(child) => keeper.attend(child, &mut orders).await,
            Err(error) => End::ByItself(explained(&error)),
        };
        wanted = match end {
            End::Restart => Wanted::Now,
            End::Stopped => Wanted::No,
            End::Ended => return,
            End::ByItself(exit) => {
                if started.elapsed() > HEALTHY_AFTER {
                    backoff = FIRST_BACKOFF;
                }
                warn!(component = keeper.setting.name, %exit, ?backoff, "ended by itself");
                keeper.seen.send_modify(|observed| {
                    observed.state = ComponentState::BackingOff;
                    observed.last_exit = Some(exit);
                });
                let wait = backoff;
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
                Wanted::After(wait)
            }
        };
    }
}

/// How a process came to its end.
enum End {
    ByItself(String),
    Restart,
    Stopped,
    Ended,
}

/// What follows from an order while no process runs.
enum Next {
    Run,
    Rest,
    Wait,
    End,
}

struct Keeper {
    setting: Setting,
    seen: watch::Sender<Observed>,
}

impl Keeper {
    fn spawn(&self) -> Result<Child> {
        let CommandLine { program, args, env, working_dir, network } = (self.setting.command)()?;
        let log = &self.setting.log;
        let open = || OpenOptions::new().create(true).append(true).open(log).map_err(Error::io("open", log));
        let admin_address =
            args.iter().position(|arg| arg == ADMIN_ADDRESS).and_then(|at| args.get(at + 1)).cloned();
        let child = Command::new(&self.setting.launcher)
            .args(["launch", "--parent", &std::process::id().to_string()])
            .args(network.iter().flat_map(|network| [OsStr::new("--network"), network.as_os_str()]))
            .arg("--")
            .arg(&program)
            .args(&args)
            // What happens to be set in a user's shell must not decide how a cluster behaves.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| INHERITED.iter().any(|inherited| name == inherited)))
            .env(GARBAGE_PERCENT.0, GARBAGE_PERCENT.1)
            .envs(&env)
            .current_dir(working_dir)
            .stdin(Stdio::null())
            .stdout(open()?)
            .stderr(open()?)
            // A signal to the supervisor's group must not reach it: the supervisor ends its components in order.
            .process_group(0)
            .spawn()
            .map_err(Error::io("start", &program))?;
        if let Some(pid) = child.id() {
            self.ledger().record(&self.setting.name, pid)?;
        }
        info!(component = self.setting.name, pid = child.id(), "started");
        self.seen.send_modify(|observed| {
            observed.state = ComponentState::Running;
            observed.pid = child.id();
            observed.admin_address = admin_address;
        });
        Ok(child)
    }

    async fn attend(&self, mut child: Child, orders: &mut Orders) -> End {
        let end = self.attend_until_end(&mut child, orders).await;
        let exit = child.try_wait().ok().flatten().map(|exit| exit.to_string());
        self.seen.send_modify(|observed| {
            observed.pid = None;
            observed.last_exit = exit;
        });
        if let Err(error) = self.ledger().forget(&self.setting.name) {
            warn!(component = self.setting.name, error = explained(&error), "failed to note the end");
        }
        match end {
            (end, Some(done)) => {
                if matches!(end, End::Stopped) {
                    self.set_state(ComponentState::Stopped);
                }
                // The one who asked may have gone; what was asked is done all the same.
                let _ = done.send(Ok(()));
                end
            }
            (end, None) => end,
        }
    }

    async fn attend_until_end(
        &self,
        child: &mut Child,
        orders: &mut Orders,
    ) -> (End, Option<oneshot::Sender<Result<()>>>) {
        loop {
            let (command, done) = tokio::select! {
                exit = child.wait() => return (End::ByItself(describe(exit)), None),
                received = orders.recv() => match received {
                    Some(received) => received,
                    None => {
                        end_now(child).await;
                        return (End::Ended, None);
                    }
                },
            };
            match command {
                Instruction::Order(Order::Start) => {}
                Instruction::Order(Order::Pause) => {
                    signal(child, Signal::STOP);
                    self.set_state(ComponentState::Paused);
                }
                Instruction::Order(Order::Continue) => {
                    signal(child, Signal::CONT);
                    self.set_state(ComponentState::Running);
                }
                Instruction::Order(Order::Kill) => {
                    end_now(child).await;
                    return (End::ByItself("killed on request".to_owned()), Some(done));
                }
                Instruction::Order(Order::Stop) => {
                    self.end_gently(child).await;
                    return (End::Stopped, Some(done));
                }
                Instruction::Order(Order::Restart) => {
                    self.end_gently(child).await;
                    return (End::Restart, Some(done));
                }
                Instruction::EndGently => {
                    self.end_gently(child).await;
                    return (End::Ended, Some(done));
                }
                Instruction::EndNow => {
                    end_now(child).await;
                    return (End::Ended, Some(done));
                }
            }
            let _ = done.send(Ok(()));
        }
    }

    /// An order while nothing runs: only starting and ending mean something.
    fn carry_out_without_process(
        &mut self,
        received: Option<(Instruction, oneshot::Sender<Result<()>>)>,
    ) -> Next {
        let Some((command, done)) = received else { return Next::End };
        let not_running = || Err(Error::invalid("reach", self.setting.name.clone(), "it does not run"));
        let (result, next) = match command {
            Instruction::Order(Order::Start | Order::Restart) => (Ok(()), Next::Run),
            Instruction::Order(Order::Stop) => {
                self.set_state(ComponentState::Stopped);
                (Ok(()), Next::Rest)
            }
            Instruction::Order(Order::Kill | Order::Pause | Order::Continue) => (not_running(), Next::Wait),
            Instruction::EndGently | Instruction::EndNow => (Ok(()), Next::End),
        };
        let _ = done.send(result);
        next
    }

    async fn end_gently(&self, child: &mut Child) {
        signal(child, Signal::TERM);
        // A paused process gets the first signal only when it runs again.
        signal(child, Signal::CONT);
        if timeout(self.setting.grace, child.wait()).await.is_err() {
            end_now(child).await;
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.setting.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: ComponentState) {
        self.seen.send_modify(|observed| observed.state = state);
    }
}

async fn end_now(child: &mut Child) {
    if let Err(error) = child.kill().await {
        warn!(%error, "failed to kill a child");
    }
}

fn signal(child: &Child, signal: Signal) {
    // The pid is still that of the child: it is kept until the child is waited for, and then `id` is `None`.
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn describe(exit: std::io::Result<ExitStatus>) -> String {
    match exit {
        Ok(status) => status.to_string(),
        Err(error) => format!("lost: {error}"),
    }
}
