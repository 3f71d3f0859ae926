//! What this release gives a pod that is rendered for the first time, and how this process was started. Pure.

use std::time::Duration;

use api::aiinference::Engine;

use crate::{InferenceArgs, engine::Profile};

/// What a pod that is rendered for the first time gets.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(super) loader_image: String,
    vllm_image: String,
    triton_image: String,
    tgi_image: String,
    /// Whether pods are replaced by this controller when their node is lost.
    pub(super) sees_nodes: bool,
    /// A foreign object may be deleted, and a quota or a policy changed, without any event that is watched here.
    pub(super) refusal_retry: Duration,
}

impl Defaults {
    pub(crate) fn new(args: InferenceArgs, sees_nodes: bool, refusal_retry: Duration) -> Self {
        let InferenceArgs {
            loader_image,
            vllm_image,
            triton_image,
            tgi_image,
            own_service_account: _,
            own_namespace: _,
        } = args;
        let pinned = |engine| Profile::newest(engine).image.to_owned();
        Self {
            loader_image,
            vllm_image: vllm_image.unwrap_or_else(|| pinned(Engine::Vllm)),
            triton_image: triton_image.unwrap_or_else(|| pinned(Engine::Triton)),
            tgi_image: tgi_image.unwrap_or_else(|| pinned(Engine::Tgi)),
            sees_nodes,
            refusal_retry,
        }
    }

    pub(super) fn engine_image(&self, engine: Engine) -> &str {
        match engine {
            Engine::Vllm => &self.vllm_image,
            Engine::Triton => &self.triton_image,
            Engine::Tgi => &self.tgi_image,
        }
    }
}
