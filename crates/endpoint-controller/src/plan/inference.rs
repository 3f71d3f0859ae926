//! The AIInference of an endpoint. Pure.

use std::collections::BTreeMap;

use api::{aiinference::AIInference, aiinference::endpoint::PASSED_THROUGH, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};
use workload::templates::rendered::Rendered;

use super::replicas::Course;
use crate::validate::{Accelerator, Product, ValidEndpoint};

/// `model_source`: as it was resolved for this generation.
pub(super) fn inference(valid: &ValidEndpoint, model_source: &str, course: &Course) -> Rendered<AIInference> {
    let mut annotations: BTreeMap<String, String> = [
        (labels::REPLICAS.to_owned(), course.setter.label().to_owned()),
        (labels::GENERATION.to_owned(), valid.generation.to_string()),
    ]
    .into();
    let given = valid.endpoint.metadata.annotations.as_ref();
    if let Some(refresh) = given.and_then(|annotations| annotations.get(labels::REFRESH)) {
        annotations.insert(labels::REFRESH.to_owned(), refresh.clone());
    }
    let metadata = ObjectMeta { annotations: Some(annotations), ..metadata(valid) };
    Rendered::new(metadata, spec(valid, model_source, course))
}

/// Of each child.
pub(super) fn metadata(valid: &ValidEndpoint) -> ObjectMeta {
    ObjectMeta {
        name: Some(valid.name.clone()),
        namespace: Some(valid.namespace.clone()),
        labels: Some(valid.labels()),
        owner_references: Some(vec![valid.owner.clone()]),
        ..ObjectMeta::default()
    }
}

fn spec(valid: &ValidEndpoint, model_source: &str, course: &Course) -> Value {
    let mut spec = passed_through(valid);
    spec.insert("modelSource".to_owned(), json!(model_source));
    spec.insert("gpu".to_owned(), gpu(&valid.accelerator));
    if let Some(replicas) = course.applied {
        spec.insert("replicas".to_owned(), json!(replicas));
    }
    Value::Object(spec)
}

/// The types of both kinds are the same, so the JSON is.
fn passed_through(valid: &ValidEndpoint) -> Map<String, Value> {
    let fields = valid.endpoint.given.iter();
    let fields = fields.filter(|(field, _)| PASSED_THROUGH.contains(&field.as_str()));
    fields.map(|(field, value)| (field.clone(), value.clone())).collect()
}

fn gpu(accelerator: &Accelerator) -> Value {
    match accelerator {
        Accelerator::Cpu => json!({"count": 0}),
        Accelerator::Gpus { product: Product::Labelled(label), count } => {
            json!({"count": count, "productLabel": label})
        }
        Accelerator::Gpus { product: Product::Resource(resource), count } => {
            json!({"count": count, "resourceName": resource})
        }
    }
}
