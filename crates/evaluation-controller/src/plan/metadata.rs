//! Metadata of the children of an evaluation. Pure.

use std::collections::BTreeMap;

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{NAME, names, validate::ValidEvaluation};

/// Of every child.
pub(super) fn metadata(valid: &ValidEvaluation, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(valid.namespace.clone()),
        labels: Some(labels_of(&valid.name)),
        owner_references: Some(vec![valid.owner.clone()]),
        ..ObjectMeta::default()
    }
}

pub(super) fn labels_of(name: &str) -> BTreeMap<String, String> {
    [(labels::NAME, names::KIND), (labels::INSTANCE, name), (labels::MANAGED_BY, NAME)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
