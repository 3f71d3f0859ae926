//! Collects everything that the plan of one AIInference needs from the caches and the in-memory records. It sends nothing; it
//! removes records of migrations that the status has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use api::{
    aiinference::{
        AIInference, Rollout,
        source::ModelSource,
        traffic::{GrpcGateway, InferencePoolGateway},
    },
    labels,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, ReplicaSet},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use runtime::{key::Key, queue::Reason, watch::cache::Cache};
use workload::{
    faults::{
        crashes::{Crash, Crashes},
        event::{EventView, SetupFailure},
        gpu::{self, NodeCapacity},
        gpu_faults::PodFaults,
        migrations::PodMigration,
        pace::Allowance,
        stranded::Nodes,
    },
    templates::deployment::{DeploymentView, OlderRevision, ReplicaSetView},
    views::{
        claim::ClaimView,
        node::{NodeLosses, NodeView},
        pod::{OfInstance, PodView},
    },
};

use crate::{
    Context,
    looks::Looking,
    names::{self, Track},
    objects::{
        evaluation::{EvaluationView, evaluation_key},
        gateway_api::{grpc_route::GrpcRoute, http_route::HttpRoute, inference_pool::InferencePool},
    },
    versions::candidate,
};

/// One AIInference with its children, from the caches.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) inference: Arc<AIInference>,
    pub(crate) deployment: Option<DeploymentView>,
    /// Pods of the Deployment's present template; `None` while no ReplicaSet has it.
    pub(crate) deployed: Option<Vec<Arc<PodView>>>,
    /// The label `pod-template-hash` of these pods, also of those to come.
    pub(crate) deployed_revision: Option<String>,
    /// Revisions with other templates that have pods.
    pub(crate) older: Vec<OlderRevision>,
    /// Failed pods of the Deployment's present template.
    pub(crate) failed: Vec<Arc<PodView>>,
    /// Metadata of its PodDisruptionBudget.
    pub(crate) budget: Option<ObjectMeta>,
    /// Metadata of its headless Service.
    pub(crate) headless: Option<ObjectMeta>,
    /// Metadata of its ConfigMap with what pods have loaded.
    pub(crate) digests: Option<ObjectMeta>,
    /// Metadata of the ConfigMap with its source.
    pub(crate) config_map: Option<ObjectMeta>,
    /// Metadata of its Service.
    pub(crate) service: Option<ObjectMeta>,
    /// Its InferencePool.
    pub(crate) pool: Option<InferencePool>,
    /// The other version: present if the spec has it, or children of it exist. It has none itself.
    pub(crate) candidate: Option<Box<Observed>>,
    /// Its HTTPRoute.
    pub(crate) route: Option<HttpRoute>,
    /// Its GRPCRoute.
    pub(crate) grpc_route: Option<GrpcRoute>,
    /// That of `spec.routeRef`.
    pub(crate) referred: Option<HttpRoute>,
    /// That of `spec.canary.evaluationName`.
    pub(crate) evaluation: Option<Arc<EvaluationView>>,
    /// The cluster does not serve ModelEvaluations.
    pub(crate) has_no_evaluations: bool,
    /// The cluster does not serve HTTPRoutes.
    pub(crate) has_no_routes: bool,
    /// The cluster does not serve GRPCRoutes.
    pub(crate) has_no_grpc_routes: bool,
    /// The cluster does not serve InferencePools.
    pub(crate) has_no_pools: bool,
    /// Whether the candidate's Service has a ready endpoint, once the API server was asked.
    pub(crate) has_endpoint: Option<bool>,
    /// Reasons and messages of children apart that could not be written, by what they are.
    pub(crate) apart: BTreeMap<&'static str, (&'static str, String)>,
    /// Of a canary with an analysis.
    pub(crate) looking: Looking,
    pub(crate) nodes: Nodes,
    /// Nodes with its pods that are about to go; empty without a watch of nodes.
    pub(crate) leaving_nodes: BTreeSet<String>,
    /// Errors of the GPUs of its pods.
    pub(crate) gpu_faults: PodFaults,
    /// Capacity of its GPU resource by node; `None` unless it is needed, because counting reads all pods of the cluster.
    pub(crate) capacities: Option<Vec<NodeCapacity>>,
    /// The claim of `spec.modelSource`.
    pub(crate) claim: Option<Arc<ClaimView>>,
    /// Whether a watch fails on which the order of a rollout depends.
    pub(crate) watch_fails: bool,
    /// Failures to set up pods, by uid of the scheduled pod that waits for one.
    pub(crate) unattached: BTreeMap<String, SetupFailure>,
    /// Causes of crashes, by uid of each pod that is not ready.
    pub(crate) crashes: BTreeMap<String, Crash>,
    /// Pods deleted because of their nodes or GPUs that the status does not record yet.
    pub(crate) unrecorded: Vec<PodMigration>,
    /// Facts of the last plan, and since when each has been true.
    pub(crate) facts: BTreeMap<String, Timestamp>,
    /// Whether the API server has confirmed that `inference` is its newest version.
    pub(crate) is_newest: bool,
    /// Which pods may leave their nodes now, once `Pace` was asked.
    pub(crate) allowance: Option<Allowance>,
}

pub(crate) fn observe(ctx: &Context, inference: Arc<AIInference>, now: Timestamp) -> Observed {
    let mut observed = observe_track(ctx, Arc::clone(&inference), Track::Stable, now);
    let version = candidate(&inference).map_or_else(|| Arc::clone(&inference), Arc::new);
    let of_candidate = observe_track(ctx, version, Track::Canary, now);
    if inference.spec.canary.is_some() || of_candidate.has_children() {
        observed.candidate = Some(Box::new(of_candidate));
    }
    let uid = inference.metadata.uid.as_deref().unwrap_or_default();
    let namespace = inference.metadata.namespace.as_deref().unwrap_or_default();
    let name = inference.metadata.name.as_deref().unwrap_or_default();
    let (route, grpc_route) = (names::route(name), names::grpc_route(name));
    observed.route = owned(&ctx.routes, namespace, uid, &route).map(|kept| HttpRoute::clone(&kept));
    observed.has_no_routes = ctx.routes.is_absent();
    observed.grpc_route =
        owned(&ctx.grpc_routes, namespace, uid, &grpc_route).map(|kept| GrpcRoute::clone(&kept));
    observed.has_no_grpc_routes = ctx.grpc_routes.is_absent();
    observed.has_no_pools = ctx.pools.is_absent();
    if let Some(key) = route_key(&inference) {
        observed.referred = ctx.foreign_routes.get(&key).map(|kept| HttpRoute::clone(&kept));
        observed.has_no_routes = ctx.foreign_routes.is_absent();
    }
    if let Some(key) = evaluation_key(&inference) {
        observed.evaluation = ctx.evaluations.get(&key);
        observed.has_no_evaluations = ctx.evaluations.is_absent();
    }
    observed.apart = ctx.apart.of(uid);
    observed.looking = looking(ctx, &inference, uid);
    let recorded = inference.status.as_ref().map_or(&[][..], |status| &status.migrations);
    observed.unrecorded = ctx.migrations.unrecorded(uid, |migration| {
        recorded.iter().any(|known| known.pod == migration.pod && known.from_node == migration.node)
    });
    observed
}

fn looking(ctx: &Context, inference: &AIInference, uid: &str) -> Looking {
    let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
    let drains = canary.is_some_and(|canary| canary.draining_since.is_some());
    if !drains && inference.spec.canary.as_ref().is_none_or(|canary| canary.analysis.is_none()) {
        ctx.looks.forget(uid);
        return Looking::default();
    }
    let analysis = canary.filter(|_| !drains).and_then(|canary| canary.analysis.as_ref());
    let until =
        analysis.and_then(|analysis| analysis.counted_until.as_ref()).map(|until| until.0.as_second());
    ctx.looks.of(uid, until)
}

/// Facts of the candidate begin with this.
pub(crate) const OF_CANDIDATE: &str = "candidate: ";

/// One version with its children.
fn observe_track(ctx: &Context, inference: Arc<AIInference>, track: Track, now: Timestamp) -> Observed {
    let uid = inference.metadata.uid.clone().unwrap_or_default();
    let namespace = &*inference.metadata.namespace.clone().unwrap_or_default();
    let name = inference.metadata.name.clone().unwrap_or_default();
    let deployment = owned(&ctx.deployments, namespace, &uid, &names::deployment(&name, track))
        .map(|kept| DeploymentView::clone(&kept));
    let Revisions { deployed, deployed_revision, older, failed } =
        deployment.as_ref().map(|deployment| revisions(ctx, namespace, deployment)).unwrap_or_default();
    let budget = owned(&ctx.budgets, namespace, &uid, &names::pod_disruption_budget(&name, track))
        .map(|kept| kept.meta().clone());
    let service =
        owned(&ctx.services, namespace, &uid, &names::service(&name, track)).map(|kept| kept.meta().clone());
    let pool = owned(&ctx.pools, namespace, &uid, &names::pool(&name, track))
        .map(|kept| InferencePool::clone(&kept));
    let config_map = owned(&ctx.config_maps, namespace, &uid, &names::config_map(&name, track))
        .map(|kept| kept.meta().clone());
    let (mut headless, mut digests) = (None, None);
    if track == Track::Stable {
        headless = owned(&ctx.services, namespace, &uid, &names::headless_service(&name))
            .map(|kept| kept.meta().clone());
        digests =
            owned(&ctx.config_maps, namespace, &uid, &names::digests(&name)).map(|kept| kept.meta().clone());
    }
    let pods =
        || deployed.iter().flatten().chain(older.iter().flat_map(|older| &older.pods)).map(AsRef::as_ref);
    let is_stale = ctx.pods.watch_fails_since().is_some() || ctx.inferences.watch_fails_since().is_some();
    let gpu_faults = ctx.agents.faults_of(pods(), is_stale);
    let mut nodes = Nodes::default();
    let mut leaving_nodes = BTreeSet::new();
    if let Some(known) = &ctx.nodes {
        leaving_nodes = leaving(pods(), known);
        nodes = nodes_of(pods(), known, &ctx.losses, now);
        // The watch of AIInferences counts, too: the object may have been paused meanwhile.
        nodes.is_stale = is_stale || known.watch_fails_since().is_some();
    }
    let claim_key = claim_key(&inference);
    let watch_fails = is_stale
        || ctx.deployments.watch_fails_since().is_some()
        || ctx.replica_sets.watch_fails_since().is_some()
        || claim_key.is_some() && ctx.claims.watch_fails_since().is_some()
        || ctx.nodes.as_ref().is_some_and(|known| known.watch_fails_since().is_some());
    let claim = claim_key.and_then(|key| ctx.claims.get(&key));
    let crashed = deployed.iter().flatten().filter(|pod: &&Arc<PodView>| !pod.is_ready);
    let crashes = crashed.map(|pod| (pod.uid().to_owned(), ctx.crashes.of(pod.uid()))).collect();
    let mut facts = ctx.fact_times.of(&uid);
    if track == Track::Canary {
        let own =
            |(fact, since): (String, Timestamp)| Some((fact.strip_prefix(OF_CANDIDATE)?.to_owned(), since));
        facts = facts.into_iter().filter_map(own).collect();
    }
    let unattached = unattached(ctx, deployed.iter().flatten(), &facts);
    let mut observed = Observed {
        inference,
        deployment,
        deployed,
        deployed_revision,
        older,
        failed,
        budget,
        headless,
        digests,
        config_map,
        service,
        pool,
        candidate: None,
        route: None,
        grpc_route: None,
        referred: None,
        evaluation: None,
        has_no_evaluations: false,
        has_no_routes: false,
        has_no_grpc_routes: false,
        has_no_pools: false,
        has_endpoint: None,
        apart: BTreeMap::new(),
        looking: Looking::default(),
        nodes,
        leaving_nodes,
        gpu_faults,
        capacities: None,
        claim,
        watch_fails,
        unattached,
        crashes,
        unrecorded: Vec::new(),
        facts,
        is_newest: false,
        allowance: None,
    };
    if let Some(nodes) = ctx.nodes.as_ref().filter(|_| observed.needs_capacities()) {
        let (nodes, pods) = (nodes.all().into_iter(), ctx.pods.all());
        let resource = &observed.inference.spec.gpu.resource_name;
        observed.capacities = Some(gpu::capacities(nodes, pods.iter().map(AsRef::as_ref), resource));
    }
    observed
}

#[derive(Default)]
struct Revisions {
    deployed: Option<Vec<Arc<PodView>>>,
    deployed_revision: Option<String>,
    older: Vec<OlderRevision>,
    failed: Vec<Arc<PodView>>,
}

/// Revisions are matched by template, as in the Deployment controller. The counts in the Deployment's status are late, and
/// after a change they refer to the previous revision.
fn revisions(ctx: &Context, namespace: &str, deployment: &DeploymentView) -> Revisions {
    let wanted = deployment.template.filter(|_| deployment.metadata.deletion_timestamp.is_none());
    let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
    let mut seen = Revisions::default();
    for revision in ctx.replica_sets.owned_by::<Deployment>(namespace, uid) {
        let uid = revision.metadata.uid.as_deref().unwrap_or_default();
        let mut live = ctx.pods.owned_by::<ReplicaSet>(namespace, uid);
        live.retain(|pod| !pod.is_over());
        // At most one ReplicaSet has this template.
        if seen.deployed.is_none() && wanted.is_some() && revision.template == wanted {
            seen.deployed = Some(live);
            let name = revision.metadata.name.as_deref().and_then(|name| name.rsplit_once('-'));
            seen.deployed_revision = name.map(|(_, hash)| hash.to_owned());
            seen.failed = ctx.failed_pods.owned_by::<ReplicaSet>(namespace, uid);
        } else if !live.is_empty() {
            seen.older.push(OlderRevision { revision, pods: live });
        }
    }
    seen
}

/// Failures to set up pods, by uid of the pod.
fn unattached<'a>(
    ctx: &Context,
    pods: impl Iterator<Item = &'a Arc<PodView>>,
    facts: &BTreeMap<String, Timestamp>,
) -> BTreeMap<String, SetupFailure> {
    let mut waiting = pods.filter(|pod| pod.node.is_some() && !pod.has_started_containers()).peekable();
    if waiting.peek().is_none() {
        return BTreeMap::new();
    }
    let attach = ctx.attach_failures.all();
    let of_kubelet = [ctx.mount_failures.all(), ctx.sandbox_failures.all()].concat();
    let failure = |pod: &Arc<PodView>| SetupFailure::of(pod, &attach, &of_kubelet, facts);
    waiting.filter_map(|pod| Some((pod.uid().to_owned(), failure(pod)?))).collect()
}

impl Observed {
    /// All pods that are neither finished nor being deleted.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &PodView> {
        self.deployed.iter().flatten().map(AsRef::as_ref).chain(self.others())
    }

    /// Pods of other templates than the Deployment's.
    pub(crate) fn others(&self) -> impl Iterator<Item = &PodView> {
        self.older.iter().flat_map(|older| &older.pods).map(AsRef::as_ref)
    }

    /// Whether anything of this version exists.
    pub(crate) fn has_children(&self) -> bool {
        let children = [&self.budget, &self.service, &self.config_map];
        self.deployment.is_some() || self.pool.is_some() || children.into_iter().any(Option::is_some)
    }

    /// As it will be seen after the deletion of these pods, which the status does not record yet.
    pub(crate) fn without<'a>(&self, deleted: impl Iterator<Item = (&'a str, &'a PodMigration)>) -> Self {
        let (uids, migrations): (BTreeSet<&str>, Vec<&PodMigration>) = deleted.unzip();
        let mut left = self.without_pods(&uids);
        left.unrecorded.extend(migrations.into_iter().cloned());
        left
    }

    fn without_pods(&self, uids: &BTreeSet<&str>) -> Self {
        let is_left = |pod: &Arc<PodView>| !uids.contains(pod.uid());
        let mut left = self.clone();
        left.deployed.iter_mut().for_each(|pods| pods.retain(is_left));
        left.older.iter_mut().for_each(|older| older.pods.retain(is_left));
        left.older.retain(|older| !older.pods.is_empty());
        left.crashes.retain(|uid, _| !uids.contains(&**uid));
        left.unattached.retain(|uid, _| !uids.contains(&**uid));
        left.candidate = left.candidate.map(|candidate| Box::new(candidate.without_pods(uids)));
        if !left.needs_capacities() {
            left.capacities = None;
        }
        left
    }

    /// Counting reads all pods of the cluster, so it is done only for an unschedulable pod, and for `Replace`.
    fn needs_capacities(&self) -> bool {
        let may_replace = !self.older.is_empty() || may_roll(&self.inference, self.deployment.as_ref());
        may_replace && self.inference.spec.rollout == Rollout::Replace
            || self.deployed.iter().flatten().any(|pod| pod.is_unschedulable())
    }
}

/// Whether the Deployment's template may change: by a newer spec or by the annotation `refresh`.
fn may_roll(inference: &AIInference, deployment: Option<&DeploymentView>) -> bool {
    let annotations = inference.metadata.annotations.as_ref();
    let is_refreshed = annotations.is_some_and(|known| known.contains_key(labels::REFRESH));
    let generation = inference.metadata.generation.unwrap_or_default().to_string();
    is_refreshed
        || deployment.is_some_and(|deployment| {
            let rendered = deployment.generation.as_deref().and_then(|known| known.split('-').next());
            rendered != Some(&*generation)
        })
}

/// What it asks of a GRPCRoute.
pub(crate) fn grpc_of(inference: &AIInference) -> Option<&GrpcGateway> {
    inference.spec.gateway.as_ref()?.grpc.as_ref()
}

/// What it asks of InferencePools.
pub(crate) fn pool_of(inference: &AIInference) -> Option<&InferencePoolGateway> {
    inference.spec.gateway.as_ref()?.inference_pool.as_ref()
}

/// The HTTPRoute that it refers to.
pub(crate) fn route_key(inference: &AIInference) -> Option<Key> {
    let reference = inference.spec.route_ref.as_ref()?;
    Some(Key::new(inference.metadata.namespace.as_deref()?, &reference.name))
}

/// The key of the claim in `spec.modelSource`, if it names one.
pub(crate) fn claim_key(inference: &AIInference) -> Option<Key> {
    let namespace = inference.metadata.namespace.as_deref().unwrap_or_default();
    match inference.spec.model_source.parse() {
        Ok(ModelSource::Claim { name, path: _ }) => Some(Key::new(namespace, &name)),
        Ok(ModelSource::Store { .. } | ModelSource::Hub { .. }) | Err(_) => None,
    }
}

/// Records node losses from every change of a node.
pub(crate) fn track_losses(nodes: &Cache<NodeView>) -> Arc<Mutex<NodeLosses>> {
    let losses = Arc::new(Mutex::new(NodeLosses::default()));
    let shared = Arc::clone(&losses);
    nodes.subscribe(move |change| {
        if let Some(node) = change.new {
            shared.lock().unwrap_or_else(PoisonError::into_inner).note(&change.key.name, node);
        }
    });
    losses
}

/// Causes of crashes; entries of deleted pods are removed.
pub(crate) fn track_crashes(pods: &Cache<PodView>) -> Arc<Crashes> {
    let crashes = Arc::<Crashes>::default();
    let shared = Arc::clone(&crashes);
    pods.subscribe(move |change| {
        if let Some(pod) = change.gone() {
            shared.forget(pod.uid());
        }
    });
    crashes
}

/// The AIInference whose labels a pod or a ReplicaSet has.
pub(crate) fn keys_by_instance(object: &impl OfInstance) -> Vec<Key> {
    let found = object.belongs_to(names::KIND);
    found.map(|(namespace, name)| Key::new(namespace, name)).into_iter().collect()
}

/// A pod that comes up in good order is looked at together with what follows: its next steps are seconds away, and the
/// status reports few of them.
pub(crate) fn reason_of_pod(old: Option<&PodView>, new: Option<&PodView>) -> Reason {
    let comes_up = old.is_none_or(PodView::is_coming_up) && new.is_some_and(PodView::is_coming_up);
    if comes_up { Reason::Detail } else { Reason::Event }
}

/// A new ReplicaSet is followed by its pods.
pub(crate) fn reason_of_replica_set(old: Option<&ReplicaSetView>, _new: Option<&ReplicaSetView>) -> Reason {
    if old.is_none() { Reason::Detail } else { Reason::Event }
}

/// The number of pods of all AIInferences.
pub(crate) fn count_managed(pods: &Cache<PodView>) -> usize {
    pods.all().iter().filter(|pod| !keys_by_instance(&***pod).is_empty()).count()
}

/// The AIInference of the pod that an event is about.
pub(crate) fn keys_of_event(pods: &Cache<PodView>, event: &EventView) -> Vec<Key> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let pod = pods.get(&Key::new(namespace, &event.object)).filter(|pod| event.is_about(pod));
    pod.map(|pod| keys_by_instance(&*pod)).unwrap_or_default()
}

/// The AIInferences with pods on a node that is lost, deleted or about to go.
pub(crate) fn keys_on_lost(known: &Cache<NodeView>, pods: &Cache<PodView>, node: &NodeView) -> Vec<Key> {
    if known.get(&Key::of(node)).is_some() && node.lost().is_none() && !node.is_leaving() {
        return Vec::new();
    }
    let pods = pods.all();
    let stranded = pods.iter().filter(|pod| pod.node.as_deref() == Some(node.name()));
    stranded.flat_map(|pod| keys_by_instance(&**pod)).collect()
}

fn nodes_of<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    known: &Cache<NodeView>,
    losses: &Mutex<NodeLosses>,
    now: Timestamp,
) -> Nodes {
    let names = pods.filter_map(|pod| pod.node.as_deref());
    Nodes::of(names, |name| known.get(&Key::new("", name)), || known.all(), losses, now)
}

/// The nodes of these pods that are about to go.
fn leaving<'a>(pods: impl Iterator<Item = &'a PodView>, known: &Cache<NodeView>) -> BTreeSet<String> {
    let names = pods.filter_map(|pod| pod.node.as_deref());
    let is_leaving = |name: &&str| known.get(&Key::new("", name)).is_some_and(|node| node.is_leaving());
    names.filter(is_leaving).map(str::to_owned).collect()
}

fn owned<V: Resource>(children: &Cache<V>, namespace: &str, uid: &str, name: &str) -> Option<Arc<V>> {
    let owned = children.owned_by::<AIInference>(namespace, uid);
    owned.into_iter().find(|child| child.meta().name.as_deref() == Some(name))
}

#[cfg(test)]
mod tests {
    use crate::tests::{at, inference, pod};

    use super::*;

    fn node(name: &str, status: &str) -> NodeView {
        let text = format!(
            "{{metadata: {{name: {name}, uid: {name}, resourceVersion: '7'}}, status: {{conditions: \
             [{{type: Ready, status: '{status}', lastTransitionTime: '{}'}}]}}}}",
            at(0)
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn lost_nodes_are_counted_over_the_cluster() {
        let known = Cache::default();
        let losses = track_losses(&known);
        for (name, status) in [("a", "Unknown"), ("b", "False"), ("c", "True")] {
            known.upsert(node(name, status));
        }
        let of = |name: &str| {
            let pod = pod(&format!("{{node: {name}}}"));
            let Nodes { lost, down, all, is_stale: _ } =
                nodes_of(std::iter::once(&pod), &known, &losses, at(1));
            (lost.len(), down, all)
        };
        assert_eq!(of("a"), (1, 2, 3));
        assert_eq!(of("c"), (0, 0, 0));
        assert_eq!(of("deleted"), (1, 2, 3));
    }

    #[test]
    fn a_child_in_another_namespace_is_ignored() {
        let children: Cache<DeploymentView> = Cache::default();
        let kind = "apiVersion: ai.infra.example.com/v1alpha1, kind: AIInference";
        for namespace in ["attacker", "demo"] {
            let child = format!(
                "{{metadata: {{name: chat, namespace: {namespace}, uid: of-{namespace}, \
                 ownerReferences: [{{{kind}, name: chat, uid: uid-of-chat, controller: true}}]}}}}"
            );
            children.upsert(serde_saphyr::from_str(&child).unwrap());
        }
        let child = owned(&children, "demo", "uid-of-chat", "chat").unwrap();
        assert_eq!(child.metadata.uid.as_deref(), Some("of-demo"));
        assert!(owned(&children, "another", "uid-of-chat", "chat").is_none());
    }

    #[test]
    fn an_event_enqueues_the_owner_of_its_pod_by_uid() {
        let pods = Cache::default();
        pods.upsert(pod("{node: a}"));
        let keys = |namespace: &str, name: &str, uid: &str| {
            let event = format!(
                "{{metadata: {{name: a, namespace: {namespace}}}, involvedObject: {{name: {name}, uid: {uid}}}}}"
            );
            let keys = keys_of_event(&pods, &serde_saphyr::from_str(&event).unwrap());
            keys.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(keys("demo", "chat-0", "chat-0"), ["demo/chat"]);
        assert!(keys("demo", "chat-0", "its-predecessor").is_empty());
        assert!(keys("attacker", "chat-0", "chat-0").is_empty());
        assert!(keys("demo", "chat-1", "chat-0").is_empty());
    }

    #[test]
    fn only_a_lost_or_deleted_node_enqueues_the_objects_on_it() {
        let (known, pods) = (Cache::default(), Cache::default());
        pods.upsert(pod("{node: a}"));
        let keys = |node: &NodeView| keys_on_lost(&known, &pods, node).len();
        let (well, lost) = (node("a", "True"), node("a", "Unknown"));
        known.upsert(well.clone());
        assert_eq!((keys(&well), keys(&lost), keys(&node("b", "Unknown"))), (0, 1, 0));
        known.replace(Vec::new(), "8");
        assert_eq!(keys(&well), 1, "the node is deleted");
    }

    #[test]
    fn only_a_pod_that_has_come_up_or_fails_is_looked_at_at_once() {
        let container = |state: &str| format!("{{containers: [{{name: engine, {state}}}], node: a}}");
        let steps: Vec<PodView> = [
            "{}".to_owned(),
            "{node: a}".to_owned(),
            container("state: {waiting: {reason: ContainerCreating}}"),
            container("state: {running: {}}"),
        ]
        .iter()
        .map(|parts| pod(parts))
        .collect();
        assert_eq!(reason_of_pod(None, steps.first()), Reason::Detail);
        for (old, new) in steps.iter().zip(&steps[1..]) {
            assert_eq!(reason_of_pod(Some(old), Some(new)), Reason::Detail, "{new:?}");
        }
        let running = steps.last();
        for parts in [
            "{ready: true, node: a}".to_owned(),
            "{conditions: [{type: PodScheduled, status: 'False'}]}".to_owned(),
            container("state: {waiting: {reason: ImagePullBackOff}}"),
            container("state: {terminated: {exitCode: 1}}"),
            container("restartCount: 1, state: {running: {}}"),
        ] {
            let now = pod(&parts);
            assert_eq!(reason_of_pod(running, Some(&now)), Reason::Event, "{parts}");
            assert_eq!(reason_of_pod(Some(&now), running), Reason::Event, "and that it ends: {parts}");
            assert_eq!(reason_of_pod(None, Some(&now)), Reason::Event, "{parts}");
        }
        assert_eq!(reason_of_pod(running, None), Reason::Event);
    }

    #[test]
    fn a_newer_spec_and_the_refresh_annotation_may_change_the_template() {
        let mut inference = inference("{modelSource: s3://models, engine: vllm, gpu: {count: 1}}");
        let of =
            |generation: &str| DeploymentView { generation: Some(generation.into()), ..Default::default() };
        assert_eq!(
            [may_roll(&inference, Some(&of("1"))), may_roll(&inference, Some(&of("0")))],
            [false, true]
        );
        inference.metadata.annotations = Some([(labels::REFRESH.to_owned(), "1".to_owned())].into());
        assert!(may_roll(&inference, Some(&of("1"))));
    }

    #[test]
    fn a_claim_enqueues_the_objects_that_read_it() {
        let read = |source: &str| {
            let key = claim_key(&inference(&format!(
                "{{modelSource: '{source}', engine: vllm, gpu: {{count: 1}}}}"
            )));
            key.map(|key| key.to_string())
        };
        assert_eq!(read("pvc://models").as_deref(), Some("demo/models"));
        assert_eq!(read("pvc://models/a").as_deref(), Some("demo/models"));
        assert_eq!(read("s3://models/a"), None);
    }
}
