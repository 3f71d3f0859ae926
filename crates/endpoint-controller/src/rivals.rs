//! Autoscalers of others whose target is the AIInference of an endpoint. They set its replicas.
//!
//! The caches of children know only the metadata of objects of others, so these are caches of their own.

use api::{aiinference::AIInference, aiinference::endpoint::InferenceEndpoint, aiscaler::AIScaler};
use k8s_openapi::{
    api::autoscaling::v2::HorizontalPodAutoscaler, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use runtime::{
    key::Key,
    process::Process,
    watch::{
        cache::{Cache, controller_of, is_of_kind},
        relations::Referrers,
        watched::Watched,
    },
};
use serde::Deserialize;

use crate::child::{Active, ScalerStatusParts, active, narrow};

/// The autoscalers of the cluster by the AIInference that is their target.
pub(crate) struct Rivals {
    pub(crate) hpas: Cache<HpaTarget>,
    pub(crate) scalers: Cache<ScalerTarget>,
    hpas_of: Referrers,
    scalers_of: Referrers,
}

/// An autoscaler that is not the endpoint's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    pub(crate) kind: RivalKind,
    pub(crate) key: Key,
    /// Kind and name of what made it, such as a ScaledObject of KEDA.
    pub(crate) owner: Option<String>,
    pub(crate) active: Option<Active>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RivalKind {
    HorizontalPodAutoscaler,
    AIScaler,
}

/// A HorizontalPodAutoscaler by its target.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = HorizontalPodAutoscaler)]
#[serde(from = "HpaParts")]
pub(crate) struct HpaTarget {
    metadata: ObjectMeta,
    inference: Option<String>,
    active: Option<Active>,
}

/// An AIScaler by its target.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = AIScaler)]
#[serde(from = "ScalerParts")]
pub(crate) struct ScalerTarget {
    metadata: ObjectMeta,
    inference: Option<String>,
    active: Option<Active>,
}

/// An autoscaler whose target may be an AIInference.
pub(crate) trait Targeting {
    const KIND: RivalKind;

    /// The AIInference that it scales.
    fn inference(&self) -> Option<Key>;

    /// What it says of itself.
    fn active(&self) -> Option<&Active>;
}

impl Rivals {
    pub(crate) fn watch(process: &mut Process) -> Self {
        Self::of_caches(
            process.watch("HorizontalPodAutoscalerTarget"),
            process.watch_if_served("AIScalerTarget"),
        )
    }

    pub(crate) fn of_caches(hpas: Cache<HpaTarget>, scalers: Cache<ScalerTarget>) -> Self {
        Self {
            hpas_of: Referrers::of(&hpas, Targeting::inference),
            scalers_of: Referrers::of(&scalers, Targeting::inference),
            hpas,
            scalers,
        }
    }

    /// One that has the AIInference of the endpoint of this key and uid as its target, and is not the endpoint's. Of two kinds
    /// the HorizontalPodAutoscaler, because an AIScaler leaves such a target alone.
    pub(crate) fn of(&self, endpoint: &Key, uid: &str) -> Option<Rival> {
        foreign(&self.hpas, &self.hpas_of, endpoint, uid)
            .or_else(|| foreign(&self.scalers, &self.scalers_of, endpoint, uid))
    }
}

fn foreign<K>(known: &Cache<K>, of: &Referrers, endpoint: &Key, uid: &str) -> Option<Rival>
where
    K: Watched + Targeting,
{
    of.of_key(endpoint).into_iter().find_map(|key| {
        let object = known.get(&key)?;
        let owner = controller_of(&*object);
        // One of a deleted endpoint of this name is about to go.
        let is_of_endpoint = owner.is_some_and(|owner| {
            owner.uid == uid || is_of_kind::<InferenceEndpoint>(owner) && *owner.name == *endpoint.name
        });
        if is_of_endpoint || object.meta().deletion_timestamp.is_some() {
            return None;
        }
        let owner = owner.map(|owner| format!("{} {}", owner.kind, owner.name));
        Some(Rival { kind: K::KIND, key, owner, active: object.active().cloned() })
    })
}

impl std::fmt::Display for Rival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            RivalKind::HorizontalPodAutoscaler => HorizontalPodAutoscaler::kind(&()),
            RivalKind::AIScaler => AIScaler::kind(&()),
        };
        write!(f, "{kind} {}", self.key)?;
        match &self.owner {
            Some(owner) => write!(f, " of {owner}"),
            None => Ok(()),
        }
    }
}

impl Targeting for HpaTarget {
    const KIND: RivalKind = RivalKind::HorizontalPodAutoscaler;

    fn active(&self) -> Option<&Active> {
        self.active.as_ref()
    }

    fn inference(&self) -> Option<Key> {
        key(&self.metadata, self.inference.as_deref())
    }
}

impl Targeting for ScalerTarget {
    const KIND: RivalKind = RivalKind::AIScaler;

    fn active(&self) -> Option<&Active> {
        self.active.as_ref()
    }

    fn inference(&self) -> Option<Key> {
        key(&self.metadata, self.inference.as_deref())
    }
}

fn key(metadata: &ObjectMeta, inference: Option<&str>) -> Option<Key> {
    Some(Key::new(metadata.namespace.as_deref()?, inference?))
}

#[derive(Deserialize)]
struct HpaParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: HpaSpec,
    #[serde(default)]
    status: ScalerStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HpaSpec {
    scale_target_ref: TargetParts,
}

#[derive(Deserialize)]
struct ScalerParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ScalerSpec,
    #[serde(default)]
    status: ScalerStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ScalerSpec {
    target_ref: TargetParts,
    mode: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TargetParts {
    api_version: Option<String>,
    kind: String,
    name: String,
}

impl From<HpaParts> for HpaTarget {
    fn from(HpaParts { metadata, spec, status }: HpaParts) -> Self {
        let inference = inference(spec.scale_target_ref);
        Self { metadata: narrow(metadata), inference, active: active(status) }
    }
}

impl From<ScalerParts> for ScalerTarget {
    fn from(ScalerParts { metadata, spec, status }: ScalerParts) -> Self {
        // It decides, and sets nothing.
        let is_dry = spec.mode.as_deref() == Some("DryRun");
        let inference = inference(spec.target_ref).filter(|_| !is_dry);
        Self { metadata: narrow(metadata), inference, active: active(status) }
    }
}

/// An HPA takes a reference by its group, whatever the version.
fn inference(TargetParts { api_version, kind, name }: TargetParts) -> Option<String> {
    let group = api_version.as_deref().unwrap_or_default().split_once('/').map(|(group, _)| group);
    (kind == AIInference::kind(&()) && group == Some(&*AIInference::group(&()))).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn hpa(name: &str, kind: &str, owner: Option<&str>) -> HpaTarget {
        let mut metadata = json!({"name": name, "namespace": "demo", "resourceVersion": "1"});
        if let Some(uid) = owner {
            metadata["ownerReferences"] = owners(uid);
        }
        from_value(json!({"metadata": metadata, "spec": {"scaleTargetRef": {
            "apiVersion": "ai.infra.example.com/v1alpha1", "kind": kind, "name": "chat"}}}))
        .unwrap()
    }

    fn scaler(name: &str, mode: &str) -> ScalerTarget {
        let metadata = json!({"name": name, "namespace": "demo", "resourceVersion": "1"});
        from_value(json!({"metadata": metadata, "spec": {"mode": mode, "targetRef": {
            "apiVersion": "ai.infra.example.com/v1alpha1", "kind": "AIInference", "name": "chat"}}}))
        .unwrap()
    }

    fn owners(uid: &str) -> Value {
        json!([{"apiVersion": "aistudio.modelscope.cn/v1alpha1", "kind": "InferenceEndpoint", "name": "chat",
                "uid": uid, "controller": true}])
    }

    #[test]
    fn an_autoscaler_of_another_that_has_the_same_target_is_a_rival() {
        let rivals = Rivals::of_caches(Cache::default(), Cache::default());
        let found = || rivals.of(&Key::new("demo", "chat"), "e").map(|rival| rival.to_string());
        rivals.hpas.upsert(hpa("chat", "AIInference", Some("e")));
        rivals.hpas.upsert(hpa("of-deployment", "Deployment", None));
        assert_eq!(found(), None);
        rivals.hpas.upsert(hpa("left", "AIInference", Some("of a deleted endpoint of this name")));
        rivals.scalers.upsert(scaler("trial", "DryRun"));
        assert_eq!(found(), None);
        rivals.scalers.upsert(scaler("mine", "Apply"));
        assert_eq!(found().as_deref(), Some("AIScaler demo/mine"));
        let mut of_keda = hpa("keda", "AIInference", Some("k"));
        let owner = &mut of_keda.metadata.owner_references.as_mut().unwrap()[0];
        (owner.api_version, owner.kind) = ("keda.sh/v1alpha1".to_owned(), "ScaledObject".to_owned());
        rivals.hpas.upsert(of_keda.clone());
        assert_eq!(found().as_deref(), Some("HorizontalPodAutoscaler demo/keda of ScaledObject chat"));
        let time = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        of_keda.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
        of_keda.metadata.resource_version = Some("2".to_owned());
        rivals.hpas.upsert(of_keda);
        assert_eq!(found().as_deref(), Some("AIScaler demo/mine"), "one that is about to go");
        assert_eq!(rivals.of(&Key::new("demo", "other"), "e"), None);
    }
}
