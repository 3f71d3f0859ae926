//! A write of replicas whose answer is not known, and what became of it as far as the target shows it. Pure.

use std::time::Duration;

use api::aiscaler::{AIScalerStatus, Decision};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::{events::Note, scale::Scaled};

use super::{Past, record};

/// A write of replicas whose effect is not known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attempt {
    /// The target as it was then.
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) at: Timestamp,
    pub(crate) decision: Decision,
    pub(crate) note: Note,
}

/// What became of the last attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attempted {
    /// There is none.
    Nothing,
    /// The target has not changed since, or is not seen.
    Open(Box<Attempt>),
    /// The target has changed, and not to the attempted replicas.
    Failed,
    /// The replicas are as attempted.
    CarriedOut(Box<CarriedOut>),
}

/// What has to be remembered of a write whose answer was lost, and its event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CarriedOut {
    pub(crate) past: Past,
    pub(crate) unwritten: Unwritten,
    pub(crate) note: Note,
}

/// What a status says of the decisions that were carried out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unwritten {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) last_scale_time: Option<Time>,
}

/// Twice the time after which an API server gives a request up.
const OPEN_FOR: Duration = Duration::from_mins(2);

impl Attempt {
    /// What became of it. `past`, `unwritten` and `status` are those without it.
    pub(crate) fn judged(
        self,
        target: &Scaled,
        past: &Past,
        unwritten: Option<&Unwritten>,
        status: Option<&AIScalerStatus>,
        now: Timestamp,
    ) -> Attempted {
        if self.is_carried_out(target) {
            let unwritten = Unwritten::with(&self, unwritten, status);
            let past = past.clone().carried_out(&self);
            return Attempted::CarriedOut(Box::new(CarriedOut { past, unwritten, note: self.note }));
        }
        if self.is_over(target, now) { Attempted::Failed } else { Attempted::Open(Box::new(self)) }
    }

    /// The write carried the version, so once the target has another one it can take effect no more.
    fn is_over(&self, target: &Scaled, now: Timestamp) -> bool {
        target.uid != self.uid
            || target.version != self.version
            || now.duration_since(self.at).unsigned_abs() >= OPEN_FOR
    }

    fn is_carried_out(&self, target: &Scaled) -> bool {
        target.uid == self.uid && target.version != self.version && target.replicas == self.decision.to
    }
}

impl Unwritten {
    fn with(attempt: &Attempt, unwritten: Option<&Self>, status: Option<&AIScalerStatus>) -> Self {
        let mut decisions = match (unwritten, status) {
            (Some(known), _) => known.decisions.clone(),
            (None, Some(status)) => status.decisions.clone(),
            (None, None) => Vec::new(),
        };
        record(&mut decisions, attempt.decision.clone());
        Self { decisions, last_scale_time: attempt.decision.time.clone() }
    }
}
