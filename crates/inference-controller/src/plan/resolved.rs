//! Defaults of a release, resolved once and then kept: an upgrade of the controller restarts no pod.
//!
//! They are recorded on the Deployment beside the spec that they were resolved for. A newer controller reads them back
//! until that spec changes. What changes no pod (replicas, rollout, pausing) is no reason to resolve again.

use api::{
    aiinference::{self, Engine},
    labels,
};
use serde::{Deserialize, Serialize};

use crate::{InferenceArgs, engine::Profile, observe::DeploymentView, validate::ValidInference};

/// What a pod that is rendered for the first time gets.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    loader_image: String,
    vllm_image: String,
    triton_image: String,
    tgi_image: String,
}

impl From<InferenceArgs> for Defaults {
    fn from(args: InferenceArgs) -> Self {
        let InferenceArgs { loader_image, vllm_image, triton_image, tgi_image } = args;
        let pinned = |engine| Profile::newest(engine).image.to_owned();
        Self {
            loader_image,
            vllm_image: vllm_image.unwrap_or_else(|| pinned(Engine::Vllm)),
            triton_image: triton_image.unwrap_or_else(|| pinned(Engine::Triton)),
            tgi_image: tgi_image.unwrap_or_else(|| pinned(Engine::Tgi)),
        }
    }
}

/// What the pods of this spec get.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) image: String,
    pub(super) loader_image: String,
    pub(super) profile: &'static Profile,
}

/// The record on the Deployment, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    /// Hash of the part of the spec that decides what a pod looks like.
    template: String,
    image: String,
    loader_image: String,
    profile: String,
}

pub(super) fn resolve(
    valid: &ValidInference,
    deployment: Option<&DeploymentView>,
    defaults: &Defaults,
) -> Resolved {
    deployment.and_then(|deployment| recorded(valid, deployment)).unwrap_or_else(|| Resolved {
        image: valid.image.clone().unwrap_or_else(|| {
            match valid.engine {
                Engine::Vllm => &defaults.vllm_image,
                Engine::Triton => &defaults.triton_image,
                Engine::Tgi => &defaults.tgi_image,
            }
            .clone()
        }),
        loader_image: defaults.loader_image.clone(),
        profile: Profile::newest(valid.engine),
    })
}

/// Annotations by which a later reconcile finds all of this again.
pub(super) fn annotations(valid: &ValidInference, resolved: &Resolved) -> [(String, String); 2] {
    let record = Record {
        template: valid.template_hash.clone(),
        image: resolved.image.clone(),
        loader_image: resolved.loader_image.clone(),
        profile: resolved.profile.id.to_owned(),
    };
    // A struct of strings: writing it as JSON cannot fail.
    let record = serde_json::to_string(&record).unwrap_or_default();
    [(labels::RESOLVED.to_owned(), record), (labels::GENERATION.to_owned(), valid.generation.to_string())]
}

/// Whether the Deployment was rendered from this very spec, as far as its pods are concerned.
pub(super) fn is_rendered_from(deployment: &DeploymentView, valid: &ValidInference) -> bool {
    deployment.generation.as_deref().is_some_and(|generation| generation == valid.generation.to_string())
        || record(deployment).is_some_and(|record| record.template == valid.template_hash)
}

/// As users see it.
pub(super) fn shown(resolved: &Resolved) -> aiinference::Resolved {
    aiinference::Resolved { image: resolved.image.clone(), profile: resolved.profile.id.to_owned() }
}

fn recorded(valid: &ValidInference, deployment: &DeploymentView) -> Option<Resolved> {
    // The generation counts, too: a later release may hash the same spec differently.
    if !is_rendered_from(deployment, valid) {
        return None;
    }
    let Record { template: _, image, loader_image, profile } = record(deployment)?;
    Some(Resolved { image, loader_image, profile: Profile::recorded(&profile, valid.engine)? })
}

fn record(deployment: &DeploymentView) -> Option<Record> {
    serde_json::from_str(deployment.resolved.as_deref()?).ok()
}
