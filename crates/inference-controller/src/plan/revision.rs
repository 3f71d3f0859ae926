//! The revision that the spec asks for: its pod template, which is kept once it was rendered, and its pods. Pure.
//!
//! What was rendered is recorded on the Deployment together with the spec that it was rendered for. Until that spec
//! changes, the recorded template is applied again field for field, whatever this release would render: an upgrade of
//! the controller, or its rollback, restarts no pod. What changes no pod (replicas, rollout, pausing) is no change. A spec
//! that is changed back while its pods are there gets their template again, as their ReplicaSet has it recorded.

use std::sync::Arc;

use api::{
    aiinference::{self, AIInferenceStatus},
    labels,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use workload::{
    deployment::{DeploymentView, Rendered},
    digest::digest,
    kept_template::{LONGEST_RECORD, differences},
    pod::PodView,
};

use super::{
    defaults::Defaults,
    pod::{ENGINE, pod_template},
};
use crate::{engine::Profile, observe::Observed, validate::ValidInference};

/// The revision that the spec asks for.
#[derive(Debug)]
pub(super) struct Revision<'a> {
    /// As JSON, because a newer release may have recorded fields that this one does not know.
    pub(super) template: Value,
    record: Record,
    /// Whether the Deployment asks for this revision already.
    pub(super) is_deployed: bool,
    /// Its pods; before it is deployed, those that are left of an earlier time.
    pub(super) pods: &'a [Arc<PodView>],
    /// Fields in which the kept template differs from what this release would render.
    pub(super) outdated: Vec<String>,
}

/// The record on the Deployment, as JSON. Every field may be absent: an older or a newer release wrote it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    /// Hash of the part of the spec that decides what a pod looks like.
    #[serde(rename = "template")]
    spec_hash: String,
    image: String,
    loader_image: String,
    profile: String,
    /// Value of the annotation `refresh` for which this was rendered.
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh: Option<String>,
}

pub(super) fn revision<'a>(
    valid: &ValidInference,
    observed: &'a Observed,
    defaults: &Defaults,
) -> Revision<'a> {
    let profile = Profile::newest(valid.engine);
    let image = valid.image.clone().unwrap_or_else(|| defaults.engine_image(valid.engine).to_owned());
    // A struct of plain fields with string keys: writing it as JSON cannot fail.
    let rendered = serde_json::to_value(pod_template(valid, profile, &image, defaults)).unwrap_or_default();
    let record = Record {
        spec_hash: valid.spec_hash.clone(),
        image,
        loader_image: defaults.loader_image.clone(),
        profile: profile.id.to_owned(),
        refresh: valid.refresh.clone(),
    };
    let deployed = observed.deployment.as_ref().filter(|deployment| is_deployed(valid, deployment));
    let returned = returned(valid, observed);
    // Whoever may change the Deployment may change the record, too. If the template that the status knows is still there,
    // it is that which is kept; otherwise, in doubt, nothing is restarted.
    let deployment = deployed.filter(|deployment| match &returned {
        Some((older, _)) => {
            !is_reported(&older.template, observed)
                || deployment.kept_template.as_deref().is_some_and(|kept| is_reported(kept, observed))
        }
        None => true,
    });
    let is_deployed = deployment.is_some();
    let (kept, resolved, pods) = match (deployment, returned) {
        (Some(deployment), _) => (
            deployment.kept_template.as_deref(),
            deployment.resolved.as_deref(),
            observed.deployed.as_deref().unwrap_or_default(),
        ),
        (None, Some((Rendered { resolved, template }, pods))) => (Some(&**template), Some(&**resolved), pods),
        (None, None) => (None, None, &[][..]),
    };
    let kept = kept.filter(|kept| **kept != *rendered.to_string());
    let Some(kept) = kept.and_then(|kept| serde_json::from_str::<Value>(kept).ok()) else {
        return Revision { template: rendered, record, is_deployed, pods, outdated: Vec::new() };
    };
    let outdated = differences(&kept, &rendered);
    let before = recorded(resolved);
    let image = image_of(&kept).unwrap_or(before.image);
    let record =
        Record { spec_hash: record.spec_hash, image, refresh: before.refresh.or(record.refresh), ..before };
    Revision { template: kept, record, is_deployed, pods, outdated }
}

impl Revision<'_> {
    /// Annotations of the Deployment by which a later reconcile finds this revision again.
    pub(super) fn annotations(&self, valid: &ValidInference) -> Vec<(String, String)> {
        // A struct of strings: writing it as JSON cannot fail.
        let record = serde_json::to_string(&self.record).unwrap_or_default();
        let template = Some(self.template.to_string()).filter(|template| template.len() <= LONGEST_RECORD);
        let annotations = [
            (labels::RESOLVED, Some(record)),
            (labels::GENERATION, Some(valid.generation.to_string())),
            (labels::TEMPLATE, template),
        ];
        annotations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// As users see it.
    pub(super) fn resolved(&self) -> aiinference::Resolved {
        let Record { image, profile, .. } = self.record.clone();
        aiinference::Resolved { image, profile, template: Some(digest_of(&self.template.to_string())) }
    }

    pub(super) fn ready(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().map(AsRef::as_ref).filter(|pod| pod.is_ready)
    }
}

/// Whether pods of this very spec run, or are about to.
pub(crate) fn runs(valid: &ValidInference, observed: &Observed) -> bool {
    let deployment = observed.deployment.as_ref();
    deployment.is_some_and(|deployment| is_deployed(valid, deployment)) || returned(valid, observed).is_some()
}

/// Whether the Deployment was rendered for this spec. The generation counts, too: another release may hash the same spec
/// differently.
fn is_deployed(valid: &ValidInference, deployment: &DeploymentView) -> bool {
    let is_of_generation = deployment.generation.as_deref() == Some(valid.generation.to_string().as_str());
    is_of(valid, &recorded(deployment.resolved.as_deref()), is_of_generation)
}

/// An older revision that was rendered for this spec and has pods: the spec was changed, and is changed back before they
/// are gone. Of several, that which serves most.
fn returned<'a>(
    valid: &ValidInference,
    observed: &'a Observed,
) -> Option<(&'a Rendered, &'a [Arc<PodView>])> {
    let of_spec = observed.older.iter().filter_map(|older| {
        let rendered = older.revision.rendered.as_deref()?;
        is_of(valid, &recorded(Some(&rendered.resolved)), false).then_some((rendered, older.pods.as_slice()))
    });
    of_spec.max_by_key(|(_, pods)| pods.iter().filter(|pod| pod.is_ready).count())
}

/// Whether the status has this template for the spec as it is.
fn is_reported(template: &str, observed: &Observed) -> bool {
    let is_of_generation =
        |status: &&AIInferenceStatus| Some(status.observed_generation) == observed.model.metadata.generation;
    let resolved =
        observed.model.status.as_ref().filter(is_of_generation).and_then(|status| status.resolved.as_ref());
    resolved.and_then(|resolved| resolved.template.as_deref()) == Some(&digest_of(template))
}

fn digest_of(template: &str) -> String {
    format!("sha256:{}", digest(template, 16))
}

/// As far as pods are concerned, and for this value of the annotation that asks for a newer rendering.
fn is_of(valid: &ValidInference, record: &Record, is_of_generation: bool) -> bool {
    (is_of_generation || record.spec_hash == valid.spec_hash)
        && (valid.refresh.is_none() || valid.refresh == record.refresh)
}

/// A record that cannot be read is as good as none: the template itself is kept anyway.
fn recorded(resolved: Option<&str>) -> Record {
    resolved.and_then(|record| serde_json::from_str(record).ok()).unwrap_or_default()
}

fn image_of(template: &Value) -> Option<String> {
    let containers = template.pointer("/spec/containers")?.as_array()?;
    let engine = containers.iter().find(|container| container["name"] == ENGINE)?;
    Some(engine["image"].as_str()?.to_owned())
}
