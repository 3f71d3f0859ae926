//! The life of a reconcile, the same for every kind: observe, plan, confirm what may be out of date, apply, and plan
//! again after a refusal.
//!
//! ```text
//!  deleted, without FINALIZER ─▶ forget
//!  observe ─▶ plan ─┬─▶ Doubt ─▶ confirm ─┬─▶ it is so: plan again
//!  caches     pure  │            reads    └─▶ the caches are late: later
//!                   └─▶ Plan ─▶ apply ─┬─▶ all is written
//!                               I/O    └─▶ refused: observe, plan for the refusal, apply
//! ```

use std::{future::Future, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Resource;
use tracing::warn;

use crate::{
    controller::Next,
    key::Key,
    write::{apply::ApplyError, refusal::Refusal},
};

/// Time for a watch that is late.
pub const LATE_WATCH_RETRY: Duration = Duration::from_secs(1);
/// A plan may doubt so many things one after the other; a plan that doubts more is never done.
const MOST_DOUBTS: usize = 8;

/// What a controller does for one object of its kind.
pub trait Reconciler: Send + Sync {
    type Root: Resource<DynamicType = ()> + Send + Sync;
    /// What is known of one object, with what has been confirmed.
    type Observed: Send + Sync;
    /// Every effect of one reconcile.
    type Plan: Send + Sync;
    /// What a plan rests on and a cache may not know yet.
    type Doubt: Send;

    /// The finalizer with which a deleted object is still reconciled. Without it the garbage collector does everything.
    const FINALIZER: Option<&'static str> = None;

    /// The object is deleted, and nothing more is done for it.
    fn forget(&self, _root: &Self::Root) {}

    /// Reads the caches and what is kept in memory. It sends nothing.
    fn observe(&self, root: Arc<Self::Root>, now: Timestamp) -> Self::Observed;

    /// Validates and decides. Pure.
    fn plan(&self, observed: &Self::Observed, now: Timestamp) -> Decision<Self::Plan, Self::Doubt>;

    /// Asks the API server, and notes the answer in `observed` so that the next plan has no such doubt.
    fn confirm(
        &self,
        doubt: Self::Doubt,
        observed: &mut Self::Observed,
    ) -> impl Future<Output = Result<Confirmation, ApplyError>> + Send;

    /// Sends everything. It decides nothing.
    fn apply(
        &self,
        root: &Self::Root,
        plan: &Self::Plan,
        now: Timestamp,
    ) -> impl Future<Output = Result<Applied, ApplyError>> + Send;

    /// The plan after the API server has refused `plan`: reports it. `observed` is new. Pure.
    fn refused(
        &self,
        refusal: &Refusal,
        plan: Self::Plan,
        observed: &Self::Observed,
        now: Timestamp,
    ) -> Self::Plan;
}

/// What a plan comes to.
#[derive(Debug)]
pub enum Decision<P, D> {
    Plan(P),
    /// It rests on this.
    Doubt(D),
}

/// What the API server says of a doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// It is as it was seen, or `observed` has what is newer.
    Confirmed,
    /// A watch is late; it brings what is newer.
    TooOld,
}

impl Confirmation {
    /// `Confirmed` if what was seen is the newest.
    pub fn of_newest(is_newest: bool) -> Self {
        if is_newest { Self::Confirmed } else { Self::TooOld }
    }
}

/// What became of a plan.
#[derive(Debug)]
pub enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// The API server refuses something, and no retry helps. What follows it was skipped.
    Refused(Refusal),
    /// As `Refused`, and a write that another manager has taken back is to be repeated after `wait`.
    RefusedAfterContest {
        refusal: Refusal,
        wait: Duration,
    },
    /// A write has failed, and is tried again. The user should see what was refused beside it, or what its answer says.
    Failed {
        error: ApplyError,
        why: Refusal,
    },
}

/// Reconciles one object once.
pub async fn reconcile<R>(it: &R, root: Arc<R::Root>, now: Timestamp) -> Result<Next, ApplyError>
where
    R: Reconciler,
{
    if root.meta().deletion_timestamp.is_some() && !has_finalizer::<R>(&root) {
        it.forget(&root);
        return Ok(Next::Done);
    }
    let Some(plan) = settled(it, &root, now).await? else { return Ok(Next::After(LATE_WATCH_RETRY)) };
    let (refusal, error, contest) = match it.apply(&root, &plan, now).await? {
        Applied::All { requeue_after } => return Ok(next(requeue_after)),
        Applied::Refused(refusal) => (refusal, None, None),
        Applied::RefusedAfterContest { refusal, wait } => (refusal, None, Some(wait)),
        Applied::Failed { error, why } => (why, Some(error), None),
    };
    // What was written before the refusal is in the caches.
    let observed = it.observe(Arc::clone(&root), now);
    let plan = it.refused(&refusal, plan, &observed, now);
    let applied = it.apply(&root, &plan, now).await?;
    match (error, applied) {
        (Some(error), _) => Err(error),
        (None, Applied::All { requeue_after }) => Ok(next(requeue_after.into_iter().chain(contest).min())),
        // A change of the object or of what has refused it wakes it.
        (None, Applied::Refused(_) | Applied::RefusedAfterContest { .. } | Applied::Failed { .. }) => {
            Ok(next(contest))
        }
    }
}

/// A plan that rests on nothing that is out of date; `None`: later, because a watch is late, or the plan has doubted too often.
async fn settled<R>(it: &R, root: &Arc<R::Root>, now: Timestamp) -> Result<Option<R::Plan>, ApplyError>
where
    R: Reconciler,
{
    let mut observed = it.observe(Arc::clone(root), now);
    for _ in 0..MOST_DOUBTS {
        match it.plan(&observed, now) {
            Decision::Plan(plan) => return Ok(Some(plan)),
            Decision::Doubt(doubt) => match it.confirm(doubt, &mut observed).await? {
                Confirmation::Confirmed => {}
                Confirmation::TooOld => return Ok(None),
            },
        }
    }
    warn!(root = %Key::of(&**root), "a plan doubts without end; it is made again later");
    Ok(None)
}

fn has_finalizer<R: Reconciler>(root: &R::Root) -> bool {
    let finalizers = root.meta().finalizers.iter().flatten();
    R::FINALIZER.is_some_and(|ours| finalizers.into_iter().any(|finalizer| finalizer == ours))
}

fn next(requeue_after: Option<Duration>) -> Next {
    requeue_after.map_or(Next::Done, Next::After)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use k8s_openapi::{
        api::core::v1::ConfigMap,
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    };

    use super::*;
    use crate::write::apply::Stale;

    const FINALIZER: &str = "test/finalizer";

    /// Confirms each doubt as the script says, and notes every call.
    struct Scripted {
        calls: Mutex<Vec<String>>,
        /// The plan has so many doubts.
        doubts: usize,
        confirmation: Confirmation,
        /// Of the applies, in this order.
        applied: Mutex<Vec<Applied>>,
    }

    impl Scripted {
        fn new(doubts: usize, applied: Vec<Applied>) -> Self {
            let (calls, confirmation) = (Mutex::default(), Confirmation::Confirmed);
            Self { calls, doubts, confirmation, applied: Mutex::new(applied) }
        }

        fn note(&self, call: &str) {
            self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call.to_owned());
        }

        fn calls(&self) -> String {
            self.calls.lock().unwrap_or_else(PoisonError::into_inner).join(" ")
        }
    }

    impl Reconciler for Scripted {
        type Root = ConfigMap;
        /// How many doubts are confirmed.
        type Observed = usize;
        type Plan = &'static str;
        type Doubt = usize;

        const FINALIZER: Option<&'static str> = Some(FINALIZER);

        fn forget(&self, _root: &ConfigMap) {
            self.note("forget");
        }

        fn observe(&self, _root: Arc<ConfigMap>, _now: Timestamp) -> usize {
            self.note("observe");
            0
        }

        fn plan(&self, confirmed: &usize, _now: Timestamp) -> Decision<&'static str, usize> {
            self.note("plan");
            if *confirmed < self.doubts { Decision::Doubt(*confirmed) } else { Decision::Plan("all") }
        }

        async fn confirm(&self, doubt: usize, confirmed: &mut usize) -> Result<Confirmation, ApplyError> {
            self.note(&format!("confirm({doubt})"));
            *confirmed += 1;
            Ok(self.confirmation)
        }

        async fn apply(
            &self,
            _root: &ConfigMap,
            plan: &&'static str,
            _now: Timestamp,
        ) -> Result<Applied, ApplyError> {
            self.note(&format!("apply({plan})"));
            Ok(self.applied.lock().unwrap_or_else(PoisonError::into_inner).remove(0))
        }

        fn refused(
            &self,
            refusal: &Refusal,
            plan: &'static str,
            _observed: &usize,
            _now: Timestamp,
        ) -> &'static str {
            self.note(&format!("refused({plan}: {})", refusal.message()));
            "report"
        }
    }

    fn all(seconds: u64) -> Applied {
        Applied::All { requeue_after: Some(Duration::from_secs(seconds)) }
    }

    fn denied() -> Refusal {
        Refusal::Denied("quota".to_owned())
    }

    fn failure() -> ApplyError {
        ApplyError::Stale { kind: "ConfigMap", key: Key::new("a", "b"), why: Stale::Changed }
    }

    async fn run(it: &Scripted, meta: ObjectMeta) -> Result<Next, ApplyError> {
        let root = Arc::new(ConfigMap { metadata: meta, ..ConfigMap::default() });
        reconcile(it, root, Timestamp::UNIX_EPOCH).await
    }

    #[tokio::test]
    async fn a_plan_without_doubts_is_applied_once() {
        let it = Scripted::new(0, vec![all(5)]);
        assert_eq!(run(&it, ObjectMeta::default()).await.unwrap(), Next::After(Duration::from_secs(5)));
        assert_eq!(it.calls(), "observe plan apply(all)");
    }

    #[tokio::test]
    async fn each_doubt_is_confirmed_before_anything_is_sent() {
        let it = Scripted::new(2, vec![Applied::All { requeue_after: None }]);
        assert_eq!(run(&it, ObjectMeta::default()).await.unwrap(), Next::Done);
        assert_eq!(it.calls(), "observe plan confirm(0) plan confirm(1) plan apply(all)");
    }

    #[tokio::test]
    async fn a_plan_on_what_is_too_old_waits_for_the_watch() {
        let late = Scripted { confirmation: Confirmation::TooOld, ..Scripted::new(1, Vec::new()) };
        assert_eq!(run(&late, ObjectMeta::default()).await.unwrap(), Next::After(LATE_WATCH_RETRY));
        assert_eq!(late.calls(), "observe plan confirm(0)");
    }

    #[tokio::test]
    async fn a_plan_that_doubts_without_end_sends_nothing() {
        let endless = Scripted::new(usize::MAX, Vec::new());
        assert_eq!(run(&endless, ObjectMeta::default()).await.unwrap(), Next::After(LATE_WATCH_RETRY));
        assert!(!endless.calls().contains("apply"), "{}", endless.calls());
    }

    #[tokio::test]
    async fn a_refusal_is_reported_by_a_plan_on_what_is_there_now() {
        let it = Scripted::new(0, vec![Applied::Refused(denied()), all(30)]);
        assert_eq!(run(&it, ObjectMeta::default()).await.unwrap(), Next::After(Duration::from_secs(30)));
        assert_eq!(it.calls(), "observe plan apply(all) observe refused(all: quota) apply(report)");
    }

    #[tokio::test]
    async fn a_refusal_of_the_report_ends_it() {
        let it = Scripted::new(0, vec![Applied::Refused(denied()), Applied::Refused(denied())]);
        assert_eq!(run(&it, ObjectMeta::default()).await.unwrap(), Next::Done);
    }

    #[tokio::test]
    async fn a_contested_write_is_repeated_in_time_also_after_a_refusal() {
        for (report, wait) in [(all(30), 5), (all(2), 2), (Applied::Refused(denied()), 5)] {
            let contested = Applied::RefusedAfterContest { refusal: denied(), wait: Duration::from_secs(5) };
            let it = Scripted::new(0, vec![contested, report]);
            assert_eq!(
                run(&it, ObjectMeta::default()).await.unwrap(),
                Next::After(Duration::from_secs(wait))
            );
        }
    }

    #[tokio::test]
    async fn a_failure_that_was_reported_is_still_a_failure() {
        let it = Scripted::new(0, vec![Applied::Failed { error: failure(), why: denied() }, all(30)]);
        assert!(matches!(run(&it, ObjectMeta::default()).await, Err(ApplyError::Stale { .. })));
        assert!(it.calls().ends_with("refused(all: quota) apply(report)"), "{}", it.calls());
    }

    #[tokio::test]
    async fn a_deleted_object_is_reconciled_only_with_the_finalizer() {
        let deleted = |finalizers: Vec<String>| ObjectMeta {
            deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)),
            finalizers: Some(finalizers),
            ..ObjectMeta::default()
        };
        let it = Scripted::new(0, Vec::new());
        assert_eq!(run(&it, deleted(vec!["of/another".to_owned()])).await.unwrap(), Next::Done);
        assert_eq!(it.calls(), "forget");
        let it = Scripted::new(0, vec![Applied::All { requeue_after: None }]);
        assert_eq!(run(&it, deleted(vec![FINALIZER.to_owned()])).await.unwrap(), Next::Done);
        assert_eq!(it.calls(), "observe plan apply(all)");
    }
}
