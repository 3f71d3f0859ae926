//! Which version stable has after a promotion. Pure.

use api::aiinference::AIInference;
use workload::templates::revision::DesiredTemplate;

use crate::{
    observe::Observed,
    validate::{Content, Invalid, ValidInference, validate},
    versions::overlaid,
};

/// The version that stable should have: the candidate's, once that was promoted. If the spec has another candidate by now,
/// stable keeps what it has until the spec has none: an edit, and a typing error, take no version back.
pub(crate) fn stable(observed: &Observed) -> Result<ValidInference, Invalid> {
    let inference: &AIInference = &observed.inference;
    let status = inference.status.as_ref();
    let promoted = status.and_then(|status| status.promoted_revision.clone());
    let Some((canary, promoted)) = inference.spec.canary.as_ref().zip(promoted) else {
        return validate(inference);
    };
    let spec = overlaid(&inference.spec, canary);
    if let Ok(valid) = validate(&AIInference { spec, ..inference.clone() })
        && valid.spec_hash == promoted
    {
        return Ok(ValidInference { content: Content::Promoted, ..valid });
    }
    let valid = validate(inference)?;
    // Its pods are the only place that has the version. A new value of the annotation cannot render it again.
    let (generation, refresh, reported) = (String::new(), None, None);
    let of_promoted = DesiredTemplate { spec_hash: &promoted, generation, refresh, reported };
    if !of_promoted.has_pods(observed.deployment.as_ref(), &observed.older) {
        return Ok(valid);
    }
    Ok(ValidInference { content: Content::Kept, spec_hash: promoted, refresh: None, ..valid })
}
