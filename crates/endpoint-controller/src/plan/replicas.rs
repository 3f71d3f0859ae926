//! Who sets the replicas of the AIInference, and which number. Pure.
//!
//! Without autoscaling this controller applies them. With it, the field is given to the autoscaler at its live value: a second
//! field manager holds it, and then this controller stops applying it. Without autoscaling again, the field is taken
//! back at its live value when the autoscaler is gone, and follows the spec after that. An autoscaler of another counts as
//! one, too.

use std::time::Duration;

use api::{aiinference::AIInference, conditions, reasons};
use jiff::Timestamp;
use kube::Resource as _;
use workload::time::remaining;

use crate::{
    child::{InferenceView, Setter},
    observe::Observed,
    validate::{ValidAutoscaling, ValidEndpoint},
};

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Course {
    /// The replicas that this controller applies; `None`: it does not apply the field.
    pub(super) applied: Option<i32>,
    pub(super) setter: Setter,
    /// The live value that a second manager holds before this controller stops applying the field.
    pub(super) handover: Option<i32>,
    /// The live value is applied, so it must still be the live one.
    pub(super) is_guarded: bool,
    /// An autoscaler may exist after this step.
    pub(super) may_scale: bool,
    /// Another step follows at once.
    pub(super) goes_on: bool,
}

impl Course {
    /// This controller applies the number.
    fn applies(replicas: i32) -> Self {
        Self {
            applied: Some(replicas),
            setter: Setter::Spec,
            handover: None,
            is_guarded: false,
            may_scale: false,
            goes_on: false,
        }
    }

    /// The field is the autoscaler's.
    fn leaves() -> Self {
        Self { applied: None, setter: Setter::Scaler, may_scale: true, ..Self::applies(0) }
    }
}

/// Since when an autoscaler of another is gone, with the generation of the spec at that time.
const RIVAL_IS_GONE: &str = "the autoscaler of another is gone, in generation ";
/// Tools delete an autoscaler and make it again, and KEDA deletes it while it pauses. Pods that serve stay for so long.
const RIVAL_MAY_RETURN_WITHIN: Duration = Duration::from_secs(300);

/// How long the replicas of an autoscaler that is gone still stay. A later change of the spec ends that.
pub(super) fn rival_may_return(
    valid: &ValidEndpoint,
    observed: &Observed,
    now: Timestamp,
) -> Option<Duration> {
    let fact = rival_is_gone(valid, observed).filter(|fact| *fact == gone_in(valid.generation))?;
    remaining(RIVAL_MAY_RETURN_WITHIN, observed.facts.get(&fact).copied().unwrap_or(now), now)
}

/// What is remembered until this controller sets the replicas again.
pub(super) fn rival_is_gone(valid: &ValidEndpoint, observed: &Observed) -> Option<String> {
    // More pods than the autoscaler has set take none away.
    let is_left = observed
        .inference
        .own()
        .is_some_and(|known| known.setter == Some(Setter::Scaler) && known.replicas > valid.replicas);
    // An autoscaler of this endpoint may have said the same of another one. It does not come back.
    let mut children = valid.endpoint.status.iter().flat_map(|status| &status.children);
    let had_own = children.any(|child| child.kind != AIInference::kind(&()));
    if valid.autoscaling.is_some() || observed.rival.is_some() || valid.replicas == 0 || !is_left || had_own {
        return None;
    }
    let mut conditions = valid.endpoint.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|known| {
        known.type_ == conditions::SCALING_ACTIVE && known.reason == reasons::TARGET_MANAGED_BY_OTHER
    })?;
    let known = observed.facts.keys().find(|fact| fact.starts_with(RIVAL_IS_GONE));
    Some(known.cloned().unwrap_or_else(|| gone_in(valid.generation)))
}

fn gone_in(generation: i64) -> String {
    format!("{RIVAL_IS_GONE}{generation}")
}

pub(super) fn course(valid: &ValidEndpoint, observed: &Observed, now: Timestamp) -> Course {
    match (observed.inference.own(), &valid.autoscaling) {
        (None, None) => Course::applies(valid.replicas),
        (None, Some(autoscaling)) => first(valid, autoscaling),
        (Some(inference), Some(autoscaling)) => to_scaler(valid, inference, autoscaling),
        (Some(_), None) if rival_may_return(valid, observed, now).is_some() => Course::leaves(),
        // 0 stops an endpoint, also one with an autoscaler of another.
        (Some(inference), None) if observed.rival.is_some() && valid.replicas > 0 => {
            to_rival(valid, inference)
        }
        (Some(inference), None) => to_spec(valid, inference, observed),
    }
}

/// The autoscaler takes over in the next step.
fn first(valid: &ValidEndpoint, autoscaling: &ValidAutoscaling) -> Course {
    Course { goes_on: true, ..Course::applies(autoscaling.bounded(valid.replicas)) }
}

fn to_scaler(valid: &ValidEndpoint, inference: &InferenceView, autoscaling: &ValidAutoscaling) -> Course {
    match inference.setter {
        Some(Setter::Scaler) => Course::leaves(),
        // An autoscaler does nothing for a target with 0 replicas.
        Some(Setter::Spec) | None if inference.replicas == 0 => first(valid, autoscaling),
        // Without the annotation, the live value stays.
        Some(Setter::Spec) | None => Course { handover: Some(inference.replicas), ..Course::leaves() },
    }
}

fn to_rival(valid: &ValidEndpoint, inference: &InferenceView) -> Course {
    match inference.setter {
        Some(Setter::Scaler) => Course::leaves(),
        Some(Setter::Spec) | None if inference.replicas == 0 => {
            Course { goes_on: true, ..Course::applies(valid.replicas) }
        }
        Some(Setter::Spec) | None => Course { handover: Some(inference.replicas), ..Course::leaves() },
    }
}

fn to_spec(valid: &ValidEndpoint, inference: &InferenceView, observed: &Observed) -> Course {
    let has_scaler = observed.hpa.own().is_some() || observed.scaler.own().is_some();
    match inference.setter {
        Some(Setter::Spec) => Course::applies(valid.replicas),
        Some(Setter::Scaler) | None if has_scaler => Course { may_scale: false, ..Course::leaves() },
        Some(Setter::Scaler) | None => {
            Course { is_guarded: true, goes_on: true, ..Course::applies(inference.replicas) }
        }
    }
}
