//! Reads objects from JSON without the fields that are never used. It skips while it reads: half of an object's bytes are
//! managedFields, a tree of many small allocations that would only be dropped again.

use std::{borrow::Cow, collections::BTreeMap};

use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer as _, MapAccess, Visitor,
    },
    forward_to_deserialize_any,
};
/// `kubectl apply` keeps a copy of the object in it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Labels of one object, and annotations. The API server limits the bytes of annotations alone: an object of 1 MiB can have
/// 65 000 labels, which take 25 MiB here.
const MOST_ENTRIES: usize = 512;

/// An object as the API server writes it.
pub(crate) fn object<K: Resource + DeserializeOwned>(json: &str) -> Result<K, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let mut object = K::deserialize(Skipping { inner: &mut reader, at: At::Object })?;
    reader.end()?;
    let meta = object.meta_mut();
    for (name, entries) in [("labels", &meta.labels), ("annotations", &meta.annotations)] {
        let count = entries.as_ref().map_or(0, BTreeMap::len);
        if count > MOST_ENTRIES {
            let error = format!("it has {count} {name}, and at most {MOST_ENTRIES} are read: remove some");
            return Err(serde_json::Error::custom(error));
        }
    }
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
        if annotations.is_empty() {
            meta.annotations = None;
        }
    }
    Ok(object)
}

/// Stands between a type and its JSON, down to the fields of the metadata.
struct Skipping<T> {
    inner: T,
    at: At,
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Object,
    Metadata,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Skipping<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Skipping { inner: visitor, at: self.at })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Skipping { inner: visitor, at: self.at })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, Skipping { inner: visitor, at: self.at })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// What is no map, or no way to one, is not an object: the type's own error says so.
impl<'de, V: Visitor<'de>> Visitor<'de> for Skipping<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Skipping { inner: deserializer, at: self.at })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Skipping { inner: deserializer, at: self.at })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields { map, at: self.at, in_metadata: false })
    }
}

/// The fields of an object, or of its metadata without managedFields.
struct Fields<A> {
    map: A,
    at: At,
    /// The value that comes next is the metadata.
    in_metadata: bool,
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(Name(name)) = self.map.next_key()? {
            if self.at == At::Metadata && name == "managedFields" {
                self.map.next_value::<IgnoredAny>()?;
                continue;
            }
            self.in_metadata = self.at == At::Object && name == "metadata";
            return seed.deserialize(name.into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.in_metadata {
            self.map.next_value_seed(Skipping { inner: seed, at: At::Metadata })
        } else {
            self.map.next_value_seed(seed)
        }
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Skipping<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Skipping { inner: deserializer, at: self.at })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
    use kube::core::DynamicObject;

    use super::*;
    use crate::watch::watched::Guard;

    const JSON: &str = r#"{"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"managedFields": [{"manager": "a", "fieldsV1": {"f:data": {}}}], "na\u006de": "chat",
                     "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "ours": "1"},
                     "labels": {"managedFields": "a label"}},
        "data": {"metadata": "is a key", "managedFields": "too"}}"#;

    #[test]
    fn what_nobody_reads_is_left_out_and_nothing_else() {
        let read: ConfigMap = object(JSON).unwrap();
        let mut whole: ConfigMap = serde_json::from_str(JSON).unwrap();
        assert!(whole.metadata.managed_fields.take().is_some());
        whole.metadata.annotations = Some([("ours".to_owned(), "1".to_owned())].into());
        assert_eq!(read, whole);
        assert_eq!(read.metadata.name.as_deref(), Some("chat"));
    }

    #[test]
    fn an_object_with_more_labels_than_anyone_sets_is_not_kept() {
        let with = |count: usize| {
            let labels: Vec<String> = (0..count).map(|number| format!("\"a{number}\": \"\"")).collect();
            format!(r#"{{"metadata": {{"name": "chat", "labels": {{{}}}}}}}"#, labels.join(", "))
        };
        let read = |count| serde_json::from_str::<Guard<ConfigMap>>(&with(count)).unwrap();
        assert!(matches!(read(MOST_ENTRIES), Guard::Decoded(_)));
        let Guard::Undecodable { meta, error } = read(MOST_ENTRIES + 1) else { panic!("it was kept") };
        assert_eq!((meta.name.as_deref(), meta.labels), (Some("chat"), None));
        assert_eq!(error, "it has 513 labels, and at most 512 are read: remove some");
    }

    #[test]
    fn types_that_flatten_or_wrap_their_fields_are_read_as_well() {
        #[derive(Deserialize)]
        struct Wrapped(Option<DynamicObject>);
        let reader = &mut serde_json::Deserializer::from_str(JSON);
        let Wrapped(read) = Wrapped::deserialize(Skipping { inner: reader, at: At::Object }).unwrap();
        let read = read.unwrap();
        assert_eq!(read.metadata.managed_fields, None);
        assert_eq!(read.data["data"]["managedFields"], "too");
    }

    /// A view of a controller with a fault.
    #[derive(Resource, Deserialize, Clone, PartialEq, Debug)]
    #[resource(inherit = ConfigMap)]
    #[serde(from = "Parts")]
    struct Faulty {
        metadata: ObjectMeta,
    }

    #[derive(Deserialize)]
    struct Parts {
        metadata: ObjectMeta,
    }

    impl From<Parts> for Faulty {
        fn from(Parts { metadata }: Parts) -> Self {
            assert!(metadata.labels.is_none(), "on purpose");
            Self { metadata }
        }
    }

    #[test]
    fn an_object_at_which_a_view_panics_is_one_that_cannot_be_decoded() {
        let Guard::Undecodable { meta, error } = serde_json::from_str::<Guard<Faulty>>(JSON).unwrap() else {
            panic!("it was decoded");
        };
        assert_eq!(meta.name.as_deref(), Some("chat"));
        assert_eq!(error, "its view panicked: on purpose");
    }

    #[test]
    fn metadata_may_be_null_and_what_is_no_object_is_an_error() {
        let nameless: ConfigMap = object(r#"{"metadata": null}"#).unwrap();
        assert_eq!(nameless, ConfigMap::default());
        for wrong in ["7", "[]", "null", "{\"metadata\": 7}", "{} {}", "{\"metadata\": {\"name\": 7}}", "{"] {
            let typed = serde_json::from_str::<ConfigMap>(wrong).is_err();
            assert_eq!(object::<ConfigMap>(wrong).is_err(), typed, "{wrong}");
        }
    }
}
