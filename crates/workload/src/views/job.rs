//! Narrow view of Jobs: how one stands. What it is for, its name says.

use api::labels;
use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use serde::Deserialize;

use super::pod::PodView;

/// A Job. Its template is not kept, because it never changes.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Job)]
#[serde(from = "Parts")]
pub struct JobView {
    pub metadata: ObjectMeta,
    pub is_suspended: bool,
    pub completed: Option<Timestamp>,
    /// It has failed, or will as soon as all of its pods have ended.
    pub failed: Option<Failed>,
    /// Why Kueue or another queue keeps it suspended.
    pub suspended_message: String,
    /// The annotation [`labels::ASKED_SERVER`]: the server or the store that its pods ask.
    pub asked_server: Option<String>,
}

/// The condition Failed of a Job, or FailureTarget before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    pub since: Timestamp,
    pub reason: String,
    pub message: String,
}

impl JobView {
    /// Whether it makes no pods any more.
    pub fn is_finished(&self) -> bool {
        self.completed.is_some() || self.failed.is_some()
    }

    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it makes pods, and is not being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.is_being_deleted()
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it is a pod of this very Job, and not of an earlier one of its name.
    pub fn has_pod(&self, pod: &PodView) -> bool {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        controller.is_some_and(|owner| Some(&owner.uid) == self.metadata.uid.as_ref())
    }

    /// Its name, uid and version, as preconditions of its deletion.
    pub fn identity(&self) -> Job {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = self.metadata.clone();
        Job {
            metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() },
            ..Job::default()
        }
    }
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecParts,
    #[serde(default)]
    status: StatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecParts {
    suspend: bool,
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
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    last_transition_time: Option<Time>,
}

impl From<Parts> for JobView {
    fn from(Parts { metadata, spec, status }: Parts) -> Self {
        let find =
            |type_: &str| status.conditions.iter().find(|one| one.type_ == type_ && one.status == "True");
        let time = |condition: &ConditionParts| condition.last_transition_time.as_ref().map(|time| time.0);
        let failed = find("Failed").or_else(|| find("FailureTarget")).map(|condition| Failed {
            since: time(condition).unwrap_or_default(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        });
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
        let asked_server = annotations.and_then(|mut annotations| annotations.remove(labels::ASKED_SERVER));
        Self {
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
            is_suspended: spec.suspend,
            completed: find("Complete").map(|condition| time(condition).unwrap_or_default()),
            failed,
            suspended_message: find("Suspended").map(|one| one.message.clone()).unwrap_or_default(),
            asked_server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_decisions_read_is_kept() {
        let text = "
metadata:
  {name: qwen-2, namespace: demo, uid: u, labels: {ai.infra.example.com/attempt: '2'}, annotations: {a: b}}
spec: {suspend: true, template: {spec: {containers: []}}}
status:
  conditions:
  - {type: Failed, status: 'True', reason: BackoffLimitExceeded, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}
  - {type: Complete, status: 'False'}
";
        let job: JobView = serde_saphyr::from_str(text).unwrap();
        assert_eq!((job.is_suspended, job.completed), (true, None));
        assert!(job.is_finished() && !job.is_being_deleted() && job.metadata.annotations.is_none());
        let failed = job.failed.unwrap();
        assert_eq!((&*failed.reason, &*failed.message), ("BackoffLimitExceeded", "m"));
        assert_eq!(failed.since.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(job.asked_server, None);
        let asked = format!("{{{}: //sha256, a: b}}", labels::ASKED_SERVER);
        let run: JobView = serde_saphyr::from_str(&text.replace("{a: b}", &asked)).unwrap();
        assert_eq!(run.asked_server.as_deref(), Some("//sha256"));
        let ending = text.replace("{type: Failed", "{type: FailureTarget");
        assert_eq!(serde_saphyr::from_str::<JobView>(&ending).unwrap().failed, Some(failed));
    }
}
