//! Kinds of other controllers that this one reads or writes: routes and pools of the Gateway API, and ModelEvaluations.

pub(crate) mod evaluation;
pub(crate) mod gateway_api;
