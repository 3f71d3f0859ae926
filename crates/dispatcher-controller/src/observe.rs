//! Collects everything that the plan of one AIDispatcher needs from the caches and the records in memory. It sends nothing, and
//! records the load in `pools`.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use api::{
    aidispatcher::{AIDispatcher, Queue, Tokens},
    conditions, reasons,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::Resource;
use runtime::{
    cache::{Cache, Key},
    polling::Polled,
    queue::Reason,
};
use scaling::history::History;
use workload::{
    claim::ClaimView,
    deployment::{DeploymentView, OlderRevision, ReplicaSetView},
    pod::{Instance, PodView},
    time::elapsed,
};

use crate::{
    Context, MEASURED_EVERY,
    budgets::BudgetView,
    monitors::WorkerLoad,
    names,
    pools::{Observation, PoolLoad, TokenRate},
    revisions::Revision,
    tokens,
};

/// One AIDispatcher with its children, from the caches.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) dispatcher: Arc<AIDispatcher>,
    pub(crate) deployment: Option<DeploymentView>,
    /// Pods of the Deployment's present template that do not end; `None` while no ReplicaSet has it.
    pub(crate) deployed: Option<Vec<Arc<PodView>>>,
    /// Revisions with other templates that have such pods.
    pub(crate) older: Vec<OlderRevision>,
    /// Failed pods of the Deployment's present template.
    pub(crate) failed: Vec<Arc<PodView>>,
    /// Pods that end, have ended or were deleted lately, for what their monitors have left.
    pub(crate) ending: Vec<Arc<PodView>>,
    /// The claim for checkpoints.
    pub(crate) claim: Option<Arc<ClaimView>>,
    /// The PodDisruptionBudget that has the name of the pool's own one. It may have another owner.
    pub(crate) budget: Option<Arc<BudgetView>>,
    /// Those of the namespace that belong to no AIDispatcher.
    pub(crate) other_budgets: Vec<Arc<BudgetView>>,
    /// When the API server has last refused the annotations of pods for node autoscalers.
    pub(crate) guards_refused: Option<Timestamp>,
    /// By uid of each pod that does not end.
    pub(crate) loads: BTreeMap<String, WorkerLoad>,
    /// By pod, with the current readings.
    pub(crate) tokens: Tokens,
    pub(crate) token_rate: TokenRate,
    pub(crate) history: History,
    /// The API server has confirmed that there is no newer version of the object.
    pub(crate) is_newest: bool,
    /// When this process first observed the object.
    pub(crate) first_observed: Timestamp,
    /// A kind whose watch fails, so that what is known of the pods may be out of date.
    pub(crate) unwatched: Option<&'static str>,
    /// Facts of the last plan, and since when each has been true.
    pub(crate) facts: BTreeMap<String, Timestamp>,
}

pub(crate) fn observe(ctx: &Context, dispatcher: Arc<AIDispatcher>, now: Timestamp) -> Observed {
    let uid = dispatcher.metadata.uid.clone().unwrap_or_default();
    let namespace = &*dispatcher.metadata.namespace.clone().unwrap_or_default();
    let name = dispatcher.metadata.name.clone().unwrap_or_default();
    let deployment = owned(&ctx.deployments, namespace, &uid, &names::deployment(&name))
        .map(|kept| DeploymentView::clone(&kept));
    let (mut deployed, mut older) = (None, Vec::new());
    let (mut failed, mut ending) = (Vec::new(), Vec::new());
    let mut revisions = ctx.revisions.of(&uid);
    let mut looked_at: BTreeSet<Revision> = BTreeSet::new();
    if let Some(deployment) = &deployment {
        // Revisions are matched by template, as in the Deployment controller. The counts in the Deployment's status are
        // late, and after a change they refer to the previous revision.
        let wanted = deployment.template.filter(|_| deployment.metadata.deletion_timestamp.is_none());
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        for revision in &ctx.replica_sets.owned_by::<Deployment>(namespace, uid) {
            let uid = revision.metadata.uid.as_deref().unwrap_or_default();
            looked_at.insert(Revision::new(namespace, uid));
            let (over, live): (Vec<_>, Vec<_>) =
                ctx.pods.owned_by::<ReplicaSet>(namespace, uid).into_iter().partition(|pod| pod.is_over());
            // At most one ReplicaSet has this template.
            if deployed.is_none() && wanted.is_some() && revision.template == wanted {
                deployed = Some(live);
                failed = over.iter().filter(|pod| pod.phase == "Failed").cloned().collect();
            } else if !live.is_empty() {
                older.push(OlderRevision { revision: Arc::clone(revision), pods: live });
            }
            ending.extend(over);
        }
    }
    // Of ReplicaSets that are deleted, or whose Deployment has lost its owner, pods can still end.
    for revision in revisions.difference(&looked_at) {
        let pods = ctx.pods.owned_by::<ReplicaSet>(&revision.namespace, &revision.uid);
        ending.extend(pods.into_iter().filter(|pod| pod.is_over()));
    }
    revisions.append(&mut looked_at);
    let live = || deployed.iter().flatten().chain(older.iter().flat_map(|older| &older.pods));
    let loads: BTreeMap<String, WorkerLoad> =
        live().map(|pod| (pod.uid().to_owned(), ctx.load_of(&uid, pod, now))).collect();
    let stored = dispatcher.status.as_ref().and_then(|status| status.tokens.clone()).unwrap_or_default();
    let noted = ctx.tokens.of(&revisions, &stored, now);
    let present: BTreeSet<&str> = noted.existing.iter().map(String::as_str).collect();
    let tokens = tokens::counted(&stored, &noted.tokens, &present, now);
    ending.extend(ctx.deleted_pods.of(&revisions, now));
    let load = pool_load(loads.iter().map(|(uid, load)| (&**uid, load)));
    let pool = ctx.pools.record(&uid, Observation { at: now, load });
    // Without a present count of any worker there is no rate.
    let readings = loads.iter().filter(|(_, load)| load.counts_tokens);
    let readings = readings.filter_map(|(uid, load)| Some((&**uid, load.tokens?)));
    let token_rate = ctx.pools.rate(&uid, readings, now);
    let claim = claim_key(&dispatcher).and_then(|key| ctx.claims.get(&key));
    Observed {
        claim,
        budget: ctx.all_budgets.all.get(&Key::new(namespace, &names::disruption_budget(&name))),
        other_budgets: ctx.all_budgets.of_others(namespace),
        guards_refused: ctx.guard_refusals.of(&uid).into_values().next(),
        token_rate,
        is_newest: false,
        first_observed: pool.first_observed.unwrap_or(now),
        history: pool.history_or(dispatcher.status.as_ref(), now),
        facts: ctx.fact_times.of(&uid),
        unwatched: unwatched(ctx),
        dispatcher,
        deployment,
        deployed,
        older,
        failed,
        ending,
        loads,
        tokens,
    }
}

/// A blind cache says neither which pods there are nor that there are none.
fn unwatched(ctx: &Context) -> Option<&'static str> {
    let watches = [
        ("pods", ctx.pods.watch_fails_since()),
        ("ReplicaSets", ctx.replica_sets.watch_fails_since()),
        ("Deployments", ctx.deployments.watch_fails_since()),
        ("AIDispatchers", ctx.dispatchers.watch_fails_since()),
    ];
    watches.into_iter().find_map(|(kind, since)| since.map(|_| kind))
}

/// Whether the load of a pool is worth a reconcile: at once if replicas follow it, else when a status may have it.
pub(crate) fn look(ctx: &Context, dispatcher: &AIDispatcher, now: Timestamp) -> Polled {
    let Some(uid) = &dispatcher.metadata.uid else { return Polled::Unchanged };
    let Some(Observation { at, load: before }) = ctx.pools.last(uid) else { return Polled::Unchanged };
    let is_at_once = follows_load(dispatcher);
    // An observation time in the future means that the clock was set back.
    let is_due = elapsed(at, now) >= MEASURED_EVERY || at > now;
    if !is_at_once && !is_due {
        return Polled::Unchanged;
    }
    let namespace = dispatcher.metadata.namespace.as_deref().unwrap_or_default();
    let name = dispatcher.metadata.name.as_deref().unwrap_or_default();
    let Some(deployment) = owned(&ctx.deployments, namespace, uid, &names::deployment(name)) else {
        return Polled::Unchanged;
    };
    let deployment = deployment.metadata.uid.as_deref().unwrap_or_default();
    let revisions = ctx.replica_sets.owned_by::<Deployment>(namespace, deployment);
    let pods = revisions.iter().filter_map(|revision| revision.metadata.uid.as_deref());
    let pods = pods.flat_map(|uid| ctx.pods.owned_by::<ReplicaSet>(namespace, uid));
    let live: Vec<Arc<PodView>> = pods.filter(|pod| !pod.is_over()).collect();
    let loads: Vec<(&str, WorkerLoad)> =
        live.iter().map(|pod| (pod.uid(), ctx.load_of(uid, pod, now))).collect();
    let load = pool_load(loads.iter().map(|(uid, load)| (*uid, load)));
    let without_tokens =
        |load: PoolLoad| PoolLoad { tokens: 0, saved: 0, unsaved: 0, replaceable: 0, ..load };
    let is_news = if is_due { load != before } else { without_tokens(load) != without_tokens(before) };
    if is_news { Polled::Changed } else { Polled::Unchanged }
}

/// Whether the number of workers can follow the load now. If the spec is invalid or a child is refused, each reconcile would
/// only repeat a write.
fn follows_load(dispatcher: &AIDispatcher) -> bool {
    let conditions = dispatcher.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|condition| condition.type_ == conditions::READY);
    let is_held = ready.any(|ready| HELD_REASONS.contains(&&*ready.reason));
    dispatcher.spec.autoscaling.is_some() && !dispatcher.spec.pods.paused && !is_held
}

const HELD_REASONS: [&str; 3] = [reasons::DENIED, reasons::INVALID_SPEC, reasons::OWNERSHIP_CONFLICT];

/// With the uid of each pod.
fn pool_load<'l>(loads: impl Iterator<Item = (&'l str, &'l WorkerLoad)>) -> PoolLoad {
    let mut sum = PoolLoad::default();
    for (uid, load) in loads {
        sum.queued = sum.queued.saturating_add(load.queued.map_or(0, |(queued, _)| queued));
        sum.busy += u32::from(load.in_flight.is_some_and(|tasks| tasks > 0));
        sum.unknown += u32::from(load.queued.is_none() || load.in_flight.is_none());
        sum.tokens = sum.tokens.saturating_add(load.tokens.unwrap_or_default());
        if load.unsaved.is_some() || load.damaged.is_some() {
            let mut hash = DefaultHasher::new();
            (uid, &load.unsaved, &load.damaged).hash(&mut hash);
            sum.unsaved = sum.unsaved.wrapping_add(hash.finish());
        }
        sum.replaceable += u32::from(load.unclaimed.is_some_and(|states| states > 0));
        sum.waiting = sum.waiting.saturating_add(load.waiting.unwrap_or_default());
        sum.saved = sum.saved.max(load.saved.unwrap_or_default());
    }
    sum
}

impl Observed {
    /// All pods that are neither finished nor being deleted.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<PodView>> {
        self.deployed.iter().flatten().chain(self.older.iter().flat_map(|older| &older.pods))
    }

    /// The number of the Deployment; 0 before it exists.
    pub(crate) fn deployed_replicas(&self) -> i32 {
        self.deployment.as_ref().map_or(0, |deployment| deployment.replicas)
    }

    /// Whether all workers report the depth of one queue.
    pub(crate) fn has_shared_queue(&self) -> bool {
        self.dispatcher.spec.autoscaling.as_ref().is_some_and(|scaled| scaled.queue == Queue::Shared)
    }

    /// Tasks that wait; `None`: no worker reports it. Of a shared queue the largest depth counts: workers are read one after
    /// the other, and a worker must not be removed because another one was read later.
    pub(crate) fn queue_depth(&self) -> Option<u64> {
        let depths = self.loads.values().filter_map(|load| load.queued).map(|(depth, _)| depth);
        if self.has_shared_queue() { depths.max() } else { depths.reduce(u64::saturating_add) }
    }

    pub(crate) fn load_of(&self, pod: &PodView) -> Option<&WorkerLoad> {
        self.loads.get(pod.uid())
    }
}

/// The key of the claim in `spec.checkpoint`, if it names one.
pub(crate) fn claim_key(dispatcher: &AIDispatcher) -> Option<Key> {
    let namespace = dispatcher.metadata.namespace.as_deref().unwrap_or_default();
    let claim = dispatcher.spec.checkpoint.as_ref()?.claim_name.as_deref()?;
    Some(Key::new(namespace, claim))
}

/// Objects whose labels name the instance that they belong to.
pub(crate) trait ForInstance: Resource {
    fn instance(&self) -> Option<&Instance>;
}

impl ForInstance for PodView {
    fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }
}

impl ForInstance for ReplicaSetView {
    fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }
}

pub(crate) fn keys_by_instance<V: ForInstance>(object: &V) -> Vec<Key> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    let name = object.instance().and_then(|instance| instance.of_kind(names::KIND));
    name.map(|name| Key::new(namespace, name)).into_iter().collect()
}

/// A change of a pod that starts without a fault is not urgent: its next changes follow within seconds, and the status
/// reports few of them.
pub(crate) fn reason_of_pod(old: Option<&PodView>, new: Option<&PodView>) -> Reason {
    let comes_up = old.is_none_or(PodView::is_coming_up) && new.is_some_and(PodView::is_coming_up);
    if comes_up { Reason::Detail } else { Reason::Event }
}

/// A new ReplicaSet is followed by its pods.
pub(crate) fn reason_of_replica_set(old: Option<&ReplicaSetView>, _new: Option<&ReplicaSetView>) -> Reason {
    if old.is_none() { Reason::Detail } else { Reason::Event }
}

fn owned<V: Resource>(children: &Cache<V>, namespace: &str, uid: &str, name: &str) -> Option<Arc<V>> {
    let owned = children.owned_by::<AIDispatcher>(namespace, uid);
    owned.into_iter().find(|child| child.meta().name.as_deref() == Some(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tests::{at, dispatcher};

    use super::*;

    #[test]
    fn a_claim_enqueues_the_objects_that_save_to_it() {
        let key = |spec: &str| claim_key(&dispatcher(spec)).map(|key| key.to_string());
        assert_eq!(key("{role: coder, checkpoint: {claimName: states}}").as_deref(), Some("demo/states"));
        assert_eq!(key("{role: coder, checkpoint: {uri: s3://states}}"), None);
        assert_eq!(key("{role: coder}"), None);
    }

    #[test]
    fn a_load_that_is_not_known_is_counted_as_such() {
        let known = WorkerLoad {
            queued: Some((3, at(0))),
            in_flight: Some(1),
            tokens: Some(7),
            ..WorkerLoad::default()
        };
        let loads = [known.clone(), WorkerLoad { in_flight: Some(0), ..known }, WorkerLoad::default()];
        assert_eq!(
            pool_load(loads.iter().map(|load| ("a", load))),
            PoolLoad { queued: 6, busy: 1, unknown: 1, tokens: 14, ..PoolLoad::default() }
        );
    }

    #[test]
    fn another_cause_or_worker_whose_state_is_not_saved_is_another_load() {
        let unsaved = |uid: &str, why: &str| {
            let load = WorkerLoad { unsaved: Some(why.to_owned()), ..WorkerLoad::default() };
            pool_load([(uid, &load)].into_iter())
        };
        assert_eq!(unsaved("a", "no bucket"), unsaved("a", "no bucket"));
        assert_ne!(unsaved("a", "no bucket"), unsaved("a", "access denied"));
        assert_ne!(unsaved("a", "no bucket"), unsaved("b", "no bucket"));
    }

    #[test]
    fn the_load_is_not_followed_at_once_while_nothing_can_be_written() {
        let follows = |spec: &str, reason: &str| {
            let mut dispatcher = dispatcher(spec);
            let ready = json!({
                "type": "Ready", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": at(0).to_string(),
            });
            let status = json!({"conditions": [ready]});
            dispatcher.status = Some(serde_json::from_value(status).unwrap());
            follows_load(&dispatcher)
        };
        let scaled = "{role: coder, autoscaling: {}}";
        assert!(follows(scaled, reasons::READY));
        assert!(follows(scaled, reasons::UNSCHEDULABLE));
        for held in HELD_REASONS {
            assert!(!follows(scaled, held), "{held}");
        }
        assert!(!follows("{role: coder, autoscaling: {}, paused: true}", reasons::READY));
        assert!(!follows("{role: coder}", reasons::READY));
    }
}
