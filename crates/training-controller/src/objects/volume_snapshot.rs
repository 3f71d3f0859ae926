//! VolumeSnapshots, as far as this controller writes and reads them. Clusters may do without this kind.

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Serialize};

/// A snapshot of a claim (snapshot.storage.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct VolumeSnapshot {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SnapshotSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<SnapshotStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SnapshotSpec {
    pub(crate) source: SnapshotSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_snapshot_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) persistent_volume_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<SnapshotError>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotError {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

impl VolumeSnapshot {
    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use).unwrap_or_default()
    }

    /// Why it is not ready.
    pub(crate) fn error(&self) -> Option<&str> {
        self.status.as_ref()?.error.as_ref()?.message.as_deref()
    }
}

/// Not derived: the derive macro allocates the names, and metric labels must be static.
impl Resource for VolumeSnapshot {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshot".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "snapshot.storage.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshots".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
