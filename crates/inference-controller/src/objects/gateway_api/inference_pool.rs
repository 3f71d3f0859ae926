//! InferencePools of the Gateway API Inference Extension: pods among which an endpoint picker chooses for each request.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::http_route::RouteState;

/// Its group, also in references to it.
pub(crate) const GROUP: &str = "inference.networking.k8s.io";
pub(crate) const KIND: &str = "InferencePool";

/// A pool (inference.networking.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct InferencePool {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: PoolSpec,
    /// As that of a route: what the controller of each Gateway says.
    #[serde(default, skip_serializing_if = "RouteState::is_empty")]
    pub(crate) status: RouteState,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PoolSpec {
    pub(crate) selector: Selector,
    pub(crate) target_ports: Vec<Port>,
    pub(crate) endpoint_picker_ref: Picker,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Selector {
    pub(crate) match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Port {
    pub(crate) number: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Picker {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) port: Port,
    pub(crate) failure_mode: String,
}

/// Not derived, as that of an HTTPRoute.
impl Resource for InferencePool {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "inferencepools".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
