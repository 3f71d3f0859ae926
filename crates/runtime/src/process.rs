//! The life of a controller process: start, caches, election, work, drain. Written once; a controller names its kinds
//! and one function.

pub mod admin;
pub mod args;
pub mod lease;
pub mod telemetry;

use std::{
    error::Error,
    fmt,
    future::Future,
    path::PathBuf,
    pin::Pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, header};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, Config, Resource, config::KubeConfigOptions, config::Kubeconfig};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    causes::with_causes,
    client::{self, Deadlines, LeaderGuard, WriteGuard},
    clock::Clock,
    controller::{Controller, Next, Options, ReconcileError},
    metrics::Metrics,
    process::{
        args::RuntimeArgs,
        lease::{Elector, Loss, Timings},
    },
    read::{endpoints::Endpoints, logs::Logs, secrets::Secrets},
    watch::{Requirement, Scope, Watches, cache::Cache, object_counts::ObjectCounts, watched::Watched},
    write::{apply::Writer, events::Recorder, scale::Scales},
};

/// Who a controller is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Field manager, name of the Lease, `managed-by` label and metric label.
    pub name: &'static str,
    pub version: &'static str,
    /// See `Writer::new`.
    pub hash_annotation: &'static str,
}

/// What a controller gets to set itself up.
pub struct Process {
    identity: Identity,
    namespace: Option<String>,
    replica: String,
    refusal_retry_period: Duration,
    options: Options,
    client: Client,
    watches: Watches,
    metrics: Arc<Metrics>,
    clock: Clock,
    leads: Arc<AtomicBool>,
}

/// A controller that is ready to run.
pub struct Started(Work);

type Work = Box<dyn FnOnce(CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

impl Process {
    /// All objects of a kind, in all namespaces or in the one given by `--namespace`.
    pub fn watch<K>(&mut self, kind: &'static str) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        self.watches.watch(kind, Scope { namespace: self.namespace.clone(), ..Scope::default() })
    }

    /// Those with these labels.
    pub fn watch_labelled<K>(&mut self, kind: &'static str, labels: &str) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let labels = Some(labels.to_owned());
        self.watches.watch(kind, Scope { namespace: self.namespace.clone(), labels, ..Scope::default() })
    }

    /// Those that these fields select. `kind` names the cache: a kind may be watched once for each narrow view of it.
    pub fn watch_selected<K>(&mut self, kind: &'static str, fields: &str) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let fields = Some(fields.to_owned());
        self.watches.watch(kind, Scope { namespace: self.namespace.clone(), fields, ..Scope::default() })
    }

    /// Those with these labels that these fields select. `kind` names the cache, as in `watch_selected`.
    pub fn watch_matching<K>(&mut self, kind: &'static str, labels: &str, fields: &str) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let (labels, fields) = (Some(labels.to_owned()), Some(fields.to_owned()));
        self.watches
            .watch(kind, Scope { namespace: self.namespace.clone(), labels, fields, ..Scope::default() })
    }

    /// All objects of a kind that a cluster may do without: while it is not served there are none, and the process is healthy.
    pub fn watch_if_served<K>(&mut self, kind: &'static str) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let (namespace, requirement) = (self.namespace.clone(), Requirement::IfServed);
        self.watches.watch(kind, Scope { namespace, requirement, ..Scope::default() })
    }

    /// As `watch_if_served`, for a kind that few objects need: while it is not served, it is looked for only if `wanted`.
    /// `labels`: only those with these.
    pub fn watch_if_served_and_wanted<K>(
        &mut self,
        kind: &'static str,
        labels: Option<&str>,
        wanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let (namespace, requirement) = (self.namespace.clone(), Requirement::IfServed);
        let labels = labels.map(str::to_owned);
        let scope = Scope { namespace, labels, requirement, ..Scope::default() };
        self.watches.watch_if_wanted(kind, scope, Box::new(wanted))
    }

    /// As `watch_if_served_and_wanted`, and also while this process may not list them: of a right that this release needs for the
    /// first time, an older role knows nothing.
    pub fn watch_if_allowed_and_wanted<K>(
        &mut self,
        kind: &'static str,
        wanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let (namespace, requirement) = (self.namespace.clone(), Requirement::IfAllowed);
        self.watches.watch_if_wanted(
            kind,
            Scope { namespace, requirement, ..Scope::default() },
            Box::new(wanted),
        )
    }

    /// Those with these labels in one namespace, whichever `--namespace` says. While this process may not list them there are
    /// none, and the process is healthy: who installs what it finds there grants the right as well.
    pub fn watch_in_namespace_if_allowed<K>(
        &mut self,
        kind: &'static str,
        namespace: &str,
        labels: &str,
    ) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let scope = Scope {
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.to_owned()),
            requirement: Requirement::IfAllowed,
            ..Scope::default()
        };
        self.watches.watch(kind, scope)
    }

    /// When children that the API server refused are tried again, if nothing else changes.
    pub fn refusal_retry_period(&self) -> Duration {
        self.refusal_retry_period
    }

    /// Whether `--namespace` was given: then there is a Role alone, and nothing cluster-scoped can be watched.
    pub fn is_confined(&self) -> bool {
        self.namespace.is_some()
    }

    /// A cluster-scoped kind; a controller that is bound to one namespace may not be allowed to see it.
    pub fn watch_cluster<K>(&mut self, kind: &'static str) -> Cache<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        self.watches.watch(kind, Scope::default())
    }

    /// What writes for this root kind: the status of the roots, and what they own (`Writer::of`). It creates nothing
    /// for a root that is gone, or while the watch of the roots is failing.
    pub fn writer<K>(&self, roots: &Cache<K>) -> Writer
    where
        K: Watched + Serialize + Send + Sync + 'static,
    {
        Writer::new(self.client.clone(), self.identity.name, self.identity.hash_annotation, roots)
    }

    pub fn recorder(&self) -> Recorder {
        Recorder::new(
            self.client.clone(),
            self.identity.name,
            self.replica.clone(),
            Arc::clone(&self.metrics),
        )
    }

    pub fn logs(&self) -> Logs {
        Logs::new(self.client.clone())
    }

    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    pub fn endpoints(&self) -> Endpoints {
        Endpoints::new(self.client.clone())
    }

    pub fn secrets(&self) -> Secrets {
        Secrets::new(self.client.clone())
    }

    pub fn scales(&self) -> Scales {
        Scales::new(self.client.clone(), self.identity.name)
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Whether this replica leads, asked at any time: gauges of objects are exported by the leader alone.
    pub fn leadership(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let leads = Arc::clone(&self.leads);
        move || leads.load(Ordering::Relaxed)
    }

    /// Adds to the metrics how many objects have which value, such as a phase.
    pub fn count<K, V>(&self, objects: &Cache<K>, counts: ObjectCounts<K, V>)
    where
        K: Send + Sync + 'static,
        V: PartialEq + fmt::Debug + Send + Sync,
    {
        let collector = counts.collector(objects, self.leadership());
        self.metrics.with_registry(|registry| registry.register_collector(collector));
    }

    pub fn controller<K>(&self, root: &Cache<K>) -> Controller<K>
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        Controller::new(root, self.options, Arc::clone(&self.metrics)).by_clock(self.clock.clone())
    }

    /// The last step of a set-up.
    pub fn control<K, F, Fut, E>(&self, controller: Controller<K>, reconcile: F) -> Started
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
        F: Fn(Arc<K>, Timestamp) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Next, E>> + Send + 'static,
        E: ReconcileError,
    {
        let leads = Arc::clone(&self.leads);
        Started(Box::new(move |stop| {
            // Work begins with the lease, and the process does not outlive its loss.
            leads.store(true, Ordering::Relaxed);
            Box::pin(controller.run(stop, reconcile))
        }))
    }
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("failed to start the async runtime")]
    Runtime(#[source] std::io::Error),
    #[error("failed to set up logs and traces")]
    Telemetry(#[from] telemetry::TelemetryError),
    #[error("failed to read the kubeconfig; set KUBECONFIG, or run in a pod with a service account")]
    Config(#[source] Box<dyn Error + Send + Sync>),
    #[error("failed to build the API client")]
    Client(#[source] Box<kube::Error>),
    #[error("failed to listen on {address} (--admin-address)")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to set up the lease")]
    Lease(#[from] crate::process::lease::BadTimings),
    #[error("failed to listen for signals")]
    Signal(#[source] std::io::Error),
    #[error("the admin server ended")]
    Admin,
    #[error("a watch task died")]
    Watches,
    #[error("the controller died")]
    Work,
    #[error("the lease was lost")]
    Lost(#[source] Loss),
}

/// All tasks, timers and sockets are on this thread; the main thread only decides about the lease. It brings up more objects
/// a second than an API server creates. A computation holds everything up as long as it takes, so each is short: lists are
/// read by pages. One that never ends is ended by the liveness probe, and no write is sent after the lease has expired.
const WORKER_THREADS: usize = 1;

/// Runs until SIGTERM or SIGINT (exit 0), or until a fault that only a new process mends (exit 1).
pub fn run(identity: &Identity, args: &RuntimeArgs, start: impl FnOnce(&mut Process) -> Started) -> ExitCode {
    // The one TLS provider; a second install would only say that there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ran = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)
        .and_then(|runtime| {
            let ran = runtime.block_on(live(identity, args, start));
            // Nothing of value runs any more; a hanging lookup must not hold up the exit.
            runtime.shutdown_background();
            ran
        });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = with_causes(&failure);
            if tracing::dispatcher::has_been_set() {
                error!(error = text, "exiting");
            } else {
                eprintln!("{}: {text}", identity.name);
            }
            ExitCode::FAILURE
        }
    }
}

async fn live(
    identity: &Identity,
    args: &RuntimeArgs,
    start: impl FnOnce(&mut Process) -> Started,
) -> Result<(), RunError> {
    let _telemetry = telemetry::install(identity.name, args)?;
    let timings = Timings {
        duration: args.lease_duration,
        renew_deadline: args.lease_renew_deadline,
        retry: args.lease_retry_period,
    }
    .check()?;
    let metrics = Arc::new(Metrics::new(identity.name));
    let mut config = config(args).await?;
    // By which the API server's audit log and its metrics know us.
    let user_agent = HeaderValue::try_from(format!("{}/{}", identity.name, identity.version));
    config.headers.extend(user_agent.map(|name| (header::USER_AGENT, name)));
    let guard = LeaderGuard::default();
    let clock = Clock::default();
    let build = |write_guard| {
        client::build(&config, Deadlines::default(), write_guard, Arc::clone(&metrics), clock.clone())
            .map_err(|error| RunError::Client(Box::new(error)))
    };
    let client = build(WriteGuard::WhileLeading(guard.clone()))?;
    // Connections of its own: renewals never queue behind other calls.
    let lease_client = build(WriteGuard::Always)?;
    let replica = args.identity.clone().unwrap_or_else(default_replica);

    let mut watches = Watches::new(client.clone(), crate::watch::Timings::default(), Arc::clone(&metrics));
    let lease = watches.watch::<Lease>(
        "Lease",
        Scope {
            namespace: Some(args.lease_namespace.clone()),
            fields: Some(format!("metadata.name={}", identity.name)),
            ..Scope::default()
        },
    );
    let mut process = Process {
        identity: *identity,
        namespace: args.namespace.clone(),
        replica: replica.clone(),
        refusal_retry_period: args.refusal_retry_period,
        options: Options { workers: usize::from(args.workers), ..Options::default() },
        client,
        watches,
        metrics: Arc::clone(&metrics),
        clock,
        leads: Arc::default(),
    };
    let Started(controller) = start(&mut process);
    let mut watches = process.watches;

    let stop = stop_on_signal()?;
    let admin_stop = CancellationToken::new();
    let listener = daemon::listener::listen(args.admin_address)
        .await
        .map_err(|source| RunError::Listen { address: args.admin_address, source })?;
    let mut admin =
        tokio::spawn(admin::serve(listener, Arc::clone(&metrics), watches.health(), admin_stop.clone()));
    let watches_stop = CancellationToken::new();
    watches.start(&watches_stop);
    info!(version = identity.version, replica, admin = %args.admin_address, "started");

    let mut elector = Elector::new(
        lease_client,
        &args.lease_namespace,
        identity.name,
        // The same name in two starts of a process would be one candidate twice.
        format!("{replica}_{:016x}", fastrand::u64(..)),
        timings,
        guard,
    );
    metrics.leads(false);
    let ended = tokio::select! {
        ended = lead(&mut elector, &lease, &metrics, controller, &stop) => ended,
        () = watches.finished(&watches_stop) => Err(RunError::Watches),
        _ = &mut admin => return Err(RunError::Admin),
    };
    metrics.leads(false);
    if ended.is_ok() {
        // Also if it never led: a write that wins the Lease may have been under way at the stop.
        elector.release().await;
    }
    watches_stop.cancel();
    watches.finished(&watches_stop).await;
    admin_stop.cancel();
    // An open scrape may keep the server for a moment; nothing depends on its end.
    let _ = tokio::time::timeout(Duration::from_millis(500), admin).await;
    info!("stopped");
    ended
}

/// Waits to lead, then works until the stop. `Ok`: no work is left, so the lease may be given away.
async fn lead(
    elector: &mut Elector,
    lease: &Cache<Lease>,
    metrics: &Metrics,
    controller: Work,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    if !elector.lead(lease, stop).await {
        return Ok(());
    }
    metrics.leads(true);
    let mut work = tokio::spawn(controller(stop.clone()));
    tokio::select! {
        // Renewed until the last reconcile has ended, so that the drain may still write.
        loss = elector.hold() => {
            work.abort();
            Err(RunError::Lost(loss))
        }
        ended = &mut work => match ended {
            Ok(()) => Ok(()),
            // Panics of a reconcile are caught; this one is of the controller itself.
            Err(_) => Err(RunError::Work),
        },
    }
}

fn stop_on_signal() -> Result<CancellationToken, RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signal)?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    // Lives as long as the process: it ends with the runtime.
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping");
        stopping.cancel();
    });
    Ok(stop)
}

async fn config(args: &RuntimeArgs) -> Result<Config, RunError> {
    let Some(path) = &args.kubeconfig else {
        return Config::incluster().map_err(|error| RunError::Config(error.into()));
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| RunError::Config(error.into()))?;
    let authority = authority_file(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| RunError::Config(error.into()))?;
    // kube does this in a pod only.
    config.root_cert_file = authority;
    Ok(config)
}

/// The file with the certificate authority of the current cluster, which kube reads again each minute. An authority that
/// stands in the kubeconfig itself is read once: after its replacement the process has to be started again.
fn authority_file(kubeconfig: &Kubeconfig) -> Option<PathBuf> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *current)?.context.as_ref()?;
    let cluster =
        kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()?;
    // As kube reads it: data before a file.
    let file =
        cluster.certificate_authority.as_ref().filter(|_| cluster.certificate_authority_data.is_none())?;
    Some(file.into())
}

fn default_replica() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}-{}", if host.is_empty() { "replica" } else { host }, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(authority: &str) -> Kubeconfig {
        Kubeconfig::from_yaml(&format!(
            "{{current-context: here, contexts: [{{name: here, context: {{cluster: ours, user: us}}}}],
              clusters: [{{name: other, cluster: {{server: 'https://127.0.0.1', certificate-authority: /other.crt}}}},
                         {{name: ours, cluster: {{server: 'https://127.0.0.1', {authority}}}}}],
              users: [{{name: us, user: {{token: t}}}}]}}"
        ))
        .unwrap()
    }

    #[test]
    fn the_authority_of_a_kubeconfig_is_read_again_if_it_is_a_file() {
        let file = |authority| authority_file(&kubeconfig(authority));
        assert_eq!(file("certificate-authority: /ours.crt"), Some("/ours.crt".into()));
        assert_eq!(file("certificate-authority: /ours.crt, certificate-authority-data: b2xk"), None);
        assert_eq!(file("proxy-url: 'http://127.0.0.1'"), None);
    }
}
