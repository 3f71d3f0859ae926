//! The autoscaler of an endpoint: at most one, of one of two kinds. Pure.
//!
//! Of two kinds the old one is deleted first. The new one is created when the old one is gone.

use api::{aiinference::AIInference, aiscaler::AIScaler};
use k8s_openapi::{
    api::autoscaling::v2::HorizontalPodAutoscaler, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use serde_json::{Map, Value, json};
use workload::templates::rendered::Rendered;

use super::{inference::metadata, replicas::Course};
use crate::{
    observe::{Observed, Sighting},
    rivals::{Rival, RivalKind},
    validate::{Scaler, ValidAutoscaling, ValidEndpoint},
};

/// The autoscaler to apply.
pub(crate) enum Wanted {
    HorizontalPodAutoscaler(Box<Rendered<HorizontalPodAutoscaler>>),
    AIScaler(Box<Rendered<AIScaler>>),
}

/// An autoscaler that is not wanted any more, with its uid and version. Only its metadata is set.
pub(crate) enum Superfluous {
    HorizontalPodAutoscaler(Box<Rendered<HorizontalPodAutoscaler>>),
    AIScaler(Box<Rendered<AIScaler>>),
}

pub(super) fn wanted(valid: &ValidEndpoint, observed: &Observed, course: &Course) -> Option<Wanted> {
    let autoscaling = valid.autoscaling.as_ref().filter(|_| course.may_scale)?;
    let target = json!({
        "apiVersion": AIInference::api_version(&()),
        "kind": AIInference::kind(&()),
        "name": valid.name,
    });
    match autoscaling.scaler {
        // Of two for one target, neither scales.
        Scaler::HorizontalPodAutoscaler if observed.hpa.own().is_none() && rival(observed).is_some() => None,
        Scaler::HorizontalPodAutoscaler => observed.scaler.own().is_none().then(|| {
            let spec = of_hpa(autoscaling, &target);
            Wanted::HorizontalPodAutoscaler(Box::new(Rendered::new(metadata(valid), spec)))
        }),
        Scaler::AIScaler => observed.hpa.own().is_none().then(|| {
            let spec = of_scaler(valid, &target);
            Wanted::AIScaler(Box::new(Rendered::new(metadata(valid), spec)))
        }),
    }
}

/// A HorizontalPodAutoscaler of another; an AIScaler leaves such a target alone.
pub(super) fn rival(observed: &Observed) -> Option<&Rival> {
    observed.rival.as_ref().filter(|rival| rival.kind == RivalKind::HorizontalPodAutoscaler)
}

pub(super) fn superfluous(valid: &ValidEndpoint, observed: &Observed) -> Vec<Superfluous> {
    let wanted = valid.autoscaling.as_ref().map(|autoscaling| autoscaling.scaler);
    if wanted == Some(Scaler::AIScaler) && !observed.serves_scalers {
        // The autoscaler that works stays until the other one can exist.
        return Vec::new();
    }
    let hpa = unwanted(&observed.hpa, wanted == Some(Scaler::HorizontalPodAutoscaler));
    let scaler = unwanted(&observed.scaler, wanted == Some(Scaler::AIScaler));
    let hpa =
        hpa.map(|meta| Superfluous::HorizontalPodAutoscaler(Box::new(Rendered::new(meta, Value::Null))));
    let scaler = scaler.map(|meta| Superfluous::AIScaler(Box::new(Rendered::new(meta, Value::Null))));
    hpa.into_iter().chain(scaler).collect()
}

/// That an autoscaler which is not wanted any more does not end.
pub(super) fn leaving(valid: &ValidEndpoint, observed: &Observed) -> Option<String> {
    let wanted = valid.autoscaling.as_ref().map(|autoscaling| autoscaling.scaler);
    let hpa = observed.hpa.own().filter(|_| wanted != Some(Scaler::HorizontalPodAutoscaler));
    let scaler = observed.scaler.own().filter(|_| wanted != Some(Scaler::AIScaler));
    let hpa = hpa.map(|hpa| ("HorizontalPodAutoscaler", &hpa.metadata));
    let (kind, meta) = hpa.or(scaler.map(|scaler| ("AIScaler", &scaler.metadata)))?;
    meta.deletion_timestamp.as_ref()?;
    let finalizers = meta.finalizers.as_deref().unwrap_or_default().join(", ");
    let (namespace, name) = (&valid.namespace, &valid.name);
    Some(format!(
        "{kind} {namespace}/{name} is being deleted, and waits for its finalizers ({finalizers}); the replicas stay until it \
         is gone"
    ))
}

fn unwanted<V: Resource>(seen: &Sighting<V>, is_wanted: bool) -> Option<ObjectMeta> {
    let meta = seen.own().filter(|_| !is_wanted)?.meta();
    meta.deletion_timestamp.is_none().then(|| meta.clone())
}

/// As the API server has it.
fn given(valid: &ValidEndpoint) -> Map<String, Value> {
    valid.endpoint.given.get("autoscaling").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn of_hpa(ValidAutoscaling { spec, scaler: _ }: &ValidAutoscaling, target: &Value) -> Value {
    json!({
        "scaleTargetRef": target,
        "minReplicas": spec.min_replicas,
        "maxReplicas": spec.max_replicas,
        // In the forms of the API server, which writes quantities as text.
        "metrics": spec.metrics,
    })
}

/// The fields have the types of AIScaler.
fn of_scaler(valid: &ValidEndpoint, target: &Value) -> Value {
    let mut fields = given(valid);
    fields.remove("metrics");
    fields.insert("targetRef".to_owned(), target.clone());
    Value::Object(fields)
}
