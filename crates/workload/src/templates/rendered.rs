//! A child that is written as JSON with the fields that its owner sets, and no others. A typed object would also set fields that
//! have a default, and users could not change those.

use std::{borrow::Cow, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;

/// A child of the kind `K` to apply or to delete.
#[derive(Clone, Debug, Serialize)]
#[serde(bound = "")]
pub struct Rendered<K> {
    pub metadata: ObjectMeta,
    pub spec: Value,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K> Rendered<K> {
    pub fn new(metadata: ObjectMeta, spec: Value) -> Self {
        Self { metadata, spec, kind: PhantomData }
    }
}

/// Not derived: the derive macro allocates the names, and metric labels must be static.
impl<K: Resource<DynamicType = ()>> Resource for Rendered<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
