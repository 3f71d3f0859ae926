//! Putting files into a cluster with server-side apply: CRDs, roles, samples. It depends on no kind of this project.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use tokio::time::{sleep, timeout};

use crate::{Error, Result, api_server::watch::wait_until};

/// Owns what is installed, apart from what controllers own.
const FIELD_MANAGER: &str = "ai-controllers-install";
/// An idle API server takes about 0.1 s.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);
const LISTED_RETRY: Duration = Duration::from_millis(100);
/// Where objects go that name no namespace.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Applies every document of a YAML text, one after the other, and returns the objects as the server has them.
/// Objects that name no namespace go into the given one.
pub async fn apply(client: &Client, namespace: &str, yaml: &str) -> Result<Vec<DynamicObject>> {
    apply_objects(client, namespace, parse(yaml)?).await
}

/// Applies objects one after the other.
pub async fn apply_objects(
    client: &Client,
    namespace: &str,
    objects: Vec<DynamicObject>,
) -> Result<Vec<DynamicObject>> {
    let mut kinds = HashMap::new();
    let mut applied = Vec::new();
    for object in objects {
        let gvk = kind_of(&object)?;
        let (resource, scope) = match kinds.get(&gvk) {
            Some(known) => known,
            None => {
                let found = discover(client, &gvk).await?;
                kinds.entry(gvk).or_insert(found)
            }
        };
        applied.push(apply_one(client, resource, scope, namespace, &object).await?);
    }
    Ok(applied)
}

/// Installs every CRD of a folder at once and waits until the API server serves them all.
pub async fn crds(client: &Client, folder: &Path) -> Result<()> {
    let mut definitions = Vec::new();
    for file in yaml_files(folder)? {
        definitions.extend(parse(&read(&file)?)?);
    }
    self::definitions(client, &definitions).await
}

/// Installs CRDs at once and waits until the API server serves them all.
pub async fn definitions(client: &Client, definitions: &[DynamicObject]) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    let installed = definitions.iter().map(|definition| {
        let (api, resource) = (api.clone(), resource.clone());
        async move {
            apply_one(client, &resource, &Scope::Cluster, DEFAULT_NAMESPACE, definition).await?;
            let name = definition.metadata.name.clone().unwrap_or_default();
            let crd =
                wait_until(&api, &name, ESTABLISHED_WITHIN, |crd| crd.is_some_and(is_established)).await?;
            until_listed(client, definition).await?;
            Ok(crd)
        }
    });
    futures::future::try_join_all(installed).await?;
    Ok(())
}

/// Lists of a new kind are refused until the API server's cache of it is filled. That can only be polled.
async fn until_listed(client: &Client, definition: &DynamicObject) -> Result<()> {
    let spec = &definition.data["spec"];
    let text = |pointer: &str| spec.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default();
    let gvk = GroupVersionKind::gvk(text("/group"), text("/versions/0/name"), text("/names/kind"));
    let resource = ApiResource::from_gvk_with_plural(&gvk, text("/names/plural"));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let listed = async {
        loop {
            // With a limit it would be answered by etcd.
            match api.list(&ListParams::default()).await {
                Err(kube::Error::Api(refusal)) if [404, 429].contains(&refusal.code) => {
                    sleep(LISTED_RETRY).await;
                }
                other => break other,
            }
        }
    };
    let listed = timeout(ESTABLISHED_WITHIN, listed).await.map_err(|_| {
        let reason = format!("lists were refused for {} s", ESTABLISHED_WITHIN.as_secs());
        Error::invalid("install", gvk.kind.clone(), reason)
    })?;
    listed.map(drop).map_err(Error::api("list", gvk.kind))
}

/// The YAML files of a folder, in the order of their names.
pub fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The objects of a YAML text; empty documents are skipped.
pub fn parse(yaml: &str) -> Result<Vec<DynamicObject>> {
    let documents: Vec<Option<DynamicObject>> =
        serde_saphyr::from_multiple(yaml).map_err(|error| Error::invalid("read", "a manifest", error))?;
    Ok(documents.into_iter().flatten().collect())
}

pub(crate) fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(Error::io("read", file))
}

async fn discover(client: &Client, gvk: &GroupVersionKind) -> Result<(ApiResource, Scope)> {
    let (resource, capabilities) =
        discovery::pinned_kind(client, gvk).await.map_err(Error::api("find the kind", gvk.kind.clone()))?;
    Ok((resource, capabilities.scope))
}

async fn apply_one(
    client: &Client,
    resource: &ApiResource,
    scope: &Scope,
    namespace: &str,
    object: &DynamicObject,
) -> Result<DynamicObject> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let namespace = object.metadata.namespace.as_deref().unwrap_or(namespace);
    let (api, title): (Api<DynamicObject>, _) = match scope {
        Scope::Cluster => (Api::all_with(client.clone(), resource), format!("{} {name}", resource.kind)),
        Scope::Namespaced => (
            Api::namespaced_with(client.clone(), namespace, resource),
            format!("{} {namespace}/{name}", resource.kind),
        ),
    };
    // These objects have one owner, so changes that were made by hand are overwritten.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(object)).await.map_err(Error::api("apply", title))
}

fn kind_of(object: &DynamicObject) -> Result<GroupVersionKind> {
    let types = object
        .types
        .as_ref()
        .ok_or_else(|| Error::invalid("apply", format!("{:?}", object.metadata.name), "it has no kind"))?;
    GroupVersionKind::try_from(types).map_err(|error| Error::invalid("apply", types.kind.clone(), error))
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}
