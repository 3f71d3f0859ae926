//! The life of a reconcile of a ModelEvaluation, in the order of `runtime::reconcile`. Without a finalizer: the garbage
//! collector deletes the children of a deleted evaluation.

use std::sync::Arc;

use api::aiinference::evaluation::ModelEvaluation;
use jiff::Timestamp;
use runtime::{
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, refusal::Refusal},
};

use crate::{
    Context,
    apply::apply,
    observe::{Observed, observe},
    plan::{Plan, plan, refused::refused},
};

/// No plan rests on what a cache may not know yet. A child that is there already is found by its creation. Each deletion
/// carries the version that it is about. No run is ended on pods of a watch that has failed for a while.
pub(crate) enum Doubt {}

impl Reconciler for Context {
    type Root = ModelEvaluation;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    fn observe(&self, evaluation: Arc<ModelEvaluation>, now: Timestamp) -> Observed {
        observe(self, evaluation, now)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        Decision::Plan(plan(observed, &self.settings, now))
    }

    async fn confirm(&self, doubt: Doubt, _: &mut Observed) -> Result<Confirmation, ApplyError> {
        match doubt {}
    }

    async fn apply(
        &self,
        evaluation: &ModelEvaluation,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        apply(self, evaluation, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, plan: Plan, observed: &Observed, now: Timestamp) -> Plan {
        refused(refusal, &plan, observed, &self.settings, now)
    }
}
