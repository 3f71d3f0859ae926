//! The life of an engine: read the model, warm up, serve, drain, end.
//!
//! As each real one was seen to do it. vLLM and Triton lose a SIGTERM while they load. To drain, vLLM keeps its port
//! and answers new requests with 500; Triton closes its port and waits for its clients to close their connections; TGI
//! closes its port and idle connections. Only the pod's own wait before SIGTERM keeps clients from noticing.

use std::{
    process::{Command, ExitCode},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep, timeout},
};

use crate::{
    answers::{Loaded, Serving, calls, metrics_router, router},
    behaviour::{Behaviour, Fault},
    invocation::{Engine, Invocation},
    model,
    ports::{Closing, Ports},
    repository, vllm,
};

/// The exit code that a shell reports for a program ended by SIGTERM.
const TERMINATED: u8 = 128 + 15;

/// Lives until SIGTERM or a fault, and returns what the process ends with.
pub(crate) async fn live(invocation: Invocation, behaviour: Behaviour) -> anyhow::Result<ExitCode> {
    let serving = Serving::new(invocation, behaviour);
    if serving.behaviour.has_worker {
        start_worker(&serving.behaviour.pod)?;
    }
    match &serving.invocation.engine {
        Engine::Vllm => vllm(&serving).await,
        Engine::Triton(_) => triton(&serving).await,
        Engine::Tgi => tgi(&serving).await,
    }
}

/// Nothing here ends it: workers of an engine that is killed go on until the container runtime ends them.
fn start_worker(pod: &str) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let started = Command::new(program).args(["worker", pod]).spawn();
    started.map(drop).context("failed to start a worker")
}

/// Opens its port when it is ready.
async fn vllm(serving: &Arc<Serving>) -> anyhow::Result<ExitCode> {
    let mut terminate = terminations()?;
    if let Some(lines) = vllm::no_model(&serving.invocation.model_path) {
        return Ok(failed_with(&lines));
    }
    let _held = tokio::select! {
        biased;
        () = second(&mut terminate) => return Ok(terminated()),
        held = load(serving) => held?,
    };
    let broken = match serving.behaviour.fault {
        Some(Fault::BrokenModel) => Some(vllm::TOO_LARGE),
        _ => vllm::broken(&serving.invocation.model_path),
    };
    if let Some(why) = broken {
        return Ok(failed_with(&vllm::end_of(why)));
    }
    let mut ports = Ports::new();
    ports.open(serving.invocation.port, router(serving), Closing::AfterAnswers).await?;
    eprintln!("ready");
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        ended = fail_later(serving) => return ended,
    }
    let allowed = draining(serving);
    serving.refuse_from_now_on("cannot schedule new futures after shutdown");
    let idle = drained(allowed, serving.idle(), &mut terminate).await;
    if idle {
        // What was answered last is on its way.
        let _ = timeout(A_MOMENT, ports.close()).await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens its ports when everything is loaded. Until then SIGTERM does what it does to any program that does not listen
/// for it: nothing to the first process of a container, and it ends any other one.
async fn triton(serving: &Arc<Serving>) -> anyhow::Result<ExitCode> {
    let _held = load(serving).await?;
    let mut terminate = terminations()?;
    let mut ports = Ports::new();
    ports.open(serving.invocation.port, router(serving), Closing::ByClients).await?;
    if let Some(port) = serving.invocation.metrics_port {
        ports.open(port, metrics_router(serving), Closing::AfterAnswers).await?;
    }
    if let Some(port) = serving.invocation.grpc_port {
        ports.open(port, calls::router(serving), Closing::AfterCalls).await?;
    }
    eprintln!("ready");
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        ended = fail_later(serving) => return ended,
    }
    let allowed = draining(serving);
    let drained = drained(allowed, ports.close(), &mut terminate).await;
    Ok(if drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Answers 503 until it is ready.
async fn tgi(serving: &Arc<Serving>) -> anyhow::Result<ExitCode> {
    let mut terminate = terminations()?;
    let mut ports = Ports::new();
    ports.open(serving.invocation.port, router(serving), Closing::AfterAnswers).await?;
    let _held = tokio::select! {
        biased;
        _ = terminate.recv() => return Ok(terminated()),
        held = load(serving) => held?,
    };
    eprintln!("ready");
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        ended = fail_later(serving) => return ended,
    }
    let allowed = draining(serving);
    drained(allowed, ports.close(), &mut terminate).await;
    Ok(ExitCode::SUCCESS)
}

fn terminations() -> anyhow::Result<Signal> {
    signal(SignalKind::terminate()).context("failed to listen for SIGTERM")
}

/// Loses one SIGTERM.
async fn second(terminate: &mut Signal) {
    terminate.recv().await;
    eprintln!("SIGTERM: lost while loading");
    terminate.recv().await;
}

fn terminated() -> ExitCode {
    eprintln!("stopped by SIGTERM while loading");
    ExitCode::from(TERMINATED)
}

fn failed_with(lines: &[String]) -> ExitCode {
    lines.iter().for_each(|line| eprintln!("{line}"));
    ExitCode::FAILURE
}

/// Reads the model and warms up; what it returns is held for as long as the engine lives.
async fn load(serving: &Arc<Serving>) -> anyhow::Result<Vec<u8>> {
    let began = Instant::now();
    let models = match &serving.invocation.engine {
        Engine::Vllm | Engine::Tgi => vec![serving.name().to_owned()],
        Engine::Triton(triton) => repository::models(triton).context("creating server: Internal")?,
    };
    let path = serving.invocation.model_path.clone();
    let read = tokio::task::spawn_blocking(move || model::read(&path)).await;
    let model = read.context("failed to wait for the model")?.context("failed to load the model")?;
    let may_be_empty = matches!(serving.invocation.engine, Engine::Triton(_));
    if model.files.is_empty() && !may_be_empty {
        bail!("failed to load the model: there is no file in {}", serving.invocation.model_path.display());
    }
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
        Some(
            Fault::CrashAfter(_)
            | Fault::CrashAfterRequests { .. }
            | Fault::ErrorShare { .. }
            | Fault::RepetitionShare { .. }
            | Fault::NotReadyAfter(_)
            | Fault::BrokenModel
            | Fault::WorkerKilledAfter(_),
        )
        | None => {}
    }
    sleep(serving.behaviour.load).await;
    // Only this sets it, and only once.
    let _ = serving.loaded.set(Loaded::new(model, models, serving.behaviour.buckets));
    Ok(held)
}

/// Memory that is really taken: pages that were never written would cost nothing.
fn touched(mebibytes: usize) -> Vec<u8> {
    eprintln!("taking {mebibytes} MiB");
    vec![1; mebibytes << 20]
}

/// Returns only if the process is to end.
async fn fail_later(serving: &Serving) -> anyhow::Result<ExitCode> {
    match serving.behaviour.fault {
        Some(Fault::CrashAfter(after)) => {
            sleep(after).await;
            bail!("crashed: ENGINE_FAULT asks for it")
        }
        Some(Fault::CrashAfterRequests { .. }) => {
            serving.crashes.notified().await;
            bail!("crashed: ENGINE_FAULT asks for it")
        }
        Some(Fault::NotReadyAfter(after)) => {
            sleep(after).await;
            eprintln!("no longer ready: ENGINE_FAULT asks for it");
            serving.unready.store(true, Ordering::Relaxed);
            std::future::pending().await
        }
        Some(Fault::WorkerKilledAfter(after)) => {
            sleep(after).await;
            eprintln!("the worker was killed: ENGINE_FAULT asks for it");
            serving.unready.store(true, Ordering::Relaxed);
            serving.refuse_from_now_on("EngineCore encountered an issue");
            sleep(serving.behaviour.end).await;
            Ok(ExitCode::SUCCESS)
        }
        Some(
            Fault::Fail
            | Fault::Hang
            | Fault::BrokenModel
            | Fault::ErrorShare { .. }
            | Fault::RepetitionShare { .. }
            | Fault::Allocate { .. },
        )
        | None => std::future::pending().await,
    }
}

/// How long the engine may drain.
fn draining(serving: &Serving) -> Duration {
    let allowed = serving.behaviour.drain.unwrap_or(serving.invocation.drain);
    eprintln!("SIGTERM: draining for up to {:.1} s", allowed.as_secs_f64());
    allowed
}

/// Whether what is in flight ended in time; a second SIGTERM takes the time from it.
async fn drained(allowed: Duration, ended: impl Future<Output = ()>, terminate: &mut Signal) -> bool {
    let began = Instant::now();
    let drained = tokio::select! {
        drained = timeout(allowed.max(A_BREATH), ended) => drained.is_ok(),
        _ = terminate.recv() => false,
    };
    let took = began.elapsed().as_secs_f64();
    eprintln!("{} after {took:.1} s", if drained { "drained" } else { "cut requests off" });
    drained
}

/// Closing idle connections takes a moment, also for an engine that does not wait for requests.
const A_BREATH: Duration = Duration::from_millis(10);
/// Longer than an answer that is written already needs to leave.
const A_MOMENT: Duration = Duration::from_secs(1);
