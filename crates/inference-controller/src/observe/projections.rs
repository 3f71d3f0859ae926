//! The little that we read of Deployments, ReplicaSets and pods. A cluster has many of them, so only that little is kept.
//!
//! Decoding only: what a state means is decided in `plan`.

use api::labels;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentStrategy, ReplicaSet},
        core::v1::Pod,
    },
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, Time},
        util::intstr::IntOrString,
    },
};
use kube::Resource;
use runtime::cache::Cache;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::capacity::{ContainerSpec, Extended, held};
use crate::{NAME, names};

/// A pod: where it is, what it holds there and, if it is one of ours, what its containers do.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = Pod)]
#[serde(from = "PodParts")]
pub(crate) struct PodView {
    pub(crate) metadata: ObjectMeta,
    /// The AIInference that it is for; none if it is not ours.
    instance: Option<Box<str>>,
    pub(super) held: Extended,
    pub(crate) phase: String,
    pub(crate) node: Option<String>,
    pub(crate) scheduled: Option<Condition>,
    pub(crate) is_ready: bool,
    /// When it became ready, or ceased to be.
    pub(crate) ready_turned: Option<Timestamp>,
    pub(crate) init_containers: Box<[Container]>,
    pub(crate) containers: Box<[Container]>,
}

/// Pods that hold something of their node or will; finished ones have given it back, and nothing comes of them.
pub(crate) const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What is there for an AIInference without being its child.
pub(crate) trait ForInstance: Resource {
    fn instance(&self) -> Option<&str>;
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    type_: String,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default, deserialize_with = "instant")]
    pub(crate) last_transition_time: Option<Timestamp>,
}

impl Condition {
    pub(super) fn is(&self, type_: &str) -> bool {
        self.type_ == type_
    }

    pub(super) fn without_words(self) -> Self {
        Self { reason: String::new(), message: String::new(), ..self }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) name: String,
    /// Its startup probe has succeeded.
    #[serde(default)]
    pub(crate) started: Option<bool>,
    #[serde(default)]
    pub(crate) restart_count: i32,
    #[serde(default)]
    pub(crate) state: ContainerState,
    #[serde(default, rename = "lastState")]
    pub(crate) last: ContainerState,
}

/// One of the three is there, or none.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ContainerState {
    pub(crate) waiting: Option<Waiting>,
    pub(crate) running: Option<Running>,
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Waiting {
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Running {
    #[serde(default, deserialize_with = "instant")]
    pub(crate) started_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Terminated {
    pub(crate) exit_code: i32,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
}

/// A ReplicaSet: which revision it is.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = ReplicaSet)]
#[serde(from = "ReplicaSetParts")]
pub(crate) struct ReplicaSetView {
    pub(crate) metadata: ObjectMeta,
    instance: Option<Box<str>>,
    pub(crate) template: Option<TemplateHash>,
}

/// Tells pod templates apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TemplateHash([u8; 16]);

/// The Deployment's controller adds it to the template of each revision.
const POD_TEMPLATE_HASH: &str = "pod-template-hash";

impl TemplateHash {
    /// Of everything but what makes the template of a ReplicaSet differ from that of its Deployment.
    fn of(mut template: Value) -> Self {
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove(POD_TEMPLATE_HASH);
        }
        // The fields of a value are in the order of their names.
        let digest = Sha256::digest(template.to_string());
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        Self(first)
    }
}

/// A Deployment of ours: what its pods were rendered from, and how it fares.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = Deployment)]
#[serde(from = "DeploymentParts")]
pub(crate) struct DeploymentView {
    pub(crate) metadata: ObjectMeta,
    /// The generation of the AIInference, as it is written in an annotation.
    pub(crate) generation: Option<Box<str>>,
    /// What was resolved for its pods, as it is written in an annotation.
    pub(crate) resolved: Option<Box<str>>,
    pub(super) template: Option<TemplateHash>,
    /// Old pods go before new ones come.
    pub(crate) replaces: bool,
    /// Why pods cannot be created.
    pub(crate) creation_failure: Option<Box<str>>,
}

impl ForInstance for PodView {
    fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }
}

impl ForInstance for ReplicaSetView {
    fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }
}

/// Our pods among all.
pub(crate) fn count_ours(pods: &Cache<PodView>) -> usize {
    pods.all().iter().filter(|pod| pod.instance.is_some()).count()
}

impl PodView {
    /// Evicted, finished or on its way out: its controller has already replaced it, or will.
    pub(crate) fn is_over(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() || self.phase == "Failed" || self.phase == "Succeeded"
    }

    pub(crate) fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.as_ref().map(|created| created.0)
    }

    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct PodParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecParts,
    #[serde(default)]
    status: PodStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecParts {
    node_name: Option<String>,
    init_containers: Vec<ContainerSpec>,
    containers: Vec<ContainerSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatusParts {
    phase: String,
    conditions: Vec<Condition>,
    init_container_statuses: Box<[Container]>,
    container_statuses: Box<[Container]>,
}

impl From<PodParts> for PodView {
    fn from(PodParts { metadata, spec, status }: PodParts) -> Self {
        let ready = status.conditions.iter().find(|condition| condition.is("Ready"));
        let is_ready = ready.is_some_and(|ready| ready.status == "True");
        let ready_turned = ready.and_then(|ready| ready.last_transition_time);
        let (metadata, instance) = narrow(metadata);
        let node = spec.node_name.filter(|node| !node.is_empty());
        let held = held(spec.init_containers, spec.containers);
        if instance.is_none() {
            // A cluster has many more of them than are ours.
            return Self { metadata, node, held, ..Self::default() };
        }
        Self {
            metadata,
            instance,
            held,
            phase: status.phase,
            node,
            scheduled: status.conditions.into_iter().find(|condition| condition.is("PodScheduled")),
            is_ready,
            ready_turned,
            init_containers: status.init_container_statuses,
            containers: status.container_statuses,
        }
    }
}

#[derive(Deserialize)]
struct DeploymentParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: DeploymentSpecParts,
    #[serde(default)]
    status: DeploymentStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeploymentSpecParts {
    template: Option<Value>,
    strategy: Option<DeploymentStrategy>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeploymentStatusParts {
    conditions: Vec<Condition>,
}

impl From<DeploymentParts> for DeploymentView {
    fn from(DeploymentParts { mut metadata, spec, status }: DeploymentParts) -> Self {
        let mut annotations = metadata.annotations.take().unwrap_or_default();
        let mut annotation = |key| annotations.remove(key).map(String::into_boxed_str);
        let (generation, resolved) = (annotation(labels::GENERATION), annotation(labels::RESOLVED));
        let surge = spec.strategy.and_then(|strategy| strategy.rolling_update?.max_surge);
        let failure = status.conditions.into_iter().find(|c| c.is("ReplicaFailure") && c.status == "True");
        let (metadata, _) = narrow(metadata);
        Self {
            metadata,
            generation,
            resolved,
            template: spec.template.map(TemplateHash::of),
            replaces: surge == Some(IntOrString::Int(0)),
            creation_failure: failure.map(|failure| failure.message.into()),
        }
    }
}

#[derive(Deserialize)]
struct ReplicaSetParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ReplicaSetSpecParts,
}

#[derive(Default, Deserialize)]
struct ReplicaSetSpecParts {
    template: Option<Value>,
}

impl From<ReplicaSetParts> for ReplicaSetView {
    fn from(ReplicaSetParts { metadata, spec }: ReplicaSetParts) -> Self {
        let (metadata, instance) = narrow(metadata);
        Self { metadata, instance, template: spec.template.map(TemplateHash::of) }
    }
}

/// Identity and owner; and the AIInference that it is for, if the labels say that it is ours.
fn narrow(metadata: ObjectMeta) -> (ObjectMeta, Option<Box<str>>) {
    let mut labels = metadata.labels.unwrap_or_default();
    let is = |key: &str, value: &str| labels.get(key).is_some_and(|there| there == value);
    let is_ours = is(labels::MANAGED_BY, NAME) && is(labels::NAME, names::KIND);
    let instance = labels.remove(labels::INSTANCE).filter(|_| is_ours).map(String::into_boxed_str);
    // Lists that were read have room to grow, which adds up.
    let owner_references = metadata.owner_references.filter(|_| is_ours).map(|mut owners| {
        owners.shrink_to_fit();
        owners
    });
    let narrow = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        owner_references,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        ..ObjectMeta::default()
    };
    (narrow, instance)
}

fn instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Time>::deserialize(deserializer)?.map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_has_the_template_of_its_deployment_but_for_one_label() {
        let spec = |label: &str, image: &str| {
            format!(
                "{{metadata: {{name: chat}}, spec: {{replicas: 1, template: {{metadata: {{labels: {{app: a{label}}}}}, \
                 spec: {{containers: [{{name: engine, image: {image}}}]}}}}}}}}"
            )
        };
        let revision: ReplicaSetView =
            serde_saphyr::from_str(&spec(", pod-template-hash: x", "engine:1")).unwrap();
        let deployment =
            |image: &str| -> DeploymentView { serde_saphyr::from_str(&spec("", image)).unwrap() };
        assert!(revision.template.is_some());
        assert_eq!(revision.template, deployment("engine:1").template);
        assert_ne!(revision.template, deployment("engine:2").template);
    }

    #[test]
    fn a_pod_without_a_status_is_nothing_yet() {
        let pod: PodView = serde_saphyr::from_str("{metadata: {name: a}, spec: {containers: []}}").unwrap();
        assert!(pod.node.is_none() && pod.scheduled.is_none() && !pod.is_ready && pod.containers.is_empty());
    }

    #[test]
    fn of_a_pod_that_is_not_ours_only_what_it_holds_is_kept() {
        let pod: PodView = serde_saphyr::from_str(
            "
metadata: {name: theirs, labels: {app.kubernetes.io/instance: chat}}
spec: {nodeName: gpu-0, containers: [{name: a, resources: {requests: {nvidia.com/gpu: '2'}}}]}
status: {phase: Running, containerStatuses: [{name: a}]}
",
        )
        .unwrap();
        assert_eq!(pod.node.as_deref(), Some("gpu-0"));
        assert_ne!(pod.held, Extended::default());
        assert!(pod.instance().is_none() && pod.containers.is_empty());
    }

    #[test]
    fn a_pod_keeps_what_we_read_and_nothing_else() {
        let pod: PodView = serde_saphyr::from_str(
            "
metadata:
  name: chat-abc
  labels:
    app.kubernetes.io/instance: chat
    app.kubernetes.io/name: aiinference
    app.kubernetes.io/managed-by: inference-controller
    other: x
  annotations: {large: text}
spec: {nodeName: gpu-0, containers: [{name: engine}]}
status:
  phase: Running
  conditions:
  - {type: Ready, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z'}
  - {type: PodScheduled, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z'}
  containerStatuses:
  - {name: engine, ready: true, image: a, imageID: b, restartCount: 1,
     state: {running: {startedAt: '2026-01-01T00:00:00Z'}},
     lastState: {terminated: {exitCode: 137, reason: OOMKilled}}}
",
        )
        .unwrap();
        assert_eq!(pod.node.as_deref(), Some("gpu-0"));
        assert!(pod.is_ready && pod.scheduled.as_ref().is_some_and(|condition| condition.status == "True"));
        assert_eq!(pod.containers[0].last.terminated.as_ref().map(|ended| ended.exit_code), Some(137));
        assert_eq!(pod.instance(), Some("chat"));
        assert_eq!(pod.metadata.labels, None);
        assert_eq!(pod.metadata.annotations, None);
    }
}
