//! The ServiceAccount token of a controller process: asked for like a kubelet does, and renewed before it ends.

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};
use tokio::{task::JoinHandle, time::sleep};
use tracing::{info, warn};

use crate::{
    Error, Folder, Result,
    api_server::admin_client::admin_client,
    control_plane::credentials::{Credentials, write_secret},
    explained,
    supervisor::protocol::ControllerProcess,
};

/// What a kubelet asks for.
const LIFE: Duration = Duration::from_secs(3600);
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Writes the first token, then renews it in a task of its own.
pub(super) async fn start(
    folder: &Folder,
    controller: &ControllerProcess,
    renew_after: Duration,
) -> Result<JoinHandle<()>> {
    renew(folder, controller).await?;
    let folder = folder.clone();
    let controller = controller.clone();
    Ok(tokio::spawn(async move {
        let mut wait = renew_after;
        loop {
            sleep(wait).await;
            wait = match renew(&folder, &controller).await {
                Ok(()) => {
                    info!(component = controller.name, "renewed its token");
                    renew_after
                }
                Err(error) => {
                    warn!(
                        component = controller.name,
                        error = explained(&error),
                        "failed to renew its token"
                    );
                    RETRY_AFTER
                }
            };
        }
    }))
}

async fn renew(folder: &Folder, controller: &ControllerProcess) -> Result<()> {
    let ControllerProcess { name, namespace, service_account, .. } = controller;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin_client(folder).await?, namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(LIFE.as_secs().cast_signed()),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let object = format!("a token for ServiceAccount {namespace}/{service_account}");
    let issued = accounts
        .create_token_request(service_account, &PostParams::default(), &request)
        .await
        .map_err(Error::api("request", &object))?;
    let status = issued.status.ok_or_else(|| Error::invalid("request", object, "the reply holds none"))?;
    write_secret(&Credentials::of(folder).token(name), status.token.as_bytes())
}
