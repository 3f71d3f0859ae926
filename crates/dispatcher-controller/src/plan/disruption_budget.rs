//! The PodDisruptionBudget: a drain ends the workers of a pool one after the other. Pure.
//!
//! It gives way where workers are missing anyway: a worker that finds no node must not stop every drain of the cluster. It
//! also gives way to a budget of the user: the API server refuses every eviction of a pod that two budgets select.

use std::{collections::BTreeMap, time::Duration};

use api::{aidispatcher::AIDispatcher, conditions::DISRUPTION_BUDGET_OMITTED, reasons};
use jiff::Timestamp;
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
        util::intstr::IntOrString,
    },
};
use runtime::{
    watch::cache::controller_of,
    write::{conditions::Verdict, refusal::Refusal},
};
use serde::Deserialize;
use workload::{time::remaining, views::pod::PodView};

use super::{
    metadata::{labels_of, metadata, selector},
    number,
    omission::{self, TRIED_AGAIN_AFTER},
    replicas::{
        marks::{LONGEST_TASK, has_tasks_now},
        was_ready,
    },
};
use crate::{
    names,
    observe::Observed,
    relations::budgets::{BudgetView, COUNTS_UNREADY},
    validate::owner,
};

/// A worker that is missing for longer does not hold evictions back. Most memories are loaded by then.
const MISSING_FOR: Duration = Duration::from_secs(300);
/// The budget does not follow each task of a worker that is not ready while it works.
const COUNTED_FOR: Duration = Duration::from_secs(60);
/// The fact that no worker with tasks is not ready.
const BUSY_ARE_READY: &str = "workers with tasks are ready";
/// The budget to write, and why there is none.
#[derive(Debug, Default)]
pub(super) struct Guarding {
    /// `None`: it stays as it is.
    pub(super) budget: Option<Box<PodDisruptionBudget>>,
    /// Present only while the pool has no budget of its own. Nothing else depends on it.
    pub(super) omitted: Option<Verdict>,
    pub(super) facts: Vec<String>,
    /// When this may change although no object changes.
    pub(super) requeue_after: Option<Duration>,
}

pub(super) fn guarding(observed: &Observed, now: Timestamp) -> Guarding {
    // The pods are not known.
    if observed.unwatched.is_some() {
        return Guarding { omitted: reported(observed), ..Guarding::default() };
    }
    if let Some(other) = other_of_workers(observed) {
        // The role has no right to delete budgets; one that selects no pod does nothing.
        let budget = own(observed).and_then(|_| budget(observed, Selection::Nothing, 0, false));
        return Guarding { budget, omitted: Some(given_way(other)), ..Guarding::default() };
    }
    let refused = omission::reported(DISRUPTION_BUDGET_OMITTED, observed);
    let tried = format!("tried to write the budget in minute {}", now.as_second() / 60);
    if refused.is_some() && observed.facts.contains_key(&tried) {
        let requeue_after = Some(TRIED_AGAIN_AFTER);
        return Guarding { budget: None, omitted: refused, facts: vec![tried], requeue_after };
    }
    let Counting { counts, fact, requeue_after } = counting(observed, now);
    // A worker that was too busy to be ready is ready soon after its task.
    let (missing, missing_requeue_after) = if counts { (0, None) } else { missing(observed, now) };
    let facts = refused.map(|_| tried).into_iter().chain(fact.map(str::to_owned));
    Guarding {
        budget: budget(observed, Selection::Workers, missing, counts),
        omitted: None,
        facts: facts.collect(),
        requeue_after: [missing_requeue_after, requeue_after].into_iter().flatten().min(),
    }
}

/// For what is deployed: a pool whose spec is invalid, paused or refused has no budget before it has workers.
pub(super) fn of_deployed(observed: &Observed, now: Timestamp) -> Guarding {
    let guarding = guarding(observed, now);
    if observed.deployment.is_some() { guarding } else { Guarding { budget: None, ..guarding } }
}

/// What is reported of a refusal of the budget. `None`: it passes soon.
pub(super) fn refused(refusal: &Refusal) -> Option<Verdict> {
    omission::refused(DISRUPTION_BUDGET_OMITTED, refusal, UNGUARDED)
}

const UNGUARDED: &str = "until then a drain may end all workers at once";

fn given_way(other: &BudgetView) -> Verdict {
    let message = format!(
        "PodDisruptionBudget {} selects the workers, so the pool has none of its own: Kubernetes refuses every eviction \
         of a pod with two",
        other.name()
    );
    omitted_for_another(&message)
}

fn omitted_for_another(message: &str) -> Verdict {
    let message = message.to_owned();
    Verdict { type_: DISRUPTION_BUDGET_OMITTED, holds: true, reason: reasons::OTHER_BUDGET, message }
}

/// As the last status has it.
fn reported(observed: &Observed) -> Option<Verdict> {
    let given_way = || {
        let known = observed.condition(DISRUPTION_BUDGET_OMITTED);
        known
            .filter(|known| known.reason == reasons::OTHER_BUDGET)
            .map(|known| omitted_for_another(&known.message))
    };
    omission::reported(DISRUPTION_BUDGET_OMITTED, observed).or_else(given_way)
}

/// The budget of this pool, if there is one.
fn own(observed: &Observed) -> Option<&BudgetView> {
    let uid = observed.dispatcher.metadata.uid.as_deref();
    let is_own = |budget: &&BudgetView| controller_of(*budget).is_some_and(|owner| Some(&*owner.uid) == uid);
    observed.budget.as_deref().filter(is_own)
}

/// The first budget of another owner that selects workers.
fn other_of_workers(observed: &Observed) -> Option<&BudgetView> {
    if observed.other_budgets.is_empty() {
        return None;
    }
    let labels = labels_of_workers(observed);
    let selects = |budget: &&BudgetView| labels.iter().any(|labels| budget.selects(labels));
    observed.other_budgets.iter().map(AsRef::as_ref).find(selects)
}

#[derive(Deserialize)]
struct Template {
    metadata: TemplateMetadata,
}

#[derive(Deserialize)]
struct TemplateMetadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Of each template that has pods. Before the first one is deployed, as the spec has them.
fn labels_of_workers(observed: &Observed) -> Vec<BTreeMap<String, String>> {
    let deployed = observed.deployment.as_ref().and_then(|deployment| deployment.pinned_template.as_deref());
    let older = observed.older.iter().filter_map(|older| older.revision.rendered.as_ref());
    let templates = deployed.into_iter().chain(older.map(|rendered| &*rendered.template));
    let labels = templates.filter_map(|template| serde_json::from_str::<Template>(template).ok());
    let labels: Vec<_> = labels.map(|template| template.metadata.labels).collect();
    if !labels.is_empty() {
        return labels;
    }
    let dispatcher: &AIDispatcher = &observed.dispatcher;
    let mut labels = dispatcher.spec.pods.pod_labels.clone();
    labels.extend(labels_of(dispatcher.metadata.name.as_deref().unwrap_or_default()));
    vec![labels]
}

#[derive(Clone, Copy)]
enum Selection {
    Workers,
    Nothing,
}

/// `None` for an object without a uid, which no API server has.
fn budget(
    observed: &Observed,
    selection: Selection,
    missing: i32,
    counts_unready: bool,
) -> Option<Box<PodDisruptionBudget>> {
    let dispatcher = &observed.dispatcher;
    let (owner, namespace) = (owner(dispatcher).ok()?, dispatcher.metadata.namespace.as_deref()?);
    let match_labels = selector(&owner.name);
    let match_expressions = match selection {
        Selection::Workers => None,
        // No pod has all labels and lacks one of them.
        Selection::Nothing => {
            let lacks = |key: &String| LabelSelectorRequirement {
                key: key.clone(),
                operator: "DoesNotExist".to_owned(),
                values: None,
            };
            Some(match_labels.keys().map(lacks).collect())
        }
    };
    Some(Box::new(PodDisruptionBudget {
        metadata: metadata(namespace, &owner, names::disruption_budget(&owner.name)),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(LabelSelector { match_labels: Some(match_labels), match_expressions }),
            // Also of one worker: its state is saved when it is evicted, and its drain must not wait for ever.
            max_unavailable: Some(IntOrString::Int(1 + missing)),
            // A worker that is not ready must not block a drain, unless it is not ready because it works.
            unhealthy_pod_eviction_policy: Some(
                if counts_unready { COUNTS_UNREADY } else { "AlwaysAllow" }.to_owned(),
            ),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }))
}

/// Whether evictions of workers that are not ready count.
struct Counting {
    counts: bool,
    fact: Option<&'static str>,
    requeue_after: Option<Duration>,
}

/// While a worker that is not ready has tasks. One worker alone is evicted at once in any case.
fn counting(observed: &Observed, now: Timestamp) -> Counting {
    let done = |counts: bool| Counting { counts, fact: None, requeue_after: None };
    if observed.deployed_replicas() <= 1 {
        return done(false);
    }
    let is_busy = |pod: &PodView| was_ready(pod, observed) && has_tasks_now(pod, observed, now);
    let busy = observed.pods().filter(|pod| !pod.is_ready && is_busy(pod));
    let changes = busy.map(|pod| remaining(LONGEST_TASK, pod.ready_changed.unwrap_or(now), now));
    if let Some(requeue_after) = changes.min() {
        return Counting { counts: true, fact: None, requeue_after };
    }
    if !own(observed).is_some_and(|budget| budget.counts_unready) {
        return done(false);
    }
    let since = observed.facts.get(BUSY_ARE_READY).copied().unwrap_or(now);
    match remaining(COUNTED_FOR, since, now) {
        None => done(false),
        wait => Counting { counts: true, fact: Some(BUSY_ARE_READY), requeue_after: wait },
    }
}

/// How many of the wanted workers have been missing for long, and when one more is. One with tasks is not missing.
fn missing(observed: &Observed, now: Timestamp) -> (i32, Option<Duration>) {
    let Some(deployment) = &observed.deployment else { return (0, None) };
    let is_there = |pod: &PodView| pod.is_ready || has_tasks_now(pod, observed, now);
    let lacking = deployment
        .replicas
        .saturating_sub(number(observed.pods().filter(|pod| is_there(pod)).count()))
        .max(0);
    if lacking == 0 {
        return (0, None);
    }
    let unready = observed.pods().map(AsRef::as_ref).filter(|pod: &&PodView| !is_there(pod));
    let since = unready.map(|pod| pod.ready_changed.or(pod.created()).unwrap_or(now));
    // Pods that could not be created, such as because of a quota.
    let uncreated = deployment.replicas.saturating_sub(number(observed.pods().count())).max(0);
    let failing = deployment.creation_failure.as_ref().and_then(|failure| failure.last_transition_time);
    let uncreated = failing.into_iter().flat_map(|since| (0..uncreated).map(move |_| since));
    let (mut missing, mut requeue_after) = (0, None::<Duration>);
    for since in since.chain(uncreated) {
        match remaining(MISSING_FOR, since, now) {
            None => missing += 1,
            Some(wait) => requeue_after = requeue_after.into_iter().chain([wait]).min(),
        }
    }
    (missing.min(lacking), requeue_after)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use api::{aidispatcher::Phase, conditions, labels, reasons};
    use runtime::write::refusal::Refusal;

    use crate::{
        load::WorkerLoad,
        plan::{Plan, outcome::Outcome},
        relations::budgets::BudgetView,
        tests::{Scene, at, load},
    };

    fn spec_of(plan: &Plan) -> serde_json::Value {
        serde_json::to_value(plan.budget.as_ref().expect("a budget").spec.clone().unwrap()).unwrap()
    }

    fn unavailable(plan: &Plan) -> serde_json::Value {
        spec_of(plan)["maxUnavailable"].clone()
    }

    fn policy(plan: &Plan) -> String {
        spec_of(plan)["unhealthyPodEvictionPolicy"].as_str().unwrap().to_owned()
    }

    fn worker(index: usize, is_ready: bool, since: i64) -> String {
        let status = if is_ready { "True" } else { "False" };
        format!(
            "{{name: coder-{index}, node: a, phase: Running, created: '{0}', conditions: [{{type: Ready, status: \
             '{status}', lastTransitionTime: '{0}'}}], containers: [{{name: worker, ready: true, started: true, state: \
             {{running: {{startedAt: '{1}'}}}}}}]}}",
            at(since),
            at(since - 60),
        )
    }

    fn set(scene: &mut Scene, pods: &[String]) {
        scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// The stored form of a budget.
    fn stored(metadata: &str, spec: &str) -> Arc<BudgetView> {
        let text = format!("{{metadata: {{namespace: demo, {metadata}}}, spec: {spec}}}");
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    /// As the API server has the budget of this plan.
    fn write(scene: &mut Scene, plan: &Plan) {
        let budget = serde_json::to_value(plan.budget.as_ref().expect("a budget")).unwrap();
        scene.observe(|observed| observed.budget = Some(Arc::new(serde_json::from_value(budget).unwrap())));
    }

    /// The plan with what is reported once the API server has refused its budget.
    fn refused(scene: &Scene, plan: Plan, refusal: &Refusal) -> Plan {
        let mut outcome = plan.if_unchanged();
        outcome.report_refused_budget(refusal, &scene.observed().dispatcher, at(0));
        let Outcome { status, events, requeue_after, .. } = outcome;
        let (status, events) = (status.into_owned(), events.into_owned());
        Plan { status, events, requeue_after, ..plan }
    }

    fn omitted(plan: &Plan) -> Option<(&str, &str)> {
        let mut conditions = plan.status.conditions.iter();
        let known = conditions.find(|known| known.type_ == conditions::DISRUPTION_BUDGET_OMITTED)?;
        Some((&known.reason, &known.message))
    }

    /// The pool serves, and its number follows the load.
    fn is_in_service(plan: &Plan) -> bool {
        let ready = plan.status.conditions.iter().find(|known| known.type_ == conditions::READY).unwrap();
        (plan.status.current_phase, &*ready.reason) == (Some(Phase::Ready), reasons::READY)
            && plan.deployment.is_some()
    }

    #[test]
    fn a_drain_ends_workers_one_after_the_other() {
        let scene = Scene::ready("{role: coder, replicas: 4}", 4);
        let plan = scene.plan();
        assert_eq!((unavailable(&plan), &*policy(&plan)), (1.into(), "AlwaysAllow"));
        assert_eq!(unavailable(&Scene::ready("{role: coder}", 1).plan()), 1, "one worker blocks no drain");
    }

    #[test]
    fn workers_that_are_missing_for_long_hold_no_drain_back() {
        let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
        let pods = |missing: i64| [worker(0, true, -900), worker(1, false, missing), worker(2, false, -10)];
        set(&mut scene, &pods(-299));
        let plan = scene.plan();
        assert_eq!((unavailable(&plan), plan.requeue_after), (1.into(), Some(Duration::from_secs(1))));
        set(&mut scene, &pods(-300));
        assert_eq!(unavailable(&scene.plan()), 2);
    }

    #[test]
    fn busy_workers_that_are_not_ready_are_not_missing_and_are_evicted_one_after_the_other() {
        let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
        let pods: Vec<String> = (0..4).map(|index| worker(index, index < 2, -900)).collect();
        set(&mut scene, &pods);
        let tasks = |third: u64| vec![load(0, 0), load(0, 0), load(0, third), load(0, third)];
        scene.loads(tasks(1));
        let saturated = scene.plan();
        assert_eq!((unavailable(&saturated), &*policy(&saturated)), (1.into(), "IfHealthyBudget"));
        write(&mut scene, &saturated);
        // A moment between two tasks.
        scene.loads(tasks(0));
        let idle = scene.plan();
        assert_eq!(policy(&idle), "IfHealthyBudget");
        assert!(idle.requeue_after <= Some(Duration::from_secs(60)));
        scene.note(&idle, at(-59));
        assert_eq!(policy(&scene.plan()), "IfHealthyBudget");
        scene.note(&idle, at(-60));
        assert_eq!(policy(&scene.plan()), "AlwaysAllow");
        // Whether they work is not known.
        scene.loads(vec![load(0, 0), load(0, 0)]);
        scene.note(&idle, at(-60));
        assert_eq!((unavailable(&scene.plan()), &*policy(&scene.plan())), (3.into(), "AlwaysAllow"));
    }

    #[test]
    fn a_worker_that_works_too_hard_to_answer_counts_for_an_hour() {
        let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
        let pods = |since: i64| -> Vec<String> {
            (0..4).map(|index| worker(index, index > 0, if index > 0 { -9_000 } else { since })).collect()
        };
        let silent = |read: i64| WorkerLoad { last_tasks: Some((1, at(read))), ..WorkerLoad::default() };
        for (since, read, expected) in [
            (-900, -1_000, (1, "IfHealthyBudget")),
            (-900, -3_600, (2, "AlwaysAllow")),
            (-3_600, -1, (2, "AlwaysAllow")),
        ] {
            set(&mut scene, &pods(since));
            scene.loads(vec![silent(read), load(0, 0), load(0, 0), load(0, 0)]);
            let plan = scene.plan();
            assert_eq!(
                (unavailable(&plan), &*policy(&plan)),
                (expected.0.into(), expected.1),
                "{since} {read}"
            );
        }
    }

    #[test]
    fn a_task_that_has_just_ended_makes_no_worker_missing() {
        let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
        set(&mut scene, &[worker(0, true, -900), worker(1, false, -900)]);
        scene.loads(vec![load(0, 0), load(0, 1)]);
        let busy = scene.plan();
        write(&mut scene, &busy);
        scene.loads(vec![load(0, 0), load(0, 0)]);
        let ended = scene.plan();
        assert_eq!(unavailable(&ended), 1, "it is ready soon");
        scene.note(&ended, at(-60));
        assert_eq!(unavailable(&scene.plan()), 2);
    }

    #[test]
    fn a_busy_worker_alone_blocks_no_drain() {
        let mut scene = Scene::ready("{role: coder}", 1);
        set(&mut scene, &[worker(0, false, -900)]);
        scene.loads(vec![load(0, 1)]);
        assert_eq!(policy(&scene.plan()), "AlwaysAllow");
    }

    #[test]
    fn a_rollout_that_does_not_succeed_lets_no_more_workers_be_evicted() {
        let mut scene = Scene::ready("{role: coder}", 1);
        set(&mut scene, &[worker(0, true, -900), worker(1, false, -900)]);
        assert_eq!(unavailable(&scene.plan()), 1, "the wanted number is ready");
    }

    #[test]
    fn the_budget_stays_while_the_pods_are_not_known() {
        let mut scene = Scene::ready("{role: coder}", 1);
        scene.observe(|observed| observed.unwatched = Some("pods"));
        assert!(scene.plan().budget.is_none());
    }

    #[test]
    fn a_budget_of_the_user_for_the_workers_takes_the_place_of_that_of_the_pool() {
        let spec = "{role: coder, replicas: 2, podLabels: {team: a}}";
        let theirs = |selector: &str| stored("name: theirs", &format!("{{selector: {selector}}}"));
        let mut new = Scene::new(spec);
        new.observe(|observed| observed.other_budgets = vec![theirs("{matchLabels: {team: a}}")]);
        assert!(new.plan().budget.is_none(), "none is written beside it");
        let mut scene = Scene::ready(spec, 2);
        scene.observe(|observed| observed.other_budgets = vec![theirs("{matchLabels: {team: b}}")]);
        let guarded = scene.plan();
        assert_eq!((omitted(&guarded), guarded.events.len()), (None, 0));
        write(&mut scene, &guarded);
        scene.observe(|observed| observed.other_budgets = vec![theirs("{matchLabels: {team: a}}")]);
        let plan = scene.plan();
        let (reason, message) = omitted(&plan).unwrap();
        assert_eq!(reason, reasons::OTHER_BUDGET);
        assert!(message.starts_with("PodDisruptionBudget theirs selects the workers"), "{message}");
        assert_eq!(plan.events.iter().filter(|note| note.reason == reasons::OTHER_BUDGET).count(), 1);
        assert!(is_in_service(&plan));
        // The admission policy asks for the label, and no pod lacks and has it.
        let selector = &spec_of(&plan)["selector"];
        assert_eq!(selector["matchLabels"][labels::NAME], "aidispatcher");
        let given_up = stored("name: coder-workers", &spec_of(&plan).to_string());
        let template = plan.deployment.as_ref().unwrap().spec["template"]["metadata"]["labels"].clone();
        assert!(!given_up.selects(&serde_json::from_value(template).unwrap()));
        scene.write_status();
        assert!(scene.plan().events.is_empty(), "it is reported once");
        scene.observe(|observed| observed.other_budgets.clear());
        assert_eq!(spec_of(&scene.plan()), spec_of(&guarded));
        assert_eq!(omitted(&scene.plan()), None);
    }

    #[test]
    fn a_budget_that_is_refused_leaves_the_pool_in_service_and_is_tried_once_in_a_minute() {
        let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
        let refusal = Refusal::OwnershipConflict("PodDisruptionBudget demo/coder-workers exists".to_owned());
        let quota = Refusal::Denied("exceeded quota: budgets".to_owned());
        assert_eq!(omitted(&refused(&scene, scene.plan(), &quota)).unwrap().0, reasons::DENIED);
        let plan = refused(&scene, scene.plan(), &refusal);
        let (reason, message) = omitted(&plan).unwrap();
        assert_eq!(reason, reasons::OWNERSHIP_CONFLICT);
        assert!(message.contains("coder-workers exists"), "{message}");
        assert!(is_in_service(&plan) && plan.requeue_after.is_some());
        assert_eq!(plan.events.iter().filter(|note| note.reason == reason).count(), 1);
        let status = plan.status;
        scene.observe(|observed| Arc::make_mut(&mut observed.dispatcher).status = Some(status));
        let again = scene.plan();
        assert!(again.budget.is_some());
        scene.note(&again, at(0));
        let again = refused(&scene, again, &refusal);
        assert_eq!(
            (&again.status, again.events.len()),
            (scene.observed().dispatcher.status.as_ref().unwrap(), 0)
        );
        let waits = scene.plan();
        assert!(waits.budget.is_none());
        assert_eq!(Some(&waits.status), scene.observed().dispatcher.status.as_ref());
        assert!(scene.plan_at(at(60)).budget.is_some());
        // It is accepted then.
        assert_eq!(omitted(&scene.plan_at(at(60))), None);
    }

    #[test]
    fn a_budget_of_a_deleted_pool_of_the_same_name_is_waited_for_and_then_a_conflict() {
        let scene = Scene::ready("{role: coder}", 1);
        let leftover = |deleted| Refusal::Leftover { deleted, message: "still there".to_owned() };
        let plan = refused(&scene, scene.plan(), &leftover(None));
        assert_eq!(omitted(&plan), None);
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(1)));
        // A finalizer holds it back.
        let plan = refused(&scene, scene.plan(), &leftover(Some(at(-91))));
        assert_eq!(omitted(&plan).unwrap().0, reasons::OWNERSHIP_CONFLICT);
    }
}
