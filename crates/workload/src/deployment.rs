//! Deployments and their revisions, as far as decisions need them.

use api::labels;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentStrategy, ReplicaSet},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::Resource;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::metadata::{Condition, Instance, narrow};

/// A ReplicaSet: which revision it is.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = ReplicaSet)]
#[serde(from = "ReplicaSetParts")]
pub struct ReplicaSetView {
    pub metadata: ObjectMeta,
    pub instance: Option<Instance>,
    pub template: Option<TemplateHash>,
}

/// Tells pod templates apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateHash([u8; 16]);

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

/// A Deployment: what its pods were rendered from, and how it fares.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = Deployment)]
#[serde(from = "DeploymentParts")]
pub struct DeploymentView {
    pub metadata: ObjectMeta,
    /// The generation of the owner, as the annotation has it.
    pub generation: Option<Box<str>>,
    /// Defaults that were resolved for the pods, as the annotation has them.
    pub resolved: Option<Box<str>>,
    /// The pod template to keep, as JSON: as it was recorded, or, without a record, as it is.
    pub kept_template: Option<Box<str>>,
    /// Of the template as it is.
    pub template: Option<TemplateHash>,
    /// `maxSurge` is 0: old pods go before new ones come.
    pub replaces: bool,
    /// Why pods cannot be created.
    pub creation_failure: Option<Condition>,
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
        let recorded = annotation(labels::TEMPLATE);
        let surge = spec.strategy.and_then(|strategy| strategy.rolling_update?.max_surge);
        let failure = status.conditions.into_iter().find(|c| c.is("ReplicaFailure") && c.status == "True");
        let (metadata, _) = narrow(metadata);
        Self {
            metadata,
            generation,
            resolved,
            kept_template: recorded.or_else(|| Some(spec.template.as_ref()?.to_string().into())),
            template: spec.template.map(TemplateHash::of),
            replaces: surge == Some(IntOrString::Int(0)),
            creation_failure: failure,
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
}
