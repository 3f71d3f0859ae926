//! The client with all rights, for the supervisor and for the owner of a cluster. It is not for controllers, which have
//! tokens of their own.

use kube::{Client, Config, config::Kubeconfig};

use crate::{Error, Folder, Result};

/// A client with the administrator's rights.
pub(crate) async fn admin_client(folder: &Folder) -> Result<Client> {
    let path = folder.kubeconfig();
    let unusable = |error: &dyn std::fmt::Display| Error::invalid("use", path.display().to_string(), error);
    let kubeconfig = Kubeconfig::read_from(&path).map_err(|error| unusable(&error))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .map_err(|error| unusable(&error))?;
    // Each wait has a deadline of its own.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| unusable(&error))
}
