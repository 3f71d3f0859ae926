//! Volumes that users add to the main container.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, rules};

/// A volume of the main container.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "[has(self.configMapName), has(self.secretName), has(self.claimName), has(self.emptyDir)].filter(x, x).size() == 1"
    )
    .message("must have exactly one of configMapName, secretName, claimName and emptyDir")
)]
pub struct UserVolume {
    /// Name of the volume. Names of the controller's own volumes are refused.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::volume_name())]
    pub name: String,

    /// Folder in the container. Folders of the controller are refused, and folders above them.
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::user_mount_path())]
    pub mount_path: String,

    /// Path in the volume that is mounted. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = rules::sub_path())]
    pub sub_path: Option<String>,

    /// Whether the container cannot write to the volume. Default: true, but false for emptyDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,

    /// ConfigMap of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub config_map_name: Option<String>,

    /// Secret of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,

    /// PersistentVolumeClaim of this namespace. All pods mount the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// An empty folder of each pod, deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
}

/// An empty folder on the disk of the node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {
    /// Above this size the kubelet evicts the pod. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub size_limit: Option<Quantity>,
}
