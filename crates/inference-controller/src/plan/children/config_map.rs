//! The ConfigMap `<name>-model`: the model's source and path, for other workloads.

use k8s_openapi::api::core::v1::ConfigMap;

use crate::{
    engine::MODEL_PATH,
    names,
    plan::metadata::metadata,
    validate::{Source, ValidInference},
};

pub(super) fn config_map(valid: &ValidInference) -> ConfigMap {
    let source = match &valid.source {
        Source::Copied { uri, .. } => uri.clone(),
        Source::Claim { claim, path: Some(path) } => format!("pvc://{claim}/{path}"),
        Source::Claim { claim, path: None } => format!("pvc://{claim}"),
    };
    let data = [
        ("source", source),
        ("engine", valid.engine.as_str().to_owned()),
        ("servedModelName", valid.served_model_name.clone()),
        ("path", MODEL_PATH.to_owned()),
    ];
    ConfigMap {
        metadata: metadata(valid, names::config_map(&valid.name, valid.track)),
        data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..ConfigMap::default()
    }
}
