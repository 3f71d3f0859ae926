//! Other autoscalers: narrow views of HorizontalPodAutoscalers and of KEDA's ScaledObjects, and which autoscaler of a target
//! gives way. Pure.

use std::{borrow::Cow, sync::Arc};

use api::aiscaler::AIScaler;
use k8s_openapi::{
    api::autoscaling::v2::HorizontalPodAutoscaler, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use serde::Deserialize;

use super::Reference;

/// A HorizontalPodAutoscaler and its target.
#[derive(Resource, Clone, Debug, PartialEq, Deserialize)]
#[resource(inherit = HorizontalPodAutoscaler)]
#[serde(from = "Parts")]
pub(crate) struct HpaView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) target: Option<Reference>,
    /// The ScaledObject of KEDA that it was made for.
    scaled_object: Option<String>,
}

/// A ScaledObject of KEDA and its target.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Parts")]
pub(crate) struct ScaledObjectView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) target: Option<Reference>,
}

/// What scales the same object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    AIScaler(String),
    HorizontalPodAutoscaler(String),
    /// `through`: the HorizontalPodAutoscaler that KEDA made for it, if that is known.
    ScaledObject {
        name: String,
        through: Option<String>,
    },
}

impl Contender {
    /// What a user reads: which object, and the fix.
    pub(crate) fn message(&self, target: &Reference) -> String {
        match self {
            Self::AIScaler(name) => format!(
                "AIScaler {name}, which is older, scales {target} as well; delete one of the two, or set mode of this one \
                 to DryRun"
            ),
            Self::HorizontalPodAutoscaler(name) => format!(
                "HorizontalPodAutoscaler {name} scales {target} as well; delete it, or set mode of this AIScaler to DryRun"
            ),
            Self::ScaledObject { name, through } => {
                let through = through
                    .as_ref()
                    .map(|hpa| format!(", for which KEDA made HorizontalPodAutoscaler {hpa},"))
                    .unwrap_or_default();
                format!(
                    "ScaledObject {name}{through} scales {target} as well; delete the ScaledObject, or set mode of this \
                     AIScaler to DryRun"
                )
            }
        }
    }

    /// Of the HorizontalPodAutoscalers and ScaledObjects of one target. A user knows the ScaledObject, and KEDA would make its
    /// HorizontalPodAutoscaler again. What is being deleted scales no longer.
    pub(crate) fn among(hpas: &[Arc<HpaView>], scaled_objects: &[Arc<ScaledObjectView>]) -> Option<Self> {
        let mut hpas: Vec<&Arc<HpaView>> =
            hpas.iter().filter(|hpa| hpa.metadata.deletion_timestamp.is_none()).collect();
        hpas.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let name = |metadata: &ObjectMeta| metadata.name.clone().unwrap_or_default();
        let watched = scaled_objects.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
        if let Some(scaled_object) = watched.map(|object| name(&object.metadata)).min() {
            let is_of = |hpa: &&&Arc<HpaView>| hpa.scaled_object.as_ref() == Some(&scaled_object);
            let through = hpas.iter().find(is_of).map(|hpa| name(&hpa.metadata));
            return Some(Self::ScaledObject { name: scaled_object, through });
        }
        let of_keda = hpas.iter().find_map(|hpa| Some((hpa.scaled_object.clone()?, name(&hpa.metadata))));
        if let Some((scaled_object, hpa)) = of_keda {
            return Some(Self::ScaledObject { name: scaled_object, through: Some(hpa) });
        }
        hpas.first().map(|hpa| Self::HorizontalPodAutoscaler(name(&hpa.metadata)))
    }
}

/// Of the AIScalers with one target the oldest one scales, by name where they are equally old: the one to which this one
/// gives way.
pub(crate) fn oldest_before<'s>(
    scaler: &AIScaler,
    others: impl IntoIterator<Item = &'s AIScaler>,
) -> Option<&'s AIScaler> {
    let order = |scaler: &AIScaler| {
        let created = scaler.metadata.creation_timestamp.as_ref().map(|created| created.0);
        (created, scaler.metadata.name.clone())
    };
    let own = order(scaler);
    others.into_iter().filter(|other| order(other) < own).min_by_key(|other| order(other))
}

impl Resource for ScaledObjectView {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ScaledObject".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "keda.sh".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "scaledobjects".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecParts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecParts {
    #[serde(default)]
    scale_target_ref: Option<TargetParts>,
}

/// KEDA leaves version and kind out for a Deployment.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetParts {
    #[serde(default = "apps")]
    api_version: String,
    #[serde(default = "deployment")]
    kind: String,
    name: String,
}

fn apps() -> String {
    "apps/v1".to_owned()
}

fn deployment() -> String {
    "Deployment".to_owned()
}

/// Longest apiVersion, kind or name in bytes; an apiVersion has at most 253 + 1 + 63. KEDA's fields have no limit: a longer
/// one is ignored.
const LONGEST: usize = 320;

/// KEDA's label of what it makes.
const SCALED_OBJECT_LABEL: &str = "scaledobject.keda.sh/name";

/// The ScaledObject that owns a HorizontalPodAutoscaler, or that a label names.
fn scaled_object(metadata: &ObjectMeta) -> Option<String> {
    let owners = metadata.owner_references.iter().flatten();
    let is_of_keda =
        |api_version: &str| api_version.split_once('/').is_some_and(|(group, _)| group == "keda.sh");
    let mut owners = owners.filter(|owner| owner.kind == "ScaledObject" && is_of_keda(&owner.api_version));
    let labelled = || metadata.labels.as_ref()?.get(SCALED_OBJECT_LABEL).cloned();
    owners.next().map(|owner| owner.name.clone()).or_else(labelled).filter(|name| name.len() <= LONGEST)
}

fn narrow(Parts { metadata, spec }: Parts) -> (ObjectMeta, Option<Reference>) {
    let metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        deletion_timestamp: metadata.deletion_timestamp,
        ..ObjectMeta::default()
    };
    let reference = |TargetParts { api_version, kind, name }| {
        let is_short = [&api_version, &kind, &name].into_iter().all(|text| text.len() <= LONGEST);
        is_short.then_some(Reference { api_version, kind, name })
    };
    (metadata, spec.scale_target_ref.and_then(reference))
}

impl From<Parts> for HpaView {
    fn from(parts: Parts) -> Self {
        let scaled_object = scaled_object(&parts.metadata);
        let (metadata, target) = narrow(parts);
        Self { metadata, target, scaled_object }
    }
}

impl From<Parts> for ScaledObjectView {
    fn from(parts: Parts) -> Self {
        let (metadata, target) = narrow(parts);
        Self { metadata, target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(name: &str, created: &str) -> AIScaler {
        let spec = "{deploymentName: chat, metricType: queue_depth, targetValue: 5, maxReplicas: 4}";
        let text = format!(
            "{{apiVersion: ai.infra.example.com/v1, kind: AIScaler, metadata: {{name: {name}, creationTimestamp: '{created}'}}, spec: {spec}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn the_older_of_two_scalers_scales() {
        let old = scaler("b", "2026-01-01T00:00:00Z");
        let young = scaler("a", "2026-01-01T00:00:01Z");
        let gives_way = |scaler: &AIScaler, other: &AIScaler| oldest_before(scaler, [other]).is_some();
        assert!(gives_way(&young, &old) && !gives_way(&old, &young));
        let twin = scaler("a", "2026-01-01T00:00:00Z");
        assert!(gives_way(&old, &twin) && !gives_way(&twin, &old));
    }

    fn hpa(name: &str, more: &str) -> Arc<HpaView> {
        let spec = "{scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}}";
        let text = format!("{{metadata: {{name: {name}{more}}}, spec: {spec}}}");
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    fn scaled_object(more: &str) -> Arc<ScaledObjectView> {
        let text = format!("{{metadata: {{name: so{more}}}, spec: {{scaleTargetRef: {{name: chat}}}}}}");
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    const OF_KEDA: &str = ", ownerReferences: [{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, name: so, uid: u, controller: true}]";
    const DELETED: &str = ", deletionTimestamp: '2026-01-01T00:00:00Z'";

    #[test]
    fn an_hpa_of_keda_is_reported_as_its_scaled_object_though_none_is_watched() {
        let of = |hpas: &[Arc<HpaView>], objects: &[Arc<ScaledObjectView>]| Contender::among(hpas, objects);
        let through = |hpa: Option<&str>| {
            Some(Contender::ScaledObject { name: "so".into(), through: hpa.map(str::to_owned) })
        };
        let made = hpa("keda-hpa-so", OF_KEDA);
        assert_eq!(of(&[hpa("a", ""), Arc::clone(&made)], &[]), through(Some("keda-hpa-so")));
        let labelled = hpa("b", ", labels: {scaledobject.keda.sh/name: so}");
        assert_eq!(of(&[labelled], &[]), through(Some("b")));
        assert_eq!(of(&[made], &[scaled_object("")]), through(Some("keda-hpa-so")));
        assert_eq!(of(&[], &[scaled_object("")]), through(None));
        let other = ", ownerReferences: [{apiVersion: example.com/v1, kind: ScaledObject, name: so, uid: u}]";
        assert_eq!(of(&[hpa("b", other)], &[]), Some(Contender::HorizontalPodAutoscaler("b".into())));
    }

    #[test]
    fn a_name_longer_than_any_names_nothing() {
        let long = "a".repeat(LONGEST + 1);
        let text = format!("{{metadata: {{name: so}}, spec: {{scaleTargetRef: {{name: {long}}}}}}}");
        let object: ScaledObjectView = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(object.target, None);
        let owner = OF_KEDA.replace("name: so", &format!("name: {long}"));
        assert_eq!(hpa("a", &owner).scaled_object, None);
    }

    #[test]
    fn what_is_being_deleted_is_no_contender() {
        assert_eq!(Contender::among(&[hpa("a", DELETED)], &[scaled_object(DELETED)]), None);
        let left = Contender::among(&[hpa("a", DELETED), hpa("c", ""), hpa("b", "")], &[]);
        assert_eq!(left, Some(Contender::HorizontalPodAutoscaler("b".into())));
    }

    #[test]
    fn a_message_names_the_object_and_the_fix() {
        let target =
            Reference { api_version: "apps/v1".into(), kind: "Deployment".into(), name: "chat".into() };
        let keda = Contender::ScaledObject { name: "so".into(), through: Some("keda-hpa-so".into()) };
        assert_eq!(
            keda.message(&target),
            "ScaledObject so, for which KEDA made HorizontalPodAutoscaler keda-hpa-so, scales Deployment chat as well; \
             delete the ScaledObject, or set mode of this AIScaler to DryRun"
        );
        let older = Contender::AIScaler("b".into()).message(&target);
        assert!(older.starts_with("AIScaler b, which is older, scales Deployment chat as well; "), "{older}");
    }

    #[test]
    fn of_three_the_oldest_is_named_whatever_the_names() {
        let oldest = scaler("z", "2026-01-01T00:00:00Z");
        let middle = scaler("m", "2026-01-02T00:00:00Z");
        let youngest = scaler("a", "2026-01-03T00:00:00Z");
        let named =
            oldest_before(&youngest, [&middle, &oldest]).and_then(|named| named.metadata.name.clone());
        assert_eq!(named.as_deref(), Some("z"), "m itself gives way to it");
    }

    #[test]
    fn a_scaled_object_without_a_kind_scales_a_deployment() {
        let text = "{metadata: {name: a}, spec: {scaleTargetRef: {name: chat}}}";
        let view: ScaledObjectView = serde_saphyr::from_str(text).unwrap();
        assert_eq!(view.target.unwrap().identity(), "Deployment.apps/chat");
        let empty: ScaledObjectView = serde_saphyr::from_str("{metadata: {name: a}}").unwrap();
        assert_eq!(empty.target, None);
    }
}
