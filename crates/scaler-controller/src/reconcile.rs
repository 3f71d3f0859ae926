//! The life of a reconcile of an AIScaler, in the order of `runtime::reconcile`. A deleted one leaves the replicas as they
//! are.

use std::sync::Arc;

use api::aiscaler::AIScaler;
use jiff::Timestamp;
use runtime::{
    reconcile::{Applied, Confirmation, Decision, Reconciler},
    write::{apply::ApplyError, refusal::Refusal},
};

use crate::{
    Context,
    apply::apply,
    observe::{Observed, observe},
    plan::{Doubt, Plan, plan, refused, rejected},
    validate::validate,
};

impl Reconciler for Context {
    type Root = AIScaler;
    type Observed = Observed;
    type Plan = Plan;
    type Doubt = Doubt;

    fn observe(&self, scaler: Arc<AIScaler>, now: Timestamp) -> Observed {
        observe(self, &scaler, now)
    }

    fn plan(&self, observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
        match validate(&observed.scaler, &self.configuration.allowed) {
            Err(invalid) => Decision::Plan(rejected(&invalid, observed, now)),
            Ok(valid) => plan(&valid, observed, self.configuration.period, now),
        }
    }

    async fn confirm(&self, doubt: Doubt, observed: &mut Observed) -> Result<Confirmation, ApplyError> {
        let scaler = &observed.scaler;
        match doubt {
            Doubt::OutdatedScaler => {
                let is_newest = self.writer.is_newest(&self.scalers, &**scaler).await?;
                if is_newest {
                    let metadata = &scaler.metadata;
                    let uid = metadata.uid.as_deref().unwrap_or_default();
                    self.samples.confirm(uid, metadata.resource_version.as_deref());
                    observed.is_confirmed = true;
                }
                Ok(Confirmation::of_newest(is_newest))
            }
        }
    }

    async fn apply(&self, scaler: &AIScaler, plan: &Plan, now: Timestamp) -> Result<Applied, ApplyError> {
        apply(self, scaler, plan, now).await
    }

    fn refused(&self, refusal: &Refusal, plan: Plan, observed: &Observed, now: Timestamp) -> Plan {
        match validate(&observed.scaler, &self.configuration.allowed) {
            Err(invalid) => rejected(&invalid, observed, now),
            Ok(valid) => refused(refusal, &plan, &valid, observed, self.configuration.period, now),
        }
    }
}
