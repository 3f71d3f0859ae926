//! Metadata of every child: name, owner and labels.

use std::collections::BTreeMap;

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::{NAME, names};

pub(super) fn metadata(namespace: &str, owner: &OwnerReference, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels_of(&owner.name)),
        owner_references: Some(vec![owner.clone()]),
        ..ObjectMeta::default()
    }
}

/// Of the children of one AIDispatcher, and of its pods.
pub(super) fn labels_of(instance: &str) -> BTreeMap<String, String> {
    let mut labels = selector(instance);
    labels.insert(labels::MANAGED_BY.to_owned(), NAME.to_owned());
    labels
}

/// The selector of the pods of one AIDispatcher. It must never change, because a Deployment's selector is immutable.
pub(super) fn selector(instance: &str) -> BTreeMap<String, String> {
    [(labels::NAME, names::KIND), (labels::INSTANCE, instance)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// As the scale subresource has it.
pub(super) fn selector_text(instance: &str) -> String {
    let pairs: Vec<String> = selector(instance).iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}
