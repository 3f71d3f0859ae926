//! What can be scaled, as watches show it, and which object is scaled where one owns the other. Pure.

use std::{borrow::Cow, fmt, marker::PhantomData, time::Duration};

use api::{
    aidispatcher::AIDispatcher,
    aiinference::{AIInference, LastColdStart},
    aiscaler::AIScalerSpec,
};
use k8s_openapi::{
    api::apps::v1::{Deployment, StatefulSet},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use kube::{Resource, api::ApiResource};
use runtime::{key::Key, write::scale::Scaled};
use serde::{Deserialize, de::IgnoredAny};

use selector::Selector;

pub(crate) mod contender;
pub(crate) mod other_kinds;
pub(crate) mod owners;
pub(crate) mod pod;
pub(crate) mod selector;

/// An object with replicas and pods.
#[derive(Deserialize)]
#[serde(from = "Parts", bound = "")]
pub(crate) struct Scalable<K> {
    pub(crate) metadata: ObjectMeta,
    pub(crate) replicas: i32,
    pub(crate) status_replicas: i32,
    /// `None`: the object names none yet, or one that selects every pod.
    pub(crate) selector: Option<Selector>,
    /// Of an AIDispatcher: its own controller decides the replicas.
    pub(crate) scales_itself: bool,
    /// Of an AIInference: how long its last new pod took to serve.
    pub(crate) cold_start: Option<Duration>,
    /// What its own controller needs at least, for as long as two versions share its requests.
    pub(crate) least: Option<i32>,
    /// Of the first 16 owners, whether they control it or not.
    pub(crate) owner_uids: Box<[Box<str>]>,
    kind: PhantomData<fn() -> K>,
}

/// The API server sets no limit. An object has one or two.
const MOST_OWNERS: usize = 16;

/// A kind whose objects this controller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WatchedKind {
    Deployment,
    StatefulSet,
    AIInference,
    AIDispatcher,
}

/// The owner of a workload that is its controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Controller {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The object that a spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl WatchedKind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Deployment, Self::StatefulSet, Self::AIInference, Self::AIDispatcher];

    /// The kind of a reference or of an owner, whichever version of its group it names.
    pub(crate) fn named(api_version: &str, kind: &str) -> Option<Self> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        Self::ALL.into_iter().find(|known| {
            let resource = known.resource();
            resource.kind == kind && resource.group == group
        })
    }

    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::Deployment => ApiResource::erase::<Deployment>(&()),
            Self::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            Self::AIInference => ApiResource::erase::<AIInference>(&()),
            Self::AIDispatcher => ApiResource::erase::<AIDispatcher>(&()),
        }
    }
}

impl Reference {
    pub(crate) fn of(spec: &AIScalerSpec) -> Self {
        match (&spec.target_ref, &spec.deployment_name) {
            (Some(target), _) => Self {
                api_version: target.api_version.clone(),
                kind: target.kind.clone(),
                name: target.name.clone(),
            },
            // The API server accepts exactly one of the two.
            (None, name) => Self::to_deployment(name.as_deref().unwrap_or_default()),
        }
    }

    pub(crate) fn to_deployment(name: &str) -> Self {
        Self { api_version: "apps/v1".to_owned(), kind: "Deployment".to_owned(), name: name.to_owned() }
    }

    pub(crate) fn watched(&self) -> Option<WatchedKind> {
        WatchedKind::named(&self.api_version, &self.kind)
    }

    /// Equal for all references to one object within a namespace: versions of a group are one kind.
    pub(crate) fn identity(&self) -> String {
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        format!("{}.{group}/{}", self.kind, self.name)
    }

    /// The key under which references to one object are found. `beside`: of an object in its namespace.
    pub(crate) fn key(&self, beside: &ObjectMeta) -> Key {
        Key::new(beside.namespace.as_deref().unwrap_or_default(), &self.identity())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl<K> Scalable<K> {
    pub(crate) fn scaled(&self) -> Scaled {
        Scaled {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            version: self.metadata.resource_version.clone().unwrap_or_default(),
            replicas: self.replicas,
            status_replicas: self.status_replicas,
            selector: String::new(),
        }
    }

    /// With what a write of its scale has answered.
    pub(crate) fn with(&self, written: &Scaled) -> Self {
        let mut object = self.clone();
        object.metadata.resource_version = Some(written.version.clone());
        object.replicas = written.replicas;
        object.status_replicas = written.status_replicas;
        object
    }

    /// The object that controls this one, if that can be scaled itself.
    pub(crate) fn scalable_owner(&self) -> Option<(WatchedKind, &str)> {
        let owner = self.owner()?;
        Some((WatchedKind::named(&owner.api_version, &owner.kind)?, &owner.name))
    }

    /// The object that controls this one.
    pub(crate) fn controller(&self) -> Option<Controller> {
        let OwnerReference { api_version, kind, name, uid, .. } = self.owner()?.clone();
        let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
        Some(Controller { group, kind, name, uid })
    }

    fn owner(&self) -> Option<&OwnerReference> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.into_iter().find(|owner| owner.controller == Some(true))
    }
}

// Derived, these would ask the same of `K`.
impl<K> Clone for Scalable<K> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            replicas: self.replicas,
            status_replicas: self.status_replicas,
            selector: self.selector.clone(),
            scales_itself: self.scales_itself,
            cold_start: self.cold_start,
            least: self.least,
            owner_uids: self.owner_uids.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> PartialEq for Scalable<K> {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            metadata,
            replicas,
            status_replicas,
            selector,
            scales_itself,
            cold_start,
            least,
            owner_uids,
            kind: _,
        } = self;
        *metadata == other.metadata
            && *replicas == other.replicas
            && *status_replicas == other.status_replicas
            && *selector == other.selector
            && *scales_itself == other.scales_itself
            && *cold_start == other.cold_start
            && *least == other.least
            && *owner_uids == other.owner_uids
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Scalable<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
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
    #[serde(default)]
    status: StatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecParts {
    replicas: Option<i32>,
    /// Of Deployments and StatefulSets.
    selector: Option<LabelSelector>,
    /// Of AIDispatchers.
    autoscaling: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusParts {
    replicas: i32,
    /// Of the kinds of this project.
    selector: Option<String>,
    /// Of AIInferences.
    last_cold_start: Option<LastColdStart>,
    min_stable_replicas: Option<i32>,
}

impl<K> From<Parts> for Scalable<K> {
    fn from(Parts { metadata, spec, status }: Parts) -> Self {
        let owners = metadata.owner_references.unwrap_or_default();
        let owner_uids = owners.iter().take(MOST_OWNERS).map(|owner| owner.uid.as_str().into()).collect();
        let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
        let of_status = status.selector.as_deref().and_then(Selector::parse);
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                generation: metadata.generation,
                owner_references: controller.map(|owner| vec![owner]),
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            // The default of every kind with replicas.
            replicas: spec.replicas.unwrap_or(1),
            status_replicas: status.replicas,
            selector: spec.selector.and_then(Selector::of).or(of_status),
            scales_itself: spec.autoscaling.is_some(),
            cold_start: status
                .last_cold_start
                .and_then(|measured| u32::try_from(measured.seconds).ok())
                .map(|seconds| Duration::from_secs(seconds.into())),
            least: status.min_stable_replicas,
            owner_uids,
            kind: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn scalable<K>(text: &str) -> Scalable<K> {
        serde_saphyr::from_str(text).unwrap()
    }

    fn reference(api_version: &str, kind: &str) -> Reference {
        Reference { api_version: api_version.into(), kind: kind.into(), name: "chat".into() }
    }

    #[test]
    fn versions_of_a_group_are_one_kind_and_kinds_of_other_groups_are_others() {
        assert_eq!(
            reference("apps/v1beta1", "Deployment").identity(),
            reference("apps/v1", "Deployment").identity()
        );
        assert_eq!(reference("apps/v2", "StatefulSet").watched(), Some(WatchedKind::StatefulSet));
        for (api_version, kind) in
            [("example.com/v1", "Deployment"), ("v1", "Deployment"), ("apps/v1", "ReplicaSet")]
        {
            assert_eq!(reference(api_version, kind).watched(), None, "{api_version} {kind}");
        }
    }

    #[test]
    fn a_view_has_the_defaults_of_its_kind_and_the_selector_of_spec_or_status() {
        let labels: BTreeMap<String, String> = [("app".to_owned(), "chat".to_owned())].into();
        let new: Scalable<Deployment> =
            scalable("{metadata: {name: a}, spec: {selector: {matchLabels: {app: chat}}}}");
        assert_eq!((new.replicas, new.status_replicas), (1, 0));
        assert!(new.selector.is_some_and(|selector| selector.matches(&labels)));
        let of_status: Scalable<AIInference> =
            scalable("{metadata: {name: a}, spec: {replicas: 0}, status: {replicas: 2, selector: app=chat}}");
        assert_eq!((of_status.replicas, of_status.status_replicas), (0, 2));
        assert!(of_status.selector.is_some_and(|selector| selector.matches(&labels)));
        let every: Scalable<Deployment> = scalable("{metadata: {name: a}, spec: {selector: {}}}");
        assert_eq!(every.selector, None, "no workload has every pod");
    }

    #[test]
    fn the_cold_start_of_an_aiinference_is_read_and_what_is_none_is_not() {
        let of = |status: &str| {
            scalable::<AIInference>(&format!("{{metadata: {{name: a}}, status: {status}}}")).cold_start
        };
        assert_eq!(
            of("{lastColdStart: {seconds: 95, time: '2026-01-01T12:00:00Z'}}"),
            Some(Duration::from_secs(95))
        );
        assert_eq!(of("{lastColdStart: {seconds: -1}}"), None);
        assert_eq!(of("{}"), None);
    }

    #[test]
    fn an_owner_counts_if_it_controls_the_object_and_can_be_scaled() {
        let owned = |owner: &str| -> Scalable<Deployment> {
            scalable(&format!("{{metadata: {{name: a, ownerReferences: [{{{owner}, name: o, uid: u}}]}}}}"))
        };
        let ours = "apiVersion: ai.infra.example.com/v1alpha1, kind: AIInference";
        let controls = owned(&format!("{ours}, controller: true"));
        assert_eq!(controls.scalable_owner(), Some((WatchedKind::AIInference, "o")));
        assert_eq!(owned(ours).scalable_owner(), None);
        let other = owned("apiVersion: example.com/v1, kind: AIInference, controller: true");
        assert_eq!(other.scalable_owner(), None);
    }

    #[test]
    fn the_uids_of_all_owners_are_kept_up_to_a_number() {
        let owner = |number: usize| {
            let controls = number == 1;
            format!("{{apiVersion: v1, kind: A, name: a, uid: u-{number}, controller: {controls}}}")
        };
        let owned = |owners: usize| -> Scalable<Deployment> {
            let owners: Vec<String> = (0..owners).map(owner).collect();
            scalable(&format!("{{metadata: {{name: a, ownerReferences: [{}]}}}}", owners.join(", ")))
        };
        let two = owned(2);
        assert_eq!(*two.owner_uids, ["u-0".into(), "u-1".into()]);
        assert_eq!(two.controller().map(|owner| owner.uid).as_deref(), Some("u-1"));
        assert_eq!(owned(99).owner_uids.len(), MOST_OWNERS);
        assert!(owned(0) != owned(1), "a change of owners changes whose the pods are");
    }

    #[test]
    fn an_aidispatcher_with_autoscaling_scales_itself() {
        let dispatcher = |spec: &str| -> Scalable<AIDispatcher> {
            scalable(&format!("{{metadata: {{name: a}}, spec: {spec}}}"))
        };
        assert!(dispatcher("{autoscaling: {maxReplicas: 3}}").scales_itself);
        assert!(!dispatcher("{replicas: 3}").scales_itself);
    }
}
