//! Reads all devices at an interval and publishes a snapshot after each round: the one owner of the board.
//!
//! ```text
//! thread of each device ── answer ──▶ ┌─────────┐
//! thread of the events ── event ────▶ │  inbox  │──▶ sampler ── snapshot ──▶ publish
//! thread that opens ──── machine ───▶ └─────────┘
//! ```
//!
//! Only those threads call a source. A call that hangs blocks its own thread, of which there is one for each device: the
//! device is not asked again before it has answered, the others are not delayed, and no thread is ever added. A request
//! of a client never waits for a device. Nothing here knows a vendor, pods or the network.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

use metrics_source::moment::{Clock, Moment};
use proto::metrics::v1::{self as contract, FaultReason, Snapshot};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::{
    board::{Board, Change, Part},
    device::{Device, EventQueue, Fault, Happening, Machine, Sample, Source},
    pods::Holdings,
};

/// More than a tick brings; a storm of events beyond it is delayed, not lost, because their thread waits.
const INBOX: usize = 256;
/// Device threads call into a driver; what they do not touch costs nothing.
const STACK: usize = 1024 * 1024;
/// A driver that is being installed is found within this time.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Loading the driver's state of eight GPUs without persistence mode takes seconds.
const OPEN_WITHIN: Duration = Duration::from_secs(20);
/// How long one wait for events lasts; only the end of the process is shorter.
const EVENT_WAIT: Duration = Duration::from_secs(5);
/// The pause after a wait that failed. An event of another device is delayed by it.
const WAIT_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Events that come within it share a snapshot.
const EVENTS_TOGETHER: Duration = Duration::from_millis(100);
/// So that subscribers and a scrape see the reason before the process restarts with the new library.
const RESTART_AFTER: Duration = Duration::from_secs(5);

/// How the sampler runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Between two rounds.
    pub(crate) interval: Duration,
    /// From the question to the answers of one round; a device that takes longer is stale.
    pub(crate) read_within: Duration,
}

/// Why the sampler has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Stopped,
    /// The library of this process does not fit the driver any more.
    DriverChanged,
}

/// What other threads send.
pub(crate) enum Message {
    Opened(Box<dyn Source>, Result<Machine, Fault>),
    Answer { device: usize, round: u64, answer: Result<Vec<Sample>, Fault> },
    Happened(Happening),
    Events(Option<Fault>),
    Stop,
}

/// Sends to the sampler.
pub(crate) type Inbox = SyncSender<Message>;

/// The inbox of a sampler, and its other end.
pub(crate) fn inbox() -> (Inbox, Receiver<Message>) {
    sync_channel(INBOX)
}

/// The thread of one device.
struct Worker {
    ask: SyncSender<u64>,
    /// The round that it has been asked for and not answered.
    busy: Option<u64>,
}

/// See the module.
pub(crate) struct Sampler<P> {
    settings: Settings,
    clock: Clock,
    holdings: watch::Receiver<Arc<Holdings>>,
    publish: P,
    board: Board,
    sender: Inbox,
    receiver: Receiver<Message>,
    workers: Vec<Worker>,
    round: u64,
    /// The source, unless a thread is opening it or it is open.
    closed: Option<Box<dyn Source>>,
    opening_since: Option<Duration>,
    open_at: Duration,
    /// When a snapshot for an event is due.
    event_due: Option<Duration>,
    restart_at: Option<Duration>,
}

impl<P: FnMut(Snapshot)> Sampler<P> {
    pub(crate) fn new(
        identity: contract::Source,
        settings: Settings,
        source: Box<dyn Source>,
        (sender, receiver): (Inbox, Receiver<Message>),
        clock: Clock,
        holdings: watch::Receiver<Arc<Holdings>>,
        publish: P,
    ) -> Self {
        Self {
            settings,
            clock,
            holdings,
            publish,
            board: Board::new(identity, settings.interval),
            sender,
            receiver,
            workers: Vec::new(),
            round: 0,
            closed: Some(source),
            opening_since: None,
            open_at: Duration::ZERO,
            event_due: None,
            restart_at: None,
        }
    }

    /// Runs until it is stopped. Blocks its thread.
    pub(crate) fn run(mut self) -> Ended {
        let mut next = self.clock.now().uptime;
        self.open(next);
        loop {
            let now = self.clock.now().uptime;
            if self.restart_at.is_some_and(|at| now >= at) {
                return Ended::DriverChanged;
            }
            if now >= next {
                if !self.round() {
                    return Ended::Stopped;
                }
                // Rounds that were missed are left out.
                next = (next + self.settings.interval).max(now);
                continue;
            }
            if self.event_due.is_some_and(|at| now >= at) {
                self.show();
                continue;
            }
            let until = self.event_due.map_or(next, |at| at.min(next));
            match self.receiver.recv_timeout(until.saturating_sub(now)) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return Ended::Stopped,
                Ok(Message::Opened(source, opened)) => {
                    self.opened(source, opened);
                    next = self.clock.now().uptime;
                }
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Asks every device that has answered the last question, waits for what comes in time, and publishes. False if it
    /// was stopped meanwhile.
    fn round(&mut self) -> bool {
        let begun = self.clock.now();
        self.open(begun.uptime);
        self.round += 1;
        for device in 0..self.workers.len() {
            self.ask(device, begun);
        }
        let until = begun.uptime + self.settings.read_within;
        while self.workers.iter().any(|worker| worker.busy == Some(self.round)) {
            let rest = until.saturating_sub(self.clock.now().uptime);
            match self.receiver.recv_timeout(rest) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        let now = self.clock.now();
        for device in 0..self.workers.len() {
            if self.workers[device].busy.is_some() {
                self.answered(device, Err(late(self.settings.read_within)), now);
            }
        }
        self.show();
        true
    }

    fn ask(&mut self, device: usize, now: Moment) {
        let worker = &mut self.workers[device];
        if worker.busy.is_some() {
            return;
        }
        match worker.ask.try_send(self.round) {
            Ok(()) => worker.busy = Some(self.round),
            // It takes a question only after it has answered the last one, so the queue of one is never full.
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => {
                let fault = Fault::new(FaultReason::DriverError, "the thread of the device has ended");
                self.answered(device, Err(fault), now);
            }
        }
    }

    fn take(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Answer { device, round, answer } => {
                if let Some(worker) = self.workers.get_mut(device) {
                    worker.busy = None;
                    // The answer to an older question may be from any moment since: it is asked again.
                    if round == self.round {
                        self.answered(device, answer, now);
                    }
                }
            }
            Message::Happened(happening) => {
                let holdings = Arc::clone(&self.holdings.borrow());
                let change = self.board.happened(happening, &holdings, now);
                log(Some(change));
                self.event_due.get_or_insert(now.uptime + EVENTS_TOGETHER);
            }
            Message::Events(fault) => log(self.board.part(Part::Events, fault, now)),
            Message::Opened(source, opened) => self.opened(source, opened),
            // `run` and `round` return on `Stop` before they call this.
            Message::Stop => {}
        }
    }

    fn answered(&mut self, device: usize, answer: Result<Vec<Sample>, Fault>, now: Moment) {
        if let Err(fault) = &answer
            && needs_restart(fault.reason)
            && self.restart_at.is_none()
        {
            self.restart_at = Some(now.uptime + RESTART_AFTER);
            error!(
                seconds = RESTART_AFTER.as_secs(),
                "the driver was replaced: restarting for its new library"
            );
        }
        let holdings = Arc::clone(&self.holdings.borrow());
        log(self.board.answered(device, answer, &holdings, now));
    }

    fn show(&mut self) {
        let now = self.clock.now();
        let holdings = Arc::clone(&self.holdings.borrow_and_update());
        log(self.board.part(Part::Pods, holdings.fault.clone(), now));
        self.event_due = None;
        (self.publish)(self.board.snapshot(&holdings, now));
    }

    /// Opens the source on a thread of its own, if it is closed and the time has come. One that hangs is not opened twice.
    fn open(&mut self, now: Duration) {
        if let Some(since) = self.opening_since
            && now.saturating_sub(since) > OPEN_WITHIN
        {
            let fault = Fault::new(FaultReason::Timeout, "opening the driver's library takes too long");
            log(self.board.part(Part::Source, Some(fault), self.clock.now()));
        }
        if now < self.open_at {
            return;
        }
        let Some(mut source) = self.closed.take() else { return };
        self.opening_since = Some(now);
        let sender = self.sender.clone();
        let opens = move || {
            let opened = source.open();
            // Fails only after the end of the sampler.
            let _ = sender.send(Message::Opened(source, opened));
        };
        self.spawn("open", opens);
    }

    fn opened(&mut self, source: Box<dyn Source>, opened: Result<Machine, Fault>) {
        let now = self.clock.now();
        self.opening_since = None;
        match opened {
            Ok(Machine { backend, devices, events }) => {
                info!(backend, devices = devices.len(), "reading devices");
                log(self.board.part(Part::Source, None, now));
                self.board.opened(backend, devices.iter().map(|device| device.identity()).collect());
                for (number, device) in devices.into_iter().enumerate() {
                    self.start(number, device);
                }
                if let Some(events) = events {
                    let sender = self.sender.clone();
                    self.spawn("events", move || forward(events, &sender));
                }
            }
            Err(fault) => {
                log(self.board.part(Part::Source, Some(fault), now));
                self.closed = Some(source);
                self.open_at = now.uptime + OPEN_AGAIN_AFTER;
            }
        }
    }

    fn start(&mut self, number: usize, mut device: Box<dyn Device>) {
        let (ask, asked) = sync_channel(1);
        self.workers.push(Worker { ask, busy: None });
        let sender = self.sender.clone();
        self.spawn("device", move || {
            while let Ok(round) = asked.recv() {
                let answer = device.read();
                if sender.send(Message::Answer { device: number, round, answer }).is_err() {
                    return;
                }
            }
        });
    }

    /// These threads are not joined: the process ends without them. Without a thread a device or the source is at
    /// fault, which its next question finds.
    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) {
        if let Err(error) = thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body) {
            error!(%error, name, "failed to start a thread");
        }
    }
}

/// Whether the library that is loaded cannot work again: after another version of the driver, or none, was loaded.
fn needs_restart(reason: FaultReason) -> bool {
    matches!(reason, FaultReason::DriverChanged | FaultReason::NoDriver | FaultReason::NoLibrary)
}

fn late(within: Duration) -> Fault {
    Fault::new(FaultReason::Timeout, format!("the driver has not answered within {} ms", within.as_millis()))
}

/// Passes events on until the sampler has ended.
fn forward(mut events: Box<dyn EventQueue>, sender: &Inbox) {
    let mut is_faulty = false;
    loop {
        let message = match events.next(EVENT_WAIT) {
            Ok(Some(happening)) => Some(Message::Happened(happening)),
            Ok(None) => is_faulty.then_some(Message::Events(None)),
            Err(fault) => Some(Message::Events(Some(fault))),
        };
        let Some(message) = message else { continue };
        let failed = matches!(message, Message::Events(Some(_)));
        is_faulty = failed || is_faulty && matches!(message, Message::Happened(_));
        if sender.send(message).is_err() {
            return;
        }
        if failed {
            thread::sleep(WAIT_AGAIN_AFTER);
        }
    }
}

/// One line for each change.
fn log(change: Option<Change>) {
    match change {
        None => {}
        Some(Change::Lost { device, fault }) => {
            warn!(device, reason = fault.reason.name(), why = fault.message, "device is stale");
        }
        Some(Change::Back { device }) => info!(device, "device is read again"),
        Some(Change::Faulty { part, fault: Fault { reason: FaultReason::NoDevice, message } }) => {
            info!(?part, why = message, "this node has no device to measure");
        }
        Some(Change::Faulty { part, fault }) => {
            warn!(?part, reason = fault.reason.name(), why = fault.message, "part is faulty");
        }
        Some(Change::Mended { part }) => info!(?part, "part works again"),
        Some(Change::Happened { device, kind, code, holders }) => {
            warn!(device, kind = kind.name(), code, ?holders, "driver reported an event");
        }
    }
}
