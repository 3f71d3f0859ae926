//! The version of the candidate: the top level of the spec with the fields of `spec.canary`. Pure.

use api::aiinference::{AIInference, AIInferenceSpec, AIInferenceStatus, ModelStore, traffic::Canary};

/// The object as if the candidate's version were at its top level. Its status is that of a new object: what the status says
/// of stable says nothing about the candidate.
pub(crate) fn candidate(inference: &AIInference) -> Option<AIInference> {
    let canary = inference.spec.canary.as_ref()?;
    let spec = AIInferenceSpec { replicas: canary.replicas, ..overlaid(&inference.spec, canary) };
    Some(AIInference {
        metadata: inference.metadata.clone(),
        spec,
        status: Some(AIInferenceStatus::default()),
    })
}

pub(crate) fn overlaid(spec: &AIInferenceSpec, canary: &Canary) -> AIInferenceSpec {
    let mut spec = spec.clone();
    if let Some(source) = &canary.model_source {
        // The digest is that of one model.
        if *source != spec.model_source
            && let Some(store) = &mut spec.model_store
        {
            store.manifest_digest = None;
            // An empty modelStore would be another version than none, and users remove it when they move the fields.
            spec.model_store.take_if(|store| *store == ModelStore::default());
        }
        spec.model_source = source.clone();
    }
    if let Some(digest) = &canary.manifest_digest {
        spec.model_store.get_or_insert_default().manifest_digest = Some(digest.clone());
    }
    if let Some(image) = &canary.image {
        if spec.image.as_ref() != Some(image) {
            spec.engine_version = None;
        }
        spec.image = Some(image.clone());
    }
    if let Some(version) = &canary.engine_version {
        spec.engine_version = Some(version.clone());
    }
    if let Some(args) = &canary.args {
        spec.args = args.clone();
    }
    if let Some(env) = &canary.env {
        spec.env = env.clone();
    }
    if let Some(resources) = &canary.resources {
        spec.resources = Some(resources.clone());
    }
    spec
}
