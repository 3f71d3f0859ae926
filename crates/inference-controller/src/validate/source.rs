//! Where a model comes from and where it is put, with what its access needs. Pure.

use std::net::IpAddr;

use api::aiinference::{
    AIInferenceSpec, Addressing, Engine, Medium, ModelStore, ModelVolume,
    source::{Hub, ModelSource},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use text::quantity::Bytes;

use super::Invalid;

const DEFAULT_REGION: &str = "us-east-1";
const DEFAULT_STORE_SECONDS: i32 = 3_600;

/// The source of the weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// Copied into each pod.
    Copied {
        uri: String,
        /// The one file that is the model, if the source names it.
        file: Option<String>,
        origin: Origin,
        volume: Volume,
    },
    /// Mounted read-only from a claim.
    Claim { claim: String, path: Option<String> },
}

/// Where a copied model comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    Store(Store),
    Hub(HubAccess),
}

impl Origin {
    /// Secret with certificate authorities.
    pub(crate) fn ca_secret(&self) -> Option<&str> {
        let (Origin::Store(Store { ca_secret, .. }) | Origin::Hub(HubAccess { ca_secret, .. })) = self;
        ca_secret.as_deref()
    }
}

/// Access to a hub.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HubAccess {
    pub(crate) hub: Hub,
    /// `None`: the public hub.
    pub(crate) endpoint: Option<String>,
    /// Secret with a token.
    pub(crate) secret: Option<String>,
    pub(crate) timeout_seconds: i32,
    pub(crate) ca_secret: Option<String>,
    /// Patterns of paths.
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
}

/// Access to an object store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Store {
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) secret: Option<String>,
    pub(crate) timeout_seconds: i32,
    pub(crate) addressing: Addressing,
    /// Secret with certificate authorities.
    pub(crate) ca_secret: Option<String>,
    /// Of the model's SHA256SUMS.
    pub(crate) manifest_digest: Option<String>,
}

/// The volume of a copied model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Volume {
    Disk { limit: Option<Quantity> },
    Memory { size: Bytes },
    Ephemeral { size: Quantity, class: Option<String> },
}

pub(super) fn source(spec: &AIInferenceSpec) -> Result<Source, Invalid> {
    let source: ModelSource =
        spec.model_source.parse().map_err(|wrong| Invalid(format!("spec.modelSource {wrong}")))?;
    Ok(match source {
        ModelSource::Store { .. } => Source::Copied {
            // As the user wrote it; another spelling of the same location must not restart pods.
            uri: spec.model_source.clone(),
            file: source.gguf_file().filter(|_| spec.engine == Engine::Vllm).map(str::to_owned),
            origin: Origin::Store(store(spec.model_store.as_ref())?),
            volume: volume(spec.model_volume.as_ref())?,
        },
        ModelSource::Hub { hub, id: _, revision: _ } => Source::Copied {
            uri: spec.model_source.clone(),
            file: None,
            origin: Origin::Hub(hub_access(hub, spec)?),
            volume: volume(spec.model_volume.as_ref())?,
        },
        ModelSource::Claim { name, path } => {
            no_manifest(spec, "the files of a claim are not read before the engine reads them")?;
            Source::Claim { claim: name, path: (!path.is_empty()).then_some(path) }
        }
    })
}

fn no_manifest(spec: &AIInferenceSpec, why: &str) -> Result<(), Invalid> {
    if spec.model_store.as_ref().is_some_and(|store| store.manifest_digest.is_some()) {
        return Err(Invalid(format!(
            "spec.modelStore.manifestDigest needs an s3:// source in spec.modelSource: {why}"
        )));
    }
    Ok(())
}

fn hub_access(hub: Hub, spec: &AIInferenceSpec) -> Result<HubAccess, Invalid> {
    no_manifest(spec, "a commit in the source, as owner/name@commit, names the files of a hub")?;
    let store = spec.model_store.clone().unwrap_or_default();
    let loader = spec.model_loader.clone().unwrap_or_default();
    Ok(HubAccess {
        hub,
        endpoint: store.endpoint,
        secret: store.secret_name,
        timeout_seconds: store.timeout_seconds,
        ca_secret: store.ca_secret_name,
        include: loader.include,
        exclude: loader.exclude,
    })
}

fn store(store: Option<&ModelStore>) -> Result<Store, Invalid> {
    let addressing = store.map(|store| store.addressing).unwrap_or_default();
    let endpoint = store.and_then(|store| store.endpoint.clone());
    if let Some(endpoint) = endpoint.as_deref().filter(|endpoint| is_address(endpoint))
        && addressing == Addressing::VirtualHosted
    {
        return Err(Invalid(format!(
            "spec.modelStore.addressing: VirtualHosted needs an endpoint with a host name, and {endpoint} has an \
             address; use Path"
        )));
    }
    Ok(Store {
        endpoint,
        region: store.and_then(|store| store.region.clone()).unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        secret: store.and_then(|store| store.secret_name.clone()),
        timeout_seconds: store.map_or(DEFAULT_STORE_SECONDS, |store| store.timeout_seconds),
        addressing,
        ca_secret: store.and_then(|store| store.ca_secret_name.clone()),
        manifest_digest: store.and_then(|store| store.manifest_digest.clone()),
    })
}

/// Whether the host of a URL is an IP address. The API server accepts no user in it.
fn is_address(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.split_once(':').map_or(authority, |(host, _)| host);
    authority.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

fn volume(volume: Option<&ModelVolume>) -> Result<Volume, Invalid> {
    let Some(ModelVolume { medium, size, storage_class_name }) = volume else {
        return Ok(Volume::Disk { limit: None });
    };
    let bytes = size
        .as_ref()
        .map(|size| {
            Bytes::parse(&size.0).ok_or_else(|| {
                Invalid(format!(
                    "spec.modelVolume.size {:?} is not a quantity of bytes; use for example 50Gi",
                    size.0
                ))
            })
        })
        .transpose()?;
    let required = || Invalid(format!("spec.modelVolume.size is required with medium {medium:?}"));
    match medium {
        Medium::Disk => Ok(Volume::Disk { limit: size.clone() }),
        Medium::Memory => Ok(Volume::Memory { size: bytes.ok_or_else(required)? }),
        Medium::Volume => Ok(Volume::Ephemeral {
            size: size.clone().ok_or_else(required)?,
            class: storage_class_name.clone(),
        }),
    }
}
