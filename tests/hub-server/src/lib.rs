//! Stands in for Hugging Face and ModelScope: their APIs, and a second address that sends the large files, as their content
//! networks do. It breaks what a test asks it to break, and keeps what it was asked.
//!
//! `huggingface_hub` and `modelscope` from PyPI run against it in `tests/clients.rs`, so that it and the clients agree.
//!
//! Files:
//!
//! - `models.rs`: models, their commits and files; `folders.rs`: those in folders.
//! - `api.rs`: what the two APIs answer. Pure.
//! - `request.rs`: a request, and what it asks for. Pure.
//! - `http.rs`: requests and answers on a connection, and what is broken in them.

#![forbid(unsafe_code)]

mod api;
mod folders;
mod http;
mod models;
mod request;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

pub use folders::models_in;
pub use http::Break;
pub use models::{Access, Content, Model, commit_of, sha256};
pub use request::{Request, Side};

type Rule = Box<dyn FnMut(&Request) -> Break + Send>;

/// The hub and its content network. Both end with it.
pub struct HubServer {
    hub: SocketAddr,
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    models: Mutex<Vec<Model>>,
    rule: Mutex<Rule>,
    requests: Mutex<Vec<Request>>,
    more: Condvar,
    /// Where the large files are.
    network: SocketAddr,
    /// Entries of a page of a list of files.
    page: Mutex<usize>,
    stopped: AtomicBool,
}

/// Limit for a wait.
const COMES_WITHIN: Duration = Duration::from_secs(60);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HubServer {
    /// On loopback.
    pub fn start() -> std::io::Result<Self> {
        // Another host than that of the hub, also for clients that do not compare ports.
        let network = (Ipv4Addr::new(127, 0, 0, 2), 0).into();
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), network, Vec::new())
    }

    /// With these models from the first request on. Port 0: a free one.
    pub fn start_at(hub: SocketAddr, network: SocketAddr, models: Vec<Model>) -> std::io::Result<Self> {
        let (hub, network) = (TcpListener::bind(hub)?, TcpListener::bind(network)?);
        let shared = Arc::new(Shared {
            models: Mutex::new(models),
            rule: Mutex::new(Box::new(|_| Break::Nothing)),
            requests: Mutex::default(),
            more: Condvar::new(),
            network: network.local_addr()?,
            page: Mutex::new(1000),
            stopped: AtomicBool::new(false),
        });
        let address = hub.local_addr()?;
        for (listener, side) in [(hub, Side::Hub), (network, Side::Network)] {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, side, &shared));
        }
        Ok(Self { hub: address, shared })
    }

    /// For clients: `http://address:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Adds a model, or replaces the one of this name.
    pub fn put(&self, model: Model) {
        let mut models = locked(&self.shared.models);
        models.retain(|known| known.id() != model.id());
        models.push(model);
    }

    pub fn rule(&self, rule: impl FnMut(&Request) -> Break + Send + 'static) {
        *locked(&self.shared.rule) = Box::new(rule);
    }

    /// Entries of a page of a list of files; 1000 at the beginning.
    pub fn entries_per_page(&self, entries: usize) {
        *locked(&self.shared.page) = entries;
    }

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut *locked(&self.shared.requests))
    }

    /// Waits until there were so many requests of this kind since they were last taken.
    #[track_caller]
    pub fn until_requests(&self, wanted: usize, is_one: impl Fn(&Request) -> bool) {
        let requests = locked(&self.shared.requests);
        let few = |requests: &mut Vec<Request>| requests.iter().filter(|one| is_one(one)).count() < wanted;
        let waited = self.shared.more.wait_timeout_while(requests, COMES_WITHIN, few);
        let waited = waited.unwrap_or_else(PoisonError::into_inner).1;
        assert!(!waited.timed_out(), "not {wanted} such requests within a minute");
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        for address in [self.hub, self.shared.network] {
            drop(TcpStream::connect(address));
        }
    }
}

fn accept(listener: &TcpListener, side: Side, shared: &Arc<Shared>) {
    for client in listener.incoming().flatten() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(shared);
        // Broken connections are intended.
        thread::spawn(move || drop(http::serve(client, side, &shared)));
    }
}
