//! Metadata of every child: name, owner and labels.

use std::collections::BTreeMap;

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{NAME, names, validate::ValidDispatcher};

pub(super) fn metadata(valid: &ValidDispatcher, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(valid.namespace.clone()),
        labels: Some(labels_of(valid)),
        owner_references: Some(vec![valid.owner.clone()]),
        ..ObjectMeta::default()
    }
}

pub(super) fn labels_of(valid: &ValidDispatcher) -> BTreeMap<String, String> {
    let mut labels = selector(&valid.name);
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
