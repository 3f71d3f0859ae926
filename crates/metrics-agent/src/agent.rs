//! The life of the agent: what runs, from the first line of the log to the drain.

use std::{process::ExitCode, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, bail};
use daemon::listener::listen;
use metrics_source::{
    admin,
    moment::Clock,
    server::{self, Security},
    stream::Hub,
    tls,
};
use proto::metrics::v1::Source as Identity;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    args::Args,
    device::{Source, nvml::NvmlSource, recorded::RecordedSource},
    exposition::{self, Pods},
    pods::{self, Holdings, Kubelet},
    sampler::{self, Ended, Message, Sampler, Settings},
};

/// Streams end at once; a client that does not read its last bytes is left after it.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// For another library than the one that is loaded. The kubelet starts the container again.
const DRIVER_CHANGED: u8 = 3;
/// The kubelet answers for all pods of the node, so it is not asked more often.
const LEAST_POD_RESOURCES_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until SIGTERM, SIGINT or a driver that was replaced.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let clock = Clock::start();
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let stop = CancellationToken::new();
    let hub = Hub::default();
    let mut tasks = JoinSet::new();

    let holdings = match args.pod_resources.clone() {
        None => watch::Sender::new(Arc::default()).subscribe(),
        Some(socket) => {
            let refresh = args.pod_resources_interval.max(LEAST_POD_RESOURCES_INTERVAL);
            let (sender, receiver) = watch::channel(Arc::new(Holdings::before_the_first_answer(refresh)));
            tasks.spawn(pods::follow(Kubelet { socket, refresh }, sender, clock, stop.clone()));
            receiver
        }
    };
    let security = security(&args, &mut tasks, &stop).await?;
    let grpc = listen(args.listen).await.context("failed to listen for gRPC")?;
    let admin = listen(args.admin_address).await.context("failed to listen for probes")?;
    info!(grpc = %grpc.local_addr()?, admin = %admin.local_addr()?, "listening");
    let named = if args.metrics_without_pods { Pods::LeftOut } else { Pods::Named };
    let registry = exposition::registry(hub.clone(), named);
    tasks.spawn(admin::serve(admin, hub.clone(), clock, registry, Arc::new(|| true), stop.clone()));
    let mut serving = tokio::spawn(server::serve(grpc, security, hub.clone(), stop.clone()));
    let (to_sampler, mut ended) = start_sampler(&args, hub, clock, holdings)?;

    let code = tokio::select! {
        _ = terminate.recv() => ExitCode::SUCCESS,
        _ = interrupt.recv() => ExitCode::SUCCESS,
        ended = &mut ended => match ended {
            Ok(Ended::DriverChanged) => ExitCode::from(DRIVER_CHANGED),
            Ok(Ended::Stopped) | Err(_) => bail!("the sampler has ended by itself"),
        },
        served = &mut serving => {
            served.context("the gRPC server panicked")??;
            bail!("the gRPC server has ended by itself");
        }
    };
    stop.cancel();
    // A full inbox means that it has more to do than to stop; the process does not wait for it.
    let _ = to_sampler.try_send(Message::Stop);
    let drained = timeout(DRAIN_WITHIN, async {
        let _ = serving.await;
        while tasks.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        warn!("a client did not read to the end");
    }
    info!("stopped");
    Ok(code)
}

fn start_sampler(
    args: &Args,
    hub: Hub,
    clock: Clock,
    holdings: watch::Receiver<Arc<Holdings>>,
) -> anyhow::Result<(sampler::Inbox, oneshot::Receiver<Ended>)> {
    let source: Box<dyn Source> = match args.recorded.clone() {
        Some(path) => Box::new(RecordedSource { path }),
        None => Box::new(NvmlSource { library: args.nvml_library.clone(), processes: args.processes }),
    };
    let identity = Identity {
        instance: format!("{:032x}", fastrand::u128(..)),
        node: args.node_name.clone(),
        pod: None,
        software: concat!("metrics-agent/", env!("CARGO_PKG_VERSION")).to_owned(),
        backend: String::new(),
    };
    let settings = Settings { interval: args.interval, read_within: args.read_within.min(args.interval) };
    let inbox = sampler::inbox();
    let to_sampler = inbox.0.clone();
    let publish = move |snapshot| hub.publish(snapshot);
    let sampler = Sampler::new(identity, settings, source, inbox, clock, holdings, publish);
    let (sender, ended) = oneshot::channel();
    let run = move || {
        // Fails only after the end of the agent.
        let _ = sender.send(sampler.run());
    };
    thread::Builder::new().name("sampler".to_owned()).spawn(run).context("failed to start the sampler")?;
    Ok((to_sampler, ended))
}

/// Plain on loopback, or where it was asked for.
async fn security(
    args: &Args,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> anyhow::Result<Security> {
    let (Some(certificate), Some(key), Some(client_ca)) =
        (args.tls_cert.clone(), args.tls_key.clone(), args.tls_client_ca.clone())
    else {
        if !args.listen.ip().is_loopback() && !args.plaintext {
            bail!(
                "--listen {} is not loopback: give --tls-cert, --tls-key and --tls-client-ca, or --plaintext",
                args.listen
            );
        }
        return Ok(Security::Plain);
    };
    let files = tls::Files { certificate, key, client_ca };
    let content = tls::read(&files).await?;
    let (sender, receiver) = watch::channel(tls::config(&files, &content)?);
    tasks.spawn(tls::follow(files, content, sender, stop.clone()));
    Ok(Security::Mutual(receiver))
}
