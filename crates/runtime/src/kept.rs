//! An object that is kept as text: what tells it apart and whose it is, beside the JSON of all the rest.
//!
//! Children are many and seldom looked at. As text one takes a fraction of what it takes as a value, whose strings,
//! lists and maps are each an allocation with room to grow; and an event about it costs no more than a copy.

use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;

/// A `K` of which only identity, owners and deletion are known without `read`.
pub struct Kept<K> {
    metadata: ObjectMeta,
    json: Box<RawValue>,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> Kept<K> {
    /// The whole object, but for its managed fields.
    pub fn read(&self) -> Result<K, serde_json::Error> {
        serde_json::from_str(self.json.get())
    }
}

impl<K: Resource> Resource for Kept<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        K::plural(dt)
    }

    /// Without labels and annotations, which only `read` gives.
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<K> Clone for Kept<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), json: self.json.clone(), kind: PhantomData }
    }
}

impl<K> std::fmt::Debug for Kept<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kept").field(&self.json.get()).finish()
    }
}

impl<K> Serialize for Kept<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de, K> Deserialize<'de> for Kept<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // From one end to the other, with no tree of values in between.
        let mut json = Vec::new();
        serde_transcode::transcode(deserializer, &mut serde_json::Serializer::new(&mut json))
            .map_err(D::Error::custom)?;
        let json = String::from_utf8(json).map_err(D::Error::custom)?;
        let Identified { metadata } = serde_json::from_str(&json).map_err(D::Error::custom)?;
        let json = RawValue::from_string(json).map_err(D::Error::custom)?;
        Ok(Self { metadata: metadata.into(), json, kind: PhantomData })
    }
}

#[derive(Deserialize)]
struct Identified {
    #[serde(default)]
    metadata: Identity,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Box<[OwnerReference]>>,
}

impl From<Identity> for ObjectMeta {
    fn from(identity: Identity) -> Self {
        Self {
            name: identity.name,
            namespace: identity.namespace,
            uid: identity.uid,
            resource_version: identity.resource_version,
            generation: identity.generation,
            deletion_timestamp: identity.deletion_timestamp,
            // A boxed slice has no room to grow, which a list that is read has.
            owner_references: identity.owner_references.map(Vec::from),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::decode;

    const JSON: &str = r#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
        "name": "chat", "uid": "1", "labels": {"a": "b"}, "managedFields": [{"manager": "x"}],
        "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "2", "controller": true}]},
        "data": {"text": "with \"quotes\"\n", "empty": ""}, "immutable": true}"#;

    #[test]
    fn what_is_read_back_is_what_was_kept_but_for_managed_fields() {
        let kept: Kept<ConfigMap> = decode::object(JSON).unwrap();
        assert_eq!(kept.read().unwrap(), decode::object(JSON).unwrap());
        assert!(!kept.json.get().contains("managedFields"));
    }

    #[test]
    fn identity_and_owners_are_known_without_reading() {
        let kept: Kept<ConfigMap> = decode::object(JSON).unwrap();
        assert_eq!(kept.meta().name.as_deref(), Some("chat"));
        assert_eq!(kept.meta().owner_references.as_ref().unwrap()[0].uid, "2");
        assert_eq!(kept.meta().labels, None);
    }

    #[test]
    fn as_a_value_it_is_the_object() {
        let kept: Kept<ConfigMap> = decode::object(JSON).unwrap();
        let value = serde_json::to_value(&kept).unwrap();
        assert_eq!(value["data"]["text"], "with \"quotes\"\n");
        assert_eq!(value["kind"], "ConfigMap");
    }

    #[test]
    fn what_is_no_object_is_not_kept() {
        for wrong in ["7", "[1]", "null", "{\"metadata\": 7}", "{\"metadata\": {\"ownerReferences\": 1}}"] {
            assert!(decode::object::<Kept<ConfigMap>>(wrong).is_err(), "{wrong}");
        }
    }
}
