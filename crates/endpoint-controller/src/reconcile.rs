//! The life of a reconcile of an InferenceEndpoint, in the order of `runtime::reconcile`. Without a finalizer: the garbage
//! collector deletes the children of a deleted endpoint.

use std::sync::Arc;

use jiff::Timestamp;
use runtime::{
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, refusal::Refusal},
};

use crate::{
    Context,
    apply::apply,
    endpoint::Endpoint,
    observe::{Observed, observe},
    plan::{Doubt, Plan, decide, refused},
};

impl Reconciler for Context {
    type Root = Endpoint;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    fn observe(&self, endpoint: Arc<Endpoint>, _: Timestamp) -> Observed {
        observe(self, endpoint)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        decide(observed, &self.settings, now)
    }

    async fn confirm(&self, doubt: Doubt, observed: &mut Observed) -> Result<Confirmation, ApplyError> {
        match doubt {
            Doubt::Outdated => {
                observed.is_newest = self.writer.is_newest(&self.endpoints, &observed.endpoint).await?;
                Ok(Confirmation::of_newest(observed.is_newest))
            }
        }
    }

    async fn apply(&self, endpoint: &Endpoint, plan: &Plan, now: Timestamp) -> Result<Applied, ApplyError> {
        apply(self, endpoint, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, _: Plan, observed: &Observed, now: Timestamp) -> Plan {
        refused(refusal, observed, &self.settings, now)
    }
}
