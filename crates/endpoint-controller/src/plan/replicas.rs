//! Who sets the replicas of the AIInference, and which number. Pure.
//!
//! Without autoscaling this controller applies them. With it, the field is given to the autoscaler at its live value: a second
//! field manager holds it, and then this controller stops applying it. Without autoscaling again, the field is taken
//! back at its live value when the autoscaler is gone, and follows the spec after that.

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

pub(super) fn course(valid: &ValidEndpoint, observed: &Observed) -> Course {
    match (observed.inference.own(), &valid.autoscaling) {
        (None, None) => Course::applies(valid.replicas),
        (None, Some(autoscaling)) => first(valid, autoscaling),
        (Some(inference), Some(autoscaling)) => to_scaler(valid, inference, autoscaling),
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
