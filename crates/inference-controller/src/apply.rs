//! Sends a plan in a fixed order. It only decides when to reconcile again after a contested write or a log read.
//!
//! Pods on lost nodes are deleted first, and a deletion that fails keeps nothing else from being sent. Then children,
//! deletions of children, status, events and logs; the first failure ends this sequence.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::{aiinference::AIInference, labels, reasons};
use jiff::Timestamp;
use runtime::{
    controller::ReconcileError as _,
    key::Key,
    read::logs::Tail,
    reconcile::Applied,
    write::{
        apply::{ApplyError, Written},
        events::{Note, Severity},
        refusal::{Refusal, undeclared},
    },
};
use workload::{faults::crashes::Reading, templates::deployment::RenderedDeployment, time::remaining};

use crate::{
    Context, NAME,
    plan::{
        Plan,
        children::{Child, Superfluous},
        handover::Mark,
        nodes::PodDeletion,
        traffic::{
            Weights,
            report::{CANDIDATE, GRPC_ROUTE, POOLS, ROUTE, WEIGHTS},
        },
    },
};

pub(crate) async fn apply(
    ctx: &Context,
    inference: &AIInference,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Deleted { any, failed } = delete_pods(ctx, inference, &plan.deletions, now).await;
    let rest = plan.unless_deleted.as_deref().filter(|_| failed.is_some()).unwrap_or(plan);
    match failed.map(Refusal::of) {
        None => apply_rest(ctx, inference, rest, now).await,
        // The plan for the refusal has the status.
        Some(Ok(refusal)) => {
            let Children { refusal: of_child, contest, failed: _ } =
                apply_children(ctx, inference, rest, now).await?;
            Ok(refused(of_child.unwrap_or(refusal), contest))
        }
        // No status of before the deletions may follow one that was accepted: the next plan has both.
        Some(Err(error)) if any => match apply_children(ctx, inference, rest, now).await?.refusal {
            None => Err(error),
            Some(why) => Ok(Applied::Failed { error, why }),
        },
        Some(Err(error)) => match apply_rest(ctx, inference, rest, now).await? {
            Applied::All { requeue_after: _ } => Err(error),
            Applied::Refused(why) | Applied::RefusedAfterContest { refusal: why, wait: _ } => {
                Ok(Applied::Failed { error, why })
            }
            failed @ Applied::Failed { .. } => Ok(failed),
        },
    }
}

fn refused(refusal: Refusal, contest: Option<Duration>) -> Applied {
    match contest {
        None => Applied::Refused(refusal),
        Some(wait) => Applied::RefusedAfterContest { refusal, wait },
    }
}

/// What became of the deletions.
struct Deleted {
    /// At least one was accepted.
    any: bool,
    /// The first failure.
    failed: Option<ApplyError>,
}

/// Deletes pods on lost nodes. All deletions are attempted.
async fn delete_pods(
    ctx: &Context,
    inference: &AIInference,
    deletions: &[PodDeletion],
    now: Timestamp,
) -> Deleted {
    let mut deleted = Deleted { any: false, failed: None };
    for PodDeletion { pod, migration, note } in deletions {
        match ctx.pods.delete(pod).await {
            Ok(()) => {
                deleted.any = true;
                // Recorded before the status write, which may fail with a conflict.
                ctx.migrations.note(uid(inference), migration.clone());
                ctx.recorder.publish(inference, note, now).await;
            }
            Err(error) => deleted.failed = deleted.failed.or(Some(error)),
        }
    }
    deleted
}

async fn apply_rest(
    ctx: &Context,
    inference: &AIInference,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    // Children before the status: after a failure the status is not written, so it never reports what did not happen.
    let Children { refusal, contest, failed } = apply_children(ctx, inference, plan, now).await?;
    if let Some(refusal) = refusal {
        return Ok(refused(refusal, contest));
    }
    ctx.writer.apply_status(&ctx.inferences, inference, &plan.status).await?;
    // After the status, which has the same content.
    for note in &plan.events {
        ctx.recorder.publish(inference, note, now).await;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    // Last, because a request to a kubelet may be slow.
    let read = read_logs(ctx, inference, plan).await.then_some(Duration::ZERO);
    Ok(Applied::All { requeue_after: [plan.requeue_after, contest, read].into_iter().flatten().min() })
}

/// What became of the children.
#[derive(Default)]
struct Children {
    /// The children after this one were skipped.
    refusal: Option<Refusal>,
    /// The shortest wait until a contested write is repeated.
    contest: Option<Duration>,
    /// A child apart was not sent. The others were.
    failed: Option<ApplyError>,
}

/// The children, and the deletions of those that are not wanted any more.
async fn apply_children(
    ctx: &Context,
    inference: &AIInference,
    plan: &Plan,
    now: Timestamp,
) -> Result<Children, ApplyError> {
    let mut done = apply_apart(ctx, inference, plan, now).await;
    if let Some(facts) = &plan.facts {
        ctx.fact_times.note(uid(inference), facts, now);
    }
    for mark in &plan.marks {
        annotate(ctx, inference, mark, now).await?;
    }
    for child in &plan.children {
        match apply_child(ctx, child).await {
            Ok(Written::Contested(contest)) => {
                done.contest = done.contest.into_iter().chain([contest.wait]).min();
                if let Some(note) = contest.note(reasons::FIELD_CONFLICT) {
                    // At once: a later step may fail, and the contest is new only this time.
                    ctx.recorder.publish(inference, &note, now).await;
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => {
                return Ok(Children { refusal: Some(Refusal::of(error)?), ..done });
            }
        }
    }
    for child in &plan.superfluous {
        let deleted = delete_superfluous(ctx, child).await;
        if let Err(error) = deleted {
            return Ok(Children { refusal: Some(Refusal::of(error)?), ..done });
        }
    }
    Ok(done)
}

async fn delete_superfluous(ctx: &Context, child: &Superfluous) -> Result<(), ApplyError> {
    match child {
        Superfluous::Service(service) => ctx.services.delete_child(service).await,
        Superfluous::PodDisruptionBudget(budget) => ctx.budgets.delete_child(budget).await,
        Superfluous::ConfigMap(config_map) => ctx.config_maps.delete_child(config_map).await,
        Superfluous::Route(route) => ctx.routes.delete_child(route).await,
        Superfluous::GrpcRoute(route) => ctx.grpc_routes.delete_child(route).await,
        Superfluous::InferencePool(pool) => ctx.pools.delete_child(pool).await,
        Superfluous::Deployment(deployment) => {
            let spec = serde_json::Value::Null;
            let metadata = deployment.metadata.clone();
            let deployment = RenderedDeployment { metadata, spec, planned_on: None };
            ctx.deployments.delete_child(&deployment).await
        }
    }
}

/// The children without which the pods serve. A refusal is an event, and keeps nothing else from being sent; nor does a
/// failure, which is returned.
async fn apply_apart(ctx: &Context, inference: &AIInference, plan: &Plan, now: Timestamp) -> Children {
    let mut done = Children::default();
    // Also where a child of stable is refused: the candidate has its share.
    if let Some(look) = &plan.look {
        let key = Key::of(inference);
        // What is kept of an object that was deleted meanwhile would stay.
        if ctx.inferences.get(&key).is_some_and(|known| known.metadata.uid == inference.metadata.uid) {
            ctx.looks.ask(uid(inference), look);
            ctx.looking.poll(&key);
        }
    }
    if let Some(service) = &plan.headless {
        let written = ctx.services.apply(service).await;
        note_apart(ctx, inference, "the headless Service", written, &mut done, now).await;
    }
    // One complaint for both of them.
    let mut of_pools = plan.pools.first().map(|_| Ok(Written::Unchanged));
    for pool in &plan.pools {
        match ctx.pools.apply(pool).await {
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            other @ (Ok(Written::Contested(_)) | Err(_)) => of_pools = Some(other),
        }
    }
    if let Some(written) = of_pools {
        note_apart(ctx, inference, POOLS, written, &mut done, now).await;
    }
    if let Some(route) = &plan.route {
        let written = ctx.routes.apply(route).await;
        note_apart(ctx, inference, ROUTE, written, &mut done, now).await;
    }
    if let Some(route) = &plan.grpc_route {
        let written = ctx.grpc_routes.apply(route).await;
        note_apart(ctx, inference, GRPC_ROUTE, written, &mut done, now).await;
    }
    if plan.weights.is_none() {
        // What was refused is not wanted any more.
        ctx.apart.forget(uid(inference), WEIGHTS);
    }
    if let Some(Weights { route, values }) = plan.weights.as_deref() {
        match ctx.foreign_routes.replace_values(route, values).await {
            // The newest version of the route starts a reconcile.
            Err(error) if error.is_stale() => {}
            written => note_apart(ctx, inference, WEIGHTS, written, &mut done, now).await,
        }
    }
    // One complaint for all of them: it is healed when none is refused.
    let mut written = plan.candidate.first().map(|_| Ok(Written::Unchanged));
    for child in &plan.candidate {
        match apply_child(ctx, child).await {
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            contested @ Ok(Written::Contested(_)) => written = Some(contested),
            refused @ Err(_) => {
                written = Some(refused);
                break;
            }
        }
    }
    if let Some(written) = written {
        note_apart(ctx, inference, CANDIDATE, written, &mut done, now).await;
    }
    for child in &plan.superfluous_apart {
        if let Err(error) = delete_superfluous(ctx, child).await {
            done.failed = Some(error);
        }
    }
    if let Some(digests) = &plan.digests {
        let written = ctx.config_maps.apply(digests).await;
        note_apart(ctx, inference, "the ConfigMap with digests of models", written, &mut done, now).await;
    }
    done
}

async fn note_apart(
    ctx: &Context,
    inference: &AIInference,
    what: &'static str,
    written: Result<Written, ApplyError>,
    done: &mut Children,
    now: Timestamp,
) {
    let is_old = written.as_ref().is_err_and(|error| undeclared(error).is_some());
    let is_old = is_old && [ROUTE, GRPC_ROUTE].contains(&what);
    let refusal = match written.map_err(Refusal::of) {
        Ok(written) => {
            let Written::Contested(contest) = written else {
                let wait = ctx.apart.written(uid(inference), what, written != Written::Unchanged, now);
                done.contest = done.contest.into_iter().chain(wait).min();
                return;
            };
            done.contest = done.contest.into_iter().chain([contest.wait]).min();
            let is_route = [ROUTE, GRPC_ROUTE, POOLS, WEIGHTS].contains(&what);
            let reason = if is_route { reasons::ROUTE_CONTESTED } else { reasons::FIELD_CONFLICT };
            let note = contest.note(reasons::FIELD_CONFLICT);
            // Each time: a write in between has healed it.
            let known = ctx.apart.of(uid(inference)).contains_key(what);
            if !known || note.is_some() {
                let message = note.as_ref().map(|note| note.message.clone());
                let message = message.unwrap_or_else(|| format!("another manager keeps changing {what}"));
                let fix = match what {
                    ROUTE => {
                        "; let it change another route. spec.routeRef in place of spec.gateway leaves a route to its \
                         owner, but for match, mirror and pin"
                    }
                    _ => "",
                };
                let message = message + fix;
                ctx.apart.is_new(uid(inference), what, (reason, message));
                // A condition says so.
                done.contest = Some(Duration::ZERO);
            }
            ctx.apart.contested(uid(inference), what, now);
            if let Some(note) = note {
                ctx.recorder.publish(inference, &note, now).await;
            }
            return;
        }
        Err(Err(error)) => match undeclared(&error).filter(|_| is_old) {
            Some(words) => Refusal::Invalid(words.to_owned()),
            None => {
                done.failed = Some(error);
                return;
            }
        },
        Err(Ok(refusal)) => refusal,
    };
    done.contest = done.contest.into_iter().chain([ctx.defaults.refusal_retry]).min();
    let fix = if is_old { "; install version 1.2 or later of the Gateway API" } else { "" };
    let message = format!("{what} is not written: {}; the pods serve without it{fix}", refusal.message());
    let reason = match refusal {
        _ if is_old => reasons::EXPERIMENTAL_FIELD_REFUSED,
        Refusal::OwnershipConflict(_) | Refusal::Leftover { .. } => reasons::OWNERSHIP_CONFLICT,
        Refusal::Invalid(_) => reasons::INVALID_SPEC,
        Refusal::Denied(_) => reasons::DENIED,
    };
    let reason_before = ctx.apart.of(uid(inference)).remove(what).map(|(reason, _)| reason);
    if ctx.apart.is_new(uid(inference), what, (reason, message.clone())) {
        if reason_before != Some(reason) {
            // A condition may say so, too. The words of a webhook may differ each time.
            done.contest = Some(Duration::ZERO);
        }
        let note = Note { severity: Severity::Warning, reason, message };
        ctx.recorder.publish(inference, &note, now).await;
    }
}

/// Refusals of children apart that were reported. No status has them, and each event is a new object.
#[derive(Debug, Default)]
pub(crate) struct Apart(Mutex<BTreeMap<(String, &'static str), Known>>);

/// Reason and message.
type Complaint = (&'static str, String);

#[derive(Debug)]
struct Known {
    complaint: Complaint,
    /// The last write of what another manager takes back each time.
    contested: Option<Timestamp>,
}

impl Apart {
    /// Objects that were deleted meanwhile are among them. Beyond this number all are reported again.
    const MOST: usize = 1_000;
    /// A contest is over when no write was taken back for so long. Flux applies each ten minutes by default.
    const QUIET: Duration = Duration::from_secs(15 * 60);

    /// What could not be written for this object, by what it is.
    pub(crate) fn of(&self, uid: &str) -> BTreeMap<&'static str, Complaint> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_object = known.range((uid.to_owned(), "")..).take_while(|((owner, _), _)| owner == uid);
        of_object.map(|((_, what), known)| (*what, known.complaint.clone())).collect()
    }

    fn is_new(&self, uid: &str, what: &'static str, complaint: Complaint) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::MOST {
            known.clear();
        }
        let key = (uid.to_owned(), what);
        let before = known.insert(key, Known { complaint: complaint.clone(), contested: None });
        before.map(|before| before.complaint) != Some(complaint)
    }

    fn contested(&self, uid: &str, what: &'static str, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(&(uid.to_owned(), what)) {
            known.contested = Some(now);
        }
    }

    /// The write was not refused. When to reconcile again for the complaint: at once if it is healed, as a condition has said so.
    fn written(&self, uid: &str, what: &'static str, has_changed: bool, now: Timestamp) -> Option<Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (uid.to_owned(), what);
        let known = all.get_mut(&key)?;
        if let Some(contested) = &mut known.contested {
            if has_changed {
                *contested = now;
            }
            if let Some(wait) = remaining(Self::QUIET, *contested, now) {
                return Some(wait);
            }
        }
        all.remove(&key);
        Some(Duration::ZERO)
    }

    fn forget(&self, uid: &str, what: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(uid.to_owned(), what));
    }
}

/// Refused marks keep nothing else from being sent: a drain still evicts one of two ready pods.
async fn annotate(
    ctx: &Context,
    inference: &AIInference,
    mark: &Mark,
    now: Timestamp,
) -> Result<(), ApplyError> {
    let Mark { pod, annotations } = mark;
    match ctx.pods.annotate(pod, annotations).await {
        Ok(()) => Ok(()),
        // The next version of the pod starts a reconcile.
        Err(error) if error.is_stale() => Ok(()),
        Err(error) => {
            let refusal = Refusal::of(error)?;
            let message = format!(
                "the annotations of pod {} are refused: {}; allow {NAME} to set {} of pods",
                pod.metadata.name.as_deref().unwrap_or_default(),
                refusal.message(),
                labels::POD_MARKS.join(", ")
            );
            let note = Note { severity: Severity::Warning, reason: reasons::DENIED, message };
            ctx.recorder.publish(inference, &note, now).await;
            Ok(())
        }
    }
}

async fn apply_child(ctx: &Context, child: &Child) -> Result<Written, ApplyError> {
    match child {
        Child::ConfigMap(child) => ctx.config_maps.apply(child).await,
        Child::Deployment(child) => {
            ctx.deployments.apply_to_version(child, child.planned_on.as_deref()).await
        }
        Child::Service(child) => ctx.services.apply(child).await,
        Child::PodDisruptionBudget(child) => ctx.budgets.apply(child).await,
    }
}

/// Whether something is known now of the crash of a pod.
async fn read_logs(ctx: &Context, inference: &AIInference, plan: &Plan) -> bool {
    let namespace = inference.metadata.namespace.as_deref().unwrap_or_default();
    let mut is_noted = false;
    for log in &plan.logs {
        let tail = ctx.logs.end_of(namespace, &log.pod, &log.container, log.previous).await;
        // An entry for a pod that was deleted meanwhile would never be removed.
        let known = ctx.pods.get(&Key::new(namespace, &log.pod));
        if known.is_none_or(|pod| pod.uid() != log.uid) {
            continue;
        }
        match &tail {
            Tail::Text(text) => ctx.crashes.note(log, Reading::Text(text)),
            Tail::Unreadable => ctx.crashes.note(log, Reading::Unreadable),
            Tail::Forbidden => ctx.crashes.note(log, Reading::Forbidden),
        }
        is_noted = true;
    }
    is_noted
}

fn uid(inference: &AIInference) -> &str {
    inference.metadata.uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
