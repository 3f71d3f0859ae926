//! The phase and the conditions of an InferenceEndpoint, each with a reason and a message. Pure.
//!
//! What the AIInference and the autoscaler say is copied with reason and message. Transition times are set in `status`.

use std::{borrow::Cow, time::Duration};

use api::{
    aiinference,
    aiinference::endpoint::{MetricSpec, Phase},
    conditions, reasons,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::write::refusal::Refusal;
use workload::time::remaining;

use crate::{
    child::{Active, InferenceView},
    observe::{MetricsApi, Observed},
    validate::{Accelerator, Invalid, Scaler, ValidAutoscaling, ValidEndpoint},
};

/// Phase and conditions without transition times.
#[derive(Debug)]
pub(super) struct Assessment {
    pub(super) phase: Phase,
    pub(super) verdicts: Vec<Statement>,
    /// Nothing is wrong, and more will be known soon.
    pub(super) comes_up: bool,
}

/// A condition without its time.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) type_: &'static str,
    pub(super) holds: bool,
    /// A constant of this controller, or the reason that a child gives.
    pub(super) reason: Cow<'static, str>,
    pub(super) message: String,
}

/// Since when the status of the AIInference is not about its present generation.
pub(super) const LAGS: &str = "the status of the AIInference lags";
/// The inference-controller reports a change of the replicas within seconds.
const MAY_LAG_FOR: Duration = Duration::from_secs(60);

/// Whether the status of the AIInference is not about its present generation, and was about one of this spec.
pub(super) fn lags(valid: &ValidEndpoint, observed: &Observed) -> bool {
    observed.inference.own().is_some_and(|inference| {
        inference.rendered_from == Some(valid.generation) && !is_seen(inference) && was_current(valid)
    })
}

/// How long what was said before still counts.
pub(super) fn lag(valid: &ValidEndpoint, observed: &Observed, now: Timestamp) -> Option<Duration> {
    let since = observed.facts.get(LAGS).copied().unwrap_or(now);
    remaining(MAY_LAG_FOR, since, now).filter(|_| lags(valid, observed))
}

pub(super) fn of_valid(
    valid: &ValidEndpoint,
    observed: &Observed,
    accelerator: Option<Statement>,
    now: Timestamp,
) -> Assessment {
    let accepted = holds(conditions::ACCEPTED, reasons::VALID, "the spec is valid".to_owned());
    let lags = lag(valid, observed, now).is_some();
    let is_current =
        |inference: &&InferenceView| inference.rendered_from == Some(valid.generation) && is_seen(inference);
    let current = observed.inference.own().filter(|inference| lags || is_current(inference));
    let Some(inference) = current else {
        return coming(accepted, accelerator, valid, observed, now);
    };
    let status = &inference.status;
    let serves = copied(conditions::INFERENCE_READY, inference.condition(conditions::READY));
    let mut verdicts = vec![accepted];
    verdicts.extend(accelerator);
    verdicts.extend(serves.clone());
    verdicts.extend(scaling(valid, observed, now));
    let ready = match &serves {
        Some(serves) if serves.holds => Statement { type_: conditions::READY, ..serves.clone() },
        Some(serves) => {
            // A node that has gone explains why pods do not start. It does not explain why those on nodes fail.
            let has_nodes = inference
                .condition(conditions::SCHEDULED)
                .is_some_and(|scheduled| scheduled.status == "True");
            let explains = |verdict: &&Statement| {
                !verdict.holds
                    && verdict.type_ != conditions::SCALING_ACTIVE
                    && !(has_nodes && verdict.type_ == conditions::ACCELERATOR_RESOLVED)
            };
            let failing = verdicts.iter().find(explains);
            Statement { type_: conditions::READY, ..failing.unwrap_or(serves).clone() }
        }
        None => fails(conditions::READY, reasons::WAITING, waits_for_status()),
    };
    let phase = phase(&ready, inference);
    let reconciling = inference.condition(conditions::RECONCILING);
    let stalled = inference.condition(conditions::STALLED);
    let is_silent = inference.condition(conditions::READY).is_none();
    verdicts.push(ready);
    verdicts.extend(copied(conditions::STALLED, stalled));
    match reconciling {
        Some(_) => verdicts.extend(copied(conditions::RECONCILING, reconciling)),
        None if is_silent => {
            verdicts.push(holds(conditions::RECONCILING, reasons::WAITING, waits_for_status()));
        }
        None => {}
    }
    let comes_up =
        phase == Phase::Progressing && stalled.is_none() && status.phase != Some(aiinference::Phase::Failed);
    Assessment { phase, verdicts, comes_up }
}

/// The AIInference does not exist yet, or does not have this generation yet.
fn coming(
    accepted: Statement,
    accelerator: Option<Statement>,
    valid: &ValidEndpoint,
    observed: &Observed,
    now: Timestamp,
) -> Assessment {
    let message = match (observed.serves_inferences, observed.inference.own()) {
        (false, _) => {
            "the cluster does not have the kind AIInference; install deploy/crds and the inference-controller"
        }
        (true, None) => "the AIInference is being created",
        (true, Some(_)) => "the AIInference takes over this generation",
    };
    let mut verdicts = vec![accepted];
    verdicts.extend(accelerator);
    verdicts.push(fails(conditions::INFERENCE_READY, reasons::WAITING, message.to_owned()));
    verdicts.extend(scaling(valid, observed, now));
    verdicts.push(fails(conditions::READY, reasons::WAITING, message.to_owned()));
    verdicts.push(holds(conditions::RECONCILING, reasons::WAITING, message.to_owned()));
    let phase = if observed.inference.own().is_some() { Phase::Progressing } else { Phase::Pending };
    Assessment { phase, verdicts, comes_up: observed.serves_inferences }
}

/// What serves keeps serving.
pub(super) fn of_invalid(invalid: &Invalid, observed: &Observed) -> Assessment {
    let message = invalid.to_string();
    let inference = observed.inference.own();
    let serves = inference
        .and_then(|inference| copied(conditions::INFERENCE_READY, inference.condition(conditions::READY)));
    let verdicts = [fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone())]
        .into_iter()
        .chain(serves)
        .chain([
            fails(conditions::READY, reasons::INVALID_SPEC, message.clone()),
            holds(conditions::STALLED, reasons::INVALID_SPEC, message),
        ]);
    let has_pods = inference.is_some_and(|inference| inference.status.ready_replicas > 0);
    Assessment {
        phase: if has_pods { Phase::Degraded } else { Phase::Failed },
        verdicts: verdicts.collect(),
        comes_up: false,
    }
}

/// A child was refused, or its name is taken. What serves is ready without its autoscaler.
pub(super) fn of_refused(
    refusal: &Refusal,
    assessment: Assessment,
    valid: &ValidEndpoint,
    observed: &Observed,
) -> Assessment {
    let (reason, message) = match refusal {
        // The garbage collector is about to delete the child of the deleted owner; no fault.
        Refusal::Leftover { .. } => return assessment,
        Refusal::OwnershipConflict(message) => (reasons::OWNERSHIP_CONFLICT, message),
        Refusal::Denied(message) => (reasons::DENIED, message),
        Refusal::Invalid(message) => (reasons::INVALID_SPEC, message),
    };
    let mut verdicts = assessment.verdicts;
    let serves = verdicts.iter().any(|verdict| verdict.type_ == conditions::READY && verdict.holds);
    verdicts.retain(|verdict| ![conditions::RECONCILING, conditions::STALLED].contains(&verdict.type_));
    if let (Refusal::Invalid(_), Some(accepted)) = (refusal, verdicts.first_mut()) {
        *accepted = fails(conditions::ACCEPTED, reason, message.clone());
    }
    let lacks_scaler = match valid.autoscaling.as_ref().map(|autoscaling| autoscaling.scaler) {
        Some(Scaler::HorizontalPodAutoscaler) => observed.hpa.own().is_none(),
        Some(Scaler::AIScaler) => observed.scaler.own().is_none(),
        None => false,
    };
    // The children are written in order: what comes after the AIInference of this generation was refused.
    let is_written =
        observed.inference.own().is_some_and(|inference| inference.rendered_from == Some(valid.generation));
    // The words of a refusal begin with what was refused.
    let is_about = |kind: &str| message.contains(&format!("{kind} {}/{}", valid.namespace, valid.name));
    let is_about_scaler = ["HorizontalPodAutoscaler", "AIScaler"].into_iter().any(is_about);
    let is_of_scaler = (serves || is_written) && (lacks_scaler || is_about_scaler);
    let answers = match (is_of_scaler, serves) {
        (true, _) => Some(conditions::SCALING_ACTIVE),
        // The AIInference that serves could not be changed.
        (false, true) => None,
        (false, false) => Some(conditions::READY),
    };
    for verdict in verdicts.iter_mut().filter(|verdict| Some(verdict.type_) == answers) {
        *verdict = fails(verdict.type_, reason, message.clone());
    }
    if is_of_scaler && !verdicts.iter().any(|verdict| verdict.type_ == conditions::SCALING_ACTIVE) {
        verdicts.push(fails(conditions::SCALING_ACTIVE, reason, message.clone()));
    }
    verdicts.push(holds(conditions::STALLED, reason, message.clone()));
    let has_pods = observed.inference.own().is_some_and(|inference| inference.status.ready_replicas > 0);
    let phase = match (serves || is_of_scaler, has_pods) {
        (true, _) => assessment.phase,
        (false, true) => Phase::Degraded,
        (false, false) => Phase::Failed,
    };
    Assessment { phase, verdicts, comes_up: false }
}

fn is_seen(inference: &InferenceView) -> bool {
    inference.metadata.generation == Some(inference.status.observed_generation)
}

/// What was said of this generation came from the AIInference. An autoscaler that sets other replicas takes no readiness away.
fn was_current(valid: &ValidEndpoint) -> bool {
    let conditions = valid.endpoint.status.iter().flat_map(|status| &status.conditions);
    let mut served = conditions.filter(|condition| condition.type_ == conditions::INFERENCE_READY);
    served
        .any(|known| known.observed_generation == Some(valid.generation) && known.reason != reasons::WAITING)
}

fn phase(ready: &Statement, inference: &InferenceView) -> Phase {
    let has_failed = inference.status.phase == Some(aiinference::Phase::Failed);
    let waits_for_nodes =
        inference.condition(conditions::SCHEDULED).is_some_and(|scheduled| scheduled.status == "False");
    let serves = inference.status.ready_replicas > 0;
    match (has_failed, waits_for_nodes) {
        _ if ready.holds => Phase::Ready,
        _ if ready.reason == reasons::STOPPED => Phase::Stopped,
        (true, _) | (_, true) if serves => Phase::Degraded,
        (true, _) => Phase::Failed,
        (false, true) => Phase::Pending,
        (false, false) => Phase::Progressing,
    }
}

/// Absent if `spec.replicas` counts.
fn scaling(valid: &ValidEndpoint, observed: &Observed, now: Timestamp) -> Option<Statement> {
    let type_ = conditions::SCALING_ACTIVE;
    if let Some(message) = super::scaler::leaving(valid, observed) {
        return Some(fails(type_, reasons::WAITING, message));
    }
    let Some(autoscaling) = &valid.autoscaling else { return by_rival(valid, observed, now) };
    Some(match autoscaling.scaler {
        Scaler::HorizontalPodAutoscaler if let Some(rival) = super::scaler::rival(observed) => {
            let message = match observed.hpa.own() {
                Some(_) => format!("{rival} scales the same AIInference, and of two neither works"),
                None => {
                    format!("{rival} scales the AIInference, so no HorizontalPodAutoscaler is made beside it")
                }
            };
            fails(
                type_,
                reasons::TARGET_MANAGED_BY_OTHER,
                format!("{message}; remove it, or spec.autoscaling"),
            )
        }
        Scaler::HorizontalPodAutoscaler => {
            let active = observed.hpa.own().and_then(|hpa| hpa.active.as_ref());
            by_hpa(valid, autoscaling, active, observed.metrics_api)
        }
        Scaler::AIScaler if !observed.serves_scalers => fails(
            type_,
            reasons::WAITING,
            "the cluster does not have the kind AIScaler; install deploy/crds and the scaler-controller"
                .to_owned(),
        ),
        Scaler::AIScaler => match observed.scaler.own().and_then(|scaler| scaler.active.as_ref()) {
            Some(active) => of_active(type_, active),
            None => fails(
                type_,
                reasons::WAITING,
                "the AIScaler has not decided yet; if this stays, install the scaler-controller".to_owned(),
            ),
        },
    })
}

/// Without autoscaling of its own.
fn by_rival(valid: &ValidEndpoint, observed: &Observed, now: Timestamp) -> Option<Statement> {
    let (type_, reason) = (conditions::SCALING_ACTIVE, reasons::TARGET_MANAGED_BY_OTHER);
    let Some(rival) = &observed.rival else {
        super::replicas::rival_may_return(valid, observed, now)?;
        let message = "the autoscaler that set the replicas is gone; spec.replicas counts again at the latest 5 minutes \
                       after that; change the spec to end the wait";
        return Some(holds(type_, reason, message.to_owned()));
    };
    if valid.replicas == 0 {
        let message = format!("spec.replicas is 0; if {rival} starts pods again, remove or pause it");
        return Some(fails(type_, reasons::SCALING_DISABLED, message));
    }
    let message = format!("{rival} sets the replicas; spec.replicas counts again when it is gone");
    Some(match &rival.active {
        Some(active) if !active.holds => {
            fails(type_, reason, format!("{message}; it says: {}", active.message))
        }
        Some(_) | None => holds(type_, reason, message),
    })
}

/// CPU and memory do not show the load of an engine on GPUs. So what the HorizontalPodAutoscaler says is not enough.
fn by_hpa(
    valid: &ValidEndpoint,
    autoscaling: &ValidAutoscaling,
    active: Option<&Active>,
    api: MetricsApi,
) -> Statement {
    let type_ = conditions::SCALING_ACTIVE;
    let is_missing = match api {
        MetricsApi::Missing => true,
        MetricsApi::Unknown => active.is_some_and(says_api_is_missing),
        MetricsApi::Unavailable | MetricsApi::Available => false,
    };
    let instead = "set autoscaling.metricType, such as queue_depth, instead of metrics";
    if is_missing {
        let message = format!(
            "the cluster has no metrics of CPU and memory: install metrics-server, or {instead}; {STAYS}"
        );
        return fails(type_, reasons::METRICS_API_MISSING, message);
    }
    if api == MetricsApi::Unavailable {
        let message = format!(
            "the API of CPU and memory metrics does not answer: mend metrics-server, or {instead}; {STAYS}"
        );
        return fails(type_, reasons::METRICS_API_MISSING, message);
    }
    if matches!(valid.accelerator, Accelerator::Gpus { .. }) {
        let names: Vec<&str> = autoscaling.spec.metrics.iter().map(resource).collect();
        let advice = format!(
            "{} does not show the load of an engine on GPUs: set autoscaling.metricType queue_depth instead of metrics",
            names.join(" and "),
        );
        let reason = reasons::METRIC_NOT_LOAD_SENSITIVE;
        return match active {
            Some(active) if active.holds => holds(type_, reason, advice),
            Some(Active { reason: why, message, .. }) => {
                fails(type_, reason, format!("{why}: {message}; {advice}"))
            }
            None => fails(type_, reason, format!("{HPA_IS_SILENT}; {advice}")),
        };
    }
    match active {
        Some(active) => of_active(type_, active),
        None => fails(type_, reasons::WAITING, HPA_IS_SILENT.to_owned()),
    }
}

/// Without metrics a HorizontalPodAutoscaler keeps its bounds alone.
const STAYS: &str = "meanwhile the replicas stay as they are, and autoscaling.minReplicas raises them";

const HPA_IS_SILENT: &str =
    "the HorizontalPodAutoscaler has not decided yet; if this stays, look at the kube-controller-manager";

/// Words of the HorizontalPodAutoscaler, for a controller that cannot look itself.
fn says_api_is_missing(active: &Active) -> bool {
    !active.holds
        && active.message.contains("could not find the requested resource")
        && active.message.contains("metrics.k8s.io")
}

fn resource(metric: &MetricSpec) -> &str {
    let of_pod = metric.resource.as_ref().map(|resource| resource.name.as_str());
    let of_container = metric.container_resource.as_ref().map(|resource| resource.name.as_str());
    of_pod.or(of_container).unwrap_or_default()
}

fn waits_for_status() -> String {
    "the inference-controller has not reported yet".to_owned()
}

/// A condition of a child under this type.
fn copied(type_: &'static str, condition: Option<&Condition>) -> Option<Statement> {
    let Condition { status, reason, message, .. } = condition?;
    Some(Statement {
        type_,
        holds: status == "True",
        reason: reason.clone().into(),
        message: message.clone(),
    })
}

fn of_active(type_: &'static str, Active { holds, reason, message }: &Active) -> Statement {
    // A condition needs a reason.
    let reason = if reason.is_empty() { reasons::WAITING.into() } else { reason.clone().into() };
    Statement { type_, holds: *holds, reason, message: message.clone() }
}

pub(super) fn holds(type_: &'static str, reason: &'static str, message: String) -> Statement {
    Statement { type_, holds: true, reason: reason.into(), message }
}

pub(super) fn fails(type_: &'static str, reason: &'static str, message: String) -> Statement {
    Statement { type_, holds: false, reason: reason.into(), message }
}
