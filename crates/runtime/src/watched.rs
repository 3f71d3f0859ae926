//! What a cache can hold: objects that are read from the API server's JSON and compared with the version before.
//!
//! Types of whole objects and narrow views have this by what they derive. It decides nothing about an object.

use kube::Resource;
use serde::de::DeserializeOwned;

use crate::decode;

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

/// Each write gives an object another resource version, also one that changes only what a view leaves out.
pub(crate) fn is_same_but_for_version<K>(new: &K, old: &K) -> bool
where
    K: Resource<DynamicType = ()> + Clone + PartialEq,
{
    let mut old = old.clone();
    old.meta_mut().resource_version.clone_from(&new.meta().resource_version);
    old == *new
}
