//! The version of the candidate: the top level of the spec with the fields of `spec.canary`. Pure.

use api::aiinference::{AIInference, AIInferenceSpec, AIInferenceStatus, traffic::Canary};

use crate::validate::{Content, Invalid, ValidInference, validate};

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

/// The version that stable should have: the candidate's, once that was promoted. If the spec has another candidate by now,
/// stable keeps what it has until the spec has none: an edit, and a typing error, take no version back.
pub(crate) fn stable(inference: &AIInference) -> Result<ValidInference, Invalid> {
    let status = inference.status.as_ref();
    let promoted = status.and_then(|status| status.promoted_revision.clone());
    let Some((canary, promoted)) = inference.spec.canary.as_ref().zip(promoted) else {
        return validate(inference);
    };
    let spec = overlaid(&inference.spec, canary);
    match validate(&AIInference { spec, ..inference.clone() }) {
        Ok(valid) if valid.spec_hash == promoted => {
            Ok(ValidInference { content: Content::Promoted, ..valid })
        }
        Ok(_) | Err(_) => {
            let valid = validate(inference)?;
            Ok(ValidInference { content: Content::Kept, spec_hash: promoted, ..valid })
        }
    }
}

fn overlaid(spec: &AIInferenceSpec, canary: &Canary) -> AIInferenceSpec {
    let mut spec = spec.clone();
    if let Some(source) = &canary.model_source {
        // The digest is that of one model.
        if *source != spec.model_source
            && let Some(store) = &mut spec.model_store
        {
            store.manifest_digest = None;
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
