//! Events of the cluster's own controllers about pods, as far as decisions need them.

use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::container::quote;

/// Volumes that cannot be attached to the node of a pod, most often because another node has them.
pub const ATTACH_FAILURES: &str = "involvedObject.kind=Pod,reason=FailedAttachVolume";

/// An event: which pod of its namespace it is about, and what it says, as it may be repeated. Any user of a namespace may
/// write events there.
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

/// Those of the API server have 36 bytes.
const LONGEST_UID: usize = 64;

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
        let pod_uid = involved_object.uid;
        let pod_uid = if pod_uid.len() <= LONGEST_UID { pod_uid } else { String::new() };
        Self { metadata, pod_uid, message: quote(&message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_much_is_kept_of_an_event_as_may_be_repeated() {
        let large = "x".repeat(1 << 20);
        let event = |uid: &str, message: &str| -> EventView {
            let text =
                format!("{{metadata: {{name: a}}, involvedObject: {{uid: {uid}}}, message: \"{message}\"}}");
            serde_saphyr::from_str(&text).unwrap()
        };
        let kept = event("u", &large);
        assert!(kept.message.capacity() <= 1_024, "{}", kept.message.capacity());
        assert_eq!(event("u", "Multi-Attach\\nerror\\u202e").message, "Multi-Attach error");
        assert_eq!((event("u", "").pod_uid(), event(&large, "").pod_uid()), ("u", ""));
    }
}
