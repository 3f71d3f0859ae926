//! Events of the cluster's own controllers about pods, as far as decisions need them.

use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

/// Volumes that cannot be attached to the node of a pod, most often because another node has them.
pub const ATTACH_FAILURES: &str = "involvedObject.kind=Pod,reason=FailedAttachVolume";

/// An event: which pod it is about, and what it says.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = Event)]
#[serde(from = "EventParts")]
pub struct EventView {
    pub metadata: ObjectMeta,
    pod_uid: String,
    pub message: String,
}

impl EventView {
    pub fn pod_uid(&self) -> &str {
        &self.pod_uid
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventParts {
    metadata: ObjectMeta,
    involved_object: InvolvedParts,
    #[serde(default)]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InvolvedParts {
    uid: String,
}

impl From<EventParts> for EventView {
    fn from(EventParts { metadata, involved_object, message }: EventParts) -> Self {
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        Self { metadata, pod_uid: involved_object.uid, message }
    }
}
