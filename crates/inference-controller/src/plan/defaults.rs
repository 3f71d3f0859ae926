//! Defaults for newly rendered pods, from the release and from the command line. Pure.

use std::time::Duration;

use api::aiinference::{Engine, source::Hub};
use workload::{own_account::OwnAccount, products::Products};

use crate::{
    InferenceArgs,
    engine::Profile,
    validate::{HubAccess, Origin, Source, ValidInference},
};

/// Defaults for newly rendered pods, and options of the process.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(super) loader_image: String,
    vllm_image: String,
    triton_image: String,
    tgi_image: String,
    /// Whether this controller watches nodes and replaces pods on lost ones.
    pub(super) watches_nodes: bool,
    /// When to retry after a refusal. The deletion of a foreign object or a change of a quota or policy causes no watched event.
    pub(crate) refusal_retry: Duration,
    pub(super) own_account: OwnAccount,
    products: Products,
    hf_endpoint: Option<String>,
    ms_endpoint: Option<String>,
}

impl Defaults {
    pub(crate) fn new(args: InferenceArgs, watches_nodes: bool, refusal_retry: Duration) -> Self {
        let own_account = OwnAccount::new(args.own_namespace.clone(), args.own_service_account.clone());
        let InferenceArgs {
            loader_image,
            vllm_image,
            triton_image,
            tgi_image,
            gpu_products,
            hf_endpoint,
            ms_endpoint,
            own_service_account: _,
            own_namespace: _,
            prometheus: _,
            agents: _,
        } = args;
        let pinned = |engine| Profile::newest(engine).image.to_owned();
        Self {
            loader_image,
            vllm_image: vllm_image.unwrap_or_else(|| pinned(Engine::Vllm)),
            triton_image: triton_image.unwrap_or_else(|| pinned(Engine::Triton)),
            tgi_image: tgi_image.unwrap_or_else(|| pinned(Engine::Tgi)),
            watches_nodes,
            refusal_retry,
            own_account,
            products: gpu_products.unwrap_or_default(),
            hf_endpoint,
            ms_endpoint,
        }
    }

    /// With the labels of its GPU products, and the endpoint of its hub.
    pub(crate) fn resolved(&self, valid: ValidInference) -> ValidInference {
        let gpus = valid.gpus.map(|gpus| gpus.resolved(&self.products));
        let mut source = valid.source;
        if let Source::Copied { origin: Origin::Hub(HubAccess { hub, endpoint, .. }), .. } = &mut source
            && endpoint.is_none()
        {
            *endpoint = match hub {
                Hub::HuggingFace => self.hf_endpoint.clone(),
                Hub::ModelScope => self.ms_endpoint.clone(),
            };
        }
        ValidInference { gpus, source, ..valid }
    }

    pub(super) fn engine_image(&self, engine: Engine) -> &str {
        match engine {
            Engine::Vllm => &self.vllm_image,
            Engine::Triton => &self.triton_image,
            Engine::Tgi => &self.tgi_image,
        }
    }
}
