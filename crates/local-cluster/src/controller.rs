//! Running a controller of this project as a host process with exactly the rights that its deployment gives it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, core::DynamicObject};
use tokio::{process::Command, time::sleep};

use crate::{
    Cluster, ComponentState, Error, Result,
    api_server::{install, watch::wait_until},
    machine::files::tail,
    supervisor::protocol::ControllerProcess,
};

pub mod admin;

/// A controller that must list its kinds needs well under a second; a loaded machine is no reason to fail.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often another process is asked what cannot be watched.
const POLL: Duration = Duration::from_millis(50);
const LINES_SHOWN: usize = 15;

/// A controller: its program and the kustomize folder it is deployed from.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    /// Name of the component and identity of the replica; several replicas need several names.
    pub name: String,
    pub program: PathBuf,
    /// The folder with the `kustomization.yaml`.
    pub base: PathBuf,
    /// Beside those that every controller gets.
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

impl Controller {
    /// The controller of this name as this workspace builds and deploys it; `deploy` is the folder of that name.
    pub fn new(name: &str, deploy: &Path) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            program: crate::sibling_binary(name)?,
            base: deploy.join(name).join("base"),
            args: Vec::new(),
            env: BTreeMap::new(),
        })
    }

    /// Another replica of the same controller.
    pub fn replica(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Adds arguments.
    pub fn with_args<I: Into<String>>(mut self, args: impl IntoIterator<Item = I>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

impl Cluster {
    /// Installs what all controllers share, from the workspace's folder `deploy`: the CRDs and the namespace.
    pub async fn install_shared(&self, deploy: &Path) -> Result<()> {
        install::crds(&self.client().await?, &deploy.join("crds")).await?;
        self.deploy(&deploy.join("namespace")).await
    }

    /// Applies everything of the controller's base but its Deployment, starts the program under the ServiceAccount that
    /// the Deployment names, and returns when it is ready. The namespace must be there already.
    pub async fn start_controller(&self, controller: &Controller) -> Result<()> {
        let base = self.render(&controller.base).await?;
        let (deployments, rest): (Vec<_>, Vec<_>) = base.into_iter().partition(is_deployment);
        let account = account_of(&deployments, &controller.base)?;
        install::apply_objects(&self.client().await?, &account.namespace, rest).await?;
        self.add_controller(ControllerProcess {
            name: controller.name.clone(),
            program: controller.program.clone(),
            args: controller.args.clone(),
            env: controller.env.clone(),
            namespace: account.namespace,
            service_account: account.name,
        })
        .await?;
        self.controller_ready(&controller.name).await
    }

    /// Applies a kustomize folder as it is, and returns when every Deployment in it has all its replicas available.
    pub async fn deploy(&self, folder: &Path) -> Result<()> {
        let objects = self.render(folder).await?;
        let client = self.client().await?;
        for object in install::apply_objects(&client, install::DEFAULT_NAMESPACE, objects).await? {
            if !is_deployment(&object) {
                continue;
            }
            let namespace = object.metadata.namespace.as_deref().unwrap_or(install::DEFAULT_NAMESPACE);
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
            wait_until(&deployments, name, READY_WITHIN, |deployment| deployment.is_some_and(is_rolled_out))
                .await?;
        }
        Ok(())
    }

    /// Waits until the controller's `/readyz` agrees. A controller that ends meanwhile is an error with the end of its
    /// log.
    async fn controller_ready(&self, name: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let status = self.status().await?;
            let Some(component) = status.components.into_iter().find(|component| component.name == name)
            else {
                return Err(Error::invalid("wait for", name, "the supervisor has no such component"));
            };
            let log = self.folder().log(name);
            if component.restarts > 0 || component.state == ComponentState::BackingOff {
                return Err(Error::ComponentExited {
                    component: name.to_owned(),
                    exit: "again and again".to_owned(),
                    tail: tail(&log, LINES_SHOWN),
                    log,
                });
            }
            if let Some(address) = component.admin_address
                && admin::is_ready(&address).await
            {
                return Ok(());
            }
            if began.elapsed() > READY_WITHIN {
                let what = format!("readiness of {name}");
                return Err(Error::TimedOut { what, after: READY_WITHIN, logs: self.folder().logs() });
            }
            sleep(POLL).await;
        }
    }

    /// What `kubectl kustomize` makes of a folder.
    async fn render(&self, folder: &Path) -> Result<Vec<DynamicObject>> {
        let kubectl = self.kubectl();
        let output = Command::new(&kubectl)
            .arg("kustomize")
            .arg(folder)
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(Error::io("start", &kubectl))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::invalid("render", folder.display().to_string(), reason));
        }
        install::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

struct Account {
    namespace: String,
    name: String,
}

/// As `kubectl rollout status` decides it.
fn is_rolled_out(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else { return false };
    let wanted = spec.replicas.unwrap_or(1);
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) == wanted
        && status.replicas.unwrap_or(0) == wanted
        && status.available_replicas.unwrap_or(0) == wanted
}

fn is_deployment(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == "Deployment")
}

fn account_of(deployments: &[DynamicObject], base: &Path) -> Result<Account> {
    let wrong = |reason: &str| Error::invalid("use", base.display().to_string(), reason);
    let [deployment] = deployments else { return Err(wrong("it must hold exactly one Deployment")) };
    let deployment: Deployment = deployment.clone().try_parse().map_err(|error| wrong(&error.to_string()))?;
    let namespace =
        deployment.metadata.namespace.ok_or_else(|| wrong("its Deployment names no namespace"))?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec);
    let name = pod
        .and_then(|pod| pod.service_account_name)
        .ok_or_else(|| wrong("its Deployment names no ServiceAccount"))?;
    Ok(Account { namespace, name })
}
