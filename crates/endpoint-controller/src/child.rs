//! The children, as caches show them.

use api::{
    aiinference::{AIInference, AIInferenceStatus},
    aiscaler::AIScaler,
    labels,
};
use k8s_openapi::{
    api::autoscaling::v2::HorizontalPodAutoscaler,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use serde::Deserialize;

/// Who sets the replicas of an AIInference, as its annotation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Setter {
    Spec,
    Scaler,
}

/// The AIInference.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = AIInference)]
#[serde(from = "InferenceParts")]
pub(crate) struct InferenceView {
    pub(crate) metadata: ObjectMeta,
    /// `None`: the annotation is missing, or has another value.
    pub(crate) setter: Option<Setter>,
    /// Generation of the endpoint that it was rendered from.
    pub(crate) rendered_from: Option<i64>,
    pub(crate) replicas: i32,
    pub(crate) status: AIInferenceStatus,
}

/// The HorizontalPodAutoscaler.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = HorizontalPodAutoscaler)]
#[serde(from = "ScalerParts")]
pub(crate) struct HpaView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) active: Option<Active>,
}

/// The AIScaler.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = AIScaler)]
#[serde(from = "ScalerParts")]
pub(crate) struct ScalerView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) active: Option<Active>,
}

/// The condition ScalingActive of an autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Active {
    pub(crate) holds: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Setter {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Spec => labels::REPLICAS_OF_SPEC,
            Self::Scaler => labels::REPLICAS_OF_SCALER,
        }
    }

    fn of(label: &str) -> Option<Self> {
        [Self::Spec, Self::Scaler].into_iter().find(|setter| setter.label() == label)
    }
}

#[derive(Deserialize)]
struct InferenceParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecParts,
    #[serde(default)]
    status: AIInferenceStatus,
}

#[derive(Default, Deserialize)]
struct SpecParts {
    replicas: Option<i32>,
}

#[derive(Deserialize)]
struct ScalerParts {
    metadata: ObjectMeta,
    #[serde(default)]
    status: ScalerStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ScalerStatusParts {
    conditions: Option<Vec<ConditionParts>>,
}

/// Without the times, which an HPA may leave out.
#[derive(Deserialize)]
struct ConditionParts {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

impl From<InferenceParts> for InferenceView {
    fn from(InferenceParts { metadata, spec, status }: InferenceParts) -> Self {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
        Self {
            setter: annotation(labels::REPLICAS).and_then(|label| Setter::of(label)),
            rendered_from: annotation(labels::GENERATION).and_then(|text| text.parse().ok()),
            metadata: narrow(metadata),
            // The default of the kind.
            replicas: spec.replicas.unwrap_or(1),
            status,
        }
    }
}

impl From<ScalerParts> for HpaView {
    fn from(ScalerParts { metadata, status }: ScalerParts) -> Self {
        Self { metadata: narrow(metadata), active: active(status) }
    }
}

impl From<ScalerParts> for ScalerView {
    fn from(ScalerParts { metadata, status }: ScalerParts) -> Self {
        Self { metadata: narrow(metadata), active: active(status) }
    }
}

pub(crate) fn active(status: ScalerStatusParts) -> Option<Active> {
    let mut conditions = status.conditions.into_iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == api::conditions::SCALING_ACTIVE)?;
    Some(Active {
        holds: condition.status == "True",
        reason: condition.reason.unwrap_or_default(),
        message: condition.message.unwrap_or_default(),
    })
}

/// Identity, version, controlling owner and whether it is being deleted.
pub(crate) fn narrow(metadata: ObjectMeta) -> ObjectMeta {
    let owners = metadata.owner_references.unwrap_or_default();
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        finalizers: metadata.finalizers,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        owner_references: owners
            .into_iter()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

impl InferenceView {
    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }
}
