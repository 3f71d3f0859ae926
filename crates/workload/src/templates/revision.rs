//! The revision of the current spec: its pinned pod template and its pods. Pure.
//!
//! The rendered template is recorded on the Deployment, with a hash of the spec fields that it depends on. While the hash
//! stays the same, the recorded template is applied unchanged, whatever this release would render: an upgrade or rollback
//! of the controller restarts no pod. If the spec is changed back while pods of its earlier revision exist, the template
//! recorded on their ReplicaSet is used again.
//!
//! A recorded template with a token of the Kubernetes API is the exception: it is applied unchanged only to a Deployment
//! that has this token already. The admission policy refuses every other write of it.

use std::{collections::BTreeMap, sync::Arc};

use api::labels;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    digest::digest,
    templates::{
        deployment::{DeploymentView, OlderRevision, TemplateRecord},
        pinned_template::{LONGEST_RECORD, differences},
        stored_template::token_account,
    },
    views::pod::PodView,
};

/// The part of a spec that decides the pod template.
#[derive(Clone, Debug)]
pub struct DesiredTemplate<'a> {
    /// Hash of the spec fields that the template depends on.
    pub spec_hash: &'a str,
    /// The owner's generation, with what else decides between the versions of one spec.
    pub generation: String,
    /// Value of the user's annotation `refresh`.
    pub refresh: Option<&'a str>,
    /// Digest of the template in the status, if the status is of this generation.
    pub reported: Option<&'a str>,
}

/// The revision of the current spec.
#[derive(Debug)]
pub struct Revision<'a> {
    /// JSON, because a newer release may have recorded fields that this release has no type for.
    pub template: Value,
    record: Record,
    /// Whether the Deployment already has this revision.
    pub is_deployed: bool,
    /// Its pods; before it is deployed, remaining pods of its earlier deployment.
    pub pods: &'a [Arc<PodView>],
    /// Fields in which the pinned template differs from the one this release renders.
    pub outdated: Vec<String>,
}

/// The annotation `resolved`, as JSON. Other releases may have written it, so every field may be absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    #[serde(rename = "template")]
    spec_hash: String,
    /// Values that the rendering release added to the spec, by name. The names sort in the field order of the first release.
    #[serde(flatten)]
    defaults: BTreeMap<String, Value>,
    /// Value of the annotation `refresh` at rendering.
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh: Option<String>,
}

/// `rendered`: the template as this release renders it. `defaults`: the values in it that come from this release.
pub fn revision<'a>(
    desired: DesiredTemplate<'_>,
    rendered: Value,
    defaults: BTreeMap<String, Value>,
    deployed: (Option<&'a DeploymentView>, &'a [Arc<PodView>]),
    older: &'a [OlderRevision],
) -> Revision<'a> {
    let record = Record {
        spec_hash: desired.spec_hash.to_owned(),
        refresh: desired.refresh.map(str::to_owned),
        defaults,
    };
    let (live, pods) = deployed;
    let earlier = desired.earlier(live, older);
    let is_of_spec = |deployment: &&DeploymentView| desired.is_deployed(deployment);
    let deployment = live.filter(is_of_spec).filter(|known| !desired.restores_older(Some(known), older));
    let is_deployed = deployment.is_some();
    let (pinned, resolved, pods) = match (deployment, earlier) {
        (Some(deployment), _) => {
            (deployment.pinned_template.as_deref(), deployment.resolved.as_deref(), pods)
        }
        (None, Some((TemplateRecord { resolved, template, .. }, pods))) => {
            (Some(&**template), Some(&**resolved), pods)
        }
        (None, None) => (None, None, &[][..]),
    };
    let new = refreshed(rendered.clone(), desired.refresh);
    let pinned = pinned.filter(|pinned| **pinned != *new.to_string());
    let Some(mut pinned) = pinned.and_then(|pinned| serde_json::from_str::<Value>(pinned).ok()) else {
        return Revision { template: new, record, is_deployed, pods, outdated: Vec::new() };
    };
    if !may_have_token(token_account(&pinned), live) {
        pinned["spec"]["automountServiceAccountToken"] = Value::Bool(false);
    }
    let outdated = differences(&without_refresh(pinned.clone()), &rendered);
    let before = recorded(resolved);
    let refresh = before.refresh.or(record.refresh);
    let record = Record { spec_hash: record.spec_hash, refresh, defaults: before.defaults };
    Revision { template: pinned, record, is_deployed, pods, outdated }
}

/// Pods have the value, so that a new one restarts them also if nothing else differs: what they have loaded may have changed.
fn refreshed(mut rendered: Value, refresh: Option<&str>) -> Value {
    const LONGEST: usize = 256;
    if let Some(value) = refresh {
        let value = if value.len() <= LONGEST { value.to_owned() } else { digest(value, 16) };
        rendered["metadata"]["annotations"][labels::REFRESH] = Value::String(value);
    }
    rendered
}

/// The value is that of the time of the rendering, whatever the object has now.
fn without_refresh(mut pinned: Value) -> Value {
    let metadata = pinned.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata
        && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.remove(labels::REFRESH).is_some()
        && annotations.is_empty()
    {
        metadata.remove("annotations");
    }
    pinned
}

impl DeploymentView {
    /// A value that the rendering release recorded.
    pub fn recorded(&self, name: &str) -> Option<Value> {
        recorded(self.resolved.as_deref()).defaults.remove(name)
    }
}

impl Revision<'_> {
    /// Annotations of the Deployment that record this revision.
    pub fn annotations(&self, generation: &str) -> BTreeMap<String, String> {
        // Strings and JSON values; serialization cannot fail.
        let record = serde_json::to_string(&self.record).unwrap_or_default();
        let template = Some(self.template.to_string()).filter(|template| template.len() <= LONGEST_RECORD);
        let annotations = [
            (labels::RESOLVED, Some(record)),
            (labels::GENERATION, Some(generation.to_string())),
            (labels::TEMPLATE, template),
        ];
        annotations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// A value that the rendering release added; empty if it is not recorded.
    pub fn default(&self, name: &str) -> &str {
        self.record.defaults.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// The digest that the status shows.
    pub fn digest(&self) -> String {
        digest_of(&self.template.to_string())
    }

    pub fn ready(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().map(AsRef::as_ref).filter(|pod| pod.is_ready)
    }
}

impl DesiredTemplate<'_> {
    /// Whether this spec is deployed, or pods of an earlier deployment of it exist.
    pub fn has_pods(&self, deployment: Option<&DeploymentView>, older: &[OlderRevision]) -> bool {
        deployment.is_some_and(|deployment| self.is_deployed(deployment))
            || self.earlier(deployment, older).is_some()
    }

    /// Whether the template of an older revision is used instead of the Deployment's, although the Deployment has a record of
    /// this spec: a user may have edited that record. It is used only if its digest is the one in the status and its pods
    /// still exist. The caller must have the newest version of the spec.
    pub fn restores_older(&self, deployment: Option<&DeploymentView>, older: &[OlderRevision]) -> bool {
        let Some(deployment) = deployment.filter(|deployment| self.is_deployed(deployment)) else {
            return false;
        };
        let is_reported = |template: &str| self.reported == Some(&*digest_of(template));
        let has_reported = deployment.pinned_template.as_deref().is_some_and(is_reported);
        // A revision that was rendered for another value of `refresh` is not restored.
        let is_same =
            |older: &TemplateRecord| recorded(Some(&older.resolved)).refresh.as_deref() == self.refresh;
        let earlier = self.earlier(Some(deployment), older).filter(|(older, _)| is_same(older));
        !has_reported && earlier.is_some_and(|(older, _)| is_reported(&older.template))
    }

    /// Whether the Deployment was rendered for this spec. An equal generation is enough, because another release may hash the
    /// same spec differently.
    fn is_deployed(&self, deployment: &DeploymentView) -> bool {
        let is_of_generation = deployment.generation.as_deref() == Some(&*self.generation);
        self.is_of(&recorded(deployment.resolved.as_deref()), is_of_generation)
    }

    /// An older revision that was rendered for this spec, still has pods and may be applied again. Of several, the one with
    /// the most ready pods.
    fn earlier<'a>(
        &self,
        live: Option<&DeploymentView>,
        older: &'a [OlderRevision],
    ) -> Option<(&'a TemplateRecord, &'a [Arc<PodView>])> {
        let of_spec = older.iter().filter_map(|older| {
            let rendered = older.revision.rendered.as_deref()?;
            let is_of_spec = self.is_of(&recorded(Some(&rendered.resolved)), false);
            let is_allowed = may_have_token(rendered.token_account.as_deref(), live);
            (is_of_spec && is_allowed).then_some((rendered, older.pods.as_slice()))
        });
        of_spec.max_by_key(|(_, pods)| pods.iter().filter(|pod| pod.is_ready).count())
    }

    /// Whether a record is of this spec, and of this value of `refresh` if it is set.
    fn is_of(&self, record: &Record, is_of_generation: bool) -> bool {
        (is_of_generation || record.spec_hash == self.spec_hash)
            && (self.refresh.is_none() || self.refresh == record.refresh.as_deref())
    }
}

/// Whether a template with the token of this account may be applied: the variable `keepsToken` of the admission policy.
fn may_have_token(account: Option<&str>, live: Option<&DeploymentView>) -> bool {
    account.is_none() || live.is_some_and(|live| live.token_account.as_deref() == account)
}

/// An unreadable record counts as empty; the template stays pinned.
fn recorded(resolved: Option<&str>) -> Record {
    resolved.and_then(|record| serde_json::from_str(record).ok()).unwrap_or_default()
}

/// As the status shows it of a template.
pub fn digest_of(template: &str) -> String {
    format!("sha256:{}", digest(template, 16))
}

#[cfg(test)]
mod tests {
    use crate::templates::deployment::ReplicaSetView;

    use super::*;

    /// `deployed` and `older`: a template and the value of `refresh` that it was rendered for.
    fn restores_older(
        deployed: (&str, Option<&str>),
        older: (&str, Option<&str>),
        desired: Option<&str>,
    ) -> bool {
        let record = |refresh: Option<&str>| {
            let refresh = refresh.map(str::to_owned);
            let record = Record { spec_hash: "hash".into(), refresh, ..Record::default() };
            Some(serde_json::to_string(&record).unwrap().into_boxed_str())
        };
        let deployment = DeploymentView {
            pinned_template: Some(deployed.0.into()),
            resolved: record(deployed.1),
            ..DeploymentView::default()
        };
        let rendered = TemplateRecord {
            resolved: record(older.1).unwrap(),
            template: older.0.into(),
            token_account: None,
        };
        let revision = ReplicaSetView { rendered: Some(Box::new(rendered)), ..ReplicaSetView::default() };
        let older = [OlderRevision { revision: Arc::new(revision), pods: vec![Arc::default()] }];
        let reported = digest_of("\"known\"");
        let desired = DesiredTemplate {
            spec_hash: "hash",
            generation: "1".into(),
            refresh: desired,
            reported: Some(&reported),
        };
        desired.restores_older(Some(&deployment), &older)
    }

    #[test]
    fn the_template_in_the_status_is_restored_unless_another_was_requested() {
        let (known, other) = ("\"known\"", "\"other\"");
        assert!(restores_older((other, None), (known, None), None), "the record was edited");
        assert!(!restores_older((known, None), (other, None), None));
        assert!(!restores_older((other, None), (other, None), None), "the older one is not the reported one");
        assert!(!restores_older((other, Some("1")), (known, None), Some("1")), "a newer one was requested");
        assert!(!restores_older((other, None), (known, Some("1")), None), "the annotation was removed");
    }

    fn template(account: &str, has_token: bool, image: &str) -> Value {
        serde_json::json!({"spec": {"serviceAccountName": account, "automountServiceAccountToken": has_token,
            "containers": [{"name": "engine", "image": image}]}})
    }

    /// The revision of the spec `wanted`, which this release renders with the image `new`.
    fn of_wanted<'a>(live: Option<&'a DeploymentView>, older: &'a [OlderRevision]) -> Revision<'a> {
        let desired =
            DesiredTemplate { spec_hash: "wanted", generation: "3".into(), refresh: None, reported: None };
        revision(desired, template("reader", false, "new"), BTreeMap::new(), (live, &[]), older)
    }

    fn record(spec_hash: &str) -> Box<str> {
        let record = Record { spec_hash: spec_hash.into(), ..Record::default() };
        serde_json::to_string(&record).unwrap().into()
    }

    /// The admission policy lets a Deployment keep a token, and gives none back.
    #[test]
    fn an_older_template_with_a_token_is_used_again_only_while_the_deployment_has_that_token() {
        let old = template("reader", true, "old");
        let rendered = TemplateRecord {
            resolved: record("wanted"),
            template: old.to_string().into(),
            token_account: token_account(&old).map(Into::into),
        };
        let revision = ReplicaSetView { rendered: Some(Box::new(rendered)), ..ReplicaSetView::default() };
        let older = [OlderRevision { revision: Arc::new(revision), pods: vec![Arc::default()] }];
        let desired =
            DesiredTemplate { spec_hash: "wanted", generation: "3".into(), refresh: None, reported: None };
        for (token, is_used) in [(None, false), (Some("other"), false), (Some("reader"), true)] {
            let live = DeploymentView {
                resolved: Some(record("mistake")),
                token_account: token.map(Into::into),
                ..DeploymentView::default()
            };
            let found = of_wanted(Some(&live), &older);
            let expected = if is_used { old.clone() } else { template("reader", false, "new") };
            assert_eq!((&found.template, found.pods.len()), (&expected, usize::from(is_used)), "{token:?}");
            assert_eq!(desired.has_pods(Some(&live), &older), is_used, "{token:?}");
        }
        assert_eq!(of_wanted(None, &older).template, template("reader", false, "new"), "creation");
    }

    #[test]
    fn a_pinned_template_loses_a_token_that_its_deployment_has_no_more() {
        let old = template("reader", true, "old");
        for (token, has_token) in [(None, false), (Some("other"), false), (Some("reader"), true)] {
            let live = DeploymentView {
                resolved: Some(record("wanted")),
                pinned_template: Some(old.to_string().into()),
                token_account: token.map(Into::into),
                ..DeploymentView::default()
            };
            let found = of_wanted(Some(&live), &[]);
            assert_eq!(
                found.template,
                template("reader", has_token, "old"),
                "{token:?}: the rest stays pinned"
            );
            assert_eq!(found.annotations("3")[labels::TEMPLATE], found.template.to_string(), "{token:?}");
        }
    }

    /// A different form would cost one write of every Deployment at an upgrade.
    #[test]
    fn a_record_of_the_first_release_is_serialized_unchanged() {
        let of_first = "{\"template\":\"2aa2ebf88887ba06\",\"image\":\"vllm/vllm-openai:v0.28.0\",\
                        \"loaderImage\":\"loader:1\",\"profile\":\"vllm-1\"}";
        assert_eq!(serde_json::to_string(&recorded(Some(of_first))).unwrap(), of_first);
    }
}
