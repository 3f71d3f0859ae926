//! Children as a controller needs them: a narrow view, and the whole object only until it was found to be as it should.
//!
//! Children are many, and at rest they are not read. A view is what decisions are made from; the rest is needed once,
//! to compare what is there with what should be there. After that a hash of what was compared says as much.

use std::{
    borrow::Cow,
    fmt,
    marker::PhantomData,
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;

use crate::apply::covers;

/// A child by its view `V`.
pub struct Kept<V> {
    view: V,
    rest: Mutex<Rest>,
}

enum Rest {
    /// The object as JSON, which has not been compared yet, or was not as it should.
    Text(Box<str>),
    /// It has everything that the apply of this hash sets. This version of it will for ever.
    Covers(Box<str>),
}

impl<V> Deref for Kept<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.view
    }
}

impl<V> Kept<V> {
    /// Whether it has everything that an apply of `desired` would set; `hash` is that of `desired`.
    pub(crate) fn covers(&self, desired: &Value, hash: &str) -> Result<bool, serde_json::Error> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = match &*rest {
            // The hash is a part of what is set, so an object covers one alone.
            Rest::Covers(known) => return Ok(**known == *hash),
            Rest::Text(text) => covers(&serde_json::from_str(text)?, desired),
        };
        if covered {
            *rest = Rest::Covers(hash.into());
        }
        Ok(covered)
    }
}

impl<'de, V: DeserializeOwned> Deserialize<'de> for Kept<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // From one end to the other, with no tree of values in between.
        let mut text = Vec::new();
        serde_transcode::transcode(deserializer, &mut serde_json::Serializer::new(&mut text))
            .map_err(D::Error::custom)?;
        let text = String::from_utf8(text).map_err(D::Error::custom)?;
        let view = serde_json::from_str(&text).map_err(D::Error::custom)?;
        Ok(Self { view, rest: Mutex::new(Rest::Text(text.into())) })
    }
}

impl<V: Clone> Clone for Kept<V> {
    fn clone(&self) -> Self {
        let rest = match &*self.rest.lock().unwrap_or_else(PoisonError::into_inner) {
            Rest::Text(text) => Rest::Text(text.clone()),
            Rest::Covers(hash) => Rest::Covers(hash.clone()),
        };
        Self { view: self.view.clone(), rest: Mutex::new(rest) }
    }
}

impl<V: fmt::Debug> fmt::Debug for Kept<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.view).finish()
    }
}

impl<V: Resource> Resource for Kept<V> {
    type DynamicType = V::DynamicType;
    type Scope = V::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        V::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        V::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        V::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        V::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.view.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.view.meta_mut()
    }
}

/// The narrowest view: which `K` it is, whose, and whether it is on its way out.
#[derive(Deserialize)]
#[serde(bound = "")]
pub struct Metadata<K> {
    #[serde(default, deserialize_with = "identity")]
    metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Metadata<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Metadata<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metadata").field(&self.metadata).finish()
    }
}

impl<K: Resource> Resource for Metadata<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Reads metadata without labels, annotations and everything that does not identify an object.
fn identity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Parts {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        deletion_timestamp: Option<Time>,
        // Without the room to grow that a list has when it is read.
        owner_references: Option<Box<[OwnerReference]>>,
    }
    let parts = Parts::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: parts.name,
        namespace: parts.namespace,
        uid: parts.uid,
        resource_version: parts.resource_version,
        generation: parts.generation,
        deletion_timestamp: parts.deletion_timestamp,
        owner_references: parts.owner_references.map(Vec::from),
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::decode;

    const JSON: &str = r#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
        "name": "chat", "uid": "1", "labels": {"a": "b"}, "managedFields": [{"manager": "x"}],
        "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "2", "controller": true}]},
        "data": {"text": "with \"quotes\"\n", "empty": ""}, "immutable": true}"#;

    type Child = Kept<Metadata<ConfigMap>>;

    fn text(child: &Child) -> Option<String> {
        match &*child.rest.lock().unwrap() {
            Rest::Text(text) => Some(text.to_string()),
            Rest::Covers(_) => None,
        }
    }

    #[test]
    fn until_it_was_compared_it_is_whole_but_for_managed_fields() {
        let child: Child = decode::object(JSON).unwrap();
        let read: ConfigMap = serde_json::from_str(&text(&child).unwrap()).unwrap();
        let mut whole: ConfigMap = serde_json::from_str(JSON).unwrap();
        whole.metadata.managed_fields = None;
        assert_eq!(read, whole);
    }

    #[test]
    fn the_rest_goes_once_it_was_found_to_be_as_it_should_and_not_before() {
        let child: Child = decode::object(JSON).unwrap();
        let (wanted, other) = (json!({"immutable": true}), json!({"immutable": false}));
        assert!(!child.covers(&other, "other").unwrap());
        assert!(text(&child).is_some(), "it may be compared with something else");
        assert!(child.covers(&wanted, "wanted").unwrap());
        assert!(text(&child).is_none());
        assert!(child.covers(&wanted, "wanted").unwrap());
        assert!(!child.covers(&other, "other").unwrap());
    }

    #[test]
    fn an_item_of_a_list_covers_without_saying_what_kind_it_is() {
        let child: Child = decode::object(r#"{"metadata": {"name": "chat"}, "immutable": true}"#).unwrap();
        let wanted = |immutable| json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": immutable});
        assert!(!child.covers(&wanted(false), "a").unwrap());
        assert!(child.covers(&wanted(true), "b").unwrap());
    }

    #[test]
    fn identity_and_owners_are_in_the_narrowest_view() {
        let child: Child = decode::object(JSON).unwrap();
        assert_eq!(child.meta().name.as_deref(), Some("chat"));
        assert_eq!(child.meta().owner_references.as_ref().unwrap()[0].uid, "2");
        assert_eq!(child.meta().labels, None);
    }

    #[test]
    fn what_is_no_object_is_not_kept() {
        for wrong in ["7", "[1]", "null", "{\"metadata\": 7}", "{\"metadata\": {\"ownerReferences\": 1}}"] {
            assert!(decode::object::<Child>(wrong).is_err(), "{wrong}");
        }
    }
}
