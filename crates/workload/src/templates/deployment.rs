//! Narrow views of Deployments and ReplicaSets.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use api::labels;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentStrategy, ReplicaSet},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::{
    templates::stored_template::{RecordedTemplate, StoredTemplate, shared},
    views::{
        metadata::{Condition, Instance, OfInstance, narrow},
        pod::PodView,
    },
};

pub use crate::templates::stored_template::TemplateHash;

/// A ReplicaSet, as one revision of a Deployment.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = ReplicaSet)]
#[serde(from = "ReplicaSetParts")]
pub struct ReplicaSetView {
    pub metadata: ObjectMeta,
    pub instance: Option<Instance>,
    pub template: Option<TemplateHash>,
    /// The record of its template; `None` without replicas.
    pub rendered: Option<Box<TemplateRecord>>,
}

impl OfInstance for ReplicaSetView {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }
}

/// The annotations that record a pod template.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateRecord {
    pub resolved: Box<str>,
    pub template: Arc<str>,
    /// See `token_account`.
    pub token_account: Option<Box<str>>,
}

/// A revision whose template differs from the Deployment's, with at least one pod.
#[derive(Clone, Debug)]
pub struct OlderRevision {
    pub revision: Arc<ReplicaSetView>,
    pub pods: Vec<Arc<PodView>>,
}

/// The API server's limit on annotations; a recorded template cannot be larger.
const LARGEST_TEMPLATE: usize = 256 << 10;

/// A Deployment: the record of its template, its strategy and its failures.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Deployment)]
#[serde(from = "DeploymentParts")]
pub struct DeploymentView {
    pub metadata: ObjectMeta,
    /// Value of the annotation `generation`: the owner's generation.
    pub generation: Option<Box<str>>,
    /// Value of the annotation `resolved`: the record of the rendering.
    pub resolved: Option<Box<str>>,
    /// Value of the annotation `gives-way`: the uid of a pod that ends once one more is ready.
    pub gives_way: Option<Box<str>>,
    /// The pinned pod template as JSON: the recorded one, or the present one if none is recorded.
    pub pinned_template: Option<Arc<str>>,
    /// Hash of the present template.
    pub template: Option<TemplateHash>,
    /// Of the present template; see `token_account`.
    pub token_account: Option<Box<str>>,
    pub replicas: i32,
    /// `maxSurge` is 0: old pods are deleted before new ones are created.
    pub replaces: bool,
    /// The condition `ReplicaFailure`, if True.
    pub creation_failure: Option<Condition>,
}

/// A Deployment to apply. Its spec is JSON because the pinned template may have fields that this release has no type for.
#[derive(Clone, Debug, Serialize)]
pub struct RenderedDeployment {
    pub metadata: ObjectMeta,
    pub spec: Value,
    /// `resourceVersion` of the Deployment that the plan was based on; `None` if there was none.
    #[serde(skip)]
    pub planned_on: Option<String>,
}

/// Not derived: the derive macro allocates the names, and metric labels must be static.
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
    replicas: Option<i32>,
    template: Option<Box<RawValue>>,
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
        let gives_way = annotation(labels::GIVES_WAY);
        let recorded = annotation(labels::TEMPLATE).map(|recorded| shared(&recorded));
        let surge = spec.strategy.and_then(|strategy| strategy.rolling_update?.max_surge);
        let failure = status.conditions.into_iter().find(|c| c.is("ReplicaFailure") && c.status == "True");
        let (metadata, _) = narrow(metadata);
        let present = spec.template.as_deref().map(StoredTemplate::read);
        let rendered = || Some(sorted(spec.template.as_deref()?)?.into());
        let kept = recorded.or_else(rendered).filter(|template| template.len() <= LARGEST_TEMPLATE);
        Self {
            metadata,
            generation,
            resolved,
            gives_way,
            pinned_template: kept,
            template: present.as_ref().map(|present| present.hash),
            token_account: present.and_then(|present| present.token_account),
            // The default of the API server.
            replicas: spec.replicas.unwrap_or(1),
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
    template: Option<Box<RawValue>>,
}

impl From<ReplicaSetParts> for ReplicaSetView {
    fn from(ReplicaSetParts { mut metadata, spec }: ReplicaSetParts) -> Self {
        let annotations = metadata.annotations.take().unwrap_or_default();
        let template = spec.template.as_deref().filter(|_| spec.replicas != Some(0));
        let rendered = template.and_then(|template| rendered(annotations, template).map(Box::new));
        let (metadata, instance) = narrow(metadata);
        let template = spec.template.as_deref().map(|template| StoredTemplate::read(template).hash);
        Self { metadata, instance, template, rendered }
    }
}

/// The Deployment controller copies annotations to the ReplicaSet and never removes any. So the record may belong to
/// another template, for example if the Deployment was edited by hand; such a record is dropped.
fn rendered(mut annotations: BTreeMap<String, String>, template: &RawValue) -> Option<TemplateRecord> {
    let (resolved, recorded) = (annotations.remove(labels::RESOLVED)?, annotations.remove(labels::TEMPLATE)?);
    let RecordedTemplate { token_account } = RecordedTemplate::read(&recorded, template)?;
    Some(TemplateRecord { resolved: resolved.into(), template: shared(&recorded), token_account })
}

/// As a template is recorded: fields in the order of their names, so that equal templates have equal digests.
fn sorted(template: &RawValue) -> Option<String> {
    Some(serde_json::from_str::<Value>(template.get()).ok()?.to_string())
}

#[cfg(test)]
mod tests {
    use crate::templates::stored_template::POD_TEMPLATE_HASH;

    use super::*;

    #[test]
    fn a_replica_set_has_the_template_hash_of_its_deployment() {
        let spec = |label: &str, image: &str| {
            format!(
                "{{\"metadata\": {{\"name\": \"chat\"}}, \"spec\": {{\"replicas\": 1, \"template\": \
                 {{\"metadata\": {{\"labels\": {{\"app\": \"a\"{label}}}}}, \"spec\": {{\"containers\": \
                 [{{\"name\": \"engine\", \"image\": \"{image}\"}}]}}}}}}}}"
            )
        };
        let revision: ReplicaSetView =
            serde_json::from_str(&spec(r#", "pod-template-hash": "x""#, "engine:1")).unwrap();
        let deployment = |image: &str| -> DeploymentView { serde_json::from_str(&spec("", image)).unwrap() };
        assert!(revision.template.is_some());
        assert_eq!(revision.template, deployment("engine:1").template);
        assert_ne!(revision.template, deployment("engine:2").template);
    }

    /// A ReplicaSet of `image` whose record has the image `recorded`.
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
    fn a_record_is_used_if_it_has_replicas_and_matches_the_template() {
        assert!(revision(1, "engine:1", "engine:1").rendered.is_some());
        assert!(revision(0, "engine:1", "engine:1").rendered.is_none(), "no replicas");
        assert!(revision(1, "engine:1", "engine:2").rendered.is_none(), "the Deployment was edited by hand");
    }
}
