//! The order in which a cluster comes up. It ends when every component has answered, or one has not.

use std::{fs, path::Path, time::Duration};

use futures::{FutureExt as _, future::select_all};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::{Api, Client};
use tokio::time::sleep;

use crate::{
    ComponentState, Error, NodePool, Phase, Result,
    cluster::admin_client,
    command_lines::{self, API_SERVER, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER},
    credentials,
    folder::tail,
    install, nodes,
    ports::free_port,
    simulation,
    watch::wait_until,
};

use super::Supervisor;

/// A loaded machine with two cores took 6 s from nothing to the first ready pod.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the API server is asked whether it is ready; before that there is nothing to watch.
const POLL: Duration = Duration::from_millis(50);
const LINES_SHOWN: usize = 15;

/// The rights of kwok, from its own `kustomize/rbac`, for a user instead of a ServiceAccount.
const KWOK_RIGHTS: &str = include_str!("../kwok-rights.yaml");
const AUDIT_POLICY: &str = include_str!("../audit-policy.yaml");

/// Starts everything that the spec asks for.
pub(super) async fn cluster(supervisor: &Supervisor) -> Result<()> {
    tokio::select! {
        started = in_order(supervisor) => started,
        () = sleep(PATIENCE) => Err(Error::TimedOut {
            what: "the start of the cluster".to_owned(),
            after: PATIENCE,
            logs: supervisor.folder.logs(),
        }),
    }
}

async fn in_order(supervisor: &Supervisor) -> Result<()> {
    let Supervisor { folder, spec, port, .. } = supervisor;
    write(&folder.audit_policy(), AUDIT_POLICY)?;
    write(&folder.stages(), &simulation::stages())?;
    credentials::create(folder, port.number())?;

    let etcd = command_lines::etcd(folder, spec);
    supervisor.start(ETCD, move || Ok(etcd.clone()));
    let api_server = command_lines::api_server(folder, spec, port.number());
    supervisor.start(API_SERVER, move || Ok(api_server.clone()));
    let client = admin_client(folder).await?;
    unless_one_ends(supervisor, api_server_ready(&client)).await?;
    supervisor.phase.send_replace(Phase::Serving);
    let Some(pool) = &spec.nodes else { return Ok(()) };

    // These retry for seconds when the API server is not there yet, so they are started after it.
    let controller_manager = command_lines::controller_manager(folder, spec);
    supervisor.start(CONTROLLER_MANAGER, move || Ok(controller_manager.clone()));
    let scheduler = command_lines::scheduler(folder, spec);
    supervisor.start(SCHEDULER, move || Ok(scheduler.clone()));
    install::apply(&client, install::DEFAULT_NAMESPACE, KWOK_RIGHTS).await?;
    let (kwok_folder, kwok_spec) = (folder.clone(), spec.clone());
    supervisor.start(KWOK, move || Ok(command_lines::kwok(&kwok_folder, &kwok_spec, free_port()?)));
    unless_one_ends(supervisor, nodes_and_controllers_ready(&client, pool)).await
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

/// Does the work, unless a component ends meanwhile: then its last words are the error.
async fn unless_one_ends(supervisor: &Supervisor, work: impl Future<Output = Result<()>>) -> Result<()> {
    let ended = {
        let components = supervisor.components();
        let each: Vec<_> = components
            .iter()
            .map(|(name, component)| {
                let (name, log, mut observed) = (name.clone(), component.log(), component.observed());
                async move {
                    loop {
                        let seen = observed.borrow_and_update().clone();
                        // What was told to end may do so.
                        let ended = seen.state == ComponentState::BackingOff || seen.restarts > 0;
                        if let (true, Some(exit)) = (ended, seen.last_exit) {
                            let tail = tail(&log, LINES_SHOWN);
                            if !lost_a_race_for_a_port(&name, &tail) {
                                return Error::ComponentExited { component: name, exit, log, tail };
                            }
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

/// kwok cannot share a port with the one that reserved it; it is started again with another.
fn lost_a_race_for_a_port(component: &str, tail: &str) -> bool {
    component == KWOK && tail.contains("address already in use")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io("write", path))
}
