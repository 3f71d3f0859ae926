//! The revision that a spec asks for: its pod template, which is kept once it was rendered, and its pods. Pure.
//!
//! What was rendered is recorded on the Deployment together with the spec that it was rendered for. Until that spec
//! changes, the recorded template is applied again field for field, whatever this release would render: an upgrade of
//! the controller, or its rollback, restarts no pod. What changes no pod is no change. A spec that is changed back while
//! its pods are there gets their template again, as their ReplicaSet has it recorded.

use std::{collections::BTreeMap, sync::Arc};

use api::labels;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    deployment::{DeploymentView, Older, Rendered},
    digest::digest,
    kept_template::{LONGEST_RECORD, differences},
    pod::PodView,
};

/// What a spec asks for, as far as its pods are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Of the part of the spec that decides what a pod looks like.
    pub spec_hash: &'a str,
    pub generation: i64,
    /// Value of the annotation `refresh`.
    pub refresh: Option<&'a str>,
    /// Digest of the template, as the status has it for this generation.
    pub reported: Option<&'a str>,
}

/// The revision that the spec asks for.
#[derive(Debug)]
pub struct Revision<'a> {
    /// As JSON, because a newer release may have recorded fields that this one does not know.
    pub template: Value,
    record: Record,
    /// Whether the Deployment asks for this revision already.
    pub is_deployed: bool,
    /// Its pods; before it is deployed, those that are left of an earlier time.
    pub pods: &'a [Arc<PodView>],
    /// Fields in which the kept template differs from what this release would render.
    pub outdated: Vec<String>,
}

/// The record on the Deployment, as JSON. Every field may be absent: an older or a newer release wrote it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    #[serde(rename = "template")]
    spec_hash: String,
    /// What of it came from the release. In the order of the first release, which wrote the fields of a struct.
    #[serde(flatten)]
    defaults: BTreeMap<String, Value>,
    /// Value of the annotation `refresh` for which this was rendered.
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh: Option<String>,
}

/// `rendered` is what this release makes of the spec, `defaults` what of that comes from the release.
pub fn revision<'a>(
    wanted: Wanted<'_>,
    rendered: Value,
    defaults: BTreeMap<String, Value>,
    deployed: (Option<&'a DeploymentView>, &'a [Arc<PodView>]),
    older: &'a [Older],
) -> Revision<'a> {
    let record = Record {
        spec_hash: wanted.spec_hash.to_owned(),
        refresh: wanted.refresh.map(str::to_owned),
        defaults,
    };
    let (deployment, pods) = deployed;
    let returned = wanted.returned(older);
    let is_of_spec = |deployment: &&DeploymentView| wanted.is_deployed(deployment);
    let deployment = deployment.filter(is_of_spec).filter(|known| !wanted.takes_back(Some(known), older));
    let is_deployed = deployment.is_some();
    let (kept, resolved, pods) = match (deployment, returned) {
        (Some(deployment), _) => (deployment.kept_template.as_deref(), deployment.resolved.as_deref(), pods),
        (None, Some((Rendered { resolved, template }, pods))) => (Some(&**template), Some(&**resolved), pods),
        (None, None) => (None, None, &[][..]),
    };
    let kept = kept.filter(|kept| **kept != *rendered.to_string());
    let Some(kept) = kept.and_then(|kept| serde_json::from_str::<Value>(kept).ok()) else {
        return Revision { template: rendered, record, is_deployed, pods, outdated: Vec::new() };
    };
    let outdated = differences(&kept, &rendered);
    let before = recorded(resolved);
    let refresh = before.refresh.or(record.refresh);
    let record = Record { spec_hash: record.spec_hash, refresh, defaults: before.defaults };
    Revision { template: kept, record, is_deployed, pods, outdated }
}

impl Revision<'_> {
    /// Annotations of the Deployment by which a later reconcile finds this revision again.
    pub fn annotations(&self, generation: i64) -> BTreeMap<String, String> {
        // Text and JSON that was read: writing it as JSON cannot fail.
        let record = serde_json::to_string(&self.record).unwrap_or_default();
        let template = Some(self.template.to_string()).filter(|template| template.len() <= LONGEST_RECORD);
        let annotations = [
            (labels::RESOLVED, Some(record)),
            (labels::GENERATION, Some(generation.to_string())),
            (labels::TEMPLATE, template),
        ];
        annotations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// What came from the release that rendered it, by name; empty if that is not known.
    pub fn default(&self, name: &str) -> &str {
        self.record.defaults.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// For the status.
    pub fn digest(&self) -> String {
        digest_of(&self.template.to_string())
    }

    pub fn ready(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().map(AsRef::as_ref).filter(|pod| pod.is_ready)
    }
}

impl Wanted<'_> {
    /// Whether pods of this very spec run, or are about to.
    pub fn runs(&self, deployment: Option<&DeploymentView>, older: &[Older]) -> bool {
        deployment.is_some_and(|deployment| self.is_deployed(deployment)) || self.returned(older).is_some()
    }

    /// Whether an older template is kept instead of that of the Deployment, although that has a record of this spec: a user
    /// who may change the Deployment may change the record, too. It is the template that the status has, with pods that are
    /// still there; otherwise, in doubt, nothing is restarted. The spec must be known to be the newest.
    pub fn takes_back(&self, deployment: Option<&DeploymentView>, older: &[Older]) -> bool {
        let Some(deployment) = deployment.filter(|deployment| self.is_deployed(deployment)) else {
            return false;
        };
        let is_reported = |template: &str| self.reported == Some(&*digest_of(template));
        let has_it = deployment.kept_template.as_deref().is_some_and(is_reported);
        // One that was refreshed is not the one to go back to once the annotation was taken away.
        let is_same = |older: &Rendered| recorded(Some(&older.resolved)).refresh.as_deref() == self.refresh;
        let returned = self.returned(older).filter(|(older, _)| is_same(older));
        !has_it && returned.is_some_and(|(older, _)| is_reported(&older.template))
    }

    /// Whether the Deployment was rendered for this spec. The generation counts, too: another release may hash the same
    /// spec differently.
    fn is_deployed(&self, deployment: &DeploymentView) -> bool {
        let is_of_generation = deployment.generation.as_deref() == Some(&*self.generation.to_string());
        self.is_of(&recorded(deployment.resolved.as_deref()), is_of_generation)
    }

    /// An older revision that was rendered for this spec and has pods: the spec was changed, and is changed back before
    /// they are gone. Of several, that which serves most.
    fn returned<'a>(&self, older: &'a [Older]) -> Option<(&'a Rendered, &'a [Arc<PodView>])> {
        let of_spec = older.iter().filter_map(|older| {
            let rendered = older.revision.rendered.as_deref()?;
            let is_of_spec = self.is_of(&recorded(Some(&rendered.resolved)), false);
            is_of_spec.then_some((rendered, older.pods.as_slice()))
        });
        of_spec.max_by_key(|(_, pods)| pods.iter().filter(|pod| pod.is_ready).count())
    }

    /// As far as pods are concerned, and for this value of the annotation that asks for a newer rendering.
    fn is_of(&self, record: &Record, is_of_generation: bool) -> bool {
        (is_of_generation || record.spec_hash == self.spec_hash)
            && (self.refresh.is_none() || self.refresh == record.refresh.as_deref())
    }
}

/// A record that cannot be read is as good as none: the template itself is kept anyway.
fn recorded(resolved: Option<&str>) -> Record {
    resolved.and_then(|record| serde_json::from_str(record).ok()).unwrap_or_default()
}

fn digest_of(template: &str) -> String {
    format!("sha256:{}", digest(template, 16))
}

#[cfg(test)]
mod tests {
    use crate::deployment::ReplicaSetView;

    use super::*;

    /// A Deployment and an older revision, by their templates and the values of `refresh` that they were rendered for.
    fn takes_back(deployed: (&str, Option<&str>), older: (&str, Option<&str>), wanted: Option<&str>) -> bool {
        let record = |refresh: Option<&str>| {
            let refresh = refresh.map(str::to_owned);
            let record = Record { spec_hash: "hash".into(), refresh, ..Record::default() };
            Some(serde_json::to_string(&record).unwrap().into_boxed_str())
        };
        let deployment = DeploymentView {
            kept_template: Some(deployed.0.into()),
            resolved: record(deployed.1),
            ..DeploymentView::default()
        };
        let rendered = Rendered { resolved: record(older.1).unwrap(), template: older.0.into() };
        let revision = ReplicaSetView { rendered: Some(Box::new(rendered)), ..ReplicaSetView::default() };
        let older = [Older { revision: Arc::new(revision), pods: vec![Arc::default()] }];
        let reported = digest_of("\"known\"");
        let wanted = Wanted { spec_hash: "hash", generation: 1, refresh: wanted, reported: Some(&reported) };
        wanted.takes_back(Some(&deployment), &older)
    }

    #[test]
    fn the_template_that_the_status_has_is_gone_back_to_unless_another_was_asked_for() {
        let (known, other) = ("\"known\"", "\"other\"");
        assert!(takes_back((other, None), (known, None), None), "the record was changed");
        assert!(!takes_back((known, None), (other, None), None));
        assert!(!takes_back((other, None), (other, None), None), "in doubt it stays");
        assert!(!takes_back((other, Some("1")), (known, None), Some("1")), "a newer one was asked for");
        assert!(
            !takes_back((other, None), (known, Some("1")), None),
            "the wish was taken back, and the pods with it"
        );
    }

    /// Otherwise an upgrade would write every Deployment once.
    #[test]
    fn the_record_of_the_first_release_is_written_again_byte_for_byte() {
        let of_first = "{\"template\":\"2aa2ebf88887ba06\",\"image\":\"vllm/vllm-openai:v0.28.0\",\
                        \"loaderImage\":\"loader:1\",\"profile\":\"vllm-1\"}";
        assert_eq!(serde_json::to_string(&recorded(Some(of_first))).unwrap(), of_first);
    }
}
