//! Running one of our controllers as a host process with exactly the rights that its deployment gives it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
};

use k8s_openapi::api::apps::v1::Deployment;
use kube::core::DynamicObject;
use tokio::process::Command;

use crate::{Cluster, Error, Result, install, protocol::ControllerProcess};

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

    pub fn with_args<I: Into<String>>(self, args: impl IntoIterator<Item = I>) -> Self {
        Self { args: args.into_iter().map(Into::into).collect(), ..self }
    }
}

impl Cluster {
    /// Applies everything of the controller's base but its Deployment, then starts the program under the ServiceAccount
    /// that the Deployment names.
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
        .await
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
