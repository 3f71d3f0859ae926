//! The revision of the current spec. `workload::templates::revision` decides which recorded template is used. Pure.

use serde_json::{Value, json};
use workload::templates::revision::{DesiredTemplate, Revision};

use super::{defaults::Defaults, pod::pod_template};
use crate::{engine::Profile, names::ENGINE, observe::Observed, validate::ValidInference};

/// Keys in the record.
const IMAGE: &str = "image";
const PROFILE: &str = "profile";

pub(super) fn revision<'a>(
    valid: &ValidInference,
    observed: &'a Observed,
    defaults: &Defaults,
) -> Revision<'a> {
    let profile = Profile::newest(valid.engine);
    let image = valid.image.clone().unwrap_or_else(|| defaults.engine_image(valid.engine).to_owned());
    // Plain fields and string keys; serialization cannot fail.
    let rendered = serde_json::to_value(pod_template(valid, profile, &image, defaults)).unwrap_or_default();
    let of_release =
        [(IMAGE, json!(image)), ("loaderImage", json!(defaults.loader_image)), (PROFILE, json!(profile.id))];
    let of_release = of_release.map(|(name, value)| (name.to_owned(), value)).into();
    let pods = observed.deployed.as_deref().unwrap_or_default();
    let deployed = (observed.deployment.as_ref(), pods);
    workload::templates::revision::revision(
        desired(valid, observed),
        rendered,
        of_release,
        deployed,
        &observed.older,
    )
}

/// `status.resolved`.
pub(super) fn resolved(revision: &Revision<'_>) -> api::aiinference::Resolved {
    let image = engine_of(&revision.template).and_then(|engine| engine["image"].as_str());
    api::aiinference::Resolved {
        image: image.unwrap_or(revision.default(IMAGE)).to_owned(),
        profile: revision.default(PROFILE).to_owned(),
        template: Some(revision.digest()),
    }
}

/// See `DesiredTemplate::has_pods`.
pub(super) fn has_pods(valid: &ValidInference, observed: &Observed) -> bool {
    desired(valid, observed).has_pods(observed.deployment.as_ref(), &observed.older)
}

/// See `DesiredTemplate::restores_older`.
pub(super) fn restores_older(valid: &ValidInference, observed: &Observed) -> bool {
    desired(valid, observed).restores_older(observed.deployment.as_ref(), &observed.older)
}

/// The engine's container in a pod template.
pub(super) fn engine_of(template: &Value) -> Option<&Value> {
    let mut containers = template.pointer("/spec/containers")?.as_array()?.iter();
    containers.find(|container| container["name"] == ENGINE)
}

fn desired<'a>(valid: &'a ValidInference, observed: &'a Observed) -> DesiredTemplate<'a> {
    let status = observed.inference.status.as_ref();
    let status = status.filter(|status| status.observed_generation == valid.generation);
    let resolved = status.and_then(|status| status.resolved.as_ref());
    DesiredTemplate {
        spec_hash: &valid.spec_hash,
        generation: valid.generation_of_template(),
        refresh: valid.refresh.as_deref(),
        reported: resolved.and_then(|resolved| resolved.template.as_deref()),
    }
}
