//! Collects everything that the plan of one AIScaler needs from the caches and the samples. It sends nothing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    Context, ForgetIfDeleted,
    history::{
        Past,
        attempt::{Attempted, Unwritten},
        stored,
    },
    samples::{Outdated, Question, RefusedWrite},
    sources::answer::Answer,
    target::{
        Reference, Scalable, WatchedKind,
        contender::{Contender, oldest_before},
        other_kinds::ScaleRead,
        owners::{Belongs, Owner, TargetIdentity, belongs},
        pod::PodView,
        selector::Selector,
    },
    validate::ValidScaler,
};
use api::{
    aidispatcher::AIDispatcher,
    aiinference::AIInference,
    aiscaler::{AIScaler, Mode},
};
use jiff::Timestamp;
use kube::{Resource, api::ApiResource};
use runtime::{key::Key, watch::cache::Cache, write::scale::Scaled};

/// One AIScaler with its target, as last seen.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) scaler: Arc<AIScaler>,
    pub(crate) target: Target,
    /// The first of the autoscalers to which this one gives way.
    pub(crate) contender: Option<Contender>,
    /// A kind of autoscalers whose watch fails: one that is known may be gone.
    pub(crate) unwatched: Option<&'static str>,
    /// One per metric; fewer before the first samples.
    pub(crate) answers: Vec<Answer>,
    pub(crate) past: Past,
    /// The past is that of the status: this process has not decided on the target yet.
    pub(crate) is_resumed: bool,
    /// When this process last wrote the status.
    pub(crate) written: Option<Timestamp>,
    /// What was carried out and is not in the status.
    pub(crate) unwritten: Option<Unwritten>,
    /// The last write of replicas whose answer was lost.
    pub(crate) attempted: Attempted,
    /// The last write of replicas that was refused.
    pub(crate) refused: Option<RefusedWrite>,
    /// The last version of the target that was called outdated.
    pub(crate) outdated: Option<Outdated>,
    /// The API server has confirmed that this process knows the newest version of the object.
    pub(crate) is_confirmed: bool,
}

/// The object whose replicas are set.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Found(Box<Found>),
    /// Of a kind that is not watched: its scale is read with the first samples.
    Unread,
    /// It cannot be scaled: why.
    Missing(String),
    /// Whether it can be scaled is not known yet, or not any more.
    Unknown(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) reference: Reference,
    pub(crate) resource: ApiResource,
    pub(crate) key: Key,
    pub(crate) scaled: Scaled,
    pub(crate) is_deleted: bool,
    pub(crate) scales_itself: bool,
    /// As the target's own controller measured it.
    pub(crate) cold_start: Option<Duration>,
    /// Fewer replicas would not do for a rollback.
    pub(crate) least: Option<i32>,
    /// `None`: the target has no selector that could be used.
    pub(crate) pods: Option<Vec<Arc<PodView>>>,
    /// Pods that the selector matches and that are not the target's: whose they are. The first of several by name.
    pub(crate) foreign: Option<String>,
    /// The kind does without 0 replicas.
    pub(crate) keeps_one: bool,
}

pub(crate) fn observe(ctx: &Context, scaler: &Arc<AIScaler>, now: Timestamp) -> Observed {
    let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
    let namespace = scaler.metadata.namespace.as_deref().unwrap_or_default();
    let sampled = ctx.samples.of(uid);
    let (mut target, names) = target(ctx, namespace, Reference::of(&scaler.spec), sampled.scale.as_ref());
    if ctx.scalers.watch_fails_since().is_some() {
        // It may be paused, have other bounds, or be deleted by now.
        target = Target::Unknown("the watch of AIScalers fails, so this one may be out of date".to_owned());
    }
    let is_confirmed = sampled.is_confirmed();
    let remembered = sampled.past_at(scaler.metadata.resource_version.as_deref()).cloned();
    let answers = match sampled.question == Some(Question::of(&scaler.spec)) {
        true => sampled.answers,
        false => Vec::new(),
    };
    let from_status = || scaler.status.as_ref().map(stored).unwrap_or_default().resumed(now);
    let is_resumed = remembered.is_none();
    let mut past = remembered.unwrap_or_else(from_status);
    let mut unwritten = sampled.unwritten;
    let attempted = match (sampled.attempted, &target) {
        (None, _) => Attempted::Nothing,
        (Some(attempt), Target::Found(found)) => {
            attempt.judged(&found.scaled, &past, unwritten.as_ref(), scaler.status.as_ref(), now)
        }
        (Some(attempt), Target::Unread | Target::Missing(_) | Target::Unknown(_)) => {
            Attempted::Open(Box::new(attempt))
        }
    };
    if let Attempted::CarriedOut(known) = &attempted {
        past.clone_from(&known.past);
        unwritten = Some(known.unwritten.clone());
    }
    Observed {
        contender: contender(ctx, scaler, &names),
        unwatched: unwatched(ctx),
        scaler: Arc::clone(scaler),
        target,
        answers,
        past,
        is_resumed,
        written: sampled.written,
        unwritten,
        attempted,
        refused: sampled.refused,
        outdated: sampled.outdated,
        is_confirmed,
    }
}

/// The target, and every reference under which another autoscaler may name it. `scale`: what was last read of a target of
/// another kind.
fn target(
    ctx: &Context,
    namespace: &str,
    named: Reference,
    scale: Option<&(Reference, ScaleRead)>,
) -> (Target, Vec<Reference>) {
    let Some(kind) = named.watched() else {
        let read = scale.filter(|(target, _)| *target == named).map(|(_, read)| read);
        return (read_before(ctx, namespace, &named, read), vec![named]);
    };
    let owner = match kind {
        WatchedKind::Deployment => owner_of(&ctx.deployments, namespace, &named.name),
        WatchedKind::StatefulSet => owner_of(&ctx.stateful_sets, namespace, &named.name),
        WatchedKind::AIInference | WatchedKind::AIDispatcher => None,
    };
    // What owns a Deployment sets its replicas, so only the owner can be scaled.
    let (kind, reference) = match owner {
        Some((kind, name)) => {
            let ApiResource { api_version, kind: word, .. } = kind.resource();
            (kind, Reference { api_version, kind: word, name })
        }
        None => (kind, named.clone()),
    };
    let mut names = vec![reference.clone(), named];
    names.extend(children(ctx, namespace, kind, &reference.name));
    names.dedup();
    (watched(ctx, namespace, kind, reference), names)
}

/// A target of a kind that is not watched.
fn read_before(ctx: &Context, namespace: &str, reference: &Reference, read: Option<&ScaleRead>) -> Target {
    match read {
        None => Target::Unread,
        Some(ScaleRead::Missing(why)) => Target::Missing(why.clone()),
        Some(ScaleRead::Unknown(why)) => Target::Unknown(why.clone()),
        Some(ScaleRead::Found { .. }) if ctx.pods.watch_fails_since().is_some() => {
            Target::Unknown(format!("the watch of the pods of {reference} fails"))
        }
        Some(ScaleRead::Found { resource, scaled }) => {
            let key = Key::new(namespace, &reference.name);
            let selector = Selector::parse(&scaled.selector);
            let ApiResource { group, kind, .. } = resource;
            let identity = TargetIdentity { watched: None, group, kind, uid: &scaled.uid };
            let (pods, foreign) = selector.map(|selector| pods(ctx, &key, &selector, identity)).unzip();
            Target::Found(Box::new(Found {
                pods,
                foreign: foreign.flatten(),
                reference: reference.clone(),
                resource: resource.clone(),
                key,
                scaled: scaled.clone(),
                is_deleted: false,
                scales_itself: false,
                cold_start: None,
                least: None,
                keeps_one: false,
            }))
        }
    }
}

fn owner_of<K>(cache: &Cache<Scalable<K>>, namespace: &str, name: &str) -> Option<(WatchedKind, String)>
where
    K: Resource<DynamicType = ()>,
{
    let object = cache.get(&Key::new(namespace, name))?;
    object.scalable_owner().map(|(kind, name)| (kind, name.to_owned()))
}

/// The Deployments under an object of this project.
fn children(ctx: &Context, namespace: &str, kind: WatchedKind, name: &str) -> Vec<Reference> {
    let key = Key::new(namespace, name);
    let uid = match kind {
        WatchedKind::AIInference => ctx.inferences.get(&key).and_then(|owner| owner.metadata.uid.clone()),
        WatchedKind::AIDispatcher => ctx.dispatchers.get(&key).and_then(|owner| owner.metadata.uid.clone()),
        WatchedKind::Deployment | WatchedKind::StatefulSet => None,
    };
    uid.map(|uid| deployments_of(ctx, namespace, Some(kind), &uid)).unwrap_or_default()
}

/// The Deployments that an object with this uid controls.
pub(crate) fn deployments_of(
    ctx: &Context,
    namespace: &str,
    kind: Option<WatchedKind>,
    uid: &str,
) -> Vec<Reference> {
    let owned = match kind {
        Some(WatchedKind::AIInference) => ctx.deployments.owned_by::<AIInference>(namespace, uid),
        Some(WatchedKind::AIDispatcher) => ctx.deployments.owned_by::<AIDispatcher>(namespace, uid),
        Some(WatchedKind::Deployment | WatchedKind::StatefulSet) | None => Vec::new(),
    };
    owned.iter().filter_map(|child| child.metadata.name.as_deref()).map(Reference::to_deployment).collect()
}

fn watched(ctx: &Context, namespace: &str, kind: WatchedKind, reference: Reference) -> Target {
    match kind {
        WatchedKind::Deployment => found(ctx, &ctx.deployments, namespace, kind, reference),
        WatchedKind::StatefulSet => found(ctx, &ctx.stateful_sets, namespace, kind, reference),
        WatchedKind::AIInference => found(ctx, &ctx.inferences, namespace, kind, reference),
        WatchedKind::AIDispatcher => found(ctx, &ctx.dispatchers, namespace, kind, reference),
    }
}

fn found<K>(
    ctx: &Context,
    cache: &Cache<Scalable<K>>,
    namespace: &str,
    kind: WatchedKind,
    reference: Reference,
) -> Target
where
    K: Resource<DynamicType = ()>,
{
    // A blind cache says neither how many replicas there are nor that there are none.
    if cache.watch_fails_since().is_some() || ctx.pods.watch_fails_since().is_some() {
        return Target::Unknown(format!("the watch of {reference} or of its pods fails"));
    }
    let key = Key::new(namespace, &reference.name);
    let Some(object) = cache.get(&key) else {
        return Target::Missing(format!(
            "{reference} does not exist in namespace {namespace}; create it or correct the name"
        ));
    };
    let resource = kind.resource();
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    let identity = TargetIdentity { watched: Some(kind), group: &resource.group, kind: &resource.kind, uid };
    let selector = object.selector.as_ref();
    let (pods, foreign) = selector.map(|selector| pods(ctx, &key, selector, identity)).unzip();
    Target::Found(Box::new(Found {
        reference,
        key,
        scaled: object.scaled(),
        is_deleted: object.metadata.deletion_timestamp.is_some(),
        scales_itself: object.scales_itself,
        cold_start: object.cold_start,
        least: object.least,
        pods,
        foreign: foreign.flatten(),
        resource,
        keeps_one: kind == WatchedKind::AIDispatcher,
    }))
}

/// The pods of the target, and whose the others are that its selector matches.
fn pods(
    ctx: &Context,
    key: &Key,
    selector: &Selector,
    identity: TargetIdentity<'_>,
) -> (Vec<Arc<PodView>>, Option<String>) {
    let owners = |kind: WatchedKind, name: &str| {
        let key = Key { namespace: Arc::clone(&key.namespace), name: name.into() };
        match kind {
            WatchedKind::Deployment => owner(&ctx.deployments, &key),
            WatchedKind::StatefulSet => owner(&ctx.stateful_sets, &key),
            // They own Deployments and pods, and no pod leads to them through a name.
            WatchedKind::AIInference | WatchedKind::AIDispatcher => None,
        }
    };
    // Pods of one owner, of which a target has one or two, are judged once.
    let mut judged: HashMap<Box<str>, Belongs> = HashMap::new();
    let mut of_others: Option<String> = None;
    let mut pods = ctx.pods_by_label.matching(&ctx.pods, &key.namespace, selector);
    pods.retain(|pod| {
        let of_owner = || belongs(pod, identity, &owners);
        let verdict = match &pod.owner {
            Some(owner) => judged.entry(owner.uid.clone()).or_insert_with(of_owner).clone(),
            None => of_owner(),
        };
        let Belongs::Elsewhere(owner) = verdict else { return true };
        let owner = owner.unwrap_or_else(|| {
            format!("no controller, such as {},", pod.metadata.name.as_deref().unwrap_or_default())
        });
        of_others = Some(match of_others.take() {
            Some(first) if first <= owner => first,
            Some(_) | None => owner,
        });
        false
    });
    (pods, of_others)
}

fn owner<K>(cache: &Cache<Scalable<K>>, key: &Key) -> Option<Owner>
where
    K: Resource<DynamicType = ()>,
{
    let object = cache.get(key)?;
    Some(Owner {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        controller: object.controller(),
        owner_uids: object.owner_uids.clone(),
    })
}

/// The pods of the target, for a source that asks them.
pub(crate) fn pods_of(ctx: &Context, valid: &ValidScaler) -> Vec<Arc<PodView>> {
    let metadata = &valid.scaler.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let scale = ctx.samples.of(metadata.uid.as_deref().unwrap_or_default()).scale;
    match target(ctx, namespace, valid.reference.clone(), scale.as_ref()) {
        (Target::Found(found), _) => found.pods.unwrap_or_default(),
        (Target::Unread | Target::Missing(_) | Target::Unknown(_), _) => Vec::new(),
    }
}

fn unwatched(ctx: &Context) -> Option<&'static str> {
    let kinds = [
        ("HorizontalPodAutoscalers", ctx.hpas.watch_fails_since()),
        ("ScaledObjects", ctx.scaled_objects.watch_fails_since()),
    ];
    kinds.into_iter().find_map(|(kind, since)| since.map(|_| kind))
}

/// Who else scales the target: HPAs and ScaledObjects always win, of AIScalers the oldest.
fn contender(ctx: &Context, scaler: &AIScaler, names: &[Reference]) -> Option<Contender> {
    let identities: Vec<Key> = names.iter().map(|reference| reference.key(&scaler.metadata)).collect();
    let of = |referrers: &runtime::watch::relations::Referrers| -> Vec<Key> {
        identities.iter().flat_map(|identity| referrers.of_key(identity)).collect()
    };
    let hpas: Vec<_> = of(&ctx.hpa_targets).iter().filter_map(|key| ctx.hpas.get(key)).collect();
    let scaled_objects: Vec<_> =
        of(&ctx.scaled_object_targets).iter().filter_map(|key| ctx.scaled_objects.get(key)).collect();
    if let Some(other) = Contender::among(&hpas, &scaled_objects) {
        return Some(other);
    }
    let others = of(&ctx.scaler_targets).into_iter().filter_map(|key| ctx.scalers.get(&key));
    let scaling = others.filter(|other| {
        other.metadata.uid != scaler.metadata.uid
            && other.metadata.deletion_timestamp.is_none()
            && other.spec.mode == Mode::Apply
            && !other.spec.paused
            && {
                let _forget = ForgetIfDeleted { ctx, scaler: other };
                ctx.validities.is_valid(other, &ctx.configuration.allowed)
            }
    });
    let scaling: Vec<Arc<AIScaler>> = scaling.collect();
    oldest_before(scaler, scaling.iter().map(AsRef::as_ref))
        .and_then(|other| other.metadata.name.clone())
        .map(Contender::AIScaler)
}
