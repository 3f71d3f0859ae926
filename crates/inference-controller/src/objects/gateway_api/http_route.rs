//! HTTPRoutes of the Gateway API, as far as this controller writes and reads them.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::GROUP;

/// A route (gateway.networking.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HttpRoute {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: RouteSpec,
    #[serde(default, skip_serializing_if = "RouteState::is_empty")]
    pub(crate) status: RouteState,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteSpec {
    pub(crate) parent_refs: Vec<ParentRef>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hostnames: Vec<String>,
    pub(crate) rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParentRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) section_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) matches: Vec<Match>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<Filter>,
    pub(crate) backend_refs: Vec<BackendRef>,
    pub(crate) timeouts: Timeouts,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Match {
    pub(crate) path: Path,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<Header>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Path {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Filter {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url_rewrite: Option<UrlRewrite>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_mirror: Option<RequestMirror>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_header_modifier: Option<HeaderModifier>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HeaderModifier {
    pub(crate) add: Vec<AddedHeader>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AddedHeader {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RequestMirror {
    pub(crate) backend_ref: MirrorRef,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MirrorRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) port: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UrlRewrite {
    pub(crate) path: Rewrite,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rewrite {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) replace_prefix_match: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BackendRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// A reference to an InferencePool has none.
    #[serde(skip_serializing_if = "is_absent")]
    pub(crate) port: i32,
    pub(crate) weight: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<Filter>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Timeouts {
    pub(crate) request: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RouteState {
    pub(crate) parents: Vec<RouteParent>,
}

/// What the controller of a Gateway says about the route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteParent {
    pub(crate) parent_ref: ParentRef,
    pub(crate) conditions: Vec<Condition>,
}

fn is_absent(port: &i32) -> bool {
    *port == 0
}

impl RouteState {
    pub(super) fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }
}

/// Not derived: the derive macro allocates the names, and metric labels must be static.
impl Resource for HttpRoute {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "HTTPRoute".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "httproutes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
