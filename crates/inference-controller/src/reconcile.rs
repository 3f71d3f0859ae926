//! What the life of a reconcile asks of this controller.

use std::sync::Arc;

use api::aiinference::AIInference;
use jiff::Timestamp;
use runtime::{
    key::Key,
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, refusal::Refusal},
};

use crate::{
    Context,
    apply::apply,
    names::{self, Track},
    observe::{Observed, count_managed, observe},
    plan::{Doubt, Plan, plan, refused},
};

/// Without a finalizer: the garbage collector deletes the children of a deleted object.
impl Reconciler for Context {
    type Root = AIInference;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    fn observe(&self, inference: Arc<AIInference>, now: Timestamp) -> Observed {
        observe(self, inference, now)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        plan(observed, &self.defaults, now)
    }

    async fn confirm(&self, doubt: Doubt, observed: &mut Observed) -> Result<Confirmation, ApplyError> {
        match doubt {
            Doubt::Object => {
                observed.is_newest = self.writer.is_newest(&self.inferences, &observed.inference).await?;
                Ok(Confirmation::of_newest(observed.is_newest))
            }
            Doubt::Endpoint => {
                let meta = &observed.inference.metadata;
                let namespace = meta.namespace.as_deref().unwrap_or_default();
                let name = meta.name.as_deref().unwrap_or_default();
                let service = Key::new(namespace, &names::service(name, Track::Canary));
                observed.has_endpoint = Some(self.endpoints.has_ready(&service).await);
                Ok(Confirmation::Confirmed)
            }
            Doubt::Pace { due, now } => {
                let due: Vec<&str> = due.iter().map(String::as_str).collect();
                observed.allowance = Some(self.pace.allow(&due, || count_managed(&self.pods), now));
                Ok(Confirmation::Confirmed)
            }
        }
    }

    async fn apply(
        &self,
        inference: &AIInference,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        apply(self, inference, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, planned: Plan, observed: &Observed, now: Timestamp) -> Plan {
        refused(refusal, &planned, observed, &self.defaults, now)
    }
}
