//! Collects everything that the plan of one AIDispatcher needs from the caches and the records in memory. It sends nothing, and
//! records the load in `pools`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    aidispatcher::{AIDispatcher, Queue, Tokens},
    conditions, reasons,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, ReplicaSet},
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use runtime::{key::Key, polling::Polled, watch::cache::Cache};
use scaling::{
    flow::{PodCounts, PodMeter},
    history::History,
};
use workload::{
    templates::deployment::{DeploymentView, OlderRevision},
    time::elapsed,
    views::{claim::ClaimView, pod::PodView},
};

use crate::{
    Context, MEASURED_EVERY,
    load::{PoolLoad, WorkerLoad},
    names,
    records::{
        pools::{Observation, Tasks, TokenRate},
        revisions::Revision,
        tokens,
    },
    relations::{budgets::BudgetView, claim_key},
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
    /// The Services of the pool that exist.
    pub(crate) services: Vec<ObjectMeta>,
    /// Budgets of the namespace that belong to no AIDispatcher.
    pub(crate) other_budgets: Vec<Arc<BudgetView>>,
    /// When the API server has last refused the annotations of pods for node autoscalers.
    pub(crate) guards_refused: Option<Timestamp>,
    /// By uid of each pod that does not end.
    pub(crate) loads: BTreeMap<String, WorkerLoad>,
    /// By pod, with the current readings.
    pub(crate) tokens: Tokens,
    pub(crate) token_rate: TokenRate,
    /// What arrives, of workers that count the tasks that have ended.
    pub(crate) meter: Option<Arc<PodMeter>>,
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
    let Pods { deployed, older, failed, mut ending, revisions } =
        pods(ctx, namespace, &uid, deployment.as_ref());
    ending.extend(ctx.deleted_pods.of(&revisions, now));
    let live = || deployed.iter().flatten().chain(older.iter().flat_map(|older| &older.pods));
    let loads: BTreeMap<String, WorkerLoad> =
        live().map(|pod| (pod.uid().to_owned(), ctx.load_of(&uid, pod, now))).collect();
    let load = PoolLoad::of(loads.iter().map(|(uid, load)| (&**uid, load)));
    // Without a present count of any worker there is no rate.
    let readings = loads.iter().filter(|(_, load)| load.counts_tokens);
    let readings = readings.filter_map(|(uid, load)| Some((&**uid, load.tokens?)));
    let tasks = tasks(&dispatcher, live(), &loads);
    let (pool, token_rate) = ctx.pools.record(&uid, Observation { at: now, load }, readings, &tasks);
    let claim = claim_key(&dispatcher).and_then(|key| ctx.claims.get(&key));
    Observed {
        tokens: counted_tokens(ctx, &dispatcher, &revisions, now),
        claim,
        budget: ctx.all_budgets.all.get(&Key::new(namespace, &names::disruption_budget(&name))),
        services: services(ctx, namespace, &uid),
        other_budgets: ctx.all_budgets.of_others(namespace),
        guards_refused: ctx.guard_refusals.of(&uid).into_values().next(),
        token_rate,
        meter: pool.meter.clone(),
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
    }
}

/// The tasks of the pods that do not end. Of a queue that all workers report, the largest depth counts, as in
/// [`Observed::queue_depth`].
fn tasks<'p>(
    dispatcher: &AIDispatcher,
    pods: impl Iterator<Item = &'p Arc<PodView>>,
    loads: &BTreeMap<String, WorkerLoad>,
) -> Tasks {
    let is_shared = has_shared_queue(dispatcher);
    let mut tasks = Tasks { shared: is_shared.then_some(0.0), ..Tasks::default() };
    for pod in pods {
        let uid = pod.uid().to_owned();
        tasks.live.insert(uid.clone());
        let load = loads.get(pod.uid());
        let known = load.and_then(|load| Some((load.queued?.0, load.in_flight?, load.finished?)));
        // A worker may not be Ready while it works.
        if pod.is_ready || known.is_some() {
            tasks.expected.insert(uid.clone());
        }
        let Some((queued, running, finished)) = known else { continue };
        let queued = queued as f64;
        let waiting = match &mut tasks.shared {
            Some(shared) => {
                *shared = shared.max(queued);
                0.0
            }
            None => queued,
        };
        tasks.counts.push(PodCounts {
            uid,
            finished: finished as f64,
            waiting,
            running: running as f64,
            tokens: 0.0,
        });
    }
    tasks
}

/// Whether all workers report the depth of one queue.
fn has_shared_queue(dispatcher: &AIDispatcher) -> bool {
    dispatcher.spec.autoscaling.as_ref().is_some_and(|scaled| scaled.queue == Queue::Shared)
}

fn services(ctx: &Context, namespace: &str, uid: &str) -> Vec<ObjectMeta> {
    let services = ctx.services.owned_by::<AIDispatcher>(namespace, uid);
    services.iter().map(|service| service.meta().clone()).collect()
}

/// The pods of one AIDispatcher.
struct Pods {
    deployed: Option<Vec<Arc<PodView>>>,
    older: Vec<OlderRevision>,
    failed: Vec<Arc<PodView>>,
    ending: Vec<Arc<PodView>>,
    /// The ReplicaSets that they belong to, or have belonged to.
    revisions: BTreeSet<Revision>,
}

/// Revisions are matched by template, as in the Deployment controller. The counts in the Deployment's status are late, and
/// after a change they refer to the previous revision.
fn pods(ctx: &Context, namespace: &str, uid: &str, deployment: Option<&DeploymentView>) -> Pods {
    let mut revisions = ctx.revisions.of(uid);
    let (mut deployed, mut older) = (None, Vec::new());
    let (mut failed, mut ending) = (Vec::new(), Vec::new());
    let mut looked_at: BTreeSet<Revision> = BTreeSet::new();
    if let Some(deployment) = deployment {
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
    Pods { deployed, older, failed, ending, revisions }
}

/// The stored tokens with the current readings of these ReplicaSets' pods.
fn counted_tokens(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    revisions: &BTreeSet<Revision>,
    now: Timestamp,
) -> Tokens {
    let stored = dispatcher.status.as_ref().and_then(|status| status.tokens.clone()).unwrap_or_default();
    let noted = ctx.tokens.of(revisions, &stored, now);
    let present: BTreeSet<&str> = noted.existing.iter().map(String::as_str).collect();
    tokens::counted(&stored, &noted.tokens, &present, now)
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
    let load = PoolLoad::of(loads.iter().map(|(uid, load)| (*uid, load)));
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
        has_shared_queue(&self.dispatcher)
    }

    /// Tasks that wait; `None`: no worker reports it. Of a shared queue the largest depth counts: workers are read one after
    /// the other, and a worker must not be removed because another one was read later.
    pub(crate) fn queue_depth(&self) -> Option<u64> {
        let depths = self.loads.values().filter_map(|load| load.queued).map(|(depth, _)| depth);
        if self.has_shared_queue() { depths.max() } else { depths.reduce(u64::saturating_add) }
    }

    /// The condition of the last status.
    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        let mut conditions = self.dispatcher.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|condition| condition.type_ == type_)
    }

    pub(crate) fn load_of(&self, pod: &PodView) -> Option<&WorkerLoad> {
        self.loads.get(pod.uid())
    }
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
    fn tasks_are_those_of_all_pods_that_report_and_a_shared_queue_counts_once() {
        let mut scene = crate::tests::Scene::ready("{role: coder, autoscaling: {queue: Shared}}", 3);
        let node = "node: a, phase: Running";
        scene.pods(&[
            &format!("{{name: coder-0, ready: true, {node}}}"),
            &format!("{{name: coder-1, ready: false, {node}}}"),
            &format!("{{name: coder-2, ready: false, {node}}}"),
        ]);
        let counted = |queued, running, finished| WorkerLoad {
            finished: Some(finished),
            ..crate::tests::load(queued, running)
        };
        scene.loads(vec![counted(7, 1, 20), counted(8, 1, 30)]);
        let observed = scene.observed();
        let of = |observed: &Observed| tasks(&observed.dispatcher, observed.pods(), &observed.loads);
        let shared = of(observed);
        assert_eq!(shared.shared, Some(8.0));
        let counts = |tasks: &Tasks| {
            let counts = tasks.counts.iter();
            counts.map(|pod| [pod.waiting, pod.running, pod.finished]).collect::<Vec<_>>()
        };
        assert_eq!(counts(&shared), [[0.0, 1.0, 20.0], [0.0, 1.0, 30.0]]);
        assert_eq!(
            (shared.expected.len(), shared.live.len()),
            (2, 3),
            "the third reports nothing and is not Ready"
        );
        scene.edit_spec(|spec| spec.autoscaling.as_mut().unwrap().queue = Queue::PerWorker);
        let each = of(scene.observed());
        assert_eq!((each.shared, counts(&each)[1]), (None, [8.0, 1.0, 30.0]));
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
