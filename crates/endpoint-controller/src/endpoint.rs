//! An InferenceEndpoint as the API server has it: its type, and the JSON of its spec.
//!
//! Fields of the spec go to the AIInference and to the autoscaler unread. They are taken from the JSON, so a controller that
//! is older than the CRDs drops no field that it does not know.

use api::aiinference::endpoint::{InferenceEndpoint, InferenceEndpointSpec, InferenceEndpointStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Resource, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[resource(inherit = InferenceEndpoint)]
#[serde(try_from = "Parts")]
pub(crate) struct Endpoint {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: InferenceEndpointSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<InferenceEndpointStatus>,
    /// The spec, with fields that this release does not know.
    #[serde(skip)]
    pub(crate) given: Map<String, Value>,
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    spec: Map<String, Value>,
    #[serde(default)]
    status: Option<InferenceEndpointStatus>,
}

impl TryFrom<Parts> for Endpoint {
    type Error = serde_json::Error;

    fn try_from(Parts { metadata, spec, status }: Parts) -> Result<Self, Self::Error> {
        let typed = InferenceEndpointSpec::deserialize(Value::Object(spec.clone()))?;
        Ok(Self { metadata, spec: typed, status, given: spec })
    }
}
