//! GRPCRoutes of the Gateway API. They have the parts of HTTPRoutes, but no paths and no timeouts.

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::{
    GROUP,
    http_route::{BackendRef, Filter, Header, ParentRef, RouteState},
};

/// A route of gRPC calls (gateway.networking.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GrpcRoute {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: GrpcRouteSpec,
    #[serde(default, skip_serializing_if = "RouteState::is_empty")]
    pub(crate) status: RouteState,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GrpcRouteSpec {
    pub(crate) parent_refs: Vec<ParentRef>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hostnames: Vec<String>,
    pub(crate) rules: Vec<GrpcRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GrpcRule {
    pub(crate) matches: Vec<GrpcMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<Filter>,
    pub(crate) backend_refs: Vec<BackendRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GrpcMatch {
    pub(crate) method: GrpcMethod,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<Header>,
}

/// A method of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GrpcMethod {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) service: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) method: String,
}

/// Not derived, as that of an HTTPRoute.
impl Resource for GrpcRoute {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "GRPCRoute".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "grpcroutes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
