//! Metadata of every child: name, owner and labels.

use std::collections::BTreeMap;

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::{
    NAME,
    names::{self, Track},
    validate::ValidInference,
};

pub(super) fn metadata(valid: &ValidInference, name: String) -> ObjectMeta {
    metadata_of(&valid.namespace, &valid.name, valid.owner.clone(), name)
}

/// Of a child of this object, whose spec may be invalid.
pub(super) fn metadata_of(
    namespace: &str,
    instance: &str,
    owner: OwnerReference,
    name: String,
) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels_of_instance(instance)),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

pub(super) fn labels_of(valid: &ValidInference) -> BTreeMap<String, String> {
    labels_of_instance(&valid.name)
}

fn labels_of_instance(instance: &str) -> BTreeMap<String, String> {
    let mut labels = selector(instance, Track::Stable);
    labels.remove(labels::TRACK);
    labels.insert(labels::MANAGED_BY.to_owned(), NAME.to_owned());
    labels
}

/// The selector of the pods of one version. It must never change, because a Deployment's selector is immutable.
pub(super) fn selector(instance: &str, track: Track) -> BTreeMap<String, String> {
    [(labels::NAME, names::KIND), (labels::INSTANCE, instance), (labels::TRACK, track.label())]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
