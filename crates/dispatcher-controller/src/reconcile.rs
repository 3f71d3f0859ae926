//! One reconcile of an AIDispatcher, as `runtime::reconcile` plays it.

use std::sync::Arc;

use api::aidispatcher::AIDispatcher;
use jiff::Timestamp;
use runtime::{
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, refusal::Refusal},
};

use crate::{
    Context,
    apply::apply,
    observe::{Observed, observe},
    plan::{Doubt, Plan, plan, refused},
};

/// Without a finalizer: the garbage collector deletes the Deployment, and its pods save the state of their workers before they
/// end.
impl Reconciler for Context {
    type Root = AIDispatcher;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    fn observe(&self, dispatcher: Arc<AIDispatcher>, now: Timestamp) -> Observed {
        observe(self, dispatcher, now)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        plan(observed, &self.defaults, now)
    }

    async fn confirm(&self, doubt: Doubt, observed: &mut Observed) -> Result<Confirmation, ApplyError> {
        match doubt {
            Doubt::Outdated => {
                observed.is_newest = self.writer.is_newest(&self.dispatchers, &observed.dispatcher).await?;
                Ok(Confirmation::of_newest(observed.is_newest))
            }
        }
    }

    async fn apply(
        &self,
        dispatcher: &AIDispatcher,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        apply(self, dispatcher, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, planned: Plan, observed: &Observed, now: Timestamp) -> Plan {
        refused(refusal, planned, observed, &self.defaults, now)
    }
}
