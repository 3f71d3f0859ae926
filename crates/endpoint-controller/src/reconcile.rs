//! The life of a reconcile of an InferenceEndpoint, in the order of `runtime::reconcile`. Without a finalizer: the garbage
//! collector deletes the children of a deleted endpoint.

use std::sync::Arc;

use api::aiinference::endpoint::InferenceEndpoint;
use jiff::Timestamp;
use runtime::{
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, refusal::Refusal},
};

use crate::{
    Context,
    apply::apply,
    observe::{Observed, observe},
    plan::{Plan, plan, refused},
};

/// No plan rests on what a cache may not know yet: each write carries the version or the uid that it is about.
pub(crate) enum Doubt {}

impl Reconciler for Context {
    type Root = InferenceEndpoint;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    fn observe(&self, endpoint: Arc<InferenceEndpoint>, _: Timestamp) -> Observed {
        observe(self, endpoint)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        Decision::Plan(plan(observed, &self.settings, now))
    }

    async fn confirm(&self, doubt: Doubt, _: &mut Observed) -> Result<Confirmation, ApplyError> {
        match doubt {}
    }

    async fn apply(
        &self,
        endpoint: &InferenceEndpoint,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        apply(self, endpoint, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, _: Plan, observed: &Observed, now: Timestamp) -> Plan {
        refused(refusal, observed, &self.settings, now)
    }
}
