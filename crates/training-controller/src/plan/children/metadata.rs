//! Metadata of every child: name, owner and labels. Pure.

use std::collections::BTreeMap;

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{NAME, names, validate::ValidJob};

/// Value of the label `app` on every pod.
const APP: &str = "training-job";

pub(crate) fn metadata(valid: &ValidJob, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(valid.namespace.clone()),
        owner_references: Some(vec![valid.owner.clone()]),
        labels: Some(labels_of(&valid.name)),
        ..ObjectMeta::default()
    }
}

/// For what stays when the TrainingJob is deleted: no owner, and nothing by which a deployment tool would delete it.
pub(crate) fn metadata_of_kept(name: String, namespace: &str, job: &str, job_uid: &str) -> ObjectMeta {
    let texts = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(texts(&[
            (labels::NAME, names::KIND),
            (labels::KEPT_INSTANCE, job),
            (labels::MANAGED_BY, NAME),
        ])),
        annotations: Some(texts(&[
            (labels::MADE_FOR, job_uid),
            (labels::ARGO_SYNC_OPTIONS, labels::NO_PRUNE),
        ])),
        ..ObjectMeta::default()
    }
}

pub(crate) fn labels_of(name: &str) -> BTreeMap<String, String> {
    let mut labels = selector(name);
    labels.insert(labels::MANAGED_BY.to_owned(), NAME.to_owned());
    labels
}

/// Those of the Job of an attempt.
pub(crate) fn labels_of_attempt(name: &str, number: i32) -> BTreeMap<String, String> {
    let mut labels = labels_of(name);
    labels.insert(labels::ATTEMPT.to_owned(), number.to_string());
    labels
}

/// Labels of the pods, the user's included.
pub(crate) fn pod_labels(valid: &ValidJob) -> BTreeMap<String, String> {
    let mut labels = valid.pods.pod_labels.clone();
    labels.extend(labels_of(&valid.name));
    labels.insert(labels::APP.to_owned(), APP.to_owned());
    labels
}

pub(crate) fn selector(instance: &str) -> BTreeMap<String, String> {
    [(labels::NAME, names::KIND), (labels::INSTANCE, instance)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
