//! Deployments and their revisions, as far as decisions need them.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use api::labels;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentStrategy, ReplicaSet},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    kept_template::differences,
    metadata::{Condition, Instance, narrow},
    pod::PodView,
};

/// A ReplicaSet: which revision it is.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = ReplicaSet)]
#[serde(from = "ReplicaSetParts")]
pub struct ReplicaSetView {
    pub metadata: ObjectMeta,
    pub instance: Option<Instance>,
    pub template: Option<TemplateHash>,
    /// What its pods were rendered for; of those that have pods alone.
    pub rendered: Option<Box<Rendered>>,
}

/// The record of a pod template, as the annotations have it.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub resolved: Box<str>,
    pub template: Box<str>,
}

/// A revision of another template than the Deployment's, and its pods; there is at least one.
#[derive(Clone, Debug)]
pub struct Older {
    pub revision: Arc<ReplicaSetView>,
    pub pods: Vec<Arc<PodView>>,
}

/// Tells pod templates apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateHash([u8; 16]);

/// The API server takes no more than this as annotations, so no recorded template is larger.
const LARGEST_TEMPLATE: usize = 256 << 10;

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

/// A Deployment whose pod template may have fields that this release does not know.
#[derive(Clone, Debug, Serialize)]
pub struct RenderedDeployment {
    pub metadata: ObjectMeta,
    pub spec: Value,
    /// Version of the Deployment that this was planned on; `None` if there was none.
    #[serde(skip)]
    pub planned_on: Option<String>,
}

/// Written as what it is; the derived form allocates its names, and names of metrics must be static.
impl Resource for RenderedDeployment {
    type DynamicType = ();
    type Scope = <Deployment as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Deployment::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Deployment::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Deployment::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Deployment::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
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
        let recorded = annotation(labels::TEMPLATE);
        let surge = spec.strategy.and_then(|strategy| strategy.rolling_update?.max_surge);
        let failure = status.conditions.into_iter().find(|c| c.is("ReplicaFailure") && c.status == "True");
        let (metadata, _) = narrow(metadata);
        let rendered = || Some(spec.template.as_ref()?.to_string().into_boxed_str());
        let kept = recorded.or_else(rendered).filter(|template| template.len() <= LARGEST_TEMPLATE);
        Self {
            metadata,
            generation,
            resolved,
            kept_template: kept,
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
    replicas: Option<i32>,
    template: Option<Value>,
}

impl From<ReplicaSetParts> for ReplicaSetView {
    fn from(ReplicaSetParts { mut metadata, spec }: ReplicaSetParts) -> Self {
        let annotations = metadata.annotations.take().unwrap_or_default();
        let template = spec.template.as_ref().filter(|_| spec.replicas != Some(0));
        let rendered = template.and_then(|template| rendered(annotations, template).map(Box::new));
        let (metadata, instance) = narrow(metadata);
        Self { metadata, instance, template: spec.template.map(TemplateHash::of), rendered }
    }
}

/// The Deployment's controller copies the annotations of a Deployment to the ReplicaSet of its template, and removes none.
/// So the record is that of another template where the Deployment was edited by hand, or was written without a record.
fn rendered(mut annotations: BTreeMap<String, String>, template: &Value) -> Option<Rendered> {
    let (resolved, recorded) = (annotations.remove(labels::RESOLVED)?, annotations.remove(labels::TEMPLATE)?);
    let parsed: Value = serde_json::from_str(&recorded).ok()?;
    let is_of_template = differences(template, &parsed).is_empty();
    is_of_template.then(|| Rendered { resolved: resolved.into(), template: recorded.into() })
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

    /// A ReplicaSet with this record of the template of `image`, as the API server has it.
    fn revision(replicas: i32, recorded: &str, image: &str) -> ReplicaSetView {
        let template = |image: &str| {
            serde_json::json!({"metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "engine", "image": image}]}})
        };
        let mut stored = template(image);
        stored["metadata"]["labels"][POD_TEMPLATE_HASH] = "x".into();
        stored["spec"]["dnsPolicy"] = "ClusterFirst".into();
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "chat", "annotations": {
                labels::RESOLVED: "{}", labels::TEMPLATE: template(recorded).to_string(),
            }},
            "spec": {"replicas": replicas, "template": stored},
        }))
        .unwrap()
    }

    #[test]
    fn the_record_of_a_revision_is_kept_while_it_has_pods_and_only_if_it_is_that_of_its_template() {
        assert!(revision(1, "engine:1", "engine:1").rendered.is_some());
        assert!(revision(0, "engine:1", "engine:1").rendered.is_none(), "nothing runs of it");
        assert!(revision(1, "engine:1", "engine:2").rendered.is_none(), "the Deployment was edited by hand");
    }
}
