//! What the API says of the canary at one moment, and what has happened between two moments.

use anyhow::Context as _;
use api::aiinference::{
    AIInference,
    analysis::{AnalysisStatus, RequestCounts},
    traffic::{CanaryPhase, CanaryStatus, Rollback},
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};

use super::{
    objects::{MODEL, NAMESPACE},
    record::{Counts, EventKind},
};

pub(super) struct Observer {
    inferences: Api<AIInference>,
    routes: Api<DynamicObject>,
}

/// One look.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Snapshot {
    /// Weight of the candidate in the route.
    pub(super) share: u32,
    pub(super) canary: CanaryStatus,
}

impl Snapshot {
    pub(super) fn is_in(&self, phase: CanaryPhase) -> bool {
        self.canary.phase == Some(phase)
    }
}

impl Observer {
    pub(super) fn new(client: &Client) -> Self {
        let kind = ApiResource {
            group: "gateway.networking.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "gateway.networking.k8s.io/v1".to_owned(),
            kind: "HTTPRoute".to_owned(),
            plural: "httproutes".to_owned(),
        };
        Self {
            inferences: Api::namespaced(client.clone(), NAMESPACE),
            routes: Api::namespaced_with(client.clone(), NAMESPACE, &kind),
        }
    }

    /// The first look may come before there is a route.
    pub(super) async fn look(&self) -> anyhow::Result<Snapshot> {
        let route = self.routes.get(MODEL);
        let inference = self.inferences.get(MODEL);
        let (route, inference) = tokio::try_join!(route, inference)
            .with_context(|| format!("failed to read AIInference {NAMESPACE}/{MODEL} and its route"))?;
        let refs = &route.data["spec"]["rules"][0]["backendRefs"];
        let weight = refs[1]["weight"].as_u64().unwrap_or(0);
        let canary = inference.status.and_then(|status| status.canary).unwrap_or_default();
        Ok(Snapshot { share: u32::try_from(weight).unwrap_or(0), canary })
    }
}

/// In the order in which they follow from each other.
pub(super) fn events_between(before: &Snapshot, now: &Snapshot) -> Vec<EventKind> {
    let mut events = Vec::new();
    let (old, new) = (&before.canary, &now.canary);
    let counted =
        |canary: &CanaryStatus| canary.analysis.as_ref().and_then(|analysis| counts(canary.step, analysis));
    if let Some(counts) = counted(new).filter(|_| counted(old) != counted(new)) {
        events.push(counts);
    }
    let is_same_version = old.revision == new.revision;
    if let Some(Rollback { reason, message, .. }) = new
        .last_rollback
        .as_ref()
        .filter(|new| Some(&new.revision) != old.last_rollback.as_ref().map(|old| &old.revision))
    {
        events.push(EventKind::RolledBack { reason: reason.clone(), message: message.clone() });
    }
    let is_promoting = |canary: &CanaryStatus| canary.phase == Some(CanaryPhase::Promoting);
    if is_same_version && old.step > 0 && (new.step > old.step || is_promoting(new) && !is_promoting(old)) {
        events.push(EventKind::Passed { step: u32::try_from(old.step).unwrap_or(0) });
    }
    if now.share != before.share {
        events.push(EventKind::Share { percent: now.share });
    }
    if now.is_in(CanaryPhase::Promoted) && !before.is_in(CanaryPhase::Promoted) {
        events.push(EventKind::Promoted);
    }
    if new.replicas == 0 && old.replicas > 0 {
        events.push(EventKind::Gone);
    }
    events
}

/// Of the only metric, once requests are known.
fn counts(step: i32, analysis: &AnalysisStatus) -> Option<EventKind> {
    let metric = analysis.metrics.first()?;
    let counts = |counts: &RequestCounts| {
        Some(Counts { ended: counts.ended.try_into().ok()?, bad: counts.bad.try_into().ok()? })
    };
    let candidate = counts(&metric.candidate).filter(|candidate| candidate.ended > 0)?;
    Some(EventKind::Counted {
        step: step.try_into().ok()?,
        stable: counts(&metric.stable)?,
        candidate,
        upper_bound_percent: metric.upper_bound_percent.as_deref()?.parse().ok()?,
    })
}
