//! A child as a controller caches it: a narrow view, and its JSON until a comparison has found that it has everything that
//! is applied. After that the hash of what was applied is enough.
//!
//! Anyone who may write objects may set the watched labels. So only the metadata is kept of objects that no root controls,
//! and a child larger than `LARGEST_TEXT` is read from the API server to be compared.

use std::{
    borrow::Cow,
    fmt,
    marker::PhantomData,
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use crate::watch::{
    cache::is_of_kind,
    covers::covers,
    watched::{Difference, Watched, is_same_but_for_version},
};

/// A child of a root of kind `R`, by its view `V`.
pub struct CachedChild<V, R> {
    view: V,
    digests: Digests,
    comparison: Mutex<Comparison>,
    root: PhantomData<fn() -> R>,
}

/// Digests of the fields that an apply may set. Versions that differ only in other fields have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digests {
    /// Without what each write changes.
    metadata: [u8; 16],
    /// Without the status.
    content: [u8; 16],
}

/// Several times what a controller renders. A thousand children of this size take 64 MiB.
const LARGEST_TEXT: usize = 64 << 10;
/// Of all fields of the reference to the controlling owner; names of objects have at most 253 bytes.
const LONGEST_OWNER: usize = 1_024;

enum Comparison {
    /// The object as JSON, which has not been compared yet, or was not as it should.
    Pending(Box<str>),
    /// It has everything that the apply of this hash sets.
    Covers(Box<str>),
    /// It is not kept: too large, or of no root.
    NeedsRead,
}

impl<V, R> Deref for CachedChild<V, R> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.view
    }
}

impl<V, R> CachedChild<V, R> {
    /// Whether it has everything that an apply of `desired` would set; `hash` is that of `desired`. `None` if it has to be
    /// read to know that.
    pub(crate) fn covers(&self, desired: &Value, hash: &str) -> Result<Option<bool>, serde_json::Error> {
        let mut comparison = self.comparison.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = match &*comparison {
            // The hash is a part of what is set, so an object covers one alone.
            Comparison::Covers(known) => return Ok(Some(**known == *hash)),
            Comparison::Pending(text) => covers(&serde_json::from_str(text)?, desired),
            Comparison::NeedsRead => return Ok(None),
        };
        if covered {
            *comparison = Comparison::Covers(hash.into());
        }
        Ok(Some(covered))
    }

    /// This very version was read, and has everything that the apply of this hash sets.
    pub(crate) fn was_covered(&self, hash: &str) {
        *self.comparison.lock().unwrap_or_else(PoisonError::into_inner) = Comparison::Covers(hash.into());
    }
}

impl<V, R> Watched for CachedChild<V, R>
where
    V: Resource<DynamicType = ()> + DeserializeOwned + Clone + PartialEq,
    R: Resource<DynamicType = ()>,
{
    fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        let object: Fields<'_> = serde_json::from_str(json)?;
        let metadata = object.get("metadata").filter(|metadata| *metadata != "null").unwrap_or("{}");
        let metadata: Fields<'_> = serde_json::from_str(metadata)?;
        let metadata = metadata.without(|field| field == "managedFields");
        let metadata_text = metadata.to_json();
        let owner = serde_json::from_str::<Identity>(&metadata_text)?.0.owner_references;
        let digests = Digests {
            metadata: metadata.without(|field| OF_EACH_VERSION.contains(&field)).digest(),
            content: object.without(|field| NOT_APPLIED.contains(&field)).digest(),
        };
        let (view, comparison) = if owner.iter().flatten().any(is_of_kind::<R>) {
            let text = object.to_json_with_metadata(&metadata_text);
            let view = serde_json::from_str(&text)?;
            (
                view,
                if text.len() <= LARGEST_TEXT {
                    Comparison::Pending(text.into())
                } else {
                    Comparison::NeedsRead
                },
            )
        } else {
            (serde_json::from_str(&format!("{{\"metadata\":{metadata_text}}}"))?, Comparison::NeedsRead)
        };
        Ok(Self { view, digests, comparison: Mutex::new(comparison), root: PhantomData })
    }

    fn difference(&self, old: &Self) -> Difference {
        if !is_same_but_for_version(&self.view, &old.view) || self.digests.content != old.digests.content {
            Difference::Content
        } else if self.digests.metadata != old.digests.metadata {
            Difference::Detail
        } else {
            Difference::None
        }
    }

    /// What an older version covers, this one covers if nothing differs that an apply sets.
    fn inherit(&self, old: &Self) {
        if self.digests != old.digests {
            return;
        }
        let known = old.comparison.lock().unwrap_or_else(PoisonError::into_inner);
        if let Comparison::Covers(hash) = &*known {
            let hash = hash.clone();
            drop(known);
            self.was_covered(&hash);
        }
    }
}

/// Fields of the metadata that another writer of other fields changes as well.
const OF_EACH_VERSION: [&str; 2] = ["resourceVersion", "generation"];
/// Fields of an object beside the content that is applied. The items of a list do not have the first two.
const NOT_APPLIED: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// The fields of a JSON object, each as the text that it is.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    fn get(&self, field: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| name == field).map(|(_, value)| value.get())
    }

    fn without(&self, is_left_out: impl Fn(&str) -> bool) -> Fields<'a> {
        Self(self.0.iter().filter(|(name, _)| !is_left_out(name)).cloned().collect())
    }

    /// The API server writes the same object as the same text.
    fn digest(&self) -> [u8; 16] {
        let mut hasher = Sha256::new();
        for (name, value) in &self.0 {
            for part in [name, value.get()] {
                hasher.update(part.len().to_le_bytes());
                hasher.update(part);
            }
        }
        let digest = hasher.finalize();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        first
    }

    fn to_json(&self) -> String {
        self.to_json_with_metadata("")
    }

    fn to_json_with_metadata(&self, metadata: &str) -> String {
        let mut text = String::from("{");
        for (name, value) in &self.0 {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&Value::from(&**name).to_string());
            text.push(':');
            text.push_str(if name == "metadata" && !metadata.is_empty() { metadata } else { value.get() });
        }
        text.push('}');
        text
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collected;

        impl<'de> Visitor<'de> for Collected {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(Name(name)) = map.next_key()? {
                    fields.push((name, map.next_value()?));
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Collected).map(Fields)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<V: Clone, R> Clone for CachedChild<V, R> {
    fn clone(&self) -> Self {
        let comparison = match &*self.comparison.lock().unwrap_or_else(PoisonError::into_inner) {
            Comparison::Pending(text) => Comparison::Pending(text.clone()),
            Comparison::Covers(hash) => Comparison::Covers(hash.clone()),
            Comparison::NeedsRead => Comparison::NeedsRead,
        };
        Self {
            view: self.view.clone(),
            digests: self.digests,
            comparison: Mutex::new(comparison),
            root: PhantomData,
        }
    }
}

impl<V: fmt::Debug, R> fmt::Debug for CachedChild<V, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CachedChild").field(&self.view).finish()
    }
}

impl<V: Resource, R> Resource for CachedChild<V, R> {
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

/// The narrowest view: identity, controlling owner, and whether it is being deleted.
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

impl<K> PartialEq for Metadata<K> {
    fn eq(&self, other: &Self) -> bool {
        self.metadata == other.metadata
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

#[derive(Deserialize)]
struct Identity(#[serde(deserialize_with = "identity")] ObjectMeta);

/// Reads metadata without labels, annotations and everything that does not identify an object; of the owners, the one
/// that controls it.
fn identity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Parts {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        owner_references: Option<Vec<OwnerReference>>,
        finalizers: Option<Vec<String>>,
    }
    let parts = Parts::deserialize(deserializer)?;
    let ends = parts.deletion_timestamp.is_some();
    let owner = parts.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
    let owner = owner.filter(|OwnerReference { api_version, kind, name, uid, .. }| {
        [api_version, kind, name, uid].into_iter().map(String::len).sum::<usize>() <= LONGEST_OWNER
    });
    Ok(ObjectMeta {
        name: parts.name,
        namespace: parts.namespace,
        uid: parts.uid,
        resource_version: parts.resource_version,
        generation: parts.generation,
        creation_timestamp: parts.creation_timestamp,
        deletion_timestamp: parts.deletion_timestamp,
        owner_references: owner.map(|owner| vec![owner]),
        // Of interest while they hold back its end, and then the first ones say enough.
        finalizers: parts.finalizers.filter(|_| ends).map(first_ones),
        ..ObjectMeta::default()
    })
}

fn first_ones(mut finalizers: Vec<String>) -> Vec<String> {
    const MOST: usize = 3;
    finalizers.truncate(MOST);
    finalizers.shrink_to_fit();
    finalizers
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
    use serde_json::json;

    use super::*;

    const JSON: &str = r#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
        "name": "chat", "uid": "1", "labels": {"a": "b"}, "managedFields": [{"manager": "x"}],
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "uid": "2", "controller": true}]},
        "data": {"text": "with \"quotes\"\n", "empty": ""}, "immutable": true}"#;

    type Child = CachedChild<Metadata<ConfigMap>, Deployment>;

    fn text(child: &Child) -> Option<String> {
        match &*child.comparison.lock().unwrap() {
            Comparison::Pending(text) => Some(text.to_string()),
            Comparison::Covers(_) | Comparison::NeedsRead => None,
        }
    }

    /// As a child of the root "a" with so many bytes of data; `owner` is added to the reference.
    fn large(bytes: usize, owner: Value) -> Child {
        let mut reference = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "uid": "2", "controller": true});
        reference.as_object_mut().unwrap().extend(owner.as_object().unwrap().clone());
        let object = json!({
            "metadata": {"name": "chat", "uid": "1", "ownerReferences": [reference]},
            "data": {"text": "x".repeat(bytes)},
        });
        Child::from_json(&object.to_string()).unwrap()
    }

    #[test]
    fn until_it_was_compared_it_is_whole_but_for_managed_fields() {
        let child = Child::from_json(JSON).unwrap();
        let read: ConfigMap = serde_json::from_str(&text(&child).unwrap()).unwrap();
        let mut whole: ConfigMap = serde_json::from_str(JSON).unwrap();
        whole.metadata.managed_fields = None;
        assert_eq!(read, whole);
    }

    #[test]
    fn the_rest_goes_once_it_was_found_to_be_as_it_should_and_not_before() {
        let child = Child::from_json(JSON).unwrap();
        let (wanted, other) = (json!({"immutable": true}), json!({"immutable": false}));
        assert_eq!(child.covers(&other, "other").unwrap(), Some(false));
        assert!(text(&child).is_some(), "it may be compared with something else");
        assert_eq!(child.covers(&wanted, "wanted").unwrap(), Some(true));
        assert!(text(&child).is_none());
        assert_eq!(child.covers(&wanted, "wanted").unwrap(), Some(true));
        assert_eq!(child.covers(&other, "other").unwrap(), Some(false));
    }

    #[test]
    fn nothing_but_its_identity_is_kept_of_what_no_root_controls() {
        for owner in
            [json!({"controller": false}), json!({"kind": "ReplicaSet"}), json!({"apiVersion": "theirs/v1"})]
        {
            let stranger = large(1, owner.clone());
            assert!(text(&stranger).is_none(), "{owner}");
            assert_eq!(stranger.meta().name.as_deref(), Some("chat"));
        }
        assert!(text(&large(1, json!({}))).is_some());
    }

    #[test]
    fn a_large_child_is_not_kept_and_has_to_be_read_to_be_compared() {
        let child = large(1 << 20, json!({}));
        assert!(text(&child).is_none());
        assert_eq!(child.covers(&json!({}), "wanted").unwrap(), None);
        child.was_covered("wanted");
        assert_eq!(child.covers(&json!({}), "wanted").unwrap(), Some(true));
    }

    #[test]
    fn owners_that_no_cluster_has_are_not_kept() {
        let child = large(1, json!({"name": "a".repeat(LONGEST_OWNER)}));
        assert_eq!(child.meta().owner_references, None);
    }

    #[test]
    fn an_item_of_a_list_covers_without_saying_what_kind_it_is() {
        let child =
            Child::from_json(&JSON.replace(r#""kind": "ConfigMap", "apiVersion": "v1","#, "")).unwrap();
        let wanted = |immutable| json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": immutable});
        assert_eq!(child.covers(&wanted(false), "a").unwrap(), Some(false));
        assert_eq!(child.covers(&wanted(true), "b").unwrap(), Some(true));
    }

    #[test]
    fn identity_and_owners_are_in_the_narrowest_view() {
        let child = Child::from_json(JSON).unwrap();
        assert_eq!(child.meta().name.as_deref(), Some("chat"));
        assert_eq!(child.meta().owner_references.as_ref().unwrap()[0].uid, "2");
        assert_eq!(child.meta().labels, None);
    }

    /// As another writer left it.
    fn changed(from: &str, to: &str) -> Child {
        assert!(JSON.contains(from));
        Child::from_json(&JSON.replacen(from, to, 1)).unwrap()
    }

    #[test]
    fn versions_differ_in_what_an_apply_sets_and_in_nothing_else() {
        let old = Child::from_json(JSON).unwrap();
        for (from, to, expected) in [
            (r#""uid": "1""#, r#""uid": "1", "resourceVersion": "8""#, Difference::None),
            (r#"[{"manager": "x"}]"#, r#"[{"manager": "y"}]"#, Difference::None),
            (r#""immutable""#, r#""status": {"a": 1}, "immutable""#, Difference::None),
            (r#""kind": "ConfigMap", "apiVersion": "v1", "#, "", Difference::None),
            (r#"{"a": "b"}"#, r#"{"a": "c"}"#, Difference::Detail),
            (r#""labels""#, r#""annotations": {"a": "b"}, "labels""#, Difference::Detail),
            (
                r#""uid": "1""#,
                r#""uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z""#,
                Difference::Content,
            ),
            (r#""name": "a", "uid": "2""#, r#""name": "b", "uid": "3""#, Difference::Content),
            (r#""empty": """#, r#""empty": "x""#, Difference::Content),
            (r#""immutable": true"#, r#""immutable": false"#, Difference::Content),
            (r#", "immutable": true"#, "", Difference::Content),
        ] {
            assert_eq!(changed(from, to).difference(&old), expected, "{from} -> {to}");
        }
    }

    #[test]
    fn a_version_in_which_nothing_differs_that_is_applied_covers_what_the_older_one_covers() {
        let old = Child::from_json(JSON).unwrap();
        assert_eq!(old.covers(&json!({"immutable": true}), "wanted").unwrap(), Some(true));
        let reported = changed(r#""immutable""#, r#""status": {"a": 1}, "immutable""#);
        reported.inherit(&old);
        assert!(text(&reported).is_none());
        assert_eq!(reported.covers(&json!({}), "wanted").unwrap(), Some(true));
        for (from, to) in
            [(r#""immutable": true"#, r#""immutable": false"#), (r#"{"a": "b"}"#, r#"{"a": "c"}"#)]
        {
            let drifted = changed(from, to);
            drifted.inherit(&old);
            assert!(text(&drifted).is_some(), "{from} -> {to}");
        }
        let fresh = changed(r#""uid": "1""#, r#""uid": "1", "resourceVersion": "8""#);
        fresh.inherit(&Child::from_json(JSON).unwrap());
        assert!(text(&fresh).is_some(), "the older one was not compared");
    }

    #[test]
    fn null_metadata_is_none() {
        assert_eq!(
            Child::from_json(r#"{"metadata": null, "data": {}}"#).unwrap().meta(),
            &ObjectMeta::default()
        );
    }

    #[test]
    fn what_is_no_object_is_not_kept() {
        for wrong in ["7", "[1]", "null", "{\"metadata\": 7}", "{\"metadata\": {\"ownerReferences\": 1}}"] {
            assert!(Child::from_json(wrong).is_err(), "{wrong}");
        }
    }
}
