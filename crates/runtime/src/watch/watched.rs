//! What a cache can hold: objects that are read from the API server's JSON and compared with the version before.
//!
//! Types of whole objects and narrow views have this by what they derive. It decides nothing about an object.

use std::panic::catch_unwind;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, value::RawValue};

use crate::{causes::panic_text, watch::decode};

/// More are on no object; a patch sets all that were read.
const MOST_FINALIZERS: usize = 64;

/// An object as a watch delivers it.
pub trait Watched: Resource<DynamicType = ()> + Clone {
    /// Reads an object as the API server writes it.
    fn from_json(json: &str) -> Result<Self, serde_json::Error>;

    /// In what this version differs from an older one of the same object.
    fn difference(&self, old: &Self) -> Difference;

    /// Takes over what was found out about an older version of the same object and is true of this one as well.
    fn inherit(&self, _old: &Self) {}
}

/// In what two versions of an object differ, besides their resource version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// No decision can differ.
    None,
    /// In something that can wait for the next change, such as an annotation.
    Detail,
    Content,
}

impl<K> Watched for K
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + PartialEq,
{
    fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        decode::object(json)
    }

    fn difference(&self, old: &Self) -> Difference {
        if is_same_but_for_version(self, old) { Difference::None } else { Difference::Content }
    }
}

/// An object, or what could be read of one that does not fit its type.
#[derive(Clone)]
pub(crate) enum Guard<K> {
    Decoded(Box<K>),
    Undecodable { meta: Box<ObjectMeta>, error: String },
}

impl<'de, K: Watched> Deserialize<'de> for Guard<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        // A view of a controller may panic at an object that it did not expect. That is a fault of the view, and ends
        // neither the watch nor the process.
        let error = match catch_unwind(|| K::from_json(json)) {
            Ok(Ok(object)) => return Ok(Self::Decoded(Box::new(object))),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("its view panicked: {}", panic_text(&*panic)),
        };
        let object: Value = serde_json::from_str(json).map_err(D::Error::custom)?;
        Ok(Self::Undecodable { meta: Box::new(identity(&object)), error })
    }
}

/// What identifies an object, and what keeps it, taken field by field: its metadata may be what does not fit.
fn identity(object: &Value) -> ObjectMeta {
    let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
    let finalizers = object["metadata"]["finalizers"]
        .as_array()
        .map(|all| all.iter().filter_map(Value::as_str).take(MOST_FINALIZERS).map(str::to_owned).collect());
    ObjectMeta {
        deletion_timestamp: text("deletionTimestamp").and_then(|time| Some(Time(time.parse().ok()?))),
        finalizers,
        namespace: text("namespace"),
        name: text("name"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

/// Each write gives an object another resource version, also one that changes only what a view leaves out.
pub(crate) fn is_same_but_for_version<K>(new: &K, old: &K) -> bool
where
    K: Resource<DynamicType = ()> + Clone + PartialEq,
{
    let mut old = old.clone();
    old.meta_mut().resource_version.clone_from(&new.meta().resource_version);
    old == *new
}
