//! From a spec to types that cannot be wrong, or to the condition that says what to correct. Pure.

use std::sync::Arc;

use api::{
    aiinference::endpoint::{Autoscaling, CPU, PASSED_THROUGH, Resolved},
    aiinference::source::{Hub, InvalidSource, ModelSource},
    labels,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

use crate::endpoint::Endpoint;

/// A spec whose names are known.
#[derive(Clone, Debug)]
pub(crate) struct ValidEndpoint {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) generation: i64,
    pub(crate) owner: OwnerReference,
    pub(crate) model: ModelSource,
    pub(crate) accelerator: Accelerator,
    pub(crate) replicas: i32,
    pub(crate) autoscaling: Option<ValidAutoscaling>,
}

/// What the pods run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Cpu,
    Gpus { product: Product, count: i32 },
}

/// Which nodes have the accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// As `gpu.productLabel` of an AIInference spells it.
    Labelled(String),
    /// By the extended resource alone, whose device plugin sets no label with the product.
    Resource(&'static str),
}

/// Bounds, and which autoscaler keeps them.
#[derive(Clone, Debug)]
pub(crate) struct ValidAutoscaling {
    pub(crate) spec: Autoscaling,
    pub(crate) scaler: Scaler,
}

/// The kind of an autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaler {
    HorizontalPodAutoscaler,
    AIScaler,
}

/// Where models without a scheme are: a source with a place for their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library(String);

/// Why a spec cannot be used. Each message names the field and the fix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("spec.model: {0}")]
    Model(#[from] InvalidSource),
    #[error(
        "spec.model: {0} names a revision, and the controller's --model-library has none; write the model without it, or \
         with ms:// or hf:// before it"
    )]
    RevisionInLibrary(String),
    #[error(
        "spec.{0} is not known to this release of the endpoint-controller; what runs stays as it is; install the release \
         of the CRDs, or remove the field"
    )]
    OfAnotherRelease(String),
}

/// Fields of a spec that are read here; `PASSED_THROUGH` has the others.
const READ: [&str; 5] = ["model", "replicas", "accelerator", "gpus", "autoscaling"];

/// Where the name of a model stands in a library.
const ID: &str = "{id}";

/// Accelerators without a label of the product.
const RESOURCES: [(&str, &str); 1] = [("ascend910b", "huawei.com/Ascend910")];

impl Library {
    /// With any name in it, it must be a store or a claim.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "write for example s3://models/hub/{id}";
        if text.matches(ID).count() != 1 {
            return Err(format!("{text:?} must have {ID} once, where the name of the model stands; {FORM}"));
        }
        match text.replace(ID, "owner/name").parse::<ModelSource>() {
            Ok(ModelSource::Store { .. } | ModelSource::Claim { .. }) => Ok(Self(text.to_owned())),
            Ok(ModelSource::Hub { .. }) => Err(format!("{text:?} is a hub, and no library; {FORM}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

pub(crate) fn validate(
    endpoint: &Arc<Endpoint>,
    library: Option<&Library>,
) -> Result<ValidEndpoint, Invalid> {
    let (spec, meta) = (&endpoint.spec, &endpoint.metadata);
    // Without it, the AIInference would be another one.
    let is_unknown =
        |field: &&String| !READ.contains(&field.as_str()) && !PASSED_THROUGH.contains(&field.as_str());
    if let Some(field) = endpoint.given.keys().find(is_unknown) {
        return Err(Invalid::OfAnotherRelease(field.clone()));
    }
    let resolved = endpoint.status.as_ref().and_then(|status| status.resolved.as_ref());
    Ok(ValidEndpoint {
        endpoint: Arc::clone(endpoint),
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        // An object from a cache has a name and a uid.
        owner: endpoint.controller_owner_ref(&()).unwrap_or_default(),
        model: match resolved.and_then(|resolved| known(&spec.model, resolved)) {
            Some(known) => known,
            None => model(&spec.model, library)?,
        },
        accelerator: accelerator(&spec.accelerator, spec.gpus),
        replicas: spec.replicas,
        autoscaling: spec.autoscaling.clone().map(|spec| {
            let scaler =
                if spec.metric_type.is_some() { Scaler::AIScaler } else { Scaler::HorizontalPodAutoscaler };
            ValidAutoscaling { spec, scaler }
        }),
    })
}

/// What this model has meant before. Another library moves no model that serves.
fn known(model: &str, resolved: &Resolved) -> Option<ModelSource> {
    if resolved.model != model {
        return None;
    }
    resolved.model_source.parse().ok()
}

fn model(text: &str, library: Option<&Library>) -> Result<ModelSource, Invalid> {
    if text.contains("://") {
        return Ok(text.parse()?);
    }
    // Checked as a model of a hub first, so that a name cannot lead out of the library.
    let of_hub: ModelSource = format!("{}{text}", Hub::ModelScope.scheme()).parse()?;
    let Some(Library(library)) = library else { return Ok(of_hub) };
    match of_hub {
        ModelSource::Hub { revision: Some(_), .. } => Err(Invalid::RevisionInLibrary(text.to_owned())),
        ModelSource::Hub { id, .. } => Ok(library.replace(ID, &id).parse()?),
        source @ (ModelSource::Store { .. } | ModelSource::Claim { .. }) => Ok(source),
    }
}

fn accelerator(name: &str, gpus: Option<i32>) -> Accelerator {
    if name == CPU {
        return Accelerator::Cpu;
    }
    let resource = RESOURCES.iter().find(|(known, _)| *known == name);
    let product = resource
        .map_or_else(|| Product::Labelled(name.to_owned()), |(_, resource)| Product::Resource(resource));
    Accelerator::Gpus { product, count: gpus.unwrap_or(1) }
}

impl ValidAutoscaling {
    /// This number of pods within the bounds.
    pub(crate) fn bounded(&self, replicas: i32) -> i32 {
        // The API server has checked that the minimum is not above the maximum.
        replicas.min(self.spec.max_replicas).max(self.spec.min_replicas)
    }
}

impl ValidEndpoint {
    /// Labels of the children.
    pub(crate) fn labels(&self) -> std::collections::BTreeMap<String, String> {
        [(labels::NAME, KIND), (labels::INSTANCE, self.name.as_str()), (labels::MANAGED_BY, crate::NAME)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }
}

/// Value of the label `app.kubernetes.io/name` of the children.
const KIND: &str = "inferenceendpoint";

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str, library: Option<&str>) -> Result<String, String> {
        let library = library.map(|library| Library::parse(library).unwrap());
        model(text, library.as_ref()).map(|source| source.to_string()).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn a_model_without_a_scheme_is_one_of_modelscope_or_of_the_library() {
        let id = "qwen/Qwen-7B-Chat";
        assert_eq!(source(id, None).as_deref(), Ok("ms://qwen/Qwen-7B-Chat"));
        assert_eq!(source("qwen/Qwen@v1", None).as_deref(), Ok("ms://qwen/Qwen@v1"));
        let library = Some("s3://models/hub/{id}");
        assert_eq!(source(id, library).as_deref(), Ok("s3://models/hub/qwen/Qwen-7B-Chat"));
        assert_eq!(source(id, Some("pvc://all/{id}")).as_deref(), Ok("pvc://all/qwen/Qwen-7B-Chat"));
        for explicit in ["hf://qwen/Qwen", "ms://qwen/Qwen", "s3://b/p", "pvc://c/p"] {
            assert_eq!(source(explicit, library).as_deref(), Ok(explicit));
        }
        let refused = source("qwen/Qwen@v1", library).unwrap_err();
        assert!(refused.starts_with("spec.model: qwen/Qwen@v1 names a revision"), "{refused}");
        for escape in ["../x", "a/..", "a/b/c", "a"] {
            assert!(source(escape, library).is_err(), "{escape}");
        }
    }

    #[test]
    fn a_library_is_a_store_or_a_claim_with_one_place_for_the_name() {
        for wrong in ["s3://models", "s3://{id}/{id}", "hf://{id}", "{id}", "http://host/{id}"] {
            assert!(Library::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_spelling_of_an_accelerator_is_known() {
        let labelled =
            |name: &str, count| Accelerator::Gpus { product: Product::Labelled(name.into()), count };
        assert_eq!(accelerator("cpu", None), Accelerator::Cpu);
        assert_eq!(accelerator("h100", None), labelled("h100", 1));
        assert_eq!(accelerator("NVIDIA-H100-PCIe", Some(2)), labelled("NVIDIA-H100-PCIe", 2));
        assert_eq!(accelerator("gpu.example/type=x", Some(8)), labelled("gpu.example/type=x", 8));
        let ascend = Accelerator::Gpus { product: Product::Resource("huawei.com/Ascend910"), count: 1 };
        assert_eq!(accelerator("ascend910b", None), ascend);
    }
}
