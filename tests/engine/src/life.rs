//! The life of an engine: read the model, warm up, serve, drain, end.
//!
//! As with the real ones, SIGTERM closes the port: new connections are refused, idle ones are closed, requests in
//! flight get the time that the arguments gave. Only the pod's own wait before SIGTERM keeps clients from noticing.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use axum::Router;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    answers::{Serving, metrics_router, router},
    behaviour::{Behaviour, Fault},
    invocation::{Engine, Invocation},
    model,
};

/// As a shell says it of a program that SIGTERM ended.
const TERMINATED: u8 = 128 + 15;

/// Lives until SIGTERM or a fault, and returns what the process ends with.
pub(crate) async fn live(invocation: Invocation, behaviour: Behaviour) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let serving = Serving::new(invocation, behaviour);
    let mut ports = Ports::new();
    // vLLM opens its port when it can answer; the others answer 503 until then.
    match serving.invocation.engine {
        Engine::Vllm => {}
        Engine::Triton | Engine::Tgi => ports.open(&serving).await?,
    }
    let _held = tokio::select! {
        biased;
        _ = terminate.recv() => {
            eprintln!("stopped by SIGTERM while loading");
            return Ok(ExitCode::from(TERMINATED));
        }
        held = load(&serving) => held?,
        ended = ports.ended() => return Err(ended),
    };
    match serving.invocation.engine {
        Engine::Vllm => ports.open(&serving).await?,
        Engine::Triton | Engine::Tgi => {}
    }
    eprintln!("ready");
    tokio::select! {
        biased;
        _ = terminate.recv() => Ok(ports.drain(&serving, &mut terminate).await),
        crash = fail_later(&serving) => Err(crash),
        ended = ports.ended() => Err(ended),
    }
}

/// Reads the model and warms up; what it returns is held for as long as the engine lives.
async fn load(serving: &Arc<Serving>) -> anyhow::Result<Vec<u8>> {
    let began = Instant::now();
    let path = serving.invocation.model_path.clone();
    let read = tokio::task::spawn_blocking(move || model::read(&path)).await;
    let model = read.context("failed to wait for the model")?.context("failed to load the model")?;
    eprintln!(
        "read {} files, {} bytes, sha256 {}, in {:.1} s",
        model.files.len(),
        model.bytes,
        model.sha256,
        began.elapsed().as_secs_f64()
    );
    let mut held = Vec::new();
    match serving.behaviour.fault {
        Some(Fault::Fail) => bail!("failed to load the model: ENGINE_FAULT asks for it"),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Allocate { mebibytes }) => held = touched(mebibytes),
        Some(Fault::CrashAfter(_) | Fault::NotReadyAfter(_)) | None => {}
    }
    sleep(serving.behaviour.load).await;
    // Only we set it, and only here.
    let _ = serving.model.set(model);
    Ok(held)
}

/// Memory that is really taken: pages that were never written would cost nothing.
fn touched(mebibytes: usize) -> Vec<u8> {
    eprintln!("taking {mebibytes} MiB");
    vec![1; mebibytes << 20]
}

/// Returns only if the process is to crash.
async fn fail_later(serving: &Serving) -> anyhow::Error {
    match serving.behaviour.fault {
        Some(Fault::CrashAfter(after)) => {
            sleep(after).await;
            anyhow::anyhow!("crashed: ENGINE_FAULT asks for it")
        }
        Some(Fault::NotReadyAfter(after)) => {
            sleep(after).await;
            eprintln!("no longer ready: ENGINE_FAULT asks for it");
            serving.unready.store(true, Ordering::Relaxed);
            std::future::pending().await
        }
        Some(Fault::Fail | Fault::Hang | Fault::Allocate { .. }) | None => std::future::pending().await,
    }
}

/// The ports that are open.
struct Ports {
    servers: JoinSet<std::io::Result<()>>,
    stop: watch::Sender<bool>,
}

impl Ports {
    fn new() -> Self {
        Self { servers: JoinSet::new(), stop: watch::channel(false).0 }
    }

    async fn open(&mut self, serving: &Arc<Serving>) -> anyhow::Result<()> {
        self.serve(serving.invocation.port, router(serving)).await?;
        if let Some(port) = serving.invocation.metrics_port {
            self.serve(port, metrics_router(serving)).await?;
        }
        Ok(())
    }

    async fn serve(&mut self, port: u16, router: Router) -> anyhow::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("failed to open port {port}"))?;
        // Port 0 is one that the system chose.
        let address = listener.local_addr().context("failed to look at a port")?;
        eprintln!("open: port {}", address.port());
        let mut stop = self.stop.subscribe();
        let server = axum::serve(listener, router).with_graceful_shutdown(async move {
            // An error would say that the ports are gone, which is an end as well.
            let _ = stop.wait_for(|stop| *stop).await;
        });
        self.servers.spawn(server.into_future());
        Ok(())
    }

    /// Returns only if a port can no longer be served.
    async fn ended(&mut self) -> anyhow::Error {
        match self.servers.join_next().await {
            Some(ended) => anyhow::anyhow!("a port ended: {ended:?}"),
            None => std::future::pending().await,
        }
    }

    /// Closes the ports and gives requests in flight their time; a second SIGTERM takes it from them.
    async fn drain(mut self, serving: &Serving, terminate: &mut Signal) -> ExitCode {
        let allowed = serving.behaviour.drain.unwrap_or(serving.invocation.drain);
        eprintln!("SIGTERM: draining for up to {:.1} s", allowed.as_secs_f64());
        let began = Instant::now();
        self.stop.send_replace(true);
        let ended = async { while self.servers.join_next().await.is_some() {} };
        let drained = tokio::select! {
            drained = timeout(allowed.max(A_BREATH), ended) => drained.is_ok(),
            _ = terminate.recv() => false,
        };
        let took = began.elapsed().as_secs_f64();
        eprintln!("{} after {took:.1} s", if drained { "drained" } else { "cut requests off" });
        ExitCode::SUCCESS
    }
}

/// Closing idle connections takes a moment, also for an engine that does not wait for requests.
const A_BREATH: Duration = Duration::from_millis(10);
