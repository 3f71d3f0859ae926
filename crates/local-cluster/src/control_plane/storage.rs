//! The default StorageClass: a folder of this machine for each claim. Simulated pods need it to be scheduled, and real nodes,
//! which are all on this machine, can mount it at the same time.
//!
//! A process of its own, under the supervisor. It makes a volume for each claim of its class, and deletes volumes whose claim
//! is gone. It keeps nothing in memory, so it may be restarted at any time.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::Duration,
};

use futures::{StreamExt as _, future::select};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, WatchParams},
};
use serde_json::json;
use tokio::time::sleep;
use tracing::warn;

use crate::{Error, Folder, Result, api_server::admin_client::admin_client};

/// Name of the StorageClass.
const CLASS: &str = "local";
/// Name of this provisioner; Kubernetes leaves its volumes to it.
const PROVISIONER: &str = "local.test/folders";
/// After a watch or a request broke.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Volumes that were released while a watch was broken are found by a list.
const RELIST_EVERY: Duration = Duration::from_secs(300);

/// The StorageClass, as YAML.
pub(crate) const STORAGE_CLASS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: local
  annotations: {storageclass.kubernetes.io/is-default-class: 'true'}
provisioner: local.test/folders
reclaimPolicy: Delete
volumeBindingMode: Immediate
# A folder has no size, so that a larger request changes nothing else.
allowVolumeExpansion: true
";

/// Serves the claims of the cluster whose state folder is given, until the process is ended.
pub async fn provision(folder: PathBuf) -> Result<std::convert::Infallible> {
    let folder = Folder::at(folder);
    let client = admin_client(&folder).await?;
    let storage = Storage {
        claims: Api::all(client.clone()),
        volumes: Api::all(client.clone()),
        client,
        folder: folder.volumes(),
    };
    loop {
        if let Err(error) = Box::pin(storage.serve()).await {
            warn!(error = crate::explained(&error), "claims are listed again");
        }
        sleep(RETRY_AFTER).await;
    }
}

struct Storage {
    client: Client,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    folder: PathBuf,
}

impl Storage {
    /// Handles everything that is there, and what changes, until a watch ends.
    async fn serve(&self) -> Result<()> {
        let claims = self.claims.list(&ListParams::default()).await.map_err(Error::api("list", "claims"))?;
        let volumes =
            self.volumes.list(&ListParams::default()).await.map_err(Error::api("list", "volumes"))?;
        let versions = [claims.metadata.resource_version, volumes.metadata.resource_version];
        for claim in claims.items {
            self.bind(&claim).await?;
        }
        for volume in volumes.items {
            self.release(&volume).await?;
        }
        let [claims_from, volumes_from] = versions.map(Option::unwrap_or_default);
        let params =
            WatchParams::default().timeout(u32::try_from(RELIST_EVERY.as_secs() - 10).unwrap_or(280));
        let mut claims =
            self.claims.watch(&params, &claims_from).await.map_err(Error::api("watch", "claims"))?.boxed();
        let mut volumes =
            self.volumes.watch(&params, &volumes_from).await.map_err(Error::api("watch", "volumes"))?.boxed();
        let of_claims = std::pin::pin!(async {
            while let Some(event) = claims.next().await {
                match event.map_err(Error::api("watch", "claims"))? {
                    kube::api::WatchEvent::Added(claim) | kube::api::WatchEvent::Modified(claim) => {
                        self.bind(&claim).await?;
                    }
                    _ => {}
                }
            }
            Ok(())
        });
        let of_volumes = std::pin::pin!(async {
            while let Some(event) = volumes.next().await {
                let event = event.map_err(Error::api("watch", "volumes"))?;
                if let kube::api::WatchEvent::Modified(volume) = event {
                    self.release(&volume).await?;
                }
            }
            Ok(())
        });
        select(of_claims, of_volumes).await.factor_first().0
    }

    /// Makes the volume of a claim that has none.
    async fn bind(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        let (Some(spec), Some(uid)) = (&claim.spec, &claim.metadata.uid) else { return Ok(()) };
        if spec.storage_class_name.as_deref() != Some(CLASS)
            || spec.volume_name.is_some()
            || claim.metadata.deletion_timestamp.is_some()
        {
            return Ok(());
        }
        let name = format!("claim-{uid}");
        let folder = self.folder.join(&name);
        let made = fs::create_dir_all(&folder).and_then(|()| {
            // Volumes of this kind know no fsGroup.
            fs::set_permissions(&folder, Permissions::from_mode(0o777))
        });
        made.map_err(Error::io("create", &folder))?;
        let request = spec.resources.as_ref().and_then(|resources| resources.requests.clone());
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
            "spec": {
                "capacity": request,
                "accessModes": spec.access_modes,
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": claim.metadata.namespace,
                    "name": claim.metadata.name,
                    "uid": uid,
                },
                "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": folder, "type": "Directory"},
            },
        });
        let volume = serde_json::from_value(volume)
            .map_err(|error| Error::invalid("describe volume", &name, error))?;
        let created = self.volumes.create(&PostParams::default(), &volume).await;
        ignoring(409, created.map(drop), &name)
    }

    /// Deletes a volume whose claim is gone, and its folder.
    async fn release(&self, volume: &PersistentVolume) -> Result<()> {
        let is_own =
            volume.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_deref() == Some(CLASS));
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(name) = volume.metadata.name.as_ref().filter(|_| is_own) else { return Ok(()) };
        if !matches!(phase, Some("Released" | "Failed")) {
            return Ok(());
        }
        let folder = self.folder.join(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &folder)(error));
            }
            Ok(()) | Err(_) => {}
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let deleted = volumes.delete(name, &DeleteParams::default()).await;
        ignoring(404, deleted.map(drop), name)
    }
}

/// An answer with this code means that the write is not needed: another process has done it.
fn ignoring(code: u16, done: kube::Result<()>, name: &str) -> Result<()> {
    match done {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        done => done.map_err(Error::api("write volume", name)),
    }
}
