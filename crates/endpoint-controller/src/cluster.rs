//! What an endpoint reads of the cluster: labels of nodes, and whether there is an API of the CPU and memory of pods.

use std::borrow::Cow;

use k8s_openapi::{
    api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::Resource;
use serde::Deserialize;
use workload::views::node::NodeView;

/// A node by its labels. Two versions with the same labels are equal, because an endpoint reads nothing else.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct NodeLabels(pub(crate) NodeView);

/// The registration of an API with the API server.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = APIService)]
#[serde(from = "ApiServiceParts")]
pub(crate) struct ApiServiceView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) is_available: bool,
}

/// The API that a HorizontalPodAutoscaler reads CPU and memory from.
pub(crate) const METRICS_API: &str = "v1beta1.metrics.k8s.io";

impl ApiServiceView {
    pub(crate) fn has_metrics_of_pods(&self) -> bool {
        self.metadata.name.as_deref() == Some(METRICS_API)
    }
}

#[derive(Deserialize)]
struct ApiServiceParts {
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
struct ConditionParts {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl From<ApiServiceParts> for ApiServiceView {
    fn from(ApiServiceParts { metadata, status }: ApiServiceParts) -> Self {
        let mut conditions = status.conditions.iter();
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
            is_available: conditions
                .any(|condition| condition.type_ == "Available" && condition.status == "True"),
        }
    }
}

impl PartialEq for NodeLabels {
    fn eq(&self, other: &Self) -> bool {
        self.0.metadata.name == other.0.metadata.name
            && self.0.metadata.uid == other.0.metadata.uid
            && self.0.metadata.resource_version == other.0.metadata.resource_version
            && self.0.metadata.labels == other.0.metadata.labels
    }
}

impl Resource for NodeLabels {
    type DynamicType = ();
    type Scope = <Node as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}
