//! The order in which a cluster comes up. It ends when every component has answered, or one has not.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{FutureExt as _, future::select_all};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::{Api, Client};
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    ComponentState, Detail, Error, Folder, NodePool, Phase, RealNodes, Result,
    api_server::{admin_client::admin_client, install, watch::wait_until},
    control_plane::{
        command_lines::{
            self, API_SERVER, CONTROLLER_MANAGER, COREDNS, ETCD, HUB, KWOK, POD_LOGS, REGISTRY, RELAY,
            SCHEDULER, STORAGE,
        },
        credentials, storage,
    },
    machine::{files::tail, network::node_name},
    real::{gpus, hub, images, settings::PAUSE},
    simulation::{self, nodes},
};

use super::Supervisor;

/// A loaded machine with two cores took 6 s from nothing to the first ready pod.
const PATIENCE: Duration = Duration::from_secs(90);
/// Two of them took 2 s more.
const PATIENCE_FOR_A_NODE: Duration = Duration::from_secs(10);
/// How often the API server is asked whether it is ready; before that there is nothing to watch.
const POLL: Duration = Duration::from_millis(50);
const LINES_SHOWN: usize = 15;

/// The rights of kwok, from its own `kustomize/rbac`, for a user instead of a ServiceAccount.
const KWOK_RIGHTS: &str = include_str!("../kwok-rights.yaml");
/// The rights of CoreDNS, as its own manifests have them, for a user instead of a ServiceAccount.
const COREDNS_RIGHTS: &str = include_str!("../coredns-rights.yaml");
const AUDIT_POLICY: &str = include_str!("../audit-policy.yaml");
const LEAN_AUDIT_POLICY: &str = include_str!("../lean-audit-policy.yaml");

/// Starts everything that the spec asks for.
pub(super) async fn cluster(supervisor: &Supervisor) -> Result<()> {
    let patience =
        PATIENCE + PATIENCE_FOR_A_NODE * supervisor.spec.real.as_ref().map_or(0, |real| real.count);
    tokio::select! {
        started = in_order(supervisor) => started,
        () = sleep(patience) => Err(Error::TimedOut {
            what: "the start of the cluster".to_owned(),
            after: patience,
            logs: supervisor.folder.logs(),
        }),
    }
}

async fn in_order(supervisor: &Supervisor) -> Result<()> {
    let Supervisor { folder, spec, launcher, port, node_port, .. } = supervisor;
    if let Some(kubeconfig) = &spec.existing {
        return reach_existing(folder, kubeconfig).await;
    }
    let audit_policy = match spec.detail {
        Detail::Full => AUDIT_POLICY,
        Detail::Lean => LEAN_AUDIT_POLICY,
    };
    write(&folder.audit_policy(), audit_policy)?;
    write(&folder.stages(), &simulation::stages(spec, node_port.number()))?;
    credentials::create(folder, port.number())?;

    if let Some(real) = &spec.real {
        credentials::create_for_nodes(folder, real.count, port.number())?;
        let hub = command_lines::hub(folder, launcher);
        let said = folder.hub();
        supervisor.start(HUB, move || match said.exists() {
            false => Ok(hub.clone()),
            // What runs is in the network of the first one; a second one would be empty.
            true => {
                Err(Error::invalid("start", HUB, "its network cannot be made again: start the cluster anew"))
            }
        });
        let network = unless_one_ends(supervisor, hub_ready(folder)).await?;
        // The API server has the same port on both sides.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let relay = command_lines::relay(folder, launcher, address, address, &network);
        supervisor.start(RELAY, move || Ok(relay.clone()));
    }
    let etcd = command_lines::etcd(folder, spec);
    supervisor.start(ETCD, move || Ok(etcd.clone()));
    let api_server = command_lines::api_server(folder, spec, port.number());
    supervisor.start_in_hub(API_SERVER, move || Ok(api_server.clone()));
    let client = admin_client(folder).await?;
    unless_one_ends(supervisor, api_server_ready(&client)).await?;
    supervisor.phase.send_replace(Phase::Serving);
    let Some(pool) = &spec.nodes else { return Ok(()) };

    // These retry for seconds when the API server is not there yet, so they are started after it.
    let controller_manager = command_lines::controller_manager(folder, spec);
    supervisor.start_in_hub(CONTROLLER_MANAGER, move || Ok(controller_manager.clone()));
    let scheduler = command_lines::scheduler(folder, spec);
    supervisor.start_in_hub(SCHEDULER, move || Ok(scheduler.clone()));
    install::apply(&client, install::DEFAULT_NAMESPACE, KWOK_RIGHTS).await?;
    let kwok = command_lines::kwok(folder, spec);
    supervisor.start_in_hub(KWOK, move || Ok(kwok.clone()));
    let pod_logs = command_lines::pod_logs(folder, launcher, node_port.number());
    supervisor.start_in_hub(POD_LOGS, move || Ok(pod_logs.clone()));
    if spec.detail == Detail::Full {
        install::apply(&client, install::DEFAULT_NAMESPACE, storage::STORAGE_CLASS).await?;
        let storage = command_lines::storage(folder, launcher);
        supervisor.start(STORAGE, move || Ok(storage.clone()));
    }
    if let Some(real) = &spec.real {
        real_nodes(supervisor, &client, real).await?;
    }
    unless_one_ends(supervisor, nodes_and_controllers_ready(&client, pool)).await?;
    match &spec.real {
        Some(real) => unless_one_ends(supervisor, real_nodes_ready(&client, real)).await,
        None => Ok(()),
    }
}

/// Whether the cluster answers to this kubeconfig, of which a copy is kept for as long as controllers run.
async fn reach_existing(folder: &Folder, kubeconfig: &Path) -> Result<()> {
    let server = credentials::adopt(folder, kubeconfig)?;
    let client = admin_client(folder).await?;
    // Every user who can log in may request it.
    client.apiserver_version().await.map_err(Error::api("reach", server))?;
    Ok(())
}

/// The network of real nodes, once the hub has made it.
async fn hub_ready(folder: &Folder) -> Result<PathBuf> {
    loop {
        match hub::network(folder) {
            Ok(network) => return Ok(network),
            Err(_) => sleep(POLL).await,
        }
    }
}

/// Starts the nodes and what they need to run pods.
async fn real_nodes(supervisor: &Supervisor, client: &Client, real: &RealNodes) -> Result<()> {
    let Supervisor { folder, launcher, .. } = supervisor;
    let registry = command_lines::registry(folder, &real.tools);
    supervisor.start_in_hub(REGISTRY, move || Ok(registry.clone()));
    for index in 0..real.count {
        let node = command_lines::node(folder, launcher, index);
        // A node that is stopped is meant to die at once.
        supervisor.start_with_grace(&node_name(index), Duration::ZERO, move || Ok(node.clone()));
        let advertised = tokio::spawn(gpus::advertise(client.clone(), node_name(index), real.gpus));
        if let Some(node) = supervisor.components().get_mut(&node_name(index)) {
            node.attach(advertised);
        }
    }
    write(&folder.names(), &command_lines::names(folder))?;
    install::apply(client, install::DEFAULT_NAMESPACE, COREDNS_RIGHTS).await?;
    let coredns = command_lines::coredns(folder, &real.tools);
    supervisor.start_in_hub(COREDNS, move || Ok(coredns.clone()));
    unless_one_ends(supervisor, pause_image(folder, real)).await
}

/// Without it no pod starts.
async fn pause_image(folder: &Folder, real: &RealNodes) -> Result<()> {
    let (folder, real) = (folder.clone(), real.clone());
    let push = move || {
        images::until_registry_serves(&folder)?;
        images::push(&folder, &real.tools, &real.pause, PAUSE)
    };
    spawn_blocking(push).await.map_err(|error| Error::invalid("load image", PAUSE, error))?
}

/// A node is ready when its kubelet reports it and its GPUs can be allocated.
async fn real_nodes_ready(client: &Client, real: &RealNodes) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let count = real.gpus.to_string();
    let is_ready =
        |node: Option<&Node>| node.is_some_and(|node| nodes::is_ready(node) && gpus::has(node, &count));
    let names: Vec<String> = (0..real.count).map(node_name).collect();
    let ready = names.iter().map(|name| wait_until(&nodes, name, PATIENCE, is_ready));
    futures::future::try_join_all(ready).await.map(drop)
}

async fn api_server_ready(client: &Client) -> Result<()> {
    loop {
        let request = http::Request::get("/readyz")
            .body(Vec::new())
            .map_err(|error| Error::invalid("ask", "the API server", error))?;
        if client.request_text(request).await.is_ok() {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

async fn nodes_and_controllers_ready(client: &Client, pool: &NodePool) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let nodes: Api<Node> = Api::all(client.clone());
    let names = nodes::create(client, pool).await?;
    let ready =
        names.iter().map(|name| wait_until(&nodes, name, PATIENCE, |node| node.is_some_and(nodes::is_ready)));
    // Pods need the account, and it shows that the controller manager works.
    let account = wait_until(&accounts, "default", PATIENCE, |account| account.is_some());
    let (account, ready) = futures::join!(account, futures::future::try_join_all(ready));
    account?;
    ready?;
    Ok(())
}

/// Does the work, unless a component ends meanwhile: then the end of its log is the error.
async fn unless_one_ends<T>(supervisor: &Supervisor, work: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = {
        let components = supervisor.components();
        let each: Vec<_> = components
            .iter()
            .map(|(name, component)| {
                let (name, log, mut observed) = (name.clone(), component.log(), component.observed());
                async move {
                    loop {
                        let seen = observed.borrow_and_update().clone();
                        // A component that was stopped on request is no failure.
                        let ended = seen.state == ComponentState::BackingOff || seen.restarts > 0;
                        if let (true, Some(exit)) = (ended, seen.last_exit) {
                            let tail = tail(&log, LINES_SHOWN);
                            return Error::ComponentExited { component: name, exit, log, tail };
                        }
                        if observed.changed().await.is_err() {
                            return Error::invalid("reach", name, "its keeper is gone");
                        }
                    }
                }
                .boxed()
            })
            .collect();
        select_all(each)
    };
    tokio::select! {
        done = work => done,
        (error, ..) = ended => Err(error),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io("write", path))
}
