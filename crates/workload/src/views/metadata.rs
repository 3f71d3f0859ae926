//! The parts of metadata and of conditions that every view has.

use api::labels;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

/// The object that another one belongs to, by the labels `app.kubernetes.io/name` and `…/instance`. What outlives its object has
/// the label [`labels::KEPT_INSTANCE`] instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    kind: Box<str>,
    name: Box<str>,
}

/// Objects whose labels name the instance that they belong to.
pub trait OfInstance {
    fn metadata(&self) -> &ObjectMeta;
    fn instance(&self) -> Option<&Instance>;

    /// Namespace and name of the object of this kind that it belongs to.
    fn belongs_to(&self, kind: &str) -> Option<(&str, &str)> {
        let namespace = self.metadata().namespace.as_deref().unwrap_or_default();
        Some((namespace, self.instance()?.of_kind(kind)?))
    }
}

/// One condition of a pod, a node or a Deployment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    #[serde(default, deserialize_with = "timestamp")]
    pub last_transition_time: Option<Timestamp>,
}

/// Other tools, such as Helm, write `managed-by`, too.
const CONTROLLER_SUFFIX: &str = "-controller";

/// Maximum length of all fields of an owner reference together. A longer reference is dropped.
const LONGEST_OWNER: usize = 1_024;
/// Finalizers of a deleted object are shown in messages.
const MOST_FINALIZERS: usize = 3;

impl Instance {
    /// The name of the object, if it is of this kind (`app.kubernetes.io/name`).
    pub fn of_kind(&self, kind: &str) -> Option<&str> {
        (*self.kind == *kind).then_some(&*self.name)
    }
}

impl Condition {
    pub(crate) fn is(&self, type_: &str) -> bool {
        self.type_ == type_
    }

    /// Saves memory: a kubelet's texts are long and equal on every node.
    pub(crate) fn without_text(self) -> Self {
        Self { reason: String::new(), message: String::new(), ..self }
    }
}

/// Identity, controller and times. The instance is `None` unless a controller of this project manages the object.
pub(crate) fn narrow(metadata: ObjectMeta) -> (ObjectMeta, Option<Instance>) {
    let mut labels = metadata.labels.unwrap_or_default();
    let is_managed = labels.get(labels::MANAGED_BY).is_some_and(|by| by.ends_with(CONTROLLER_SUFFIX));
    let instance = labels
        .remove(labels::NAME)
        .zip(labels.remove(labels::KEPT_INSTANCE).or_else(|| labels.remove(labels::INSTANCE)))
        .filter(|_| is_managed)
        .map(|(kind, name)| Instance { kind: kind.into(), name: name.into() });
    // An object may have thousands of owner references, but only one controller.
    let owners = metadata.owner_references.into_iter().flatten();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    let controller = controller.filter(|owner| {
        owner.api_version.len() + owner.kind.len() + owner.name.len() + owner.uid.len() <= LONGEST_OWNER
    });
    let finalizers =
        metadata.finalizers.filter(|_| metadata.deletion_timestamp.is_some()).map(|mut finalizers| {
            finalizers.truncate(MOST_FINALIZERS);
            finalizers
        });
    let narrow = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        owner_references: controller.map(|owner| vec![owner]),
        finalizers,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    };
    (narrow, instance)
}

pub(crate) fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Time>::deserialize(deserializer)?.map(|time| time.0))
}
