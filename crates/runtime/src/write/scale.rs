//! The scale subresource of any kind: reads the number of replicas of an object, and writes it. It decides no number.
//!
//! A write carries the uid and the version of the object that was decided on. A change in between is `Stale`, and the next
//! reconcile decides again.

use k8s_openapi::{
    api::autoscaling::v1::{Scale, ScaleSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Client,
    api::{ApiResource, PostParams},
    core::{GroupVersionKind, Request},
    discovery::pinned_kind,
};

use crate::{
    key::Key,
    write::apply::{About, ApplyError, Stale, is_code, is_conflict, namespace},
};

/// Reads and writes scales in the name of one controller.
#[derive(Clone)]
pub struct Scales {
    client: Client,
    field_manager: &'static str,
}

/// An object as its scale subresource shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaled {
    pub uid: String,
    pub version: String,
    /// Desired replicas.
    pub replicas: i32,
    /// Replicas that exist.
    pub status_replicas: i32,
    /// Label selector of its pods; empty if the kind has none.
    pub selector: String,
}

impl Scales {
    pub fn new(client: Client, field_manager: &'static str) -> Self {
        Self { client, field_manager }
    }

    /// `None`: there is no such object, or its kind has no scale subresource.
    pub async fn read(&self, resource: &ApiResource, key: &Key) -> Result<Option<Scaled>, ApplyError> {
        const STEP: &str = "read the scale of";
        let about = About { kind: OF_ANY_KIND, key };
        let mut request = Request::new(path(resource, key))
            .get_subresource("scale", &key.name)
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        request.extensions_mut().insert("get");
        match self.client.request::<Scale>(request).await {
            Ok(scale) => Ok(Some(scaled(scale))),
            Err(error) if is_code(&error, 404) => Ok(None),
            Err(error) => Err(about.call(STEP, error)),
        }
    }

    /// Sets the replicas of exactly this version of the object.
    pub async fn write(
        &self,
        resource: &ApiResource,
        key: &Key,
        seen: &Scaled,
        replicas: i32,
    ) -> Result<Scaled, ApplyError> {
        const STEP: &str = "write the scale of";
        let about = About { kind: OF_ANY_KIND, key };
        let body = Scale {
            metadata: ObjectMeta {
                name: Some(key.name.to_string()),
                namespace: namespace(key).map(str::to_owned),
                uid: Some(seen.uid.clone()),
                resource_version: Some(seen.version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(ScaleSpec { replicas: Some(replicas) }),
            status: None,
        };
        let body = serde_json::to_vec(&body).map_err(|source| about.render(source))?;
        let params =
            PostParams { field_manager: Some(self.field_manager.to_owned()), ..PostParams::default() };
        let mut request = Request::new(path(resource, key))
            .replace_subresource("scale", &key.name, &params, body)
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        request.extensions_mut().insert("replace_scale");
        match self.client.request::<Scale>(request).await {
            Ok(scale) => Ok(scaled(scale)),
            Err(error) if is_conflict(&error) => Err(about.stale(Stale::Changed)),
            Err(error) if is_code(&error, 404) => Err(about.stale(Stale::Changed)),
            Err(error) => Err(about.call(STEP, error)),
        }
    }

    /// The resource of a kind. `None`: the API server does not serve it.
    pub async fn resource(&self, kind: &GroupVersionKind) -> Result<Option<ApiResource>, kube::Error> {
        match pinned_kind(&self.client, kind).await {
            Ok((resource, _)) => Ok(Some(resource)),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(error) if is_code(&error, 404) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// For metrics, whose labels are closed sets.
const OF_ANY_KIND: &str = "Scale";

fn path(resource: &ApiResource, key: &Key) -> String {
    let ApiResource { group, api_version, plural, .. } = resource;
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("/{root}/{api_version}/namespaces/{}/{plural}", key.namespace)
}

fn scaled(scale: Scale) -> Scaled {
    let Scale { metadata, spec, status } = scale;
    Scaled {
        uid: metadata.uid.unwrap_or_default(),
        version: metadata.resource_version.unwrap_or_default(),
        replicas: spec.and_then(|spec| spec.replicas).unwrap_or_default(),
        status_replicas: status.as_ref().map(|status| status.replicas).unwrap_or_default(),
        selector: status.and_then(|status| status.selector).unwrap_or_default(),
    }
}
