//! Applies a plan in a fixed order. It decides nothing, and asks the plan what follows from an answer.
//!
//! Marks of pods first, so that a smaller number of workers takes idle ones. Then the Deployment and the event about its new
//! number, the PodDisruptionBudget, the Services, the status, and the other events; the first failure ends this sequence. A
//! budget or Service that is refused is reported, and ends nothing.

use std::collections::BTreeMap;

use api::{aidispatcher::AIDispatcher, labels, reasons};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use runtime::{
    controller::ReconcileError as _,
    reconcile::Applied,
    write::{
        apply::{ApplyError, Written},
        events::{Note, Severity},
        refusal::Refusal,
    },
};
use tracing::warn;
use workload::faults::facts::FactTimes;

use crate::{
    Context, NAME,
    plan::{Plan, is_loss, outcome::Outcome, replicas::marks::Mark},
};

/// A pool has up to a thousand pods.
const MARKS_AT_ONCE: usize = 16;
/// The fact that annotations for node autoscalers are refused.
const GUARDS_REFUSED: &str = "annotations for node autoscalers are refused";

pub(crate) async fn apply(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let uid = dispatcher.metadata.uid.as_deref().unwrap_or_default();
    let mut noting = Noting::begun(&ctx.fact_times, uid, plan, now);
    let (written, unmarked) = match mark_all(ctx, &plan.marks).await {
        Ok(unmarked) => (write_deployment(ctx, plan).await, unmarked),
        Err(error) => (Err(error), Unmarked::default()),
    };
    if let Some(note) = &unmarked.guards {
        // The time of the newest refusal counts.
        ctx.guard_refusals.end(uid, GUARDS_REFUSED);
        ctx.guard_refusals.note(uid, &[GUARDS_REFUSED.to_owned()], now);
        ctx.recorder.publish(dispatcher, note, now).await;
    }
    let facts = if is_settled(&written) { plan.settled_facts() } else { plan.facts.clone() };
    let written = match written.map_err(Refusal::of) {
        Ok(written) => Ok(written),
        // The plan that reports it is made on the same facts as this one, and notes them.
        Err(Ok(refusal)) => {
            noting.left_to_the_report();
            return Ok(Applied::Refused(refusal));
        }
        Err(Err(error)) => Err(error),
    };
    noting.unreported(&facts);
    let written = written?;
    let has_changed = matches!(written, Some(Written::Created | Written::Changed));
    let mut outcome = if has_changed { plan.if_changed() } else { plan.if_unchanged() };
    report_contest(ctx, dispatcher, written, &mut outcome, now).await;
    if let Some(past) = outcome.past {
        ctx.pools.remember(uid, past.clone());
    }
    for note in outcome.changes.iter().copied().chain(unmarked.costs.iter().filter(|_| has_changed)) {
        ctx.recorder.publish(dispatcher, note, now).await;
    }
    // The children before the status: after a failure the status is not written, so it never reports what did not happen.
    write_budget(ctx, dispatcher, plan, &mut outcome, now).await?;
    write_services(ctx, dispatcher, plan, &mut outcome, now).await?;
    ctx.writer.apply_status(&ctx.dispatchers, dispatcher, &*outcome.status).await?;
    noting.ended(facts);
    for note in &*outcome.events {
        ctx.recorder.publish(dispatcher, note, now).await;
    }
    Ok(Applied::All { requeue_after: outcome.requeue_after })
}

/// Notes the facts of a plan when it is dropped. So they are noted also if a deadline ends the writes, of which some may have
/// been carried out.
struct Noting<'a> {
    times: &'a FactTimes,
    uid: &'a str,
    facts: Option<Vec<String>>,
    now: Timestamp,
}

impl<'a> Noting<'a> {
    fn begun(times: &'a FactTimes, uid: &'a str, plan: &Plan, now: Timestamp) -> Self {
        Self { times, uid, facts: Some(plan.facts_if_cancelled(&times.of(uid))), now }
    }

    /// These facts are true. A new loss is known once the status reports it.
    fn unreported(&mut self, facts: &[String]) {
        let known = self.times.of(self.uid);
        let kept = facts.iter().filter(|fact| !is_loss(fact) || known.contains_key(*fact));
        self.facts = Some(kept.cloned().collect());
    }

    /// The writes have ended, and these facts are true.
    fn ended(mut self, facts: Vec<String>) {
        self.facts = Some(facts);
    }

    /// Another plan notes the facts.
    fn left_to_the_report(mut self) {
        self.facts = None;
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        if let Some(facts) = &self.facts {
            self.times.note(self.uid, facts, self.now);
        }
    }
}

async fn write_budget(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    plan: &Plan,
    outcome: &mut Outcome<'_>,
    now: Timestamp,
) -> Result<(), ApplyError> {
    let Some(budget) = &plan.budget else { return Ok(()) };
    match ctx.budgets.apply(budget).await {
        Ok(written) => report_contest(ctx, dispatcher, Some(written), outcome, now).await,
        Err(error) => outcome.report_refused_budget(&Refusal::of(error)?, dispatcher, now),
    }
    Ok(())
}

async fn write_services(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    plan: &Plan,
    outcome: &mut Outcome<'_>,
    now: Timestamp,
) -> Result<(), ApplyError> {
    for service in &plan.services {
        match ctx.services.apply(service).await {
            Ok(written) => report_contest(ctx, dispatcher, Some(written), outcome, now).await,
            Err(error) => outcome.report_refused_service(&Refusal::of(error)?, dispatcher, now),
        }
    }
    for service in &plan.deletions {
        if let Err(error) = ctx.services.delete_child(service).await {
            outcome.report_kept_service(&Refusal::of(error)?, dispatcher, now);
        }
    }
    Ok(())
}

/// At once, because a later step may fail and a contest is reported as new only once.
async fn report_contest(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    written: Option<Written>,
    outcome: &mut Outcome<'_>,
    now: Timestamp,
) {
    let Some(Written::Contested(contest)) = written else { return };
    outcome.reconcile_within(contest.wait);
    if let Some(note) = contest.note(reasons::FIELD_CONFLICT) {
        ctx.recorder.publish(dispatcher, &note, now).await;
    }
}

/// Whether the Deployment is as planned, or is being deleted.
fn is_settled(written: &Result<Option<Written>, ApplyError>) -> bool {
    match written {
        Ok(None | Some(Written::Unchanged | Written::Created | Written::Changed)) => true,
        Ok(Some(Written::Contested(_))) | Err(_) => false,
    }
}

/// What the user reads of marks that were refused.
#[derive(Debug, Default, PartialEq)]
struct Unmarked {
    /// The first pod whose deletion cost could not be written.
    costs: Option<Note>,
    /// The first pod that could not be kept from node autoscalers.
    guards: Option<Note>,
}

async fn mark_all(ctx: &Context, marks: &[Mark]) -> Result<Unmarked, ApplyError> {
    let writes: Vec<_> = marks.iter().map(|mark| write_mark(ctx, mark)).collect();
    let refused = stream::iter(writes).buffer_unordered(MARKS_AT_ONCE);
    let first = |first: Unmarked, refused: Unmarked| async move {
        let (costs, guards) = (first.costs.or(refused.costs), first.guards.or(refused.guards));
        Ok(Unmarked { costs, guards })
    };
    refused.try_fold(Unmarked::default(), first).await
}

async fn write_deployment(ctx: &Context, plan: &Plan) -> Result<Option<Written>, ApplyError> {
    let Some(deployment) = &plan.deployment else { return Ok(None) };
    ctx.deployments.apply_to_version(deployment, deployment.planned_on.as_deref()).await.map(Some)
}

/// A pod that has changed is planned again with its next version. If marking a pod is refused, for example by an
/// admission policy, a smaller number of workers is delayed by a few seconds, and does not spare busy ones. A policy that
/// refuses annotations for node autoscalers alone must not take the deletion cost with them.
async fn write_mark(ctx: &Context, Mark { pod, cost, guards }: &Mark) -> Result<Unmarked, ApplyError> {
    let cost = (labels::POD_DELETION_COST, Some(cost.to_string()));
    let has_guards = !guards.is_empty();
    let all = guards.clone().into_iter().chain([cost.clone()]).collect();
    let Some(refusal) = annotate(ctx, pod, all).await? else { return Ok(Unmarked::default()) };
    let of_cost = if has_guards { annotate(ctx, pod, [cost].into()).await? } else { Some(refusal.clone()) };
    Ok(unmarked(&refusal, of_cost.as_ref()))
}

/// The refusal; `None`: the annotations are set, or the pod has changed.
async fn annotate(
    ctx: &Context,
    pod: &Pod,
    annotations: BTreeMap<&str, Option<String>>,
) -> Result<Option<Refusal>, ApplyError> {
    match ctx.pods.annotate(pod, &annotations).await {
        Ok(()) => Ok(None),
        Err(error) if error.is_stale() => Ok(None),
        Err(error) => {
            let refusal = Refusal::of(error)?;
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            warn!(pod = name, why = refusal.message(), "the annotations of a worker are refused");
            Ok(Some(refusal))
        }
    }
}

/// `of_cost`: that of the deletion cost alone; `None`: it is set.
fn unmarked(refusal: &Refusal, of_cost: Option<&Refusal>) -> Unmarked {
    let note = |message: String| Note { severity: Severity::Warning, reason: reasons::DENIED, message };
    match of_cost {
        Some(of_cost) => {
            let message = format!(
                "the workers could not be marked, so a busy one may be removed while idle ones stay: {}; allow {NAME} to \
                 set the annotations {} of pods",
                of_cost.message(),
                labels::POD_MARKS.join(", ")
            );
            Unmarked { costs: Some(note(message)), guards: None }
        }
        None => {
            let message = format!(
                "node autoscalers may evict busy workers: {}; allow {NAME} to set the annotations {} and {} of pods",
                refusal.message(),
                labels::DO_NOT_DISRUPT,
                labels::SAFE_TO_EVICT
            );
            Unmarked { costs: None, guards: Some(note(message)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::{
        key::Key,
        write::apply::{Contest, Stale},
    };

    use super::*;
    use crate::tests::{Scene, at, load};

    #[test]
    fn annotations_for_node_autoscalers_that_are_refused_leave_the_deletion_cost() {
        let denied = Refusal::Denied("no karpenter here".to_owned());
        let Unmarked { costs, guards } = unmarked(&denied, None);
        let message = guards.unwrap().message;
        assert_eq!(costs, None);
        assert!(
            message.starts_with("node autoscalers may evict busy workers: no karpenter here"),
            "{message}"
        );
        let Unmarked { costs, guards } = unmarked(&denied, Some(&denied));
        assert_eq!(guards, None);
        assert!(costs.unwrap().message.contains("a busy one may be removed"));
    }

    #[test]
    fn a_number_that_was_contested_or_failed_is_not_settled() {
        let key = Key::new("demo", "coder-workers");
        let contest = Contest {
            kind: "Deployment",
            key: key.clone(),
            manager: None,
            wait: Duration::from_secs(1),
            is_new: false,
        };
        assert!(!is_settled(&Ok(Some(Written::Contested(contest)))));
        let stale = ApplyError::Stale { kind: "Deployment", key, why: Stale::Changed };
        assert!(!is_settled(&Err(stale)));
        for written in [None, Some(Written::Changed), Some(Written::Created), Some(Written::Unchanged)] {
            assert!(is_settled(&Ok(written)));
        }
    }

    /// A plan with facts, of which one is a loss and one is that of a time limit.
    fn plan() -> Plan {
        let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
        scene.loads(vec![load(0, 1), load(0, 0)]);
        scene.edit_spec(|spec| spec.replicas = 1);
        let plan = scene.plan();
        assert!(!plan.facts.is_empty() && !plan.facts_if_settled.is_empty());
        Plan {
            facts: [plan.facts.clone(), vec!["lost coder-7 2026-01-01T12:00:00Z".to_owned()]].concat(),
            ..plan
        }
    }

    fn sorted(mut facts: Vec<String>) -> Vec<String> {
        facts.sort();
        facts
    }

    /// Such as that no further worker is started for a state, once one was ended for it.
    #[tokio::test]
    async fn a_deadline_that_ends_the_writes_loses_no_fact() {
        let (times, plan) = (FactTimes::default(), plan());
        let writes = async {
            let noting = Noting::begun(&times, "uid", &plan, at(0));
            std::future::pending::<()>().await;
            noting.ended(Vec::new());
        };
        assert!(tokio::time::timeout(Duration::from_millis(1), writes).await.is_err());
        let noted = |times: &FactTimes| times.of("uid").into_keys().collect::<Vec<_>>();
        let without_loss = &plan.facts[..plan.facts.len() - 1];
        assert_eq!(noted(&times), sorted(without_loss.to_vec()), "the loss is not reported yet");
        times.note("uid", &plan.settled_facts(), at(1));
        drop(Noting::begun(&times, "uid", &plan, at(2)));
        assert_eq!(noted(&times), sorted(plan.settled_facts()), "what was known goes on");
    }

    #[test]
    fn a_new_loss_is_known_once_the_status_reports_it() {
        let (times, plan) = (FactTimes::default(), plan());
        let facts = plan.settled_facts();
        let failed = |times: &FactTimes| {
            let mut noting = Noting::begun(times, "uid", &plan, at(0));
            noting.unreported(&facts);
        };
        let knows_loss = |times: &FactTimes| times.of("uid").keys().any(|fact| is_loss(fact));
        failed(&times);
        assert_eq!((times.of("uid").len(), knows_loss(&times)), (facts.len() - 1, false));
        Noting::begun(&times, "uid", &plan, at(1)).ended(facts.clone());
        assert!(knows_loss(&times));
        failed(&times);
        assert!(knows_loss(&times), "it was reported before");
    }

    #[test]
    fn the_facts_of_a_refused_plan_are_left_to_its_report() {
        let (times, plan) = (FactTimes::default(), plan());
        Noting::begun(&times, "uid", &plan, at(0)).left_to_the_report();
        assert!(times.of("uid").is_empty());
        Noting::begun(&times, "uid", &plan, at(0)).ended(vec!["settled".to_owned()]);
        assert_eq!(times.of("uid").into_keys().collect::<Vec<_>>(), ["settled"]);
    }
}
