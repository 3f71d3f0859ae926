//! Narrow view of the Jobs of a ModelEvaluation: how one stands. What it is for, its name says.

use api::labels;
use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use serde::Deserialize;
use workload::views::pod::PodView;

/// A Job. Its template is not kept, because it never changes.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Job)]
#[serde(from = "Parts")]
pub(crate) struct JobView {
    pub(crate) metadata: ObjectMeta,
    /// Of which server its questions are asked, as its annotation says.
    pub(crate) server: Option<String>,
    pub(crate) end: Option<End>,
}

/// How a Job has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) since: Timestamp,
    pub(crate) is_complete: bool,
    pub(crate) message: String,
}

impl JobView {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Its name, uid and version, as preconditions of its deletion.
    pub(crate) fn identity(&self) -> Job {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = self.metadata.clone();
        Job {
            metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() },
            ..Job::default()
        }
    }

    /// Whether it is a pod of this very Job, and not of an earlier one of its name.
    pub(crate) fn has_pod(&self, pod: &PodView) -> bool {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        controller.is_some_and(|owner| Some(&owner.uid) == self.metadata.uid.as_ref())
    }
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    status: StatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusParts {
    conditions: Vec<ConditionParts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionParts {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    last_transition_time: Option<Time>,
}

impl From<Parts> for JobView {
    fn from(Parts { metadata, status }: Parts) -> Self {
        let end = |type_: &str| {
            let mut found = status.conditions.iter();
            let condition = found.find(|one| one.type_ == type_ && one.status == "True")?;
            Some(End {
                since: condition.last_transition_time.as_ref().map(|time| time.0).unwrap_or_default(),
                is_complete: type_ == "Complete",
                message: condition.message.clone(),
            })
        };
        let ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            owner_references,
            deletion_timestamp,
            creation_timestamp,
            finalizers,
            annotations,
            ..
        } = metadata;
        Self {
            server: annotations.and_then(|mut annotations| annotations.remove(labels::ASKED_SERVER)),
            metadata: ObjectMeta {
                name,
                namespace,
                uid,
                resource_version,
                owner_references,
                deletion_timestamp,
                creation_timestamp,
                finalizers,
                ..ObjectMeta::default()
            },
            end: end("Complete").or_else(|| end("Failed")).or_else(|| end("FailureTarget")),
        }
    }
}
